"""Weight matrices: parameters with two width axes, known by the variance of their entries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .gaussian import GaussianSource
from .layout import Layout, refinement
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
    cuts: dict[int, Layout] = field(default_factory=dict)
    slots: dict[Any, int] = field(default_factory=dict)

    def source(self, axis: int) -> GaussianSource:
        """The limit variables made by contracting one of the two width axes."""
        return self.sources.setdefault(axis, GaussianSource(self.name, np.zeros((1, 0, 0))))


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
    first: int
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

    def reindexed(self, index: np.ndarray, axes: dict[int, int]) -> WideMatrix:
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

    def refined(self, axis: int, layout: Layout) -> WideMatrix:
        """One width axis cut further: each piece has entries of its own."""
        if layout == self.layouts[axis]:
            return self
        remap = refinement(self.shape, axis, self.layouts[axis], layout)
        cut = remap.cut
        assert cut is not None
        shape = (*self.shape[:axis], layout.cells, *self.shape[axis + 1 :])
        known, begin = self.weights.slots, self.weights.entries
        old = self.slots.ravel()[remap.index]
        keys = zip(old, cut.major_index, cut.minor_index, strict=True)
        numbers = [
            known.setdefault(
                (self.base[axis], cut.major, cut.minor, *map(int, key)), begin + len(known)
            )
            for key in keys
        ]
        slots = np.array(numbers).reshape(shape)
        return replace(self, slots=slots, layouts={**self.layouts, axis: layout})
