"""The engine: encode every example once, cross pairs tile by tile, in bounded memory.

A kernel call has two phases. *Encode* runs once per example, `O(N)`: it walks the network with the
example's own covariance and keeps what pairs will need (variances, attention weights). *Cross* runs
per pair, `O(N²)`: it walks the network again with κ(x, x') and Θ(x, x') of a tile of pairs. Every
layer is written for one example or one pair; vectorisation, tiling and streaming happen here.
"""

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .duals import Dual
from .inputs import Inputs
from .layers.base import Layer, Memo
from .progress import Progress
from .state import Example, Need, Outline, Pair

# Bytes of kernel values one tile may touch at a time: large enough to keep every core busy, small
# enough to stay near the processor's cache. Accelerators prefer larger tiles.
_TILE_BYTES = {"cpu": 8 * 2**20}
_TILE_BYTES_ACCELERATOR = 256 * 2**20
# Arrays of a pair's size that are alive at once inside a tile: κ, Θ and temporaries of a layer.
_LIVE_ARRAYS = 6
# float32 resolves angles down to about 3e-4: closer pairs than this (1 − cosine) are redone.
_CLOSE = 1e-5


class Kernels(eqx.Module):
    """NNGP covariance and tangent kernel; standard errors where they were sampled."""

    nngp: Any
    ntk: Any
    nngp_error: Any = None
    ntk_error: Any = None

    def __iter__(self) -> Iterator[Any]:
        """`nngp, ntk = net.kernel(x)`."""
        return iter((self.nngp, self.ntk))


class Encoding(eqx.Module):
    """What pairs need from a block of examples: the inputs themselves, then every layer's memo."""

    x: Array
    mask: Array | None
    memos: Memo


# --- one example, one pair -----------------------------------------------------------------------


def start(x: Array, mask: Array | None, outline: Outline, need: Need) -> Example:
    """An example before the first layer."""
    tokens = outline.channels == 0
    dtype = jnp.result_type(float) if tokens else x.dtype
    pair = start_pair(x, mask, x, mask, outline, need, dtype, with_ntk=False)
    mean = None if tokens else jnp.mean(x, axis=-1)
    features = None if tokens else x / jnp.sqrt(jnp.asarray(x.shape[-1], dtype))
    nngp = None if need is Need.NONE else pair.nngp
    return Example(nngp, mean, mask, features, None, pair.full, outline)


def start_pair(
    x1: Array,
    mask1: Array | None,
    x2: Array,
    mask2: Array | None,
    outline: Outline,
    need: Need,
    dtype: Any,
    *,
    with_ntk: bool,
) -> Pair:
    """κ_ab = x_a·x'_b / channels (one-hot tokens: 1 where they agree), Θ = 0."""
    rank, full = len(outline.positions), need is not Need.DIAGONAL
    if outline.channels == 0:
        a = x1.reshape(*x1.shape, *(1,) * rank) if full else x1
        b = x2.reshape(*(1,) * rank, *x2.shape) if full else x2
        nngp = (a == b).astype(dtype)
    elif full:
        flat1, flat2 = x1.reshape(-1, x1.shape[-1]), x2.reshape(-1, x2.shape[-1])
        nngp = (flat1 @ flat2.T).reshape(*x1.shape[:-1], *x2.shape[:-1]) / outline.channels
    else:
        nngp = jnp.sum(x1 * x2, axis=-1) / outline.channels
    pair = Pair(nngp, None, rank, full)
    if outline.channels == 0:
        pair = pair.masked(mask1, mask2)  # padding holds token 0, which is a real token too
    return Pair(pair.nngp, jnp.zeros_like(nngp) if with_ntk else None, rank, full)


def encode_one(net: Layer, x: Array, mask: Array | None, outline: Outline) -> Memo:
    """All memos of one example."""
    example = start(x, mask, outline, net.encode_need(Need.NONE))
    return net.encode(example, Need.NONE, None)[0]


