"""Limit variables: Gaussian coordinates that the rest of a program is made of.

A `Source` is one origin of i.i.d. coordinates: a parameter with one width axis, or everything that
one weight matrix is applied to. Its members are jointly Gaussian in every coordinate. A `Form` is a
family of linear forms of members of sources. Where a width axis is cut into blocks, each block has
its own independent copy of the variables; a *label* says which.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .integration import Method
from .thresholds import NO_VARIANCE

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

    def level(self, label: int) -> tuple[int, int]:
        """Into how many major and minor blocks the axis is cut where this is one."""
        return self._blocks[label][:2]

    def cut(self, labels: np.ndarray, cut: Cut) -> np.ndarray:
        """The labels after cutting each block, member by member."""
        found = []
        for label, i, j in zip(labels, cut.major_index, cut.minor_index, strict=True):
            major, minor, s, m = self._blocks[label]
            place = (s * cut.major + int(i), m + minor * int(j))
            found.append(self.number((major * cut.major, minor * cut.minor, *place)))
        return np.array(found, labels.dtype)


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


class OrderedChannelsError(Exception):
    """Channels that know their place are split into blocks."""


class Postponed:
    """Covariances with what the same weights were applied to before, until somebody asks.

    They are computed in the program's order, so that each finds those it needs.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[GaussianSource, Callable[[], np.ndarray]]] = deque()

    def add(self, source: GaussianSource, cross: Callable[[], np.ndarray]) -> None:
        """Those of the source's newest members with the members before them."""
        self._waiting.append((source, cross))

    def settle(self, source: GaussianSource, count: int) -> None:
        """Compute until a source's first `count` members know each other."""
        while source.known < count:
            owner, cross = self._waiting.popleft()
            owner.fill(cross())


