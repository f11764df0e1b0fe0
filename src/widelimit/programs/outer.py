"""Sums of outer products of vectors, with two width axes.

Such are the gradients of weight matrices, and matrices made of activations, `kᵀ v` of linear
attention. What the latter do to a vector is `(Σ_i k_i v_iᵀ)ᵀ q = Σ_i (k_i·q) v_i`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from .contraction import Dims, arranged, contraction, summed_products
from .gaussian import Remap
from .layout import Layout, refinement
from .matrices import WideMatrix
from .powers import leading_power
from .scalars import WideScalar
from .steps import Step
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


@dataclass(frozen=True)
class OuterProduct:
    """`Σ_c u[left_oc] ⊗ v[right_oc]` for every entry o of a family; -1 for no term."""

    u: WideVector
    v: WideVector
    left: np.ndarray
    right: np.ndarray

    def taken(self, index: np.ndarray) -> OuterProduct:
        """Other entries (-1: zero)."""
        gone = (index < 0)[:, None]
        safe = np.maximum(index, 0)
        return replace(
            self,
            left=np.where(gone, -1, self.left[safe]),
            right=np.where(gone, -1, self.right[safe]),
        )


@dataclass(frozen=True)
class Outer:
    """A family of outer products; `axes` are the places of u's and v's width axes."""

    shape: tuple[int, ...]
    axes: tuple[int, int]
    parts: tuple[OuterProduct, ...]
    power: Fraction

    is_zero = False

    @property
    def layouts(self) -> dict[int, Layout]:
        """Both width axes and how they are cut."""
        first = self.parts[0]
        return {self.axes[0]: first.u.layout, self.axes[1]: first.v.layout}

    def reindexed(self, index: np.ndarray, axes: dict[int, int]) -> Outer:
        """`axes` maps old width axes to new ones."""
        parts = tuple(part.taken(index.ravel()) for part in self.parts)
        return Outer(index.shape, (axes[self.axes[0]], axes[self.axes[1]]), parts, self.power)

    def relaid(self, layouts: dict[int, Layout]) -> Outer:
        """The same entries under other names of the cells."""
        parts = tuple(
            replace(
                p,
                u=replace(p.u, layout=layouts[self.axes[0]]),
                v=replace(p.v, layout=layouts[self.axes[1]]),
            )
            for p in self.parts
        )
        return replace(self, parts=parts)

    def refined(self, axis: int, layout: Layout) -> Outer:
        """One width axis cut further."""
        old = self.layouts[axis]
        if layout == old:
            return self
        remap = refinement(self.shape, axis, old, layout)
        cut = remap.cut
        assert cut is not None
        piece = cut.major_index * cut.minor + cut.minor_index
        shape = (*self.shape[:axis], layout.cells, *self.shape[axis + 1 :])
        parts = []
        for part in self.parts:
            side = "u" if axis == self.axes[0] else "v"
            table = "left" if side == "u" else "right"
            vector: WideVector = getattr(part, side)
            finer = vector.refined(layout)
            own = refinement(vector.shape, vector.axis, vector.layout, layout)
            assert own.cut is not None
            pieces = own.cut.major_index * cut.minor + own.cut.minor_index
            lookup = np.empty((vector.size, cut.major * cut.minor), int)
            lookup[own.index, pieces] = np.arange(finer.size)
            taken = part.taken(remap.index)
            members = getattr(taken, table)
            moved = np.where(members < 0, -1, lookup[np.maximum(members, 0), piece[:, None]])
            parts.append(replace(taken, **{side: finer, table: moved}))
        return Outer(shape, self.axes, tuple(parts), self.power)

    def times(self, number: WideScalar, entries: np.ndarray) -> Outer:
        """Entry by entry times numbers (draws or 1, entries)."""
        parts = []
        for part in self.parts:
            count = part.left.shape[1]
            rows = np.arange(len(part.left))[:, None] * count + np.arange(count)
            flat = np.maximum(part.left.ravel(), 0)
            spread = part.u.remapped_members(Remap(flat))
            scaled = spread.times(np.repeat(entries, count, axis=1))
            scaled = replace(scaled, shape=(flat.size,), axis=0)
            left = np.where(part.left < 0, -1, rows)
            parts.append(replace(part, u=replace(scaled, layout=part.u.layout), left=left))
        return replace(self, parts=tuple(parts), power=self.power + number.power)


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
        part = part if axis == outer.axes[0] else _swapped(part)
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
    numbers = np.asarray(scores.value(), float)[:, which]
    outputs = np.nonzero(kept)[0]
    weights = np.zeros((len(numbers), len(entries), part.v.size))
    for draw, row in zip(weights, numbers, strict=True):
        np.add.at(draw, (outputs, right[kept]), row)
    mixed = part.v.mixed(weights, (len(entries),), 0)
    return replace(mixed, power=scores.power - part.u.power)


def outer_step(step: Step, operands: list[Any]) -> Outer:
    """Coordinatewise steps on outer products: sums, and factors without width axes."""
    name = step.name
    outers = [value for value in operands if isinstance(value, Outer)]
    first = outers[0]
    if name in ("convert_element_type", "copy", "copy_p"):
        return first
    if name == "neg":
        minus = WideScalar.constant(-1.0)
        return first.times(minus, np.full((1, math.prod(first.shape)), -1.0))
    if name in ("add", "add_any"):
        other = [v for v in operands if v is not first or operands.count(v) > 1]
        rest = other[-1]
        if isinstance(rest, WideMatrix) and rest.is_zero:
            return first
        if isinstance(rest, Outer) and len(outers) == 2:
            return _sum(outers[0], outers[1])
    scalars = [v for v in operands if isinstance(v, WideScalar)]
    if name in ("mul", "div") and len(scalars) == 1 and (name == "mul" or operands[0] is first):
        number = scalars[0]
        data = np.asarray(number.value(), float)
        if name == "div":
            data, number = 1 / data, WideScalar(number.shape, 1 / data, power=-number.power)
        lead = len(first.shape) - (data.ndim - 1)
        data = data.reshape(len(data), *([1] * lead), *data.shape[1:])
        flat = np.broadcast_to(data, (len(data), *first.shape)).reshape(len(data), -1)
        return first.times(number, flat)
    raise step.refuse(
        "Matrices made of activations are added, and scaled by numbers.",
        got=f"'{name}' on an outer product over channels, or on the gradient of a weight matrix",
        remedy="let weights act on vectors directly, and such a matrix on a vector",
    )


def _sum(one: Outer, two: Outer) -> Outer:
    power = leading_power([one, two])
    kept = [outer for outer in (one, two) if outer.power == power]
    if len(kept) == 1:
        return kept[0]
    for k in (0, 1):
        layout = one.layouts[one.axes[k]].common(two.layouts[two.axes[k]])
        one, two = one.refined(one.axes[k], layout), two.refined(two.axes[k], layout)
    if one.axes != two.axes:
        two = Outer(two.shape, one.axes, tuple(_swapped(p) for p in two.parts), two.power)
    shape = np.broadcast_shapes(one.shape, two.shape)
    return Outer(shape, one.axes, (*one.parts, *two.parts), power)


def _swapped(part: OuterProduct) -> OuterProduct:
    return OuterProduct(part.v, part.u, part.right, part.left)
