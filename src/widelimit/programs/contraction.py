"""Contractions: MatMul, dot products, mixtures over finite axes, sums over the width."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .matmul import HALF, matmul
from .matrices import WideMatrix
from .scalars import DotGroup, WideScalar
from .steps import Step
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine

# Means below this share of the deviations are rounding errors of means that are zero.
_NOTHING = 1e-9


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
    batch, free, inner = members.shape
    other = entries.shape[1]
    flat = data.reshape(data.shape[0], -1)
    size = batch * free * other
    weights = np.zeros((flat.shape[0], batch, free, other, vector.size))
    b, f, o = np.ogrid[:batch, :free, :other]
    for c in range(inner):
        weights[:, b, f, o, members[:, :, None, c]] += flat[:, entries[:, None, :, c]]
    shape, axis = _result_shape(vector, number.shape, own)
    # Axes come as (batch, vector's, number's); the step wants (batch, left's, right's).
    mixed = vector.mixed(weights.reshape(flat.shape[0], size, vector.size), shape, axis)
    mixed = replace(mixed, power=vector.power + number.power)
    return _left_first(mixed, side, own, len(vector.shape), len(number.shape))


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
    machine.note_dot(step, u, v)
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