def cross_one(
    net: Layer, one: Encoding, two: Encoding, outline: Outline, *, with_ntk: bool
) -> tuple[Array, Array | None, Array]:
    """κ and Θ of one pair at the network's output, and how far apart the inputs are."""
    need, dtype = net.need(Need.FULL), _kernel_dtype(one)
    pair = start_pair(one.x, one.mask, two.x, two.mask, outline, need, dtype, with_ntk=with_ntk)
    gap = _gap(pair, one, two)
    pair = net.step(pair, one.memos, two.memos, Need.FULL).forced()
    return pair.nngp, pair.ntk, gap


def _gap(pair: Pair, one: Encoding, two: Encoding) -> Array:
    """1 − cosine of the two inputs (tokens: the fraction of positions that differ)."""
    if one.x.shape != two.x.shape:
        return jnp.ones((), pair.nngp.dtype)
    shared = jnp.sum(pair.diagonal().nngp)
    if jnp.issubdtype(one.x.dtype, jnp.integer):
        sizes = [jnp.sum(jnp.ones(e.x.shape) if e.mask is None else e.mask) for e in (one, two)]
        return 1 - shared / jnp.maximum(*sizes)
    norms = [jnp.sum(e.x * e.x) / e.x.shape[-1] for e in (one, two)]
    return 1 - shared / jnp.maximum(jnp.sqrt(norms[0] * norms[1]), jnp.finfo(shared.dtype).tiny)


def _kernel_dtype(one: Encoding) -> Any:
    return one.x.dtype if jnp.issubdtype(one.x.dtype, jnp.floating) else jnp.result_type(float)


# --- blocks and tiles ------------------------------------------------------------------------------


@eqx.filter_jit
def encode_block(net: Layer, x: Array, mask: Array | None, outline: Outline) -> Encoding:
    """Encode a block of examples."""
    memos = jax.vmap(lambda a, m: encode_one(net, a, m, outline))(x, mask)
    return Encoding(x, mask, memos)


def cross_tile(
    net: Layer, rows: Encoding, columns: Encoding, outline: Outline, *, with_ntk: bool
) -> tuple[Array, Array | None]:
    """All pairs of two blocks."""

    def pair(one: Encoding, two: Encoding):
        return cross_one(net, one, two, outline, with_ntk=with_ntk)

    return jax.vmap(lambda one: jax.vmap(lambda two: pair(one, two))(columns))(rows)


_cross_tile = eqx.filter_jit(cross_tile)


@eqx.filter_jit
def _cross_list(net: Layer, ones: Encoding, twos: Encoding, outline: Outline, *, with_ntk: bool):
    """Pairs given one by one."""
    return jax.vmap(lambda a, b: cross_one(net, a, b, outline, with_ntk=with_ntk))(ones, twos)


