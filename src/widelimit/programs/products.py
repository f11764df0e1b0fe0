"""Rules of contractions: MatMul, dot products, mixtures over finite axes, sums over the width.

Outer products with two width axes are the gradients of weight matrices, and matrices made of
activations, `kᵀ v` of linear attention. What the latter do to a vector is
`(Σ_i k_i v_iᵀ)ᵀ q = Σ_i (k_i·q) v_i`. Convolutions are contractions of patches of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NumericalError
from ..printing import counted
from .entrywise import aligned, leading_power
from .gaussian import Form
from .integration import Method
from .layout import Layout
from .matrices import Outer, OuterProduct, Use, WideMatrix
from .scalars import DotGroup, WideScalar
from .steps import Step
from .trees import Apply
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine

# Means below this share of the deviations are rounding errors of means that are zero.
_NOTHING = 1e-9
MOST_COEFFICIENTS = 1 << 27  # of a mixture: a gigabyte


@dataclass(frozen=True)
class Dims:
    """Which axes a `dot_general` contracts, pairs, and leaves."""

    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, step: Step) -> Dims:
        (lc, rc), (lb, rb) = step.params[0]["dimension_numbers"]
        return cls(
            (tuple(map(int, lc)), tuple(map(int, rc))), (tuple(map(int, lb)), tuple(map(int, rb)))
        )

    def free(self, side: int, rank: int) -> tuple[int, ...]:
        """The axes of one side that are left."""
        return tuple(a for a in range(rank) if a not in self.contract[side] + self.batch[side])

    def swapped(self) -> Dims:
        """The same with the sides exchanged."""
        (a, b), (c, d) = self.contract, self.batch
        return Dims((b, a), (d, c))


def arranged(index: np.ndarray, dims: Dims, side: int) -> np.ndarray:
    """Members as (batch, free, contracted), flattened."""
    free = dims.free(side, index.ndim)
    order = (*dims.batch[side], *free, *dims.contract[side])
    shape = [
        math.prod(index.shape[a] for a in axes)
        for axes in (dims.batch[side], free, dims.contract[side])
    ]
    return index.transpose(order).reshape(shape)


def contraction(
    machine: Machine, step: Step, left: Any, right: Any, outer: Callable[..., Any]
) -> Any:
    """`dot_general`: dispatch on what meets what; `outer` products keep both width axes."""
    dims = Dims.of(step)
    if isinstance(left, WideMatrix) and isinstance(right, WideMatrix):
        raise step.refuse(
            "Weight matrices act on vectors.",
            got="a product of two weight matrices",
            remedy="write W2 @ (W1 @ x) instead of (W2 @ W1) @ x",
        )
    if isinstance(left, WideMatrix) or isinstance(right, WideMatrix):
        return _with_matrix(machine, step, left, right, dims)
    if isinstance(left, WideVector) and isinstance(right, WideVector):
        return _two_vectors(machine, step, left, right, dims, outer)
    return mixture(step, left, right, dims)


# ---- vector with numbers --------------------------------------------------------------------


def mixture(step: Step, left: Any, right: Any, dims: Dims) -> WideVector:
    """`Σ_c s_c v_c` over finite axes: a linear combination of members."""
    vector, number, side = (left, right, 0) if isinstance(left, WideVector) else (right, left, 1)
    own = dims if side == 0 else dims.swapped()
    if vector.axis in own.contract[0]:
        raise step.refuse(
            "A width axis is contracted with weights or with another vector.",
            remedy="sum over channels, or contract with a parameter that grows with the width",
        )
    data = np.asarray(number.value(), float)
    members = arranged(vector.indices, own, 0)  # (b, f, c)
    entries = arranged(np.arange(math.prod(number.shape)).reshape(number.shape), own, 1)
    full = (*members.shape[:2], entries.shape[1], members.shape[2])
    inner = full[-1]
    flat = data.reshape(len(data), -1)[:, entries[:, None]]
    numbers = np.broadcast_to(flat, (len(data), *full)).reshape(len(data), -1, inner)
    members = np.broadcast_to(members[:, :, None], full).reshape(-1, inner)
    shape, axis = _result_shape(vector, number.shape, own)
    # Axes come as (batch, vector's, number's); the step wants (batch, left's, right's).
    mixed = combined(step, vector, members, numbers, shape, axis)
    mixed = replace(mixed, power=vector.power + number.power)
    return _left_first(mixed, side, own, len(vector.shape), len(number.shape))


def combined(
    step: Step,
    vector: WideVector,
    members: np.ndarray,
    numbers: np.ndarray,
    shape: tuple[int, ...],
    axis: int,
) -> WideVector:
    """`Σ_t numbers_it v[members_it]` (-1: nothing) for every result i of a family.

    `members` (results, terms), `numbers` (draws or 1, results, terms).
    """
    require_room(step, len(numbers), len(members), vector.size)
    weights = np.zeros((len(numbers), len(members), vector.size))
    results = np.arange(len(members))
    for term, row in enumerate(members.T):
        weights[:, results, np.maximum(row, 0)] += np.where(row < 0, 0.0, numbers[..., term])
    return vector.mixed(weights, shape, axis)


def require_room(step: Step, draws: int, results: int, size: int) -> None:
    """Raise where a mixture has more coefficients than fit into memory."""
    if draws * results * size > MOST_COEFFICIENTS:
        raise step.refuse(
            f"Sums over finite axes exceed {MOST_COEFFICIENTS} coefficients.",
            got=f"{results} sums of {size} vectors, for {counted(draws, 'draw')} of the scalars",
            remedy="trace fewer examples or positions at once, or take fewer draws",
        )


def _result_shape(
    vector: WideVector, other: tuple[int, ...], dims: Dims
) -> tuple[tuple[int, ...], int]:
    mine = (*dims.batch[0], *dims.free(0, len(vector.shape)))
    theirs = dims.free(1, len(other))
    shape = (*(vector.shape[a] for a in mine), *(other[a] for a in theirs))
    return shape, mine.index(vector.axis)


def _left_first(value: WideVector, side: int, dims: Dims, mine: int, theirs: int) -> WideVector:
    if side == 0:
        return value
    batch, own = len(dims.batch[0]), len(dims.free(0, mine))
    other = len(dims.free(1, theirs))
    order = (*range(batch), *range(batch + own, batch + own + other), *range(batch, batch + own))
    return value.reindexed(value.indices.transpose(order), order.index(value.axis))


# ---- MatMul ---------------------------------------------------------------------------------


def _with_matrix(machine: Machine, step: Step, left: Any, right: Any, dims: Dims) -> Any:
    matrix, other, side = (left, right, 0) if isinstance(left, WideMatrix) else (right, left, 1)
    own = dims if side == 0 else dims.swapped()
    if not isinstance(other, WideVector):
        raise step.refuse(
            "A weight matrix acts on a vector along its width axis.",
            got="a matrix with two width axes contracted with numbers only",
            remedy="contract one of its width axes with a vector",
        )
    pairs = list(zip(*own.contract, strict=True))
    wide = [(a, b) for a, b in pairs if a in matrix.layouts]
    if len(wide) != 1 or wide[0][1] != other.axis or set(own.batch[0]) & set(matrix.layouts):
        raise step.refuse(
            "A weight matrix is contracted along one of its two width axes.",
            got="another contraction of it",
            remedy="contract one width axis of the matrix with the channels of a vector",
        )
    axis = wide[0][0]
    layout = matrix.layouts[axis].common(other.layout)
    matrix, other = matrix.refined(axis, layout), other.refined(layout)
    slots = arranged(matrix.slots, own, 0)  # (b, free, c), cells of both width axes inside
    members = arranged(other.indices, own, 1)  # (b, free', c)
    batch, outer, inner = slots.shape
    rows = members.shape[1]
    table = np.broadcast_to(slots[:, None, :, :], (batch, rows, outer, inner)).reshape(-1, inner)
    source = np.broadcast_to(members[:, :, None, :], (batch, rows, outer, inner)).reshape(-1, inner)
    free = own.free(0, len(matrix.shape))
    left_axis = next(a for a in free if a in matrix.layouts)
    shape = (
        *(matrix.shape[a] for a in own.batch[0]),
        *(other.shape[a] for a in own.free(1, len(other.shape))),
        *(matrix.shape[a] for a in free),
    )
    place = len(own.batch[0]) + len(own.free(1, len(other.shape))) + free.index(left_axis)
    result = matmul(machine, step, matrix, axis, other, table, source)
    result = replace(result, shape=shape, axis=place, layout=matrix.layouts[left_axis])
    # Axes come as (batch, vector's, matrix's).
    return _left_first(result, 1 - side, own.swapped(), len(other.shape), len(matrix.shape))


# ---- dot products ---------------------------------------------------------------------------


def _two_vectors(
    machine: Machine,
    step: Step,
    left: WideVector,
    right: WideVector,
    dims: Dims,
    outer: Callable[..., Any],
) -> Any:
    paired = list(zip(*dims.contract, strict=True))
    if (left.axis, right.axis) in paired:
        return _dot(machine, step, left, right, dims)
    if left.axis in dims.batch[0] and dims.batch[0].index(left.axis) == (
        dims.batch[1].index(right.axis) if right.axis in dims.batch[1] else -1
    ):
        return _channelwise(left, right, dims)
    return outer(left, right, dims)


def _channelwise(left: WideVector, right: WideVector, dims: Dims) -> WideVector:
    """`Σ_c u_c v_c` for every channel: products of members, added."""
    layout = left.layout.common(right.layout)
    left, right = left.refined(layout), right.refined(layout)
    rows, columns = arranged(left.indices, dims, 0), arranged(right.indices, dims, 1)
    batch, free, inner = rows.shape
    other = columns.shape[1]
    shape = (
        *(left.shape[a] for a in dims.batch[0]),
        *(left.shape[a] for a in dims.free(0, len(left.shape))),
        *(right.shape[a] for a in dims.free(1, len(right.shape))),
    )
    axis = dims.batch[0].index(left.axis)
    total: WideVector | None = None
    for c in range(inner):
        i = np.broadcast_to(rows[:, :, None, c], (batch, free, other)).reshape(shape)
        j = np.broadcast_to(columns[:, None, :, c], (batch, free, other)).reshape(shape)
        term = left.reindexed(i, axis).multiplied(right.reindexed(j, axis))
        total = term if total is None else total.plus(term)
    assert total is not None
    return total


def _dot(
    machine: Machine, step: Step, left: WideVector, right: WideVector, dims: Dims
) -> WideScalar:
    """`Σ_α u_α v_α`: n times a mean, or √n times a Gaussian."""
    layout = left.layout.common(right.layout)
    left, right = left.refined(layout), right.refined(layout)
    pairs = [(a, b) for a, b in zip(*dims.contract, strict=True) if a != left.axis]
    inner = Dims(
        (tuple(a for a, _ in pairs), tuple(b for _, b in pairs)),
        dims.batch,
    )
    # One cell's members; other cells have the same shape.
    u = arranged(_first_cell(left), _without(inner, left.axis, right.axis), 0)
    v = arranged(_first_cell(right), _without(inner, left.axis, right.axis), 1)
    batch, rows, count = u.shape
    columns = v.shape[1]
    full = (batch, rows, columns, count)
    i = np.broadcast_to(u[:, :, None, :], full).reshape(-1)
    j = np.broadcast_to(v[:, None, :, :], full).reshape(-1)
    shape = (
        *(left.shape[a] for a in dims.batch[0]),
        *(left.shape[a] for a in dims.free(0, len(left.shape))),
        *(right.shape[a] for a in dims.free(1, len(right.shape))),
    )
    return summed_products(machine, step, left, right, np.stack([i, j]), shape, count)


def _first_cell(vector: WideVector) -> np.ndarray:
    """Members counted within one cell, in the shape without the width axis."""
    shape = tuple(e for a, e in enumerate(vector.shape) if a != vector.axis)
    return np.arange(math.prod(shape)).reshape(shape)


def _without(dims: Dims, left: int, right: int) -> Dims:
    def lower(axes: tuple[int, ...], gone: int) -> tuple[int, ...]:
        return tuple(a - (a > gone) for a in axes)

    return Dims(
        (lower(dims.contract[0], left), lower(dims.contract[1], right)),
        (lower(dims.batch[0], left), lower(dims.batch[1], right)),
    )


def summed_products(
    machine: Machine,
    step: Step,
    u: WideVector,
    v: WideVector,
    pairs: np.ndarray,
    shape: tuple[int, ...],
    count: int = 1,
) -> WideScalar:
    """Sums over the width of products of members `pairs`, `count` consecutive ones added up."""
    size = math.prod(shape)
    power = u.power + v.power
    if u.is_zero or v.is_zero:
        return WideScalar(shape, np.zeros((1, *shape)), power=power, fixed=True)
    unit = float(u.layout.unit)
    integrator = machine.integrator
    rows, columns = u.by_cell()[:, pairs[0]], v.by_cell()[:, pairs[1]]
    flat = rows.reshape(-1, 1), columns.reshape(-1, 1)
    independent = not related(u, v)
    if independent:
        products = integrator.mean(u)[:, rows] * integrator.mean(v)[:, columns]
    else:
        products = integrator.second(u, v, *flat)[..., 0, 0].reshape(-1, *rows.shape)
    if not np.isfinite(products).all():
        raise step.refuse(
            "Averages over channels are numbers.",
            got="a mean that is infinite, or none",
            remedy="keep activations where the functions of them are defined: logarithms and "
            "roots of positive arguments, no division by what may be zero",
        )
    if products.any() and np.abs(products).max() < 1e-6:
        typical = [np.sqrt(integrator.gram(w, w).diagonal(0, 2, 3).max()) for w in (u, v)]
        if np.abs(products).max() < _NOTHING * typical[0] * typical[1]:
            products = np.zeros_like(products)
    if products.any():
        total = unit * products.sum(axis=1).reshape(-1, size, count).sum(axis=-1)
        return WideScalar(shape, total.reshape(-1, *shape), power=power + 1, rough=True)
    left, right = u, v
    if not independent and _share_places(u, v):
        raise step.refuse(
            "Random scores do not turn with the channels.",
            got="a dot product of vectors that both depend on their channels' places (rotary "
            "encodings)",
            remedy="describe the network in layers: widelimit.Attention(positions=Rotary())",
        )
    if not independent:
        # Centred, though the two sides depend on each other: the products as one family.
        left = u.reindexed(rows, 0).multiplied(v.reindexed(columns, 0))
        right = left.constant_like(np.ones((1, left.size)))
        pairs = np.tile(np.arange(pairs.shape[1]), (2, 1))
    group = DotGroup(step, left, right, pairs, integrator, machine.dots)
    machine.dots.append(group)
    machine.dot_steps.append((step, u, v))
    weights = np.zeros((1, size, group.size))
    weights[0, np.repeat(np.arange(size), count), np.arange(group.size)] = 1.0
    if machine.on_tail(step.results[0]):
        zero = np.zeros((1, *shape))
        return WideScalar(shape, zero, power=power + HALF, pending=((group, weights),))

    def compute() -> np.ndarray:
        return group.values().reshape(-1, size, count).sum(axis=-1).reshape(-1, *shape)

    return WideScalar(shape, machine.once(compute), power=power + HALF)


def _share_places(u: WideVector, v: WideVector) -> bool:
    return all(any(t.source.ordered for f in w.forms() for t in f.terms) for w in (u, v))


def related(u: WideVector, v: WideVector) -> bool:
    """Whether members of one cell share correlated variables."""
    rows, columns = u.by_cell(), v.by_cell()
    simple = u.simple() and v.simple()
    for a in u.forms():
        for b in v.forms():
            if not simple:
                ours = {(id(t.source), int(k)) for t in a.terms for k in np.unique(t.labels)}
                if any(
                    (id(t.source), int(k)) in ours for t in b.terms for k in np.unique(t.labels)
                ):
                    return True
            elif a.covariance(b, rows, columns).any():
                return True
    return False


def reduce_width(
    machine: Machine, step: Step, vector: WideVector, axes: tuple[int, ...]
) -> WideScalar:
    """`reduce_sum` over channels, and perhaps over finite axes."""
    ones = vector.constant_like(np.ones((1, vector.size)))
    others = tuple(a for a in axes if a != vector.axis)
    kept = tuple(a for a in range(len(vector.shape)) if a not in axes)
    index = _first_cell(vector)
    lowered = [a - (a > vector.axis) for a in (*kept, *others)]
    flat = index.transpose(lowered).reshape(-1)
    count = math.prod(vector.shape[a] for a in others)
    shape = tuple(vector.shape[a] for a in kept)
    return summed_products(machine, step, vector, ones, np.stack([flat, flat]), shape, count)


# ---- new limit variables ---------------------------------------------------------------------


HALF = Fraction(1, 2)


def matmul(
    machine: Machine,
    step: Step,
    matrix: WideMatrix,
    axis: int,
    operand: WideVector,
    slots: np.ndarray,
    members: np.ndarray,
) -> WideVector:
    """New limit variables `Σ_c W[slots_oc] h[members_oc]` (-1: nothing), o = 0, …, O − 1.

    `Cov(o, o') = σ² Σ unit·E[h h']` over pairs of terms that use the same slot of the same matrix.
    """
    count = len(slots)
    zero = np.zeros((1, count))
    nothing = WideVector((count,), 0, Layout(1, 1, Fraction(1)), Fraction(0), zero)
    if matrix.is_zero or operand.is_zero:
        return nothing
    if matrix.constant is not None:
        raise step.refuse(
            "Weight matrices are random, or zero.",
            got=f"a matrix whose entries are all {matrix.constant:g}",
            remedy="draw the weights at random; sums over channels are written as sums",
        )
    weights = matrix.weights
    machine.note_use(step, matrix, axis, operand)
    used = matrix.base[axis]
    origin, uses = weights.source(used), weights.uses.setdefault(used, [])
    by_slot: dict[int, np.ndarray] = {}
    for slot in np.unique(slots):
        here = (slots == slot) & (members >= 0)
        rows, columns = np.nonzero(here)
        if len(rows) != len(np.unique(rows)):
            raise step.refuse(
                "Each entry of a weight matrix meets one channel.",
                got="one matrix that is summed over several positions at once",
                remedy="sum the vectors before they are multiplied",
            )
        chosen = np.full(count, -1)
        chosen[rows] = members[rows, columns]
        by_slot[int(slot)] = chosen
    integrator = machine.integrator
    integrator.used = Method.CLOSED_FORM
    unit = float(operand.layout.unit)

    def covariance(other: WideVector, theirs: dict[int, np.ndarray]) -> np.ndarray:
        common = [slot for slot in by_slot if slot in theirs]
        total: Any = np.zeros((1, count, len(next(iter(theirs.values())))))
        if not common:
            return total
        for mine, others, slots_here in _meetings(common, by_slot, theirs):
            gram = integrator.second_once(operand, other, mine, others)
            if len(gram) > len(total):
                total = np.repeat(total, len(gram), axis=0)
            place = _positions(mine, operand.size)
            place_other = _positions(others, other.size)
            for slot in slots_here:
                a, b = by_slot[slot], theirs[slot]
                i, j = np.flatnonzero(a >= 0), np.flatnonzero(b >= 0)
                rows, columns = place[a[i]][:, None], place_other[b[j]]
                total[:, i[:, None], j] += gram[:, rows, columns]
        return unit * total

    first = matrix.scale * matrix.scale * covariance(operand, by_slot)
    if not np.isfinite(first).all():
        raise NumericalError(
            "Moments of the limit must be finite.",
            got=f"an overflow, or a function that is no number somewhere, in {step.place}",
            remedy="draw smaller weights, or check the functions' domain and growth",
        )
    crosses = []
    for use in uses:
        if use.operand.layout.unit != operand.layout.unit:
            raise step.refuse(
                "Weights that are used again act on channels cut in the same way.",
                got=f"'{weights.name}' applied to differently cut vectors",
                remedy="use the same reshape in both places",
            )
        crosses.append(
            np.swapaxes(matrix.scale * use.scale * covariance(use.operand, use.members), 1, 2)
        )
    draws = max([1, *(c.shape[0] for c in crosses)])
    cross = (
        np.concatenate([np.broadcast_to(c, (draws, *c.shape[1:])) for c in crosses], axis=1)
        if crosses
        else np.zeros((1, 0, count))
    )
    begin = origin.extend(cross, first)
    origin.method = max(origin.method, integrator.used)
    origin.rows += [frozenset(row.tolist()) for row in slots]
    uses.append(Use(operand, by_slot, matrix.scale))
    form = Form.members(machine.labels, origin, begin, count)
    power = operand.power + matrix.power + HALF
    return WideVector((count,), 0, nothing.layout, power, zero, form, np.ones((1, count)))


def _meetings(
    slots: list[int], ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray, list[int]]]:
    """Members whose second moments are needed, each pair once: slot by slot, or all at once.

    Heads that are merged have members of their own for every slot; windows of a convolution share
    them.
    """
    each = [(_members(ours, [slot]), _members(theirs, [slot]), [slot]) for slot in slots]
    if len(each) == 1:
        return [m for m in each if len(m[0]) and len(m[1])]
    together = (_members(ours, slots), _members(theirs, slots), slots)
    apart = sum(len(a) * len(b) for a, b, _ in each) < len(together[0]) * len(together[1])
    return [m for m in (each if apart else [together]) if len(m[0]) and len(m[1])]


def _members(by_slot: dict[int, np.ndarray], slots: list[int]) -> np.ndarray:
    found = np.unique(np.concatenate([by_slot[slot] for slot in slots]))
    return found[1:] if found[0] < 0 else found


def _positions(members: np.ndarray, size: int) -> np.ndarray:
    place = np.full(size, -1)
    place[members] = np.arange(len(members))
    return place


# ---- outer products --------------------------------------------------------------------------


def outer_product(left: WideVector, right: WideVector, dims: Dims) -> Outer:
    """`dot_general` that leaves both width axes."""
    rows, columns = arranged(left.indices, dims, 0), arranged(right.indices, dims, 1)
    batch, first, inner = rows.shape
    second = columns.shape[1]
    full = (batch, first, second, inner)
    shape = (
        *(left.shape[a] for a in dims.batch[0]),
        *(left.shape[a] for a in dims.free(0, len(left.shape))),
        *(right.shape[a] for a in dims.free(1, len(right.shape))),
    )
    base = len(dims.batch[0])
    own = dims.free(0, len(left.shape))
    axes = (
        base + own.index(left.axis),
        base + len(own) + dims.free(1, len(right.shape)).index(right.axis),
    )
    part = OuterProduct(
        left,
        right,
        np.broadcast_to(rows[:, :, None, :], full).reshape(-1, inner),
        np.broadcast_to(columns[:, None, :, :], full).reshape(-1, inner),
    )
    return Outer(shape, axes, (part,), left.power + right.power)


def contract(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`dot_general`, of outer products or of anything else."""
    if any(isinstance(value, Outer) for value in operands):
        return [contracted(machine, step, *operands)]
    left, right = operands
    return [contraction(machine, step, left, right, outer_product)]


