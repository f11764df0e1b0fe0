"""Limit variables: Gaussian coordinates that the rest of a program is made of.

A `Source` is one origin of i.i.d. coordinates: a parameter with one width axis, or everything that
one weight matrix is applied to. Its members are jointly Gaussian in every coordinate. A `Form` is a
family of linear forms of members of sources. Where a width axis is cut into blocks, each block has
its own independent copy of the variables; a *label* says which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

WHOLE = 0


class Labels:
    """Numbers for blocks of a width axis `(major S, coordinates, minor M)`.

    Cutting block (S, M, s, m) into k major and l minor ones gives (kS, lM, ks + i, m + jM).
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int, int], int] = {(1, 1, 0, 0): WHOLE}
        self._blocks = [(1, 1, 0, 0)]

    def number(self, block: tuple[int, int, int, int]) -> int:
        """The number of a block."""
        if block not in self._numbers:
            self._numbers[block] = len(self._blocks)
            self._blocks.append(block)
        return self._numbers[block]

    def cut(self, labels: np.ndarray, cut: Cut) -> np.ndarray:
        """The labels after cutting each block, member by member."""
        found = np.empty_like(labels)
        for p, (label, i, j) in enumerate(
            zip(labels, cut.major_index, cut.minor_index, strict=True)
        ):
            major, minor, s, m = self._blocks[label]
            block = (
                major * cut.major,
                minor * cut.minor,
                s * cut.major + int(i),
                m + minor * int(j),
            )
            found[p] = self.number(block)
        return found


@dataclass(frozen=True)
class Cut:
    """Each member's piece when blocks are cut into `major`·`minor`."""

    major: int
    minor: int
    major_index: np.ndarray
    minor_index: np.ndarray


@dataclass(frozen=True)
class Remap:
    """New members of a family: which old one each is (-1: zero), and how blocks are cut."""

    index: np.ndarray
    cut: Cut | None = None
    key: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        cut = self.cut
        extra = (
            ()
            if cut is None
            else (cut.major, cut.minor, cut.major_index.tobytes(), cut.minor_index.tobytes())
        )
        object.__setattr__(self, "key", (self.index.tobytes(), *extra))

    @property
    def size(self) -> int:
        """How many members there are afterwards."""
        return len(self.index)

    @property
    def present(self) -> np.ndarray:
        """Which new members are not zero."""
        return self.index >= 0

    @property
    def safe(self) -> np.ndarray:
        """The index with zeros pointing anywhere."""
        return np.maximum(self.index, 0)

    def is_identity(self, size: int) -> bool:
        """Whether nothing changes."""
        return (
            self.cut is None and size == self.size and bool((self.index == np.arange(size)).all())
        )


class GaussianSource:
    """Jointly Gaussian members, i.i.d. over coordinates; `covariance` (draws or 1, F, F)."""

    def __init__(self, name: str, covariance: np.ndarray):
        self.name = name
        self.covariance = covariance

    @property
    def size(self) -> int:
        """How many members there are so far."""
        return self.covariance.shape[-1]

    def extend(self, cross: np.ndarray, own: np.ndarray) -> int:
        """Append members with covariance `own` and `cross` (…, old, new); returns the first."""
        before = self.size
        if before == 0:
            self.covariance = own
            return 0
        draws = max(self.covariance.shape[0], cross.shape[0], own.shape[0])

        def spread(block: np.ndarray) -> np.ndarray:
            return np.broadcast_to(block, (draws, *block.shape[1:]))

        cross = spread(cross)
        top = np.concatenate([spread(self.covariance), cross], axis=2)
        bottom = np.concatenate([np.swapaxes(cross, 1, 2), spread(own)], axis=2)
        self.covariance = np.concatenate([top, bottom], axis=1)
        return before


@dataclass(frozen=True)
class Term:
    """`coefficients` (draws or 1, size, F) of a source's members, in each member's own block."""

    source: GaussianSource
    labels: np.ndarray
    coefficients: np.ndarray

    def padded(self, size: int) -> np.ndarray:
        """Coefficients for as many members as the source has by now."""
        short = size - self.coefficients.shape[-1]
        return (
            np.pad(self.coefficients, ((0, 0), (0, 0), (0, short))) if short else self.coefficients
        )


