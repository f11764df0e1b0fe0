"""The infinite reading of a network: NNGP and tangent kernels of all pairs."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import Array

from ..compilation import compiled
from ..errors import OptionError, PrecisionError, ShapeError, warn
from ..layers.base import Layer
from ..layers.compose import is_sampled
from ..layers.readings import DEFAULT_HEADS
from ..options import RandomKey, as_key, whole
from ..progress import Callback, Progress
from ..state import Kernels
from .budget import Budget, error_bound
from .inputs import Data, Inputs, is_traced, match_inputs, read_inputs
from .phases import (
    EncodedBlock,
    Realisation,
    cross_one,
    cross_tile,
    encode_block,
    kernel_dtype,
    mirror,
    precision,
    refuse_factorised_ntk,
    symmetrise,
)
from .precision import narrow, precisions, with_leaves
from .sampling import Sampler, check_sampler, count_drawn, grow_sampler, pad_like, realisations
from .tiles import LengthGroup, Pairs, Tile, TilePlan, groups, one_group
from .walk import check_masks

Arrays = tuple[np.ndarray, np.ndarray | None]
"""Where the NNGP and the tangent kernel go."""

Sink = Callable[[slice, slice, np.ndarray, np.ndarray | None], None]
"""What takes rows, columns, and both kernels of a tile."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Kernels to be computed: inputs that were read for a network, heads where it needs them."""

    net: Layer
    rows: Inputs
    columns: Inputs | None
    sampler: Sampler | None
    ntk: bool
    dtype: Any
    memory: int

    @classmethod
    def read(
        cls,
        net: Layer,
        x1: Data,
        x2: Data | None,
        mask: Any,
        mask2: Any,
        sampler: Sampler | None,
        ntk: bool,
        dtype: Any,
        memory: int,
    ) -> Self:
        """Check what a user gave to `Layer.kernel`."""
        rows, columns = read_inputs(net, x1, mask, dtype=dtype, name="x1"), None
        if x2 is not None:
            rows, columns = match_inputs(rows, read_inputs(net, x2, mask2, dtype=dtype, name="x2"))
        elif mask2 is not None:
            raise ShapeError(
                "mask2= is given without x2.", got="mask2=", remedy="pass x2, or mask= for x1"
            )
        if ntk:
            refuse_factorised_ntk(net)
        dtype = (dtype or np.float32) if rows.tokens else rows.dtype
        return cls(net, rows, columns, sampler, ntk, dtype, whole("memory", memory))

    def draw(
        self,
        *,
        key: RandomKey | None = None,
        samples: int | None = None,
        tolerance: float | None = None,
    ) -> "Problem":
        """The same with heads, where the network needs some and no sampler was given."""
        key = None if key is None else as_key(key)
        check_sampler(self.sampler, self.rows, key=key, samples=samples, tolerance=tolerance)
        if self.sampler is not None or not is_sampled(self.net):
            return self
        # The columns are where training data stands in kernel(test, train).
        fit = self.rows if self.columns is None else pad_like(self.columns, self.rows)
        sampler = self.net.sampler(
            fit, key=key, samples=samples, tolerance=tolerance, memory=self.memory
        )
        return replace(self, sampler=sampler)

    @property
    def inputs(self) -> tuple[Inputs, ...]:
        """The examples of the rows and, where they are others, of the columns."""
        return (self.rows,) if self.columns is None else (self.rows, self.columns)

    @property
    def traced(self) -> bool:
        """Whether this is inside a JAX transformation."""
        return any(side.traced for side in self.inputs) or is_traced(self.net)

    def require_numbers(self) -> None:
        """Raise where there are no numbers to keep, or where nothing is left of an example."""
        if self.traced:
            raise OptionError(
                "Inside a JAX transformation (grad, jit) there are no numbers to keep.",
                got="a traced network or traced inputs",
                remedy="call net.kernel, which returns traced kernels, or leave the transformation",
            )
        for side, name in zip(self.inputs, ("x1", "x2"), strict=False):
            check_masks(self.net, side.mask, name)