def contracted(machine: Machine, step: Step, left: Any, right: Any) -> WideVector:
    """`dot_general` of outer products with a vector, along one of their width axes."""
    dims = Dims.of(step)
    outer, vector, first = (left, right, True) if isinstance(left, Outer) else (right, left, False)
    dims = dims if first else dims.swapped()
    met = [a for a, b in zip(*dims.contract, strict=True) if a in outer.axes]
    if (
        not isinstance(vector, WideVector)
        or [b for a, b in zip(*dims.contract, strict=True) if a in met] != [vector.axis]
        or set(dims.batch[0]) & set(outer.axes)
    ):
        raise step.refuse(
            "A matrix made of activations acts on a vector along one of its width axes.",
            got="another product of it",
            remedy="write linear attention as q (kᵀ v)",
        )
    axis = met[0]
    layout = outer.layouts[axis].common(vector.layout)
    if layout.cells > 1:
        raise step.refuse(
            "A matrix made of activations acts on channels of one kind.",
            got="channels that were concatenated",
            remedy="change the order of the products: (q kᵀ) v instead of q (kᵀ v)",
        )
    outer, vector = outer.refined(axis, layout), vector.refined(layout)
    entries = arranged(np.arange(math.prod(outer.shape)).reshape(outer.shape), dims, 0)
    members = arranged(vector.indices, dims, 1)
    batch, free, inner = entries.shape
    full = (batch, members.shape[1], free, inner)
    entries = np.broadcast_to(entries[:, None, :, :], full).reshape(-1, inner)
    members = np.broadcast_to(members[:, :, None, :], full).reshape(-1, inner)
    own, theirs = dims.free(0, len(outer.shape)), dims.free(1, len(vector.shape))
    shape = (
        *(outer.shape[a] for a in dims.batch[0]),
        *(vector.shape[a] for a in theirs),
        *(outer.shape[a] for a in own),
    )
    other = outer.axes[1] if axis == outer.axes[0] else outer.axes[0]
    place = len(dims.batch[0]) + len(theirs) + own.index(other)
    terms = []
    for part in outer.parts:
        part = part if axis == outer.axes[0] else part.swapped()
        term = _through(machine, step, part, vector, entries, members)
        terms.append(replace(term, shape=shape, axis=place, power=term.power + outer.power))
    # Scores with a mean are larger than those without one, by √n.
    power = leading_power(terms)
    kept = [term for term in terms if term.power == power] or terms[:1]
    total = reduce(WideVector.plus, kept)
    if not first:
        return total
    # Axes come as (batch, vector's, outer product's); the step wants the left side's first.
    begin = len(dims.batch[0])
    middle = begin + len(theirs)
    order = (*range(begin), *range(middle, len(shape)), *range(begin, middle))
    return total.reindexed(total.indices.transpose(order), order.index(place))