class Form:
    """A family of centred linear forms of limit variables."""

    def __init__(self, labels: Labels, terms: tuple[Term, ...], size: int):
        self.registry, self.terms, self.size = labels, terms, size
        self._remapped: dict[Any, Form] = {}
        self._variance: tuple[Any, np.ndarray] | None = None

    @classmethod
    def members(cls, labels: Labels, source: GaussianSource, first: int, count: int) -> Form:
        """The members `first, …, first + count − 1` themselves."""
        coefficients = np.zeros((1, count, first + count))
        coefficients[0, np.arange(count), first + np.arange(count)] = 1.0
        term = Term(source, np.full(count, WHOLE), coefficients)
        return cls(labels, (term,), count)

    def remapped(self, remap: Remap) -> Form:
        """The same object for the same map, so that functions of one form stay recognisable."""
        if remap.is_identity(self.size):
            return self
        if remap.key not in self._remapped:
            terms = []
            for term in self.terms:
                labels = term.labels[remap.safe]
                if remap.cut is not None:
                    labels = self.registry.cut(labels, remap.cut)
                coefficients = term.coefficients[:, remap.safe]
                if not remap.present.all():
                    coefficients = coefficients * remap.present[None, :, None]
                terms.append(Term(term.source, labels, coefficients))
            self._remapped[remap.key] = Form(self.registry, tuple(terms), remap.size)
        return self._remapped[remap.key]

    def mixed(self, weights: np.ndarray) -> Form:
        """`Σ_j weights_ij form_j`, weights (draws or 1, new, size)."""
        terms = []
        for term in self.terms:
            for label in np.unique(term.labels):
                here = term.labels == label
                rows = np.abs(weights[:, :, here]).max(axis=(0, 2)) > 0
                if not rows.any():
                    continue
                mixed = weights[:, :, here] @ term.coefficients[:, here]
                labels = np.full(weights.shape[1], label)
                terms.append(Term(term.source, labels, mixed))
        return Form(self.registry, _merged(terms), weights.shape[1])

    def scaled(self, scale: np.ndarray) -> Form:
        """Each member times a number, (draws or 1, size)."""
        terms = tuple(
            Term(t.source, t.labels, t.coefficients * scale[..., None]) for t in self.terms
        )
        return Form(self.registry, terms, self.size)

    def plus(self, other: Form) -> Form:
        """The sum, member by member."""
        return Form(self.registry, _merged([*self.terms, *other.terms]), self.size)

    def covariance(self, other: Form, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Of members `rows` (c, A) with `other`'s `columns` (c, B): (draws, c, A, B)."""
        total = np.zeros((1, *rows.shape, columns.shape[1]))
        for a in self.terms:
            for b in other.terms:
                if a.source is not b.source:
                    continue
                same = a.labels[rows][:, :, None] == b.labels[columns][:, None, :]
                if not same.any():
                    continue
                left, right = a.coefficients[:, rows], b.coefficients[:, columns]
                block = a.source.covariance[:, : left.shape[-1], : right.shape[-1]]
                found = left @ block[:, None] @ np.swapaxes(right, -1, -2)
                total = total + (found if same.all() else found * same)
        return total

    @property
    def variance(self) -> np.ndarray:
        """(draws or 1, size)."""
        sizes = tuple(term.source.size for term in self.terms)
        if self._variance is None or self._variance[0] != sizes:
            each = np.arange(self.size)[:, None]
            self._variance = sizes, self.covariance(self, each, each)[:, :, 0, 0]
        return self._variance[1]


def _merged(terms: list[Term]) -> tuple[Term, ...]:
    """Terms of one source with equal labels are added."""
    found: list[Term] = []
    for term in terms:
        for k, other in enumerate(found):
            if other.source is not term.source:
                continue
            # A member with coefficient zero may take any label.
            mine = np.abs(term.coefficients).max(axis=(0, 2)) > 0
            theirs = np.abs(other.coefficients).max(axis=(0, 2)) > 0
            if ((term.labels != other.labels) & mine & theirs).any():
                continue
            size = max(term.coefficients.shape[-1], other.coefficients.shape[-1])
            labels = np.where(mine, term.labels, other.labels)
            found[k] = Term(term.source, labels, term.padded(size) + other.padded(size))
            break
        else:
            found.append(term)
    return tuple(found)