def compute(problem: Problem, tolerance: float | None, progress: bool | Callback | None) -> Kernels:
    """All kernels as arrays; with more heads until errors are below a tolerance."""
    if problem.traced:
        return traced_kernels(problem)
    problem.require_numbers()
    while True:
        result, sampler = _assemble(problem, (None, None), progress), problem.sampler
        if sampler is None or tolerance is None:
            return result
        # The sampler was sized on a few examples: all of them have the last word.
        reached = error_bound(result, sampler.replicates)
        if reached <= tolerance:
            return result
        budget = Budget(tolerance, DEFAULT_HEADS, problem.memory)
        found = count_drawn(problem.net, sampler, problem.dtype)
        factor = budget.growth(found, reached)
        if factor is None:
            warn(budget.warning(found, reached))
            return result
        problem = replace(problem, sampler=grow_sampler(problem.net, sampler, factor))


def fill(problem: Problem, target: Sequence[Any], progress: bool | Callback | None) -> Kernels:
    """Arrays or memory maps that a user has, filled; errors of sampled kernels are new arrays."""
    problem.require_numbers()
    return _assemble(problem, _check_target(problem, target), progress)


def stream(problem: Problem, target: Sink, progress: bool | Callback | None) -> Kernels:
    """Every tile handed to a function, and none kept."""
    problem.require_numbers()
    for tile in _walk(problem, progress, by_length=False):
        target(tile.rows, tile.columns, tile.kernels.nngp, tile.kernels.ntk)
    return Kernels(None, None)


def refuse_store_options(**options: Any) -> None:
    """Raise where options of stores are given for another target."""
    for name, value in options.items():
        if value is not None:
            raise OptionError(
                f"{name}= is set, and the kernels do not go into a store.",
                got=f"{name}={value!r}, and arrays or a function to go to",
                remedy=f"leave {name}= out, or name a folder: net.kernel_into('kernels/train', x)",
            )


def _walk(problem: Problem, progress: bool | Callback | None, *, by_length: bool) -> Iterator[Tile]:
    """Tiles in the precision asked for; `by_length` allows those of examples here and there."""
    net, sampler = problem.net, problem.sampler
    bar = Progress.make(
        progress, "kernel" if sampler is None else f"kernel of {sampler.heads:,} heads"
    )
    cuts = [groups(net, side) if by_length else [one_group(side)] for side in problem.inputs]
    pairs = make_pairs(problem, cuts)
    with precision(pairs.dtype):
        for tile in pairs.tiles(bar):
            yield tile._replace(kernels=narrow(tile.kernels, problem.dtype))


def make_pairs(problem: Problem, cuts: Sequence[list[LengthGroup]]) -> Pairs:
    """The pairs of a problem, in double precision where single has no digits."""
    *others, last = precisions(problem.dtype, problem.inputs)

    def pairs(inside: Any) -> Pairs:
        rows, *columns = (side.astype(inside) for side in problem.inputs)
        sides = rows, columns[0] if columns else None
        options = {"with_ntk": problem.ntk, "memory": problem.memory}
        with precision(inside):
            reals = realisations(problem.net, problem.sampler, inside)
            return Pairs(reals, *sides, cuts=cuts, dtype=inside, **options)

    for inside in others:
        with contextlib.suppress(PrecisionError):
            return pairs(inside)
    return pairs(last)