class GaussianSource:
    """Jointly Gaussian members, i.i.d. over coordinates; `covariance` (draws or 1, F, F).

    `ordered` coordinates stand for places along the channels: blocks of channels are not alike.
    `rows` has, for members that weights made, which of the weights' entries they are made of: at
    width n their covariance is an average over channels, O(n^{-1/2}) from its limit.
    """

    def __init__(self, name: str, covariance: np.ndarray, *, ordered: bool = False):
        self.name, self.ordered = name, ordered
        self._covariance, self._ends = covariance, [covariance.shape[-1]]
        self.known = self.size
        """How many members know the covariances among them: others know those made with them."""
        self.method = Method.CLOSED_FORM
        """The least exact method behind the covariance."""
        self.rows: list[frozenset[int]] = []
        self.postponed = Postponed()

    @property
    def size(self) -> int:
        """How many members there are so far."""
        return self._covariance.shape[-1]

    @property
    def variances(self) -> np.ndarray:
        """(draws or 1, F)."""
        return np.diagonal(self._covariance, axis1=1, axis2=2)

    def extend(self, own: np.ndarray) -> int:
        """Append members with covariance `own`; returns the first. `fill` has those before."""
        before, after = self.size, self.size + own.shape[-1]
        total = np.zeros((max(len(self._covariance), len(own)), after, after))
        total[:, :before, :before] = self._covariance
        total[:, before:, before:] = own
        self._covariance = total
        self._ends.append(after)
        return before

    def fill(self, cross: np.ndarray) -> None:
        """Covariances (draws or 1, old, new) of the first members that do not know those before."""
        k = bisect.bisect(self._ends, self.known)
        old, new = slice(0, self.known), slice(self.known, self._ends[k])
        if len(cross) > len(self._covariance):
            self._covariance = np.repeat(self._covariance, len(cross), axis=0)
        self._covariance[:, old, new] = cross
        self._covariance[:, new, old] = np.swapaxes(cross, 1, 2)
        self.known = self._ends[k]

    def covariance(self, count: int) -> np.ndarray:
        """Of the first members."""
        self.postponed.settle(self, count)
        return self._covariance[:, :count, :count]

    def among(self, members: np.ndarray) -> np.ndarray:
        """Of some members."""
        return self.between(members[:, None], members)

    def between(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Of members, in arrays of numbers that broadcast."""
        count = 1 + max(ours.max(initial=-1), theirs.max(initial=-1))
        if count > self.known and ours.size and theirs.size:
            made = np.searchsorted(self._ends, [ours.min(), theirs.min(), count - 1], side="right")
            if (made != made[0]).any():
                self.postponed.settle(self, count)
        return self._covariance[:, ours, theirs]


@dataclass(frozen=True)
class Term:
    """Linear forms of a source's members, each in a block of its own.

    With `picks` (size,) form i is `weights_i · member[picks_i]`, weights (draws or 1, size, 1);
    without, it is `Σ_f weights_if · member_f`, weights (draws or 1, size, F). Most vectors are
    members themselves: their covariances are looked up, not multiplied out.
    """

    source: GaussianSource
    labels: np.ndarray
    weights: np.ndarray
    picks: np.ndarray | None = None

    @property
    def span(self) -> int:
        """How many members of the source are in reach."""
        return self.weights.shape[-1] if self.picks is None else 1 + int(self.picks.max(initial=0))

    def coefficients(self, span: int, forms: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Of the first `span` members in order, (draws or 1, forms, span)."""
        weights = self.weights[:, forms]
        if self.picks is not None:
            picks, alone = self.picks[forms], weights[..., 0]
            weights = np.zeros((*alone.shape, span))
            weights[:, np.arange(len(picks)), picks] = alone
            return weights
        short = span - weights.shape[-1]
        return np.pad(weights, ((0, 0), (0, 0), (0, short))) if short else weights

    @property
    def used(self) -> np.ndarray:
        """Which forms are not zero, (size,)."""
        return np.abs(self.weights).max(axis=(0, 2), initial=0.0) > 0

    def taken(self, index: np.ndarray, labels: np.ndarray) -> Term:
        """Other forms."""
        picks = None if self.picks is None else self.picks[index]
        return Term(self.source, labels, self.weights[:, index], picks)

    def scaled(self, scale: np.ndarray) -> Term:
        """Each form times a number, (draws or 1, size)."""
        return Term(self.source, self.labels, self.weights * scale[..., None], self.picks)

    def sizes(self) -> np.ndarray:
        """`Σ_f |weight_f| deviation_f`, (draws or 1, size): what a form's terms add up to."""
        deviations = np.sqrt(np.abs(self.source.variances))
        if self.picks is not None:
            return np.abs(self.weights[..., 0]) * deviations[:, self.picks]
        found = np.abs(self.weights) @ deviations[:, : self.weights.shape[-1], None]
        return found[..., 0]

    def at(self, members: np.ndarray, forms: np.ndarray) -> np.ndarray:
        """Values of forms for values (draws, points, size) of the members."""
        if self.picks is not None:
            return members[..., self.picks[forms]] * self.weights[:, None, forms, 0]
        weights = self.weights[:, forms]
        return members[..., : weights.shape[-1]] @ weights.swapaxes(1, 2)

    def covariance(self, other: Term, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Of forms `rows` (c, A) with `other`'s `columns` (c, B), were all in one block."""
        if self.picks is not None and other.picks is not None:
            ours, theirs = self.picks[rows][:, :, None], other.picks[columns][:, None, :]
            found = self.source.between(ours, theirs)
            for weights in (self.weights[:, rows], other.weights[:, columns].swapaxes(-1, -2)):
                if (weights != 1).any():
                    found = found * weights
            return found
        cells, count = rows.shape
        flat = rows.ravel()
        table = self.source.covariance(max(self.span, other.span))[..., : other.span]
        if self.picks is not None:
            left = table[:, self.picks[flat]] * self.weights[:, flat]
        else:
            left = self.weights[:, flat] @ table[:, : self.weights.shape[-1]]
        left = left.reshape(len(left), cells, count, -1)
        if other.picks is not None:
            found = np.take_along_axis(left, other.picks[columns][None, :, None, :], axis=-1)
            return found * other.weights[:, columns].swapaxes(-1, -2)
        right = other.weights[:, columns]
        if count == 1 and columns.shape[1] == 1:
            return (left * right).sum(axis=-1, keepdims=True)
        return left @ right.swapaxes(-1, -2)


class Form:
    """A family of centred linear forms of limit variables."""

    def __init__(self, labels: Labels, terms: tuple[Term, ...], size: int):
        self.registry, self.terms, self.size = labels, terms, size
        self._remapped: dict[Any, Form] = {}
        self._variance: np.ndarray | None = None

    @classmethod
    def members(cls, labels: Labels, source: GaussianSource, first: int, count: int) -> Form:
        """The members `first, …, first + count − 1` themselves."""
        picks = first + np.arange(count)
        term = Term(source, np.full(count, WHOLE), np.ones((1, count, 1)), picks)
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
                    if term.source.ordered:
                        raise OrderedChannelsError
                    labels = self.registry.cut(labels, remap.cut)
                moved = term.taken(remap.safe, labels)
                terms.append(moved if remap.present.all() else moved.scaled(remap.present[None]))
            self._remapped[remap.key] = Form(self.registry, tuple(terms), remap.size)
        return self._remapped[remap.key]

    def mixed(self, weights: np.ndarray) -> Form:
        """`Σ_j weights_ij form_j`, weights (draws or 1, new, size)."""
        terms = []
        touched = np.abs(weights).max(axis=0) > 0
        for term in self.terms:
            span = term.span
            homes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
            for label in np.unique(term.labels):
                here = np.flatnonzero(term.labels == label)
                rows = np.flatnonzero(touched[:, here].any(axis=1))
                if not len(rows):
                    continue
                mixed = weights[:, rows[:, None], here] @ term.coefficients(span, here)
                home = next((h for h in homes if not h[2][rows].any()), None)
                if home is None:
                    count = weights.shape[1]
                    home = (
                        np.full(count, label),
                        np.zeros((len(mixed), count, span)),
                        np.zeros(count, bool),
                    )
                    homes.append(home)
                labels, spread, taken = home
                labels[rows], spread[:, rows], taken[rows] = label, mixed, True
            terms += [Term(term.source, labels, spread) for labels, spread, _ in homes]
        return Form(self.registry, _merged(terms), weights.shape[1])

    def scaled(self, scale: np.ndarray) -> Form:
        """Each member times a number, (draws or 1, size)."""
        return Form(self.registry, tuple(t.scaled(scale) for t in self.terms), self.size)

    def plus(self, other: Form) -> Form:
        """The sum, member by member."""
        return Form(self.registry, _merged([*self.terms, *other.terms]), self.size)

    def covariance(self, other: Form, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Of members `rows` (c, A) with `other`'s `columns` (c, B): (draws, c, A, B)."""
        found = self._products(other, rows, columns)
        for index, form in ((rows[..., :, None], self), (columns[..., None, :], other)):
            if not form.variance.all():  # what is constant is not ±1e-16 correlated
                found = found * (form.variance[:, index] > 0)
        return found

    def _products(self, other: Form, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        total = np.zeros((1, *rows.shape, columns.shape[1]))
        for a in self.terms:
            for b in other.terms:
                if a.source is not b.source:
                    continue
                same = a.labels[rows][:, :, None] == b.labels[columns][:, None, :]
                if same.all():
                    total = total + a.covariance(b, rows, columns)
                elif len(rows) > 1 and same.any():
                    total = total + a.covariance(b, rows, columns) * same
                elif same.any():
                    total = total + _by_block(a, b, rows[0], columns[0])[:, None]
        return total

    @property
    def variance(self) -> np.ndarray:
        """(draws or 1, size); zero where its terms cancel down to rounding."""
        if self._variance is None:  # sources grow, but what is there stays as it is
            each = np.arange(self.size)[:, None]
            found = self._products(self, each, each)[:, :, 0, 0]
            if any(term.picks is None for term in self.terms) or len(self.terms) > 1:
                size = sum(term.sizes() for term in self.terms)
                found = np.where(np.abs(found) <= NO_VARIANCE * np.square(size), 0.0, found)
            self._variance = np.maximum(found, 0.0)
        return self._variance

    @property
    def deviation(self) -> np.ndarray:
        """The root of the variance."""
        return np.sqrt(self.variance)


def correlated(
    ours: Iterable[Form],
    theirs: Iterable[Form],
    rows: np.ndarray,
    columns: np.ndarray,
    *,
    simple: bool,
) -> bool:
    """Whether members `rows` (c, A) and `columns` (c, B) of functions of forms share variables.

    Where members depend on other members' forms (not `simple`), any common block counts.
    """
    if not simple:
        return bool(blocks_of(ours).keys() & blocks_of(theirs).keys())
    theirs = list(theirs)
    return any(a.covariance(b, rows, columns).any() for a in ours for b in theirs)


def blocks_of(forms: Iterable[Form]) -> dict[tuple[int, int], GaussianSource]:
    """The sources that forms are made of, by their blocks."""
    return {
        (id(term.source), int(label)): term.source
        for form in forms
        for term in form.terms
        for label in np.unique(term.labels)
    }


def _by_block(a: Term, b: Term, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Covariances (draws, A, B) of forms in many blocks: different blocks are independent."""
    ours, theirs = a.labels[rows], b.labels[columns]
    total: np.ndarray | None = None
    for label in np.intersect1d(ours, theirs):
        i, j = np.flatnonzero(ours == label), np.flatnonzero(theirs == label)
        found = a.covariance(b, rows[None, i], columns[None, j])[:, 0]
        if total is None:
            total = np.zeros((len(found), len(rows), len(columns)))
        total[:, i[:, None], j] = found
    assert total is not None
    return total


def _merged(terms: list[Term]) -> tuple[Term, ...]:
    """Terms of one source with equal labels are added."""
    found: list[Term] = []
    for term in terms:
        for k, other in enumerate(found):
            if other.source is not term.source:
                continue
            # A form with weight zero may take any label.
            mine, theirs = term.used, other.used
            if ((term.labels != other.labels) & mine & theirs).any():
                continue
            labels = np.where(mine, term.labels, other.labels)
            if term.picks is not None and other.picks is not None:
                picks = np.where(mine, term.picks, other.picks)
                if (picks == other.picks)[theirs].all():
                    found[k] = Term(term.source, labels, term.weights + other.weights, picks)
                    break
            span = max(term.span, other.span)
            total = term.coefficients(span) + other.coefficients(span)
            found[k] = Term(term.source, labels, total)
            break
        else:
            found.append(term)
    return tuple(found)
