"""The engine: encode every example once, cross pairs tile by tile, in bounded memory.

A kernel call has two phases. *Encode* runs once per example, `O(N)`: it walks the network with the
example's own covariance and keeps what pairs will need (variances, attention weights). *Cross* runs
per pair, `O(N²)`: it walks the network again with κ(x, x') and Θ(x, x') of a tile of pairs. Every
layer is written for one example or one pair; vectorisation, tiling and streaming happen here.
"""

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from .duals import Dual
from .heads import Scheme
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


class Realisation(eqx.Module):
    """A network ready for kernels: deterministic, or with its random scores drawn.

    `anchors` are the encoded landmark inputs from which drawn scores get their features.
    """

    net: Layer
    anchors: Encoding | None = None


def start(
    x: Array, mask: Array | None, outline: Outline, need: Need, anchors: Encoding | None = None
) -> Example:
    """An example before the first layer."""
    tokens = outline.channels == 0
    dtype = jnp.result_type(float) if tokens else x.dtype
    pair = start_pair(x, mask, x, mask, outline, need, dtype, with_ntk=False)
    mean = None if tokens else jnp.mean(x, axis=-1)
    features = None if tokens else x / jnp.sqrt(jnp.asarray(x.shape[-1], dtype))
    nngp = None if need is Need.NONE else pair.nngp
    landmarks = None
    if anchors is not None:
        landmarks = jax.vmap(
            lambda z, zm: start_pair(x, mask, z, zm, outline, Need.FULL, dtype, with_ntk=False)
        )(anchors.x, anchors.mask)
    return Example(nngp, mean, mask, features, landmarks, pair.full, outline)


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


def encode_one(
    net: Layer, x: Array, mask: Array | None, outline: Outline, anchors: Encoding | None = None
) -> Memo:
    """All memos of one example."""
    example = start(x, mask, outline, net.encode_need(Need.NONE), anchors)
    return net.encode(example, Need.NONE, None if anchors is None else anchors.memos)[0]


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
def encode_block(real: Realisation, x: Array, mask: Array | None, outline: Outline) -> Encoding:
    """Encode a block of examples."""
    memos = jax.vmap(lambda a, m: encode_one(real.net, a, m, outline, real.anchors))(x, mask)
    return Encoding(x, mask, memos)


@eqx.filter_jit
def draw_block(
    net: Layer,
    x: Array,
    mask: Array | None,
    outline: Outline,
    key: Key[Array, ""],
    scheme: Scheme,
    *,
    with_landmarks: bool,
) -> Realisation:
    """Draw random scores; with landmarks, `x` are the landmark inputs."""
    anchors = Encoding(x, mask, None) if with_landmarks else None
    # Variances are followed to the end: a crowd is stacked, so it holds some array everywhere.
    need = net.encode_need(Need.DIAGONAL)
    crowd = jax.vmap(lambda a, m: start(a, m, outline, need, anchors))(x, mask)
    drawn, memos, _ = net.draw(crowd, Need.DIAGONAL, key, scheme)
    return Realisation(drawn, Encoding(x, mask, memos) if with_landmarks else None)


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
    """The examples of one side, encoded block by block; kept while they fit, made anew if not."""

    def __init__(self, reals: Sequence[Realisation], inputs: Inputs, plan: Plan, room: int):
        """Blocks of `plan.tile` examples; `room` bytes may be kept."""
        self.reals, self.inputs, self.plan, self.room = reals, inputs, plan, room
        self.kept: dict[tuple[int, int], Encoding] = {}

    def __len__(self) -> int:
        return -(-self.inputs.size // self.plan.tile)

    def span(self, block: int) -> slice:
        """Which examples a block holds."""
        begin = block * self.plan.tile
        return slice(begin, min(begin + self.plan.tile, self.inputs.size))

    def encoded(self, block: int, which: int) -> Encoding:
        """A block under one realisation of the network."""
        if (block, which) in self.kept:
            return self.kept[block, which]
        span = self.span(block)
        index = _filled_up(np.arange(span.start, span.stop), self.plan.tile)
        part = self.inputs[index]
        x = jnp.asarray(part.x)
        encoding = encode_block(self.reals[which], x, part.mask, self.inputs.outline)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(encoding))
        if size <= self.room:
            self.room -= size
            self.kept[block, which] = encoding
        return encoding


