"""Gaussian expectations without a closed form: a grid in low dimension, sampling above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np

from ..errors import NetworkError
from ..gaussians import sobol_normals
from ..options import RandomKey, seed_words
from ..statistics import Estimate
from .hermite import COARSE, FINE, Grid

_REACH = 9.0  # standard deviations; the Gaussian mass beyond is below 1e-18
_MOST_GRIDS = 256  # draws that have grids of their own
FAR = 7.2  # where square means are those of functions that reach further


class Method(IntEnum):
    """How a number was obtained; a number inherits the least exact method it rests on."""

    CLOSED_FORM = 0
    QUADRATURE = 1
    SAMPLING = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, eq=False, repr=False)
class LimitValue(Estimate):
    """A number or array with its error and the method behind it.

    The error is 0 for closed forms, the larger change on two grids twice as coarse for quadrature,
    and the standard error over independent replicates of the whole computation for sampling.
    """

    method: Method


@dataclass(frozen=True)
class Integration:
    """How to integrate.

    Up to `max_dimension` variables on grids. Functions of one variable, and products of two such
    functions, have Hermite series; others the trapezoidal rule with spacing `step` in whitened
    coordinates (twice that where an integral is needed for every draw of the scalars), which for
    smooth functions converges as fast as Gauss–Hermite and is safer for steep or kinked ones.
    Above: `points` quasi-random (scrambled Sobol) points, a power of two, in `replicates`
    independent scramblings; `repeated` of them where an integral is needed for every draw.
    """

    step: float = 0.125
    max_dimension: int = 3
    points: int = 2**13
    replicates: int = 8
    repeated: int = 2**8

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        whole = (self.max_dimension, self.points, self.replicates, self.repeated)
        if (
            not all(isinstance(n, int) for n in whole)
            or not isinstance(self.step, int | float)
            or not 0 < self.step <= 1
            or not 0 <= self.max_dimension <= 4
            or any(n < 2 or n & (n - 1) for n in (self.points, self.repeated))
            or self.replicates < 2
        ):
            raise NetworkError(
                "Integration needs 0 < step ≤ 1, 0 ≤ max_dimension ≤ 4, points a power of two and "
                "at least 2 replicates.",
                got=repr(self),
                remedy="for instance Integration(points=2**14)",
            )

    def seeded(self, key: RandomKey) -> Rule:
        """The rule whose random points follow from a key."""
        return Rule(**asdict(self), words=seed_words(key))


@dataclass(frozen=True)
class Rule(Integration):
    """An integration rule with its random points."""

    words: tuple[int, ...] = ()
    widening: int = 1
    offset: float = 0.0
    """Where grids lie: by this share of their spacing from the origin."""

    def coarse(self) -> tuple[Rule, Rule]:
        """The same on grids twice as wide: one about the origin, one off it by a quarter.

        At a kink the first can agree with the fine grid by chance, at a jump the second; where
        one does, the other differs by more than the error.
        """
        wide = replace(self, step=min(2 * self.step, 1.0), widening=2)
        return wide, replace(wide, offset=0.25)

    def replicate(self, number: int) -> Rule:
        """The same with independent random points."""
        return replace(self, words=(*self.words, number))

    def method(self, dimension: int, draws: int = 1) -> Method:
        """Grid or sampling, by the number of independent Gaussian variables.

        Averages over many draws have an error of their own: grids in several variables for each of
        them are not worth their time.
        """
        many = dimension > 1 and draws > _MOST_GRIDS
        fits = dimension <= self.max_dimension and not many
        return Method.QUADRATURE if fits else Method.SAMPLING

    def line(self, *, repeated: bool) -> Grid:
        """The grid of functions of one variable; one law is integrated finely, many coarsely."""
        grid = COARSE if repeated else FINE
        if self.widening == 1:
            return grid
        points, orders = grid.points // self.widening, grid.orders // self.widening
        return replace(grid, points=points, orders=orders, offset=self.offset)

    def nodes(
        self, dimension: int, draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Standard normal points `(draws or 1, P, dimension)`, weights `(P,)` that sum to one."""
        if self.method(dimension, draws) is Method.QUADRATURE:
            # Dimension three would need millions of points at the fine spacing.
            widening = (1, 1, 1, 3, 4)[dimension] * (2 if draws > 1 and dimension < 3 else 1)
            points, weights = _grid(self.step * widening, dimension, self.offset)
            return points[None], weights
        count = self.repeated if draws > 1 else self.points
        weights = np.full(count, 1 / count)
        if draws > 1:
            return sobol_normals(count, dimension, rng, shifts=draws), weights
        return _sobol(count, dimension, self.words)[None], weights


def estimated(rule: Rule, reading: Callable[[Rule], tuple[np.ndarray, Method]]) -> LimitValue:
    """What `reading` finds by a rule, and how far it is from what other rules find."""
    value, method = reading(rule)
    match method:
        case Method.CLOSED_FORM:
            return LimitValue(value, np.zeros_like(value), method)
        case Method.QUADRATURE:
            coarse = [reading(other)[0] for other in rule.coarse()]
            return LimitValue(value, np.abs(value - np.stack(coarse)).max(axis=0), method)
        case Method.SAMPLING:
            others = [reading(rule.replicate(i))[0] for i in range(1, rule.replicates)]
            values = np.stack([value, *others])
            error = np.std(values, axis=0, ddof=1) / np.sqrt(rule.replicates)
            return LimitValue(np.mean(values, axis=0), error, method)


@lru_cache(maxsize=32)
def _grid(step: float, dimension: int, offset: float) -> tuple[np.ndarray, np.ndarray]:
    axis = step * (np.arange(-np.floor(_REACH / step), np.floor(_REACH / step) + 1) + offset)
    mesh = np.meshgrid(*[axis] * dimension, indexing="ij")
    points = np.stack([m.ravel() for m in mesh], axis=-1) if dimension else np.zeros((1, 0))
    squared = np.sum(points**2, axis=-1)
    points, squared = points[squared <= _REACH**2], squared[squared <= _REACH**2]
    weights = np.exp(-squared / 2)
    return points, weights / weights.sum()


@lru_cache(maxsize=64)
def _sobol(count: int, dimension: int, words: tuple[int, ...]) -> np.ndarray:
    return sobol_normals(count, dimension, np.random.default_rng([*words, dimension]))
