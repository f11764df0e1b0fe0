"""How a width axis is cut: `(major, coordinates, minor)`, the coordinates i.i.d."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .gaussian import Cut, Remap


@dataclass(frozen=True)
class Layout:
    """A width axis of `major·(unit·n)·minor` entries; cell (s, m) has number `s·minor + m`."""

    major: int
    minor: int
    unit: Fraction

    @property
    def cells(self) -> int:
        """Blocks with variables of their own."""
        return self.major * self.minor

    @property
    def extent(self) -> Fraction:
        """The whole axis, in units of n."""
        return self.cells * self.unit

    def finer(self, major: int, minor: int) -> Layout:
        """Cut further."""
        return Layout(self.major * major, self.minor * minor, self.unit / (major * minor))

    def common(self, other: Layout) -> Layout:
        """The coarsest layout that refines both."""
        major, minor = math.lcm(self.major, other.major), math.lcm(self.minor, other.minor)
        return Layout(major, minor, self.extent / (major * minor))


def numbered(value: Any) -> np.ndarray:
    """The number of every entry of a value, in its shape with cells in place of width axes."""
    return np.arange(math.prod(value.shape)).reshape(value.shape)


def whole(extent: Fraction) -> Layout:
    """An axis in one piece."""
    return Layout(1, 1, extent)


def refinement(shape: tuple[int, ...], axis: int, old: Layout, new: Layout) -> Remap:
    """The map from a family with layout `old` to `new`; `shape` has the cells at `axis`."""
    major, minor = new.major // old.major, new.minor // old.minor
    s, m = np.divmod(np.arange(new.cells), new.minor)
    cell = (s // major) * old.minor + m % old.minor
    index = np.arange(math.prod(shape)).reshape(shape)
    fine = np.take(index, cell, axis=axis)
    along = [1] * len(shape)
    along[axis] = new.cells
    pieces = [
        np.broadcast_to(p.reshape(along), fine.shape).ravel() for p in (s % major, m // old.minor)
    ]
    return Remap(fine.ravel(), Cut(major, minor, *pieces))
