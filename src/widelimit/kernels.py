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
import numpy as np
from jaxtyping import Array, Key

from .coverage import covering, largest_variance, limited, say_error
from .duals import Dual
from .errors import NumericalError, WidelimitError
from .heads import Scheme
from .inputs import Inputs
from .layers.base import Layer, Memo
from .lengths import Group, groups, whole
from .moments import Moments
from .progress import Progress
from .start import Encoding, gap, kernel_dtype, start, start_pair
from .state import Need

# Bytes of kernel values one tile may touch at a time. On a processor κ alone fills the second-level
# cache of a core, and all temporaries stay below the 32 MiB from which on the C library asks the
# system for fresh pages at every call. Accelerators prefer larger tiles.
_TILE_BYTES = {"cpu": 8 * 2**20}
_TILE_BYTES_ACCELERATOR = 256 * 2**20
# Arrays of a pair's size that are alive at once inside a tile: κ, Θ and temporaries of a layer.
_LIVE_ARRAYS = 8
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


# --- one example, one pair -----------------------------------------------------------------------


class Realisation(eqx.Module):
    """A network ready for kernels: deterministic, or with its random scores drawn.

    `anchors` are the encoded landmark inputs from which drawn scores get their features.
    """

    net: Layer
    anchors: Encoding | None = None


def encode_one(
    net: Layer, x: Any, mask: Any, outline: Any, anchors: Encoding | None = None
) -> Memo:
    """All memos of one example."""
    example = start(x, mask, outline, net.encode_need(Need.NONE), anchors)
    return net.encode(example, Need.NONE, None if anchors is None else anchors.memos)[0]


def cross_one(
    net: Layer, one: Encoding, two: Encoding, outline: Any, *, with_ntk: bool
) -> tuple[Array, Array | None, Array]:
    """κ and Θ of one pair at the network's output, and how far apart the inputs are."""
    need, dtype = net.need(Need.FULL), kernel_dtype(one.x)
    pair = start_pair(one, two, outline, need, dtype, with_ntk=with_ntk)
    distance = gap(pair, one, two)
    pair = net.step(pair, one.memos, two.memos, Need.FULL).forced()
    return pair.nngp, pair.ntk, distance


# --- blocks and tiles ---------------------------------------------------------------------------


@eqx.filter_jit
def encode_block(real: Realisation, x: Any, mask: Any, outline: Any) -> Encoding:
    """Encode a block of examples."""
    memos = jax.vmap(lambda a, m: encode_one(real.net, a, m, outline, real.anchors))(x, mask)
    return Encoding(x, mask, memos)


@eqx.filter_jit
def draw_block(
    net: Layer,
    x: Any,
    mask: Any,
    outline: Any,
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
    net: Layer, rows: Encoding, columns: Encoding, outline: Any, *, with_ntk: bool
) -> tuple[Array, Array | None, Array]:
    """All pairs of two blocks."""

    def pair(one: Encoding, two: Encoding):
        return cross_one(net, one, two, outline, with_ntk=with_ntk)

    return jax.vmap(lambda one: jax.vmap(lambda two: pair(one, two))(columns))(rows)


_cross_tile = eqx.filter_jit(cross_tile)