def _through(
    machine: Machine,
    step: Step,
    part: OuterProduct,
    vector: WideVector,
    entries: np.ndarray,
    members: np.ndarray,
) -> WideVector:
    """`Σ_c (u_c·q) v_c` for rows of entries and members; the power is without the product's own."""
    left, right = part.left[entries], part.right[entries]  # (outputs, contracted, terms)
    kept = left >= 0
    queries = np.broadcast_to(members[..., None], left.shape)[kept]
    codes, which = np.unique(queries * part.u.size + left[kept], return_inverse=True)
    pairs = np.stack(np.divmod(codes, part.u.size))
    scores = summed_products(machine, step, vector, part.u, pairs, (len(codes),))
    drawn = np.asarray(scores.value(), float)
    numbers = np.zeros((len(drawn), *left.shape))
    numbers[:, kept] = drawn[:, which]
    numbers = numbers.reshape(len(drawn), len(entries), -1)
    members = np.where(kept, right, -1).reshape(len(entries), -1)
    mixed = combined(step, part.v, members, numbers, (len(entries),), 0)
    return replace(mixed, power=scores.power - part.u.power)


# ---- convolutions and windows ----------------------------------------------------------------


def patch_index(shape: tuple[int, ...], window: tuple[int, ...], params: Any) -> np.ndarray:
    """For spatial axes `shape`: which entry every output position and offset reads (-1: padding).

    Result: (*outputs, *window).
    """
    padded_index = []
    for axis, extent in enumerate(shape):
        low, high = (int(p) for p in params["padding"][axis])
        base = int(params["lhs_dilation"][axis])
        spread = np.full((extent - 1) * base + 1, -1)
        spread[::base] = np.arange(extent)
        line = np.concatenate([np.full(max(low, 0), -1), spread, np.full(max(high, 0), -1)])
        line = line[max(-low, 0) : len(line) - max(-high, 0)]
        reach = (window[axis] - 1) * int(params["rhs_dilation"][axis]) + 1
        starts = np.arange(0, len(line) - reach + 1, int(params["window_strides"][axis]))
        offsets = np.arange(window[axis]) * int(params["rhs_dilation"][axis])
        padded_index.append(line[starts[:, None] + offsets[None, :]])  # (out, window)
    rank = len(shape)
    total: Any = 0
    missing: Any = False
    stride = 1
    for axis in reversed(range(rank)):
        line = padded_index[axis]
        spread_shape = [1] * (2 * rank)
        spread_shape[axis], spread_shape[rank + axis] = line.shape
        lifted = line.reshape(spread_shape)
        total = total + np.maximum(lifted, 0) * stride
        missing = missing | (lifted < 0)
        stride *= shape[axis]
    return np.where(missing, -1, total)


