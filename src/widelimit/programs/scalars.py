"""Scalars: numbers that do not have a width axis, with the power of n in front of them.

Numbers are computed on demand: what vanishes beside something larger is never drawn.
Arrays have a leading axis for draws of the random scalars, of length 1 where nothing is random.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import numpy as np

from ..gaussians import condition, psd_root
from .channels import blocks_alike, is_centred, shared_cells, shared_sources
from .integration import Method
from .integrator import Integrator
from .layout import Layout
from .steps import Step
from .vectors import WideVector

ZERO = Fraction(0)
_SAMPLED = 3e-2  # second moments may be averages over points


class Group(ABC):
    """Jointly Gaussian, centred scalars, drawn when somebody asks."""

    def __init__(self, size: int, integrator: Integrator):
        self.size, self.integrator = size, integrator
        self.drawn: np.ndarray | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether values have been asked for."""
        return self.drawn is not None

    def values(self) -> np.ndarray:
        """One value for every draw, (draws, size)."""
        if self.drawn is None:
            self.drawn = self.draw()
        return self.drawn

    @abstractmethod
    def draw(self) -> np.ndarray:
        """New values."""

    @abstractmethod
    def cross(self, other: Group) -> np.ndarray | None:
        """Covariances with another group, (draws or 1, size, size'); None: independent."""


Pending = tuple[Group, np.ndarray]


