"""Values with two width axes: weights, known by their entries' variance, and outer products."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .gaussian import GaussianSource, Remap
from .layout import Layout, refinement
from .scalars import WideScalar
from .vectors import WideVector


@dataclass
class WeightArray:
    """One parameter, and everything it was applied to."""

    name: str
    entries: int = 1
    """Slots of the parameter in one piece; those of its cut pieces are numbered after them."""
    sources: dict[int, GaussianSource] = field(default_factory=dict)
    """By the parameter's own axis that is contracted: W and its transpose are independent."""
    uses: dict[int, list[Use]] = field(default_factory=dict)
    pieces: dict[tuple[Any, ...], int] = field(default_factory=dict)
    """Slots of cut pieces, by how they came to be: a slot, then (axis, major, minor, i, j)…"""
    origins: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """How slots of cut pieces came to be."""
    used: set[int] = field(default_factory=set)
    joined: bool = False
    """Whether it is a part of weights that were put together, and is used there alone."""

    def cut(self, slot: int, how: tuple[int, ...]) -> int:
        """The slot of one piece of a slot."""
        origin = (*self.origins.get(slot, (slot,)), how)
        number = self.pieces.setdefault(origin, self.entries + len(self.pieces))
        self.origins[number] = origin
        return number

    def overlap(self, slots: set[int]) -> bool:
        """Whether entries among these were used before in pieces that were cut in another way."""
        new, old = (
            [self.origins.get(slot, (slot,)) for slot in each] if self.pieces else []
            for each in (slots - self.used, self.used)
        )
        return any(_overlap(one, other) for one in new for other in old)

    def source(self, axis: int) -> GaussianSource:
        """The limit variables made by contracting one of the two width axes."""
        return self.sources.setdefault(axis, GaussianSource(self.name, np.zeros((1, 0, 0))))


def _overlap(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Whether two pieces have entries in common, by how they were cut; equal ones have not."""
    if one[0] != two[0]:
        return False
    for a, b in zip(one[1:], two[1:], strict=False):
        if a != b:
            return a[:3] != b[:3]  # other pieces of one cut are apart
    return len(one) != len(two)


@dataclass(frozen=True)
class Opaque:
    """What comes with an orthogonal factorisation and has no limit of its own.

    Only the signs of its diagonal may be used, to turn the factor's columns about.
    """

    signs: bool = False
    power: Fraction = Fraction(0)
    is_zero: bool = False


@dataclass(frozen=True)
class Use:
    """An application: the operand, and for each slot the operand's member behind each result."""

    operand: WideVector
    members: dict[int, np.ndarray]
    scale: float


@dataclass(frozen=True)
class WideMatrix:
    """A view of a parameter with two width axes.

    `slots` has the view's shape with cells in place of the width axes; equal numbers are equal
    entries. `base` maps an axis of the view to the parameter's own width axis. Entries are
    `n^power·scale` times the parameter, or everywhere the number `constant`.
    """

    weights: WeightArray
    slots: np.ndarray
    layouts: dict[int, Layout]
    base: dict[int, int]
    scale: float
    power: Fraction
    constant: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """With cells in place of width axes."""
        return self.slots.shape

    @property
    def is_zero(self) -> bool:
        """Whether all entries are exactly zero."""
        return self.constant == 0.0 or self.scale == 0.0

    def times(self, number: WideScalar) -> WideMatrix:
        """All entries times one number."""
        factor, power = float(np.ravel(number.value())[0]), self.power + number.power
        if self.constant is not None:
            return replace(self, constant=self.constant * factor, power=power)
        return replace(self, scale=self.scale * factor, power=power)

    def moved(self, index: np.ndarray, axes: dict[int, int]) -> WideMatrix:
        """`axes` maps old width axes to new ones."""
        return replace(
            self,
            slots=self.slots.ravel()[index],
            layouts={new: self.layouts[old] for old, new in axes.items()},
            base={new: self.base[old] for old, new in axes.items()},
        )

    def relaid(self, layouts: dict[int, Layout]) -> WideMatrix:
        """The same entries under other names of the cells."""
        return replace(self, layouts=layouts)

    def refined_at(self, axis: int, layout: Layout) -> WideMatrix:
        """One width axis cut further: each piece has entries of its own."""
        if layout == self.layouts[axis]:
            return self
        remap = refinement(self.shape, axis, self.layouts[axis], layout)
        cut = remap.cut
        assert cut is not None
        shape = (*self.shape[:axis], layout.cells, *self.shape[axis + 1 :])
        old = self.slots.ravel()[remap.index]
        numbers = [
            self.weights.cut(int(slot), (self.base[axis], cut.major, cut.minor, int(i), int(j)))
            for slot, i, j in zip(old, cut.major_index, cut.minor_index, strict=True)
        ]
        slots = np.array(numbers).reshape(shape)
        return replace(self, slots=slots, layouts={**self.layouts, axis: layout})


Value = WideScalar | WideVector | WideMatrix


@dataclass(frozen=True)
class OuterProduct:
    """`Σ_c u[left_oc] ⊗ v[right_oc]` for every entry o of a family; -1 for no term."""

    u: WideVector
    v: WideVector
    left: np.ndarray
    right: np.ndarray

    def taken(self, index: np.ndarray) -> OuterProduct:
        """Other entries (-1: zero)."""
        gone, safe = (index < 0)[:, None], np.maximum(index, 0)
        left, right = (np.where(gone, -1, side[safe]) for side in (self.left, self.right))
        return replace(self, left=left, right=right)


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

    def swapped(self) -> Outer:
        """The same with v first."""
        parts = tuple(OuterProduct(p.v, p.u, p.right, p.left) for p in self.parts)
        return replace(self, axes=(self.axes[1], self.axes[0]), parts=parts)

    def moved(self, index: np.ndarray, axes: dict[int, int]) -> Outer:
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

    def refined_at(self, axis: int, layout: Layout) -> Outer:
        """One width axis cut further."""
        old = self.layouts[axis]
        if layout == old:
            return self
        if axis == self.axes[1]:
            return self.swapped().refined_at(axis, layout).swapped()
        remap = refinement(self.shape, axis, old, layout)
        cut = remap.cut
        assert cut is not None
        piece = cut.major_index * cut.minor + cut.minor_index
        parts = []
        for part in self.parts:
            own = refinement(part.u.shape, part.u.axis, old, layout)
            assert own.cut is not None
            pieces = own.cut.major_index * cut.minor + own.cut.minor_index
            lookup = np.empty((part.u.size, cut.major * cut.minor), int)
            lookup[own.index, pieces] = np.arange(own.size)
            taken = part.taken(remap.index)
            left = lookup[np.maximum(taken.left, 0), piece[:, None]]
            left = np.where(taken.left < 0, -1, left)
            parts.append(replace(taken, u=part.u.refined(layout), left=left))
        shape = (*self.shape[:axis], layout.cells, *self.shape[axis + 1 :])
        return replace(self, shape=shape, parts=tuple(parts))

    def times(self, number: WideScalar) -> Outer:
        """Entry by entry times numbers."""
        data = np.asarray(number.value(), float)
        lead = (1,) * (len(self.shape) - len(number.shape))
        data = data.reshape(len(data), *lead, *number.shape)
        entries = np.broadcast_to(data, (len(data), *self.shape)).reshape(len(data), -1)
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
