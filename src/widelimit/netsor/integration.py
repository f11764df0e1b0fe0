"""Gaussian expectations without a closed form: a grid in low dimension, sampling above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np
import scipy
from scipy import special

from ..errors import NetworkError
from ..gaussians import psd_root
from ..options import RandomKey, seed_words
from ..statistics import Estimate

_REACH = 9.0  # standard deviations; the Gaussian mass beyond is below 1e-18
_CHUNK = 2**21  # numbers held at once per variable


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

    Up to `max_dimension` variables: the trapezoidal rule with spacing `step` in whitened
    coordinates (twice that where an integral is needed for every draw of the scalars), which for
    smooth functions converges as fast as Gauss–Hermite and is safer for steep or kinked ones.
    Above: `points` quasi-random (scrambled Sobol) points, a power of two, in `replicates`
    independent scramblings.
    """

    step: float = 0.125
    max_dimension: int = 3
    points: int = 2**13
    replicates: int = 8

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        whole = (self.max_dimension, self.points, self.replicates)
        if (
            not all(isinstance(n, int) for n in whole)
            or not isinstance(self.step, int | float)
            or not 0 < self.step <= 1
            or not 0 <= self.max_dimension <= 4
            or self.points < 2
            or self.points & (self.points - 1)
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
        return Rule(self.step, self.max_dimension, self.points, self.replicates, seed_words(key))


@dataclass(frozen=True)
class Rule(Integration):
    """An integration rule with its random points."""

    words: tuple[int, ...] = ()
    offset: float = 0.0
    """Where the grid lies: by this share of its spacing from the origin."""

    def coarse(self) -> tuple[Rule, Rule]:
        """The same on grids twice as wide: one about the origin, one off it by a quarter.

        At a kink the first can agree with the fine grid by chance, at a jump the second; where
        one does, the other differs by more than the error.
        """
        wide = replace(self, step=min(2 * self.step, 1.0))
        return wide, replace(wide, offset=0.25)

    def replicate(self, number: int) -> Rule:
        """The same with independent random points."""
        return replace(self, words=(*self.words, number))

    def method(self, dimension: int) -> Method:
        """Grid or sampling, by the number of independent Gaussian variables."""
        return Method.QUADRATURE if dimension <= self.max_dimension else Method.SAMPLING

    def nodes(self, dimension: int, *, repeated: bool) -> tuple[np.ndarray, np.ndarray]:
        """Standard normal points `(P, dimension)` and weights `(P,)` that sum to one."""
        if self.method(dimension) is Method.QUADRATURE:
            # Dimension three would need millions of points at the fine spacing.
            widening = (1, 1, 1, 3, 4)[dimension] * (2 if repeated and dimension < 3 else 1)
            return _grid(self.step * widening, dimension, self.offset)
        return _sobol(self.points, dimension, self.words)


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
def _sobol(count: int, dimension: int, words: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([*words, dimension])
    uniform = scipy.stats.qmc.Sobol(dimension, scramble=True, rng=rng).random(count)
    half = 0.5 / count
    return special.ndtri(np.clip(uniform, half * 1e-6, 1 - half * 1e-6)), np.full(count, 1 / count)


def expectation(
    integration: Rule,
    covariance: np.ndarray,
    mean: np.ndarray,
    integrand: Callable[[np.ndarray, slice], np.ndarray],
    *,
    draws: int | None,
    inherited: Method,
) -> tuple[np.ndarray, Method]:
    """`E[f(u)]` for `u ~ N(mean, covariance)`, `covariance` of shape `(..., d, d)`.

    `integrand` maps values `(R, P, d)` and the slice of draws they belong to to `(R, P)`. With
    `draws=None` nothing depends on scalars and the result has shape (); otherwise `(draws,)`.
    `inherited` is the method behind the covariance.
    """
    factor = psd_factor(covariance, inherited)
    if factor.ndim == 2:
        # Directions without variance cost a dimension of the grid: drop them.
        sizes = np.linalg.norm(factor, axis=0)
        factor = factor[:, sizes > 1e-7 * max(float(sizes.max(initial=0.0)), 1e-300)]
    dimension = factor.shape[-1]
    points, weights = integration.nodes(dimension, repeated=draws is not None)
    count = 1 if draws is None else draws
    per_chunk = max(1, _CHUNK // len(points))
    factor = np.broadcast_to(factor, (count, *factor.shape[-2:]))
    mean = np.broadcast_to(mean, (count, mean.shape[-1]))
    results = []
    for start in range(0, count, per_chunk):
        part = slice(start, min(start + per_chunk, count))
        values = points @ np.swapaxes(factor[part], -1, -2) + mean[part, None, :]
        results.append(integrand(values, part) @ weights)
    result = np.concatenate(results)
    return (result[0] if draws is None else result), max(integration.method(dimension), inherited)


_TOLERANCE = {Method.CLOSED_FORM: 1e-9, Method.QUADRATURE: 1e-3, Method.SAMPLING: 3e-2}
_ROUNDING = 1e-14  # of the sum of its terms' sizes: what a sum that cancels cannot tell from zero


def without_rounding(
    value: np.ndarray, size: np.ndarray, method: Method, *, square: bool
) -> np.ndarray:
    """A sum of terms of total `size`, set to zero where they cancel down to rounding.

    The variance of `x − x` is zero, not ±1e-16, of which roots and signs would make nonsense. The
    mean of a square that the `method` leaves a little below zero is zero, too.
    """
    allowed = np.where((value < 0) & square, _TOLERANCE[method], _ROUNDING)
    return np.where(np.abs(value) <= allowed * size, 0.0, value)


def psd_factor(covariance: np.ndarray, method: Method) -> np.ndarray:
    """`F` with `F Fᵀ = covariance`; negative eigenvalues the `method` can explain become zero."""
    return psd_root(covariance, tolerance=_TOLERANCE[method])