@eqx.filter_jit
def _cross_list(net: Layer, ones: Encoding, twos: Encoding, outline: Any, *, with_ntk: bool):
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
        area, itemsize = max(i.area for i in inputs), np.dtype(dtype).itemsize
        per_pair = area * itemsize * _LIVE_ARRAYS
        if net.need(Need.FULL) is Need.FULL:
            per_pair *= area
        if per_pair > memory:
            raise WidelimitError(
                "The kernels of one pair of examples fit into the memory of the call.",
                got=f"{area} positions, which take {per_pair / 2**20:.0f} MiB a pair, with "
                f"memory={memory / 2**20:.0f} MiB",
                remedy="raise memory=, cut or stride the inputs, or read out with Flatten",
            )
        platform = jax.default_backend()
        budget = min(memory // 4, _TILE_BYTES.get(platform, _TILE_BYTES_ACCELERATOR))
        side = max(1, math.isqrt(max(budget // per_pair, 1)))
        # The inputs of two blocks, and their copies, take their part too.
        per_example = max(i.nbytes // i.size for i in inputs)
        side = max(1, min(side, memory // (16 * per_example)))
        largest = max(i.size for i in inputs)
        return cls(min(side, _power_of_two(largest)))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


class Blocks:
    """The examples of one side, encoded block by block; kept while they fit, made anew if not."""

    def __init__(
        self,
        reals: Sequence[Realisation],
        inputs: Inputs,
        cut: list[Group],
        dtype: Any,
        memory: int,
    ):
        """Blocks of as many examples as their length allows; a quarter of the memory is kept."""
        self.reals, self.inputs, self.room = reals, inputs, memory // 4
        self.kept: dict[tuple[int, int], Encoding] = {}
        self.blocks: list[tuple[Group, np.ndarray, int]] = []
        for group in cut:
            tile = Plan.make(reals[0].net, [group.of(inputs, group.members)], dtype, memory).tile
            for begin in range(0, len(group.members), tile):
                self.blocks.append((group, group.members[begin : begin + tile], tile))

    def __len__(self) -> int:
        return len(self.blocks)

    def members(self, block: int) -> np.ndarray:
        """Which examples a block holds."""
        return self.blocks[block][1]

    def chosen(self, block: int, members: np.ndarray, size: int) -> Inputs:
        """Examples of the batch, cut as this block is and filled up to `size`."""
        return self.blocks[block][0].of(self.inputs, _filled_up(members, size))

    def encoded(self, block: int, which: int) -> Encoding:
        """A block under one realisation of the network."""
        if (block, which) in self.kept:
            return self.kept[block, which]
        inputs = self.chosen(block, self.members(block), self.blocks[block][2])
        encoding = encode_block(self.reals[which], *inputs.on_device(), inputs.outline)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(encoding))
        if size <= self.room:
            self.room -= size
            self.kept[block, which] = encoding
        return encoding


def _filled_up(index: np.ndarray, size: int) -> np.ndarray:
    """Copies of the last example fill a short block: one shape, one compilation."""
    return np.concatenate([index, np.repeat(index[-1:], size - len(index))])


class Tile(NamedTuple):
    """Kernels of the pairs rows × columns, averaged over realisations where there are several.

    Rows and columns are slices, or numbers of examples where these were sorted by length.
    """

    rows: Any
    columns: Any
    kernels: Kernels
    diagonal: bool  # a block with itself: the tile is its own mirror image


def tiles(
    reals: Sequence[Realisation],
    rows: Inputs,
    columns: Inputs | None,
    *,
    dtype: Any,
    with_ntk: bool,
    memory: int,
    progress: Progress | None = None,
    by_length: bool = False,
) -> Iterator[Tile]:
    """Walk the matrix tile by tile; a symmetric one (`columns=None`) on and above its diagonal.

    `by_length` allows tiles of examples that do not follow each other.
    """

    def blocks(reals: Sequence[Realisation]) -> tuple[Blocks, Blocks]:
        sides = [
            Blocks(
                reals,
                inputs,
                groups(reals[0].net, inputs) if by_length else [whole(inputs)],
                dtype,
                memory,
            )
            for inputs in (rows, columns)
            if inputs is not None
        ]
        return sides[0], sides[-1]

    left, right = blocks(reals)
    reals = _covered(reals, (left, right))
    if reals is not left.reals:
        left, right = blocks(reals)
    work = [
        (i, j) for i in range(len(left)) for j in range(i if columns is None else 0, len(right))
    ]

    def finished(i: int, j: int, results: list[Any]) -> Tile:
        members = left.members(i), right.members(j)
        one, two, diagonal = *map(_contiguous, members), left is right and i == j
        several = Moments()
        for which, (real, result) in enumerate(zip(reals, results, strict=True)):
            values: list[Any] = [
                None if r is None else np.array(r[: len(members[0]), : len(members[1])])
                for r in result
            ]
            nngp, theta, gap = values
            if nngp.dtype == np.float32 and _is_kinked(real.net):
                _redo_close(which, left, right, (i, j), gap, nngp, theta)
            _require_finite(nngp, theta, members)
            if len(reals) == 1:
                return Tile(one, two, Kernels(nngp, theta), diagonal)
            several.add(nngp[None], None if theta is None else theta[None])
        parts = (*several.means(), *several.errors())
        kernels = Kernels(*(p if p is None else p.astype(dtype) for p in parts))
        return Tile(one, two, kernels, diagonal)

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


def _covered(reals: Sequence[Realisation], sides: tuple[Blocks, ...]) -> Sequence[Realisation]:
    """Realisations whose duals hold for the variances that these examples reach."""
    duals = limited(reals[0].net)
    if not duals:
        return reals
    variance = largest_variance(side.encoded(b, 0) for side in sides for b in range(len(side)))
    if variance <= min(dual.max_variance for dual in duals):
        return reals
    if reals[0].anchors is not None:  # landmarks are encoded with the duals as they are
        for dual in duals:
            say_error(dual, variance)
        return reals
    return [Realisation(covering(real.net, variance)) for real in reals]


def _contiguous(members: np.ndarray) -> slice | np.ndarray:
    """A slice where examples follow each other."""
    follow = members[-1] - members[0] == len(members) - 1 and (np.diff(members) == 1).all()
    return slice(int(members[0]), int(members[-1]) + 1) if follow else members


def _redo_close(
    which: int,
    left: Blocks,
    right: Blocks,
    place: tuple[int, int],
    gap: np.ndarray,
    nngp: np.ndarray,
    theta: np.ndarray | None,
) -> None:
    """Replace the nearly identical pairs of a tile by double-precision values."""
    real, close = left.reals[which], np.argwhere(gap < _CLOSE)
    size = left.blocks[place[0]][2]
    for begin in range(0, len(close), size):
        chosen = close[begin : begin + size]
        ones, twos = (
            side.chosen(block, side.members(block)[chosen[:, axis]], size)
            for axis, (side, block) in enumerate(zip((left, right), place, strict=True))
        )
        same = left is right and place[0] == place[1] and (chosen[:, 0] == chosen[:, 1]).all()
        with jax.enable_x64(True):
            one = _encoded_exactly(real, ones)
            two = one if same else _encoded_exactly(real, twos)
            with_ntk = theta is not None
            exact = _cross_list(real.net, one, two, ones.outline, with_ntk=with_ntk)
        for target, value in zip((nngp, theta), exact, strict=False):
            if target is not None:
                target[tuple(chosen.T)] = np.asarray(value)[: len(chosen)]


def _require_finite(
    nngp: np.ndarray, theta: np.ndarray | None, members: tuple[np.ndarray, np.ndarray]
) -> None:
    """Never a silent NaN."""
    for name, kernel in (("NNGP", nngp), ("tangent", theta)):
        if kernel is None or np.isfinite(kernel).all():
            continue
        row, column = np.argwhere(~np.isfinite(kernel))[0][:2]
        raise NumericalError(
            "Kernels are finite numbers.",
            got=f"a {name} kernel of {kernel[~np.isfinite(kernel)].flat[0]} between examples "
            f"{members[0][row]} and {members[1][column]} in {kernel.dtype}",
            remedy="scale the inputs or w_std down, normalise (LayerNorm), or pass dtype=float64",
        )


def _encoded_exactly(real: Realisation, inputs: Inputs) -> Encoding:
    x, mask = inputs.astype(np.float64).on_device()
    return encode_block(real, x, mask, inputs.outline)
