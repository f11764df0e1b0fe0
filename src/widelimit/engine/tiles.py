"""The engine: encode every example once, cross pairs tile by tile, in bounded memory."""

import contextlib
import functools
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import NumericalError, WidelimitError
from ..layers.base import Layer
from ..layers.compose import is_sampled, layers_of
from ..progress import Progress
from ..state import Kernels, Need
from .inputs import Inputs
from .phases import EncodedBlock, Realisation, compiled_cross_tile, encode_block
from .precision import (
    close_pairs,
    fit_duals,
    is_kinked,
    redo_close,
    sketch_inputs,
    with_leaves,
)
from .threads import devices, in_threads, most_at_once
from .walk import need_before

# --- running means and standard errors over independent draws, in memory of one draw --------------


class Moments:
    """Means and standard errors of both kernels, from batches of draws (Welford's update).

    Two sets of draws with counts n, m, means a, b and sums of squares A, B have together

        mean = a + (b − a) m/(n+m),  squares = A + B + (b − a)² nm/(n+m);

    the standard error of the mean of n draws is √(squares / (n(n−1))).
    """

    def __init__(self):
        """Nothing seen yet."""
        self.count = 0
        self._means: list[np.ndarray | None] = []
        self._squares: list[np.ndarray | None] = []

    def add(self, *batches: np.ndarray | None) -> None:
        """More draws: their axis comes first. A kernel that is None stays None."""
        draws = next(len(batch) for batch in batches if batch is not None)
        if self.count == 0:
            self._means = [None if b is None else np.zeros(b.shape[1:]) for b in batches]
            self._squares = [None if m is None else np.zeros_like(m) for m in self._means]
        total = self.count + draws
        for batch, mean, squares in zip(batches, self._means, self._squares, strict=True):
            if batch is None or mean is None or squares is None:
                continue
            batch = np.asarray(batch, np.float64)
            centre = batch.mean(axis=0)
            gap = centre - mean
            squares += ((batch - centre) ** 2).sum(axis=0) + gap**2 * (self.count * draws / total)
            mean += gap * (draws / total)
        self.count = total

    def kernels(self) -> Kernels:
        """Means, and their standard errors, which fewer than two draws do not have."""
        if self.count < 2:
            return Kernels(*self._means)
        spread = self.count * (self.count - 1)
        errors = (None if s is None else np.sqrt(s / spread) for s in self._squares)
        return Kernels(*self._means, *errors)


# --- sequences of different lengths: short ones do not pay for the padding of long ones -----------
#
# Examples are sorted into a few groups by length, each cut to its longest member. Every pair of
# groups is compiled once, so there are as many groups as the work saved is worth.

# Group lengths are about sixteenths of the longest, so that many batches share them, and multiples
# of 8: whole vector registers nearly halve the time on a processor (72 positions against 69).
_PARTS, _VECTOR = 16, 8
_MOST_GROUPS = 6
# Seconds, by orders of magnitude: one pair of positions through a network, and one compilation.
_POSITION_PAIR, _COMPILATION = 1e-8, 0.3
# A compilation serves several calls: training data, test data, other hyperparameters.
_CALLS = 3
# Arrays with fewer positions are not worth cutting.
_SHORTEST = 16


class LengthGroup(NamedTuple):
    """Some examples of a batch, and the length they are cut to (None: as they are)."""

    members: np.ndarray
    length: int | None

    def of(self, inputs: Inputs, members: np.ndarray) -> Inputs:
        """Members of the group, by their number in the batch."""
        chosen = inputs[members]
        if self.length is None:
            return chosen
        x, mask = chosen.x[:, : self.length], chosen.mask[:, : self.length]
        return Inputs(x, mask, inputs.tokens)


def one_group(inputs: Inputs) -> LengthGroup:
    """All examples, at full length."""
    return LengthGroup(np.arange(inputs.size), None)


def groups(net: Layer, inputs: Inputs) -> list[LengthGroup]:
    """How a batch is cut; one group where no padding can be left out."""
    if not _may_be_cut(net, inputs):
        return [one_group(inputs)]
    longest = inputs.mask.shape[1]
    lengths = longest - np.argmax(inputs.mask[:, ::-1], axis=1)
    ends = _ends(lengths, longest)
    order = np.argsort(lengths, kind="stable")
    bounds = np.searchsorted(lengths[order], ends, side="right")
    parts = np.split(order, bounds[:-1])
    return [LengthGroup(part, end) for part, end in zip(parts, ends, strict=True) if len(part)]