def _filled_up(index: np.ndarray, size: int) -> np.ndarray:
    """Copies of the last example fill a short block: one shape, one compilation."""
    return np.concatenate([index, np.repeat(index[-1:], size - len(index))])


class Tile(NamedTuple):
    """Kernels of the pairs rows × columns, averaged over realisations where there are several."""

    rows: slice
    columns: slice
    kernels: Kernels


def tiles(
    reals: Sequence[Realisation],
    rows: Inputs,
    columns: Inputs | None,
    *,
    dtype: Any,
    with_ntk: bool,
    memory: int,
    progress: Progress | None = None,
) -> Iterator[Tile]:
    """Walk the matrix tile by tile; a symmetric one (`columns=None`) on and above its diagonal."""
    plan = Plan.make(reals[0].net, [rows] if columns is None else [rows, columns], dtype, memory)
    room = memory // 2 if columns is None else memory // 4
    left = Blocks(reals, rows, plan, room)
    right = left if columns is None else Blocks(reals, columns, plan, room)
    other = rows if columns is None else columns
    work = [
        (i, j) for i in range(len(left)) for j in range(i if columns is None else 0, len(right))
    ]

    def finished(i: int, j: int, results: list[Any]) -> Tile:
        span1, span2 = left.span(i), right.span(j)
        counts = (span1.stop - span1.start, span2.stop - span2.start)
        moments = Moments()
        for real, result in zip(reals, results, strict=True):
            nngp, theta, gap = (
                None if r is None else np.array(r[: counts[0], : counts[1]]) for r in result
            )
            if theta is not None and theta.dtype == np.float32 and _is_kinked(real.net):
                _redo_close(real, rows, other, (span1, span2), gap, nngp, theta, plan.tile)
            moments.add(nngp, theta)
        return Tile(span1, span2, moments.kernels())

    waiting: deque[tuple[int, int, list[Any]]] = deque()
    for i, j in progress.track(work) if progress else work:
        results = [
            _cross_tile(
                real.net,
                left.encoded(i, which),
                right.encoded(j, which),
                rows.outline,
                with_ntk=with_ntk,
            )
            for which, real in enumerate(reals)
        ]
        waiting.append((i, j, results))
        # The device works on the next tile while this one is handed over.
        if len(waiting) > 1:
            yield finished(*waiting.popleft())
    while waiting:
        yield finished(*waiting.popleft())


class Moments:
    """Running mean and standard error over realisations (Welford's update)."""

    def __init__(self):
        """Nothing seen yet."""
        self.count, self.means, self.squares = 0, [], []

    def add(self, *values: np.ndarray | None) -> None:
        """One more realisation."""
        self.count += 1
        if self.count == 1:
            self.means = list(values)
            self.squares = [None if v is None else np.zeros_like(v) for v in values]
            return
        for i, value in enumerate(values):
            if value is not None:
                gap = value - self.means[i]
                self.means[i] = self.means[i] + gap / self.count
                self.squares[i] = self.squares[i] + gap * (value - self.means[i])

    def kernels(self) -> Kernels:
        """Means, and standard errors if there are at least two realisations."""
        if self.count < 2:
            return Kernels(*self.means)
        spread = self.count * (self.count - 1)
        errors = [None if s is None else np.sqrt(s / spread) for s in self.squares]
        return Kernels(*self.means, *errors)


def _redo_close(
    real: Realisation,
    rows: Inputs,
    columns: Inputs,
    spans: tuple[slice, slice],
    gap: np.ndarray,
    nngp: np.ndarray,
    theta: np.ndarray,
    size: int,
) -> None:
    """Replace the nearly identical pairs of a tile by double-precision values."""
    close = np.argwhere(gap < _CLOSE)
    for begin in range(0, len(close), size):
        chosen = close[begin : begin + size]
        ones = rows[_filled_up(chosen[:, 0] + spans[0].start, size)]
        twos = columns[_filled_up(chosen[:, 1] + spans[1].start, size)]
        with jax.enable_x64(True):
            encoded = []
            for part in (ones, twos):
                x = jnp.asarray(part.x if part.tokens else part.x.astype(np.float64))
                encoded.append(encode_block(real, x, part.mask, part.outline))
            exact = _cross_list(real.net, *encoded, ones.outline, with_ntk=True)
        for target, value in zip((nngp, theta), exact, strict=False):
            target[tuple(chosen.T)] = np.asarray(value)[: len(chosen)]