def traced_kernels(problem: Problem, *, own: bool = False) -> Kernels:
    """Kernels inside a JAX transformation, of every example of the rows with itself if `own`.

    Rows are mapped, and recomputed for gradients.
    """
    sides = problem.inputs
    arrays = [(*side.on_device(), side.outline) for side in sides]
    dtype = kernel_dtype(arrays[0][0])
    plan = TilePlan.make(problem.net, sides, dtype, problem.memory)
    # As many rows at once as have the pairs of one cell, or of one tile that has none.
    at_once = plan.tile if own else max(1, (plan.cell or plan.tile**2) // sides[-1].size)
    options = {"rows_at_once": at_once, "with_ntk": problem.ntk, "own": own}
    found = [
        _traced_matrix(with_leaves(real, dtype), arrays[0], arrays[1:], **options)
        for real in realisations(problem.net, problem.sampler, dtype)
    ]
    # The mean over realisations of the network.
    return Kernels(*jax.tree.map(lambda *values: sum(values[1:], values[0]) / len(values), *found))


@compiled  # also where only `jax.grad` is around it: its steps one by one take three times as long
def _traced_matrix(
    real: Realisation,
    rows: Any,
    columns: list[Any],
    *,
    rows_at_once: int,
    with_ntk: bool,
    own: bool,
) -> tuple[Array, Array | None]:
    one = encode_block(real, *rows)
    two = encode_block(real, *columns[0]) if columns else one
    outline, pairs = rows[-1], real.for_pairs

    def row(encoding: EncodedBlock) -> tuple[Array, Array | None]:
        if own:
            return cross_one(pairs, encoding, encoding, outline, with_ntk=with_ntk)
        single = jax.tree.map(lambda leaf: leaf[None], encoding)
        nngp, theta = cross_tile(pairs, single, two, outline, with_ntk=with_ntk)
        return nngp[0], None if theta is None else theta[0]

    return jax.lax.map(jax.checkpoint(row), one, batch_size=rows_at_once)


def _assemble(
    problem: Problem, target: tuple[Any, Any], progress: bool | Callback | None
) -> Kernels:
    """The whole matrices from their tiles; a symmetric one from its upper half."""
    arrays: list[Any] = [*target, None, None]
    shape, symmetric = _result_shape(problem), problem.columns is None
    for tile in _walk(problem, progress, by_length=True):
        for i, part in enumerate(vars(tile.kernels).values()):
            if part is None:
                continue
            if arrays[i] is None:
                arrays[i] = np.empty(shape, part.dtype)
            if tile.diagonal:
                symmetrise(part)
            arrays[i][_block(tile.rows, tile.columns)] = part
            if symmetric and not tile.diagonal:
                arrays[i][_block(tile.columns, tile.rows)] = mirror(part)
    return Kernels(*arrays)


def _block(rows: Any, columns: Any) -> tuple[Any, Any]:
    """The index of all pairs rows × columns; either is a slice or numbers of examples."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return rows, columns
    return rows[:, None], columns


def _result_shape(problem: Problem) -> tuple[int, ...]:
    one, two = problem.inputs[0], problem.inputs[-1]
    ends = [problem.net.outline(side.outline).positions for side in (one, two)]
    return (one.size, two.size, *ends[0], *ends[1])


def _check_target(problem: Problem, target: Sequence[Any]) -> Arrays:
    """A pair of arrays that the result can be written to."""
    shape, count = _result_shape(problem), 2 if problem.ntk else 1
    given = [*target[:count], None][:2]
    unfit = [word for array in given[:count] if (word := _unfit(array, shape))]
    if len(target) != 2 or unfit:
        raise ShapeError(
            "The target is not a pair of arrays of the shape that the kernels have.",
            got=f"an array {unfit[0]}" if unfit else f"{len(target)} arrays",
            remedy=f"allocate float32 or float64 arrays (or memory maps) of shape {shape}; pass "
            "(nngp, ntk), or (nngp, None) with ntk=False",
        )
    nngp, ntk = given
    if nngp is ntk or (all(isinstance(a, np.ndarray) for a in given) and np.shares_memory(*given)):
        raise ShapeError(
            "Both kernels would be written into the same memory.",
            got="one array twice, or two views of one",
            remedy="allocate an array for each, or pass (nngp, None) with ntk=False",
        )
    return nngp, ntk


def _unfit(array: Any, shape: tuple[int, ...]) -> str:
    """Why results cannot be written to an array; empty where they can."""
    if getattr(array, "dtype", None) not in (np.float32, np.float64):
        return f"not of floating-point numbers but of dtype {getattr(array, 'dtype', None)}"
    fixed = isinstance(array, np.ndarray) and not array.flags.writeable
    if fixed or isinstance(array, jax.Array):
        return "not writeable"
    return "" if tuple(array.shape) == shape else f"of shape {tuple(array.shape)}, not {shape}"