def precision(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope in which arrays of this dtype keep it."""
    wide = np.dtype(dtype) == np.float64
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def _is_kinked(net: Layer) -> bool:
    """Whether Θ has square-root singularities at identical inputs."""
    found = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Dual))
    return any(isinstance(node, Dual) and node.kinked for node in found)


class Plan(eqx.Module):
    """How a kernel call is cut: everything that follows from shapes and the memory budget."""

    tile: int = eqx.field(static=True)  # examples per side of a tile

    @classmethod
    def make(cls, net: Layer, inputs: list[Inputs], dtype: Any, memory: int) -> "Plan":
        """Tiles whose kernel values fit the budget; one size for both sides."""
        area = max(math.prod(i.outline.positions) for i in inputs)
        per_pair = area * np.dtype(dtype).itemsize * _LIVE_ARRAYS
        if net.need(Need.FULL) is Need.FULL:
            per_pair *= area
        platform = jax.default_backend()
        budget = min(memory // 4, _TILE_BYTES.get(platform, _TILE_BYTES_ACCELERATOR))
        side = max(1, math.isqrt(max(budget // per_pair, 1)))
        largest = max(i.size for i in inputs)
        return cls(min(side, _power_of_two(largest)))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


class Blocks:
    """The examples of one side, encoded block by block; kept while they fit, made anew otherwise."""

    def __init__(self, net: Layer, inputs: Inputs, plan: Plan, room: int):
        self.net, self.inputs, self.plan, self.room = net, inputs, plan, room
        self.kept: dict[int, Encoding] = {}

    def __len__(self) -> int:
        return -(-self.inputs.size // self.plan.tile)

    def span(self, block: int) -> slice:
        """Which examples a block holds."""
        begin = block * self.plan.tile
        return slice(begin, min(begin + self.plan.tile, self.inputs.size))

    def __getitem__(self, block: int) -> Encoding:
        if block in self.kept:
            return self.kept[block]
        span = self.span(block)
        # The last block is filled up with copies of its last example: one shape, one compilation.
        index = np.minimum(np.arange(span.start, span.start + self.plan.tile), span.stop - 1)
        part = self.inputs[index]
        encoding = encode_block(self.net, jnp.asarray(part.x), part.mask, self.inputs.outline)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(encoding))
        if size <= self.room:
            self.room -= size
            self.kept[block] = encoding
        return encoding


Tile = tuple[slice, slice, np.ndarray, np.ndarray | None]


def tiles(
    net: Layer,
    rows: Inputs,
    columns: Inputs | None,
    *,
    dtype: Any,
    with_ntk: bool,
    memory: int,
    progress: Progress | None = None,
) -> Iterator[Tile]:
    """Walk the matrix tile by tile; a symmetric one (`columns=None`) only on and above its diagonal."""
    plan = Plan.make(net, [rows] if columns is None else [rows, columns], dtype, memory)
    room = memory // 2 if columns is None else memory // 4
    left = Blocks(net, rows, plan, room)
    right = left if columns is None else Blocks(net, columns, plan, room)
    work = [
        (i, j) for i in range(len(left)) for j in range(i if columns is None else 0, len(right))
    ]
    waiting: deque[tuple[slice, slice, Any]] = deque()
    for i, j in progress.track(work) if progress else work:
        one = left[i]
        result = _cross_tile(net, one, right[j], rows.outline, with_ntk=with_ntk)
        waiting.append((left.span(i), right.span(j), result))
        # The device works on the next tile while this one is handed over.
        if len(waiting) > 1:
            yield _finished(net, rows, columns, waiting.popleft(), plan, with_ntk)
    while waiting:
        yield _finished(net, rows, columns, waiting.popleft(), plan, with_ntk)


def _finished(net: Layer, rows: Inputs, columns: Inputs | None, done: Any, plan: Plan, ntk: bool):
    """A tile as numpy arrays, its nearly identical pairs redone in double precision."""
    span1, span2, result = done
    counts = (span1.stop - span1.start, span2.stop - span2.start)
    nngp, theta, gap = (
        None if r is None else np.array(r[: counts[0], : counts[1]]) for r in result
    )
    if theta is not None and theta.dtype == np.float32 and _is_kinked(net):
        other = rows if columns is None else columns
        close = np.argwhere(gap < _CLOSE)
        for begin in range(0, len(close), plan.tile):
            chosen = close[begin : begin + plan.tile]
            part1, part2 = rows[chosen[:, 0] + span1.start], other[chosen[:, 1] + span2.start]
            exact = _cross_listed(net, part1, part2)
            nngp[tuple(chosen.T)], theta[tuple(chosen.T)] = exact
    return span1, span2, nngp, theta


def _cross_listed(net: Layer, ones: Inputs, twos: Inputs):
    """Kernels of listed pairs in double precision."""
    with jax.enable_x64(True):
        encoded = []
        for part in (ones, twos):
            x = part.x if part.tokens else part.x.astype(np.float64)
            encoded.append(encode_block(net, jnp.asarray(x), part.mask, part.outline))
        nngp, theta, _ = _cross_list(net, *encoded, ones.outline, with_ntk=True)
        return np.asarray(nngp), np.asarray(theta)