def convolve(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`conv_general_dilated` as a contraction of patches with the kernel."""
    return [_convolution(machine, step, *operands)]


def _convolution(machine: Machine, step: Step, left: Any, right: Any) -> Any:
    params = step.params[0]
    if int(params["batch_group_count"]) != 1:
        raise step.refuse(
            "Convolutions have no batch groups.", remedy="use feature groups or separate layers"
        )
    numbers = params["dimension_numbers"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    spatial = tuple(left.shape[a] for a in lhs[2:])
    window = tuple(right.shape[a] for a in rhs[2:])
    index = patch_index(spatial, window, params)
    outputs = index.shape[: len(spatial)]
    positions, offsets = math.prod(outputs), math.prod(window)
    index = index.reshape(positions, offsets)
    groups = [int(p["feature_group_count"]) for p in step.params]
    wide = (
        isinstance(left, WideVector) and left.axis == lhs[0],
        isinstance(right, WideVector) and right.axis == rhs[0],
    )
    if len(set(groups)) > 1:
        result = _depthwise(machine, step, left, right, lhs, rhs, index)
    elif wide == (True, True) or (any(wide) and WideScalar in (type(left), type(right))):
        entries = _entries(_patches(left, lhs, index), _kernel(right, rhs), groups[0])
        if isinstance(left, WideVector) and isinstance(right, WideVector):
            return _outer_kernel(left, right, entries, outputs, out)
        result = _by_numbers(step, left, right, entries)
    elif groups[0] != 1:
        raise step.refuse(
            "Channels of a convolution are grouped all together or each alone.",
            got=f"{groups[0]} feature groups",
            remedy="use feature_group_count=1, or as many groups as channels",
        )
    elif isinstance(left, WideVector) and isinstance(right, WideVector) and left.axis == lhs[1]:
        return _readout(machine, step, left, right, index, outputs)
    elif isinstance(left, WideVector) and isinstance(right, WideMatrix):
        result = _hidden(machine, step, left, right, lhs, rhs, index)
    else:
        raise _mismatched(step)
    # The result has axes (batch, positions, features): give them back their places.
    return _placed(result, outputs, out)


def _numbered(value: Any) -> np.ndarray:
    return np.arange(math.prod(value.shape)).reshape(value.shape)


def _patches(value: Any, spec: Any, index: np.ndarray) -> np.ndarray:
    """Members (batch, positions, offsets, features)."""
    order = (spec[0], *spec[2:], spec[1])
    members = _numbered(value).transpose(order)
    flat = members.reshape(members.shape[0], -1, members.shape[-1])
    taken = flat[:, np.maximum(index, 0)]
    return np.where(index[None, :, :, None] < 0, -1, taken)


def _kernel(value: Any, spec: Any) -> np.ndarray:
    """Members (out features, offsets, in features)."""
    order = (spec[0], *spec[2:], spec[1])
    members = _numbered(value).transpose(order)
    return members.reshape(members.shape[0], -1, members.shape[-1])


@dataclass(frozen=True)
class _Entries:
    """Members of the left and right side behind each result (batch, positions, features)."""

    shape: tuple[int, int, int]
    left: np.ndarray
    """(results, terms); -1 in the padding."""
    right: np.ndarray


def _entries(patches: np.ndarray, kernel: np.ndarray, groups: int) -> _Entries:
    """Sums over the window and the features of each group."""
    batch, positions, offsets, features = patches.shape
    outs, _, inner = kernel.shape
    by_group = patches.reshape(batch, positions, offsets, groups, features // groups)
    group = np.arange(outs) // (outs // groups)
    rows = np.moveaxis(by_group[:, :, :, group], 3, 2)  # (batch, positions, outs, offsets, inner)
    columns = np.broadcast_to(kernel, rows.shape)
    terms = offsets * inner
    return _Entries((batch, positions, outs), rows.reshape(-1, terms), columns.reshape(-1, terms))


def _by_numbers(step: Step, left: Any, right: Any, entries: _Entries) -> WideVector:
    """The first layer, where numbers mix the kernel's members; and gradients of such layers."""
    vector, number, members, places, axis = (
        (right, left, entries.right, entries.left, 2)
        if isinstance(right, WideVector)
        else (left, right, entries.left, entries.right, 0)
    )
    data = np.asarray(number.value(), float)
    numbers = data.reshape(len(data), -1)[:, np.maximum(places, 0)]
    members = np.where(places < 0, -1, members)
    mixed = combined(step, vector, members, numbers, entries.shape, axis)
    return replace(mixed, power=vector.power + number.power)


def _outer_kernel(
    left: WideVector, right: WideVector, entries: _Entries, outputs: tuple[int, ...], out: Any
) -> Outer:
    """The gradient of a kernel: `Σ_positions h ⊗ δ` for every offset."""
    batch, _, outs = entries.shape
    shape = (batch, *outputs, outs)
    kept = entries.left >= 0
    part = OuterProduct(left, right, entries.left, np.where(kept, entries.right, -1))
    found = Outer(shape, (0, len(shape) - 1), (part,), left.power + right.power)
    order = _order(out)
    index = np.arange(math.prod(shape)).reshape(shape).transpose(order)
    return found.reindexed(index, {0: order.index(0), len(shape) - 1: order.index(len(shape) - 1)})


def _readout(
    machine: Machine,
    step: Step,
    left: WideVector,
    right: WideVector,
    index: np.ndarray,
    outputs: tuple[int, ...],
) -> WideScalar:
    """The last layer: a finite number of features, each a sum of dot products over the window."""
    numbers = step.params[0]["dimension_numbers"]
    if right.axis != numbers.rhs_spec[1]:
        raise _mismatched(step)
    layout = left.layout.common(right.layout)
    left, right = left.refined(layout), right.refined(layout)
    u = left.reindexed(_patches(left, numbers.lhs_spec, index), 3)
    v = right.reindexed(_kernel(right, numbers.rhs_spec), 2)
    batch, positions, offsets = u.shape[:3]
    outs = v.shape[0]
    order = _order(numbers.out_spec)
    where = np.arange(batch * positions).reshape(batch, *outputs, 1)
    feature = np.arange(outs).reshape(*([1] * (len(outputs) + 1)), outs)
    full = (batch, *outputs, outs)
    rows = np.broadcast_to(where, full).transpose(order)
    columns = np.broadcast_to(feature, full).transpose(order)
    each = np.arange(offsets)
    pairs = np.stack([(a.reshape(-1, 1) * offsets + each).ravel() for a in (rows, columns)])
    return summed_products(machine, step, u, v, pairs, rows.shape, offsets)


def _order(out: Any) -> list[int]:
    """Where the step's axes are in (batch, spatial…, feature)."""
    source = {out[0]: 0, out[1]: len(out) - 1}
    for k, axis in enumerate(out[2:]):
        source[axis] = 1 + k
    return [source[a] for a in range(len(out))]


def _mismatched(step: Step) -> Exception:
    return step.refuse(
        "The channels of a convolution are contracted with its kernel.",
        got="a kernel whose width axes do not match the input's",
        remedy="let input channels be finite or grow with the width, like the kernel's",
    )


def _hidden(
    machine: Machine,
    step: Step,
    left: WideVector,
    right: WideMatrix,
    lhs: Any,
    rhs: Any,
    index: np.ndarray,
) -> WideVector:
    if left.axis != lhs[1] or set(right.layouts) != {rhs[0], rhs[1]}:
        raise step.refuse(
            "A convolution contracts channels.",
            got="a width axis among the positions",
            remedy="keep positions finite",
        )
    layout = right.layouts[rhs[1]].common(left.layout)
    right, left = right.refined(rhs[1], layout), left.refined(layout)
    patches, kernel = _patches(left, lhs, index), _kernel(right, rhs)
    slots = right.slots.ravel()[kernel]  # (out cells, offsets, in cells)
    batch, positions, offsets, cells = patches.shape
    outs = slots.shape[0]
    full = (batch, positions, outs, offsets, cells)
    table = np.broadcast_to(slots[None, None], full).reshape(-1, offsets * cells)
    members = np.broadcast_to(patches[:, :, None], full).reshape(-1, offsets * cells)
    result = matmul(machine, step, right, rhs[1], left, table, members)
    return replace(result, shape=(batch, positions, outs), axis=2, layout=right.layouts[rhs[0]])


def _depthwise(
    machine: Machine, step: Step, left: Any, right: Any, lhs: Any, rhs: Any, index: np.ndarray
) -> WideVector:
    """Filters for each channel alone: products of members, added over the window.

    With m filters for each channel, results `m·α, …, m·α + m − 1` are made of channel α.
    """
    widths = machine.program.widths
    if (
        not (isinstance(left, WideVector) and isinstance(right, WideVector))
        or (left.axis, right.axis) != (lhs[1], rhs[0])
        or any(
            int(p["feature_group_count"]) != left.layout.extent * width
            for p, width in zip(step.params, widths, strict=True)
        )
    ):
        raise step.refuse(
            "A depthwise convolution has filters for each channel alone.",
            got="another grouping of channels",
            remedy="use as many groups as channels",
        )
    filters = int(right.layout.extent / left.layout.extent)
    ours = left.layout
    layout = right.layout.common(Layout(ours.major, ours.minor * filters, ours.unit))
    right = right.refined(layout)
    left = left.refined(Layout(layout.major, layout.minor // filters, layout.unit))
    patches, kernel = _patches(left, lhs, index), _kernel(right, rhs)
    patches = np.repeat(patches, filters, axis=-1)
    total: WideVector | None = None
    for offset in range(patches.shape[2]):
        rows = patches[:, :, offset]  # (batch, positions, cells)
        columns = np.broadcast_to(kernel[:, offset, 0], rows.shape)
        spread = replace(left.reindexed(rows, 2), layout=layout)
        term = spread.multiplied(right.reindexed(columns, 2))
        total = term if total is None else total.plus(term)
    assert total is not None
    return replace(total, power=left.power + right.power)


def _placed(result: WideVector, outputs: tuple[int, ...], out: Any) -> WideVector:
    """(batch, positions, features) to the order the step wants."""
    batch, _, features = result.shape
    split = result.indices.reshape(batch, *outputs, features)
    return result.reindexed(split.transpose(_order(out)), out[1 if result.axis else 0])


def window_values(step: Step, vector: WideVector) -> WideVector:
    """Maxima and minima over finite axes or windows, channel by channel."""
    name = step.name
    function = np.minimum if name == "reduce_min" else np.maximum
    if name == "reduce_window_max":
        params = step.params[0]
        window = tuple(int(w) for w in params["window_dimensions"])
        if window[vector.axis] != 1:
            raise _over_channels(step)
        plain = {
            "padding": params["padding"],
            "lhs_dilation": params["base_dilation"],
            "rhs_dilation": params["window_dilation"],
            "window_strides": params["window_strides"],
        }
        index = patch_index(vector.shape, window, plain)
        shape = index.shape[: len(vector.shape)]
        rows = index.reshape(*shape, -1)
        if (rows < 0).any():
            raise step.refuse(
                "Windows of a maximum lie inside the array.",
                got="a max pool with padding",
                remedy="pool without padding ('VALID')",
            )
        slices = [vector.reindexed(rows[..., k], vector.axis) for k in range(rows.shape[-1])]
    else:
        axes = tuple(int(a) for a in step.params[0]["axes"])
        if vector.axis in axes:
            raise _over_channels(step)
        kept = [a for a in range(len(vector.shape)) if a not in axes]
        shape = tuple(vector.shape[a] for a in kept)
        rows = vector.indices.transpose(*kept, *axes).reshape(*shape, -1)
        place = kept.index(vector.axis)
        slices = [vector.reindexed(rows[..., k], place) for k in range(rows.shape[-1])]

    def larger(a: WideVector, b: WideVector) -> WideVector:
        first, second = aligned(step, [a, b])
        return first.applied(Apply(name, function, (first.tree(), second.tree())))

    return replace(reduce(larger, slices), power=vector.power)


def _over_channels(step: Step) -> Exception:
    return step.refuse(
        "Channels are exchangeable: along the width there are sums, dot products and weights.",
        got=f"'{step.name}' over the channels",
        remedy="take maxima over positions",
    )