class WideScalar:
    """`n^power · (base + Σ weights·group)`, an array of finite `shape`.

    `pending` groups, with weights (draws or 1, entries, group size), are Gaussian scalars on their
    way to the output that nothing else looks at: they need not be drawn. `rough` says that
    fluctuations of lower order were dropped.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        value: np.ndarray | Callable[[], Any],
        *,
        power: Fraction = ZERO,
        rough: bool = False,
        fixed: bool = False,
        pending: tuple[Pending, ...] = (),
    ):
        self.shape, self.power, self.rough, self.pending = shape, power, rough, pending
        self.fixed = fixed
        """Whether the numbers are constants of the program."""
        self._value = value

    layouts: dict[int, Layout] = {}  # noqa: RUF012

    def moved(self, index: np.ndarray, axes: dict[int, int]) -> WideScalar:
        """`index` has the new shape and points into the flat old numbers; there are no `axes`."""
        size = math.prod(self.shape)

        def values() -> np.ndarray:
            numbers = np.asarray(self.base)
            return numbers.reshape(len(numbers), size)[:, index]

        return WideScalar(
            index.shape,
            values() if self.fixed else cache(values),
            power=self.power,
            rough=self.rough,
            fixed=self.fixed,
            pending=tuple((g, weights[:, index.ravel()]) for g, weights in self.pending),
        )

    def relaid(self, layouts: dict[int, Layout]) -> WideScalar:
        """There are no cells to be named."""
        return self

    @classmethod
    def constant(cls, value: Any, power: Fraction = ZERO) -> WideScalar:
        """A number or array that is the same in every draw."""
        array: Any = value  # JAX's stay as they are
        if not hasattr(value, "dtype") or isinstance(value, np.generic):
            array = np.asarray(value)
        return cls(np.shape(value), array[None], power=power, fixed=True)

    @cached_property
    def base(self) -> Any:
        """What does not wait for pending groups."""
        return self._value() if callable(self._value) else self._value

    def value(self) -> Any:
        """(draws or 1, *shape)."""
        total = self.base
        for group, weights in self.pending:
            drawn = (weights @ group.values()[..., None])[..., 0]
            total = total + drawn.reshape(drawn.shape[0], *self.shape)
        return total

    @property
    def is_one_number(self) -> bool:
        """Whether all entries are the same constant."""
        return self.fixed and np.unique(np.asarray(self.base)).size == 1

    @property
    def is_zero(self) -> bool:
        """Whether it is a constant zero."""
        if not self.fixed or self.pending:
            return False
        base = self.base
        return isinstance(base, np.ndarray) and base.dtype.kind in "fiu" and not base.any()


class DotGroup(Group):
    """Dot products `n^{-1/2} Σ_α u_α v_α` of independent families, at least one of them centred.

    `Cov(p, p') = Σ unit·E[u u']E[v v']` over pairs of cells that are the same channels. Cells that
    share none are drawn as `L_u ξ L_vᵀ` with a normal matrix ξ for each. Dot products of the same
    weights elsewhere in the program are drawn given these.
    """

    def __init__(
        self,
        step: Step,
        u: WideVector,
        v: WideVector,
        pairs: np.ndarray,
        integrator: Integrator,
        earlier: list[DotGroup],
    ):
        """`pairs` (2, size): the members of u and v of each product, counted within one cell."""
        super().__init__(pairs.shape[1], integrator)
        self.step, self.u, self.v, self.pairs = step, u, v, pairs
        self.earlier = list(earlier)

    @cached_property
    def grams(self) -> tuple[np.ndarray, np.ndarray]:
        """Second moments of either side in every cell."""
        gram = self.integrator.gram
        found, self.method = self.integrator.measured(
            lambda: (gram(self.u, self.u), gram(self.v, self.v))
        )
        return found

    def cross(self, other: Group) -> np.ndarray | None:
        if not isinstance(other, DotGroup):
            return None
        if other is self:
            return self._cross(other.u, other.v, other.pairs)
        found = [
            self._cross(other.u, other.v, other.pairs),
            self._cross(other.v, other.u, other.pairs[::-1]),
        ]
        there = [cross for cross in found if cross is not None]
        return sum(there) if there else None  # pyright: ignore[reportReturnType]

    def _cross(self, left: WideVector, right: WideVector, pairs: np.ndarray) -> np.ndarray | None:
        """Covariances with the dot products of `left` and `right`."""
        # Where neither side shares variables, the centred one makes the covariance zero. One side
        # is enough: the other may have a mean, which E[v v'] keeps though v and v' are independent.
        if not (shared_sources(self.u, left) or shared_sources(self.v, right)):
            return None
        ours, theirs = blocks_alike(self.step, (self.u, self.v), (left, right))
        meetings = shared_cells(ours[0], theirs[0]) | shared_cells(ours[1], theirs[1])
        mine, others = np.nonzero(meetings)
        if not len(mine):
            return None
        (i, j), (k, m) = self.pairs, pairs
        blocks = None
        for a, b, rows, columns in ((ours[0], theirs[0], i, k), (ours[1], theirs[1], j, m)):
            second = self.integrator.second(a, b, a.by_cell()[mine], b.by_cell()[others])
            if not second.any():
                return None
            second = second[:, :, rows[:, None], columns[None, :]]
            blocks = second if blocks is None else blocks * second
        assert blocks is not None
        return float(ours[0].layout.unit) * blocks.sum(axis=1)

    @cached_property
    def cells_meet(self) -> bool:
        """Whether different cells of a side are the same channels, as after `[v, v]`."""
        sides = (shared_cells(side, side) for side in (self.u, self.v))
        return any(bool((side & ~np.eye(len(side), dtype=bool)).any()) for side in sides)

    def variances(self) -> tuple[np.ndarray, Method]:
        """Of every dot product, (draws or 1, size), and how they were found."""
        if self.cells_meet:
            own, method = self.integrator.measured(lambda: self.cross(self))
            assert own is not None
            return np.diagonal(own, axis1=1, axis2=2), method
        one, two = (
            np.diagonal(gram, axis1=2, axis2=3)[..., members]
            for gram, members in zip(self.grams, self.pairs, strict=True)
        )
        return float(self.u.layout.unit) * (one * two).sum(axis=1), self.method

    def require_centred(self) -> None:
        """Raise where the mean is zero in the limit only; asked for once the values count."""
        if not is_centred(self.u, self.v, self.pairs):
            raise self.step.refuse(
                "Sums over channels that are divided by √n are centred at every width.",
                got="a sum whose mean is zero by coincidence of variances or inputs",
                remedy="make it centred by weights of its own, or divide it by n",
            )

    def draw(self) -> np.ndarray:
        self.require_centred()
        drawn = [(g, self.cross(g)) for g in self.earlier if g.is_drawn]
        known = [(g, c) for g, c in drawn if c is not None]
        return self._conditional(known) if known else self._fresh()

    def _fresh(self) -> np.ndarray:
        draws, rng = self.integrator.draws, self.integrator.rng
        if self.cells_meet:
            own = self.cross(self)
            noise = rng.standard_normal((draws, self.size, 1))
            return np.zeros((draws, self.size)) if own is None else (_root(own) @ noise)[..., 0]
        first, second = self.grams
        total = np.zeros((draws, self.size))
        share = np.sqrt(float(self.u.layout.unit))
        for cell in range(first.shape[1]):
            rows, columns = (_rooted_blocks(gram[:, cell]) for gram in (first, second))
            for (a, left), (b, right) in itertools.product(rows, columns):
                chosen = np.flatnonzero(np.isin(self.pairs[0], a) & np.isin(self.pairs[1], b))
                if len(chosen):
                    noise = rng.standard_normal((draws, len(a), len(b)))
                    field = left @ noise @ np.swapaxes(right, 1, 2)
                    i, j = (
                        np.searchsorted(k, p[chosen])
                        for k, p in zip((a, b), self.pairs, strict=True)
                    )
                    total[:, chosen] += share * field[:, i, j]
        return total

    def _conditional(self, known: list[tuple[DotGroup, np.ndarray]]) -> np.ndarray:
        """Given dot products that were drawn before and share weights with these."""
        draws = self.integrator.draws
        before = [np.broadcast_to(g.values(), (draws, g.size)) for g, _ in known]
        groups = [g for g, _ in known]
        blocks = [[(g.cross(h), np.zeros((1, g.size, h.size))) for h in groups] for g in groups]
        rows = [_side_by_side([none if c is None else c for c, none in row], 2) for row in blocks]
        cross, old = _side_by_side([c for _, c in known], 2), _side_by_side(rows, 1)
        own = self.cross(self)
        assert own is not None
        mean, rest = condition(own, cross, old, np.concatenate(before, axis=1))
        scale = np.abs(own).max(axis=(1, 2)) * self.size
        noise = self.integrator.rng.standard_normal((draws, self.size, 1))
        return mean + (psd_root(rest, tolerance=_SAMPLED, scale=scale) @ noise)[..., 0]


class NormalGroup(Group):
    """Independent standard normals: a finite Gaussian parameter."""

    def draw(self) -> np.ndarray:
        return self.integrator.rng.standard_normal((self.integrator.draws, self.size))

    def cross(self, other: Group) -> np.ndarray | None:
        return np.eye(self.size)[None] if other is self else None


def _side_by_side(arrays: list[np.ndarray], axis: int) -> np.ndarray:
    draws = max(a.shape[0] for a in arrays)
    return np.concatenate([np.broadcast_to(a, (draws, *a.shape[1:])) for a in arrays], axis=axis)


def _root(matrices: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return psd_root(matrices, tolerance=_SAMPLED)


def _rooted_blocks(gram: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Members that are correlated in any draw, together, with the root of their covariance."""
    from scipy.sparse.csgraph import connected_components

    count, label = connected_components((gram != 0).any(axis=0), directed=False)
    blocks = [np.flatnonzero(label == k) for k in range(count)]
    return [(block, _root(gram[:, block][:, :, block])) for block in blocks]