def _ends(lengths: np.ndarray, longest: int) -> tuple[int, ...]:
    """The group lengths that cost least in all; the last is the longest example's."""
    step = _VECTOR * -(-longest // (_PARTS * _VECTOR))
    marks = [*range(step, longest, step), longest]
    below = np.searchsorted(np.sort(lengths), marks, side="right")  # examples up to each mark

    @functools.cache
    def fewest(last: int, count: int) -> tuple[int, tuple[int, ...]]:
        """Padded positions of all examples up to a mark in so many groups, and the groups' ends."""
        mark = marks[last]
        if count == 1 or last == 0:
            return int(below[last]) * mark, (mark,)
        before = [(fewest(j, count - 1), int(below[last] - below[j])) for j in range(last)]
        return min((padded + more * mark, (*ends, mark)) for (padded, ends), more in before)

    choices = [fewest(len(marks) - 1, count) for count in range(1, _MOST_GROUPS + 1)]
    return min(choices, key=lambda choice: _seconds(choice[0], len(choice[1])))[1]


def _seconds(positions: int, count: int) -> float:
    """Time for a matrix with this many padded positions and groups, over several calls."""
    compilations = count * (count + 1) // 2
    return _CALLS * _POSITION_PAIR * positions**2 / 2 + _COMPILATION * compilations


def _may_be_cut(net: Layer, inputs: Inputs) -> bool:
    """Whether positions at the right end that are padding can be left out."""
    mask = inputs.mask
    if mask is None or isinstance(mask, tuple) or mask.ndim != 2 or mask.shape[1] < _SHORTEST:
        return False
    if is_sampled(net) or not all(layer.facts.cuttable for _, layer in layers_of(net)):
        return False
    shorter = inputs.outline.to(positions=(1,))
    return net.outline(inputs.outline).positions == net.outline(shorter).positions


# --- the plan of a call ---------------------------------------------------------------------------

# Bytes of kernel values a tile may touch. On a processor a tile is computed in cells: κ of a cell
# fills half of a second-level cache, and tiles are larger so that calls are few. Accelerators take
# large tiles whole.
_TILE_BYTES, _CELL_BYTES = {"cpu": 32 * 2**20}, {"cpu": 2**19}
_TILE_BYTES_ACCELERATOR = 256 * 2**20
# Networks without positions have small pairs; larger tiles than this gain nothing.
_LONGEST_SIDE = 512
# Copies may fill up blocks by this factor; then blocks are made smaller, unless κ of a tile is so
# small that calls cost more than copies.
_MOST_FILLING, _SMALL_TILE = 1.25, 2**18
# Arrays of a pair's size that are alive at once inside a tile: κ, Θ and temporaries of a layer.
_LIVE_ARRAYS = 8


class TilePlan(NamedTuple):
    """How a kernel call is cut: everything that follows from shapes and the memory budget."""

    tile: int  # examples per side of a tile, a power of two
    cell: int | None  # pairs that are computed at once; None is all of the tile
    nbytes: int  # what a tile takes while it is computed

    @classmethod
    def make(cls, net: Layer, inputs: Sequence[Inputs], dtype: Any, memory: int) -> "TilePlan":
        """Tiles whose kernel values fit the budget; one size for both sides."""
        area, itemsize = max(i.area(net) for i in inputs), np.dtype(dtype).itemsize
        array = area * itemsize * (area if need_before(net, Need.FULL) is Need.FULL else 1)
        per_pair = array * _LIVE_ARRAYS
        if per_pair > memory:
            raise WidelimitError(
                "The kernels of one pair of examples do not fit into the memory of the call.",
                got=f"{area} positions, which take {per_pair / 2**20:.0f} MiB a pair, with "
                f"memory={memory / 2**20:.0f} MiB",
                remedy="raise memory=, cut or stride the inputs, or read out with Flatten",
            )
        platform = jax.default_backend()
        budget = min(memory // 4, _TILE_BYTES.get(platform, _TILE_BYTES_ACCELERATOR))
        side = min(math.sqrt(budget / per_pair), _LONGEST_SIDE)
        # The inputs of two blocks, and their copies, take their part too.
        per_example = max(i.nbytes // i.size for i in inputs)
        side = _power_of_two(min(side, memory / (16 * per_example)))
        side = _well_filled(side, max(i.size for i in inputs), array)
        cell = None
        if platform in _CELL_BYTES and area > 1:  # without positions, one large product is best
            cell = _power_of_two(min(_CELL_BYTES[platform] / array, side**2))
        return cls(side, cell, (side**2 if cell is None else max(cell, side)) * per_pair)

    def cell_with(self, other: "TilePlan") -> int | None:
        """Pairs at once where two lengths meet: a pair takes the product of its lengths."""
        if self.cell is None or other.cell is None:
            return None
        return _power_of_two(math.sqrt(self.cell * other.cell))


def _power_of_two(n: float) -> int:
    """The largest that is not larger, at least 1: parts of blocks divide them."""
    return 1 << max(0, math.floor(math.log2(max(n, 1))))


def _well_filled(side: int, size: int, array: int) -> int:
    """At most this side, such that blocks of `size` examples hold few copies."""
    side = min(side, 1 << (size - 1).bit_length())
    while side**2 * array > _SMALL_TILE and -(-size // side) * side > _MOST_FILLING * size:
        side //= 2
    return side


class Block(NamedTuple):
    """Some examples of one length, in an array of a tile's side."""

    group: LengthGroup
    members: np.ndarray
    plan: TilePlan

    @property
    def kind(self) -> tuple[int | None, int]:
        """Blocks of one kind have arrays of one shape."""
        return self.group.length, self.plan.tile


class Blocks:
    """The examples of one side, encoded block by block; kept while they fit, made anew if not."""

    def __init__(
        self,
        reals: Sequence[Realisation],
        inputs: Inputs,
        cut: list[LengthGroup],
        dtype: Any,
        memory: int,
    ):
        """Blocks of as many examples as their length allows; a quarter of the memory is kept."""
        self.reals, self.inputs, self.room = reals, inputs, memory // 4
        self.kept: dict[tuple[int, int, Any], EncodedBlock] = {}
        # Threads wait for each other where they would encode, or compile, the same.
        self.encoding = defaultdict(threading.Lock)
        self.counting, self.exactly = threading.Lock(), threading.Lock()
        self.blocks: list[Block] = []
        # One plan for all groups of a length: blocks of one kind share a compilation.
        largest: dict[int | None, LengthGroup] = {}
        for group in sorted(cut, key=lambda group: len(group.members)):
            largest[group.length] = group
        plans = {
            length: TilePlan.make(reals[0].net, [group.of(inputs, group.members)], dtype, memory)
            for length, group in largest.items()
        }
        for group in cut:
            plan = plans[group.length]
            for begin in range(0, len(group.members), plan.tile):
                members = group.members[begin : begin + plan.tile]
                self.blocks.append(Block(group, members, plan))

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, block: int) -> Block:
        return self.blocks[block]

    def chosen(self, block: int, members: np.ndarray, size: int) -> Inputs:
        """Examples of the batch, cut as a block is.

        Copies of the last example fill them up to `size`: one shape, one compilation.
        """
        filled = np.pad(members, (0, size - len(members)), mode="edge")
        return self.blocks[block].group.of(self.inputs, filled)

    def exact(self, block: int) -> int:
        """A block of the length at which pairs of this block are redone in double precision.

        They are few, so two lengths do, and two compilations: that of the longest group, and that
        of the longest among those at most half as long.
        """
        lengths = [one.group.length or 0 for one in self.blocks]
        mine, longest = lengths[block], max(lengths)
        if 2 * mine > longest or not mine:
            return lengths.index(longest)
        return lengths.index(max(length for length in lengths if 2 * length <= longest))

    def encoded(self, block: int, which: int, device: Any = None) -> EncodedBlock:
        """A block under one realisation of the network, on the device that is JAX's default now."""
        with self.encoding[self[block].kind]:
            if (block, which, device) in self.kept:
                return self.kept[block, which, device]
            inputs = self.chosen(block, self[block].members, self[block].plan.tile)
            encoding = encode_block(self.reals[which], *inputs.on_device(), inputs.outline)
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(encoding))
            with self.counting:
                if size <= self.room:
                    self.room -= size
                    self.kept[block, which, device] = encoding
            return encoding


class Tile(NamedTuple):
    """Kernels of the pairs rows × columns, averaged over realisations where there are several.

    Rows and columns are slices, or numbers of examples where these were sorted by length.
    """

    rows: Any
    columns: Any
    kernels: Kernels
    diagonal: bool  # a block with itself: the tile is its own mirror image


class Pairs:
    """The pairs of two batches in blocks; a tile of them is computed in any order, in any thread.

    `cuts` says which examples stand together, for the rows and, unless the matrix is symmetric
    (`columns=None`), for the columns.
    """

    def __init__(
        self,
        reals: Sequence[Realisation],
        rows: Inputs,
        columns: Inputs | None,
        *,
        cuts: Sequence[list[LengthGroup]],
        dtype: Any,
        with_ntk: bool,
        memory: int,
    ):
        """Encodes examples where duals have to be fitted to their variances, else nothing yet."""
        self.outline, self.symmetric = rows.outline, columns is None
        self.dtype, self.with_ntk, self.memory = dtype, with_ntk, memory
        self.devices, self.turn, self.mine = devices(), itertools.count(), threading.local()
        inputs = (rows,) if columns is None else (rows, columns)

        def blocks(reals: Sequence[Realisation]) -> tuple[Blocks, Blocks]:
            rounded = [with_leaves(real, dtype) for real in reals]
            sides = [
                Blocks(rounded, side, cut, dtype, memory)
                for side, cut in zip(inputs, cuts, strict=True)
            ]
            return sides[0], sides[-1]

        self.left, self.right = blocks(reals)
        sides = dict.fromkeys((self.left, self.right))
        encodings = (side.encoded(block, 0) for side in sides for block in range(len(side)))
        self.reals = fit_duals(reals, encodings, dtype)
        if self.reals is not reals:
            self.left, self.right = blocks(self.reals)
        redone = dtype == np.float32 and is_kinked(self.reals[0].net)
        self.sketch = sketch_inputs(rows, columns) if redone else None

    @property
    def places(self) -> list[tuple[int, int]]:
        """All tiles; of a symmetric matrix those on and above the diagonal."""
        return [
            (i, j)
            for i in range(len(self.left))
            for j in range(i if self.symmetric else 0, len(self.right))
        ]

    @property
    def at_once(self) -> int:
        """How many tiles may be computed side by side."""
        sides = (self.left, self.right)
        largest = max(block.plan.nbytes for side in sides for block in side.blocks)
        return max(1, min(most_at_once(), self.memory // (2 * largest)))

    def kind(self, place: tuple[int, int]) -> Any:
        """Tiles of one kind share a compilation."""
        return self.left[place[0]].kind, self.right[place[1]].kind

    def tiles(self, progress: Progress | None = None) -> Iterator["Tile"]:
        """All tiles, as threads have done them."""
        work = self.places
        walk = in_threads(self.computed, work, at_once=self.at_once, alike=self.kind)
        yield from progress.track(walk, len(work)) if progress else walk

    def computed(self, place: tuple[int, int]) -> "Tile":
        """One tile, on the device of this thread."""
        # Threads take devices in turn, and keep them.
        if not hasattr(self.mine, "device"):
            self.mine.device = self.devices[next(self.turn) % len(self.devices)]
        device = self.mine.device
        with contextlib.nullcontext() if device is None else jax.default_device(device):
            return self._computed(place, device)

    def _computed(self, place: tuple[int, int], device: Any) -> "Tile":
        i, j = place
        left, right = self.left, self.right
        members = left[i].members, right[j].members
        close = close_pairs(self.sketch, *members)
        several, found = Moments(), Kernels(None, None)
        for which, real in enumerate(self.reals):
            sides = left.encoded(i, which, device), right.encoded(j, which, device)
            mine = left.reals[which].for_pairs
            at_once = left[i].plan.cell_with(right[j].plan)
            result = compiled_cross_tile(
                mine, *sides, self.outline, with_ntk=self.with_ntk, at_once=at_once
            )
            nngp, theta = (
                None if r is None else np.array(np.asarray(r)[: len(members[0]), : len(members[1])])
                for r in result
            )
            assert nngp is not None
            redo_close(real, left, right, place, close, nngp, theta)
            _require_finite(nngp, theta, members)
            found = Kernels(nngp, theta)
            if len(self.reals) > 1:
                several.add(nngp[None], None if theta is None else theta[None])
        if len(self.reals) > 1:
            found = jax.tree.map(lambda part: part.astype(self.dtype), several.kernels())
        one, two = map(_contiguous, members)
        return Tile(one, two, found, self.symmetric and i == j)


def _contiguous(members: np.ndarray) -> slice | np.ndarray:
    """A slice where examples follow each other."""
    follow = members[-1] - members[0] == len(members) - 1 and (np.diff(members) == 1).all()
    return slice(int(members[0]), int(members[-1]) + 1) if follow else members


def _require_finite(
    nngp: np.ndarray, theta: np.ndarray | None, members: tuple[np.ndarray, np.ndarray]
) -> None:
    """Never a silent NaN."""
    for name, kernel in (("NNGP", nngp), ("tangent", theta)):
        if kernel is None or np.isfinite(kernel).all():
            continue
        row, column = np.argwhere(~np.isfinite(kernel))[0][:2]
        raise NumericalError(
            f"The {name} kernel is not finite.",
            got=f"{kernel[~np.isfinite(kernel)].flat[0]} between examples "
            f"{members[0][row]} and {members[1][column]} in {kernel.dtype}",
            remedy="scale the inputs or w_std down, or normalise (LayerNorm)"
            + ("" if kernel.dtype == np.float64 else ", or pass dtype=np.float64"),
        )
