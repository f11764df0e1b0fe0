"""Distances between a sample and a law: KL, Wasserstein-1, Kolmogorov–Smirnov, energy.

A law is anything with `cdf(y)` (and, where the far upper tail matters, `sf(y) = 1 − cdf(y)`): a
coordinate of a limit law, a `ScaleMixture`, a frozen `scipy.stats` distribution, a cdf as a
function; or a second sample. A law whose cdf is expensive is evaluated once on a grid by
`Tabulated(law, sample)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from widelimit.laws.distances_kl import kl_corrected, kl_histogram, kl_quadrature
from widelimit.laws.distances_law import (
    Estimate,
    Law,
    Reference,
    Tabulated,
    checked_sample,
    covering_grid,
    law_values,
    reference,
)

__all__ = [
    "Estimate",
    "KolmogorovSmirnov",
    "Law",
    "Tabulated",
    "energy",
    "kl_corrected",
    "kl_histogram",
    "kl_quadrature",
    "kolmogorov_smirnov",
    "wasserstein",
]


@dataclass(frozen=True)
class KolmogorovSmirnov:
    """`sup |F_N − F|`, where it is attained, and the probability of more if the law is true."""

    statistic: float
    p_value: float
    location: float


def kolmogorov_smirnov(sample: Float[np.ndarray, " runs"], law: Reference) -> KolmogorovSmirnov:
    """`sup_y |F_N(y) − F(y)|` with its p-value, one-sample or two-sample."""
    values, law = checked_sample(sample), reference(law)
    result: Any = stats.kstest(values, law if isinstance(law, np.ndarray) else law.cdf)
    return KolmogorovSmirnov(
        statistic=float(result.statistic),
        p_value=float(result.pvalue),
        location=float(result.statistic_location),
    )


def wasserstein(
    sample: Float[np.ndarray, " runs"], law: Reference, *, resamples: int = 50, seed: int = 0
) -> Estimate:
    """Wasserstein-1 distance `∫ |F_N − F| dy`; bootstrap error over `resamples`.

    `floor` is `∫ √(2F(1−F)/(πN)) dy`, the mean under the law for large N (for two samples N is
    `NM/(N+M)` and F that of the pooled sample).
    """
    steps = _Steps(checked_sample(sample), reference(law))
    value, error = steps.bootstrap(_mean_absolute, float, resamples=resamples, seed=seed)
    floor = float(steps.gaps @ np.sqrt(2.0 * steps.variance / np.pi))
    return Estimate(value=value, error=error, floor=floor)


def energy(
    sample: Float[np.ndarray, " runs"], law: Reference, *, resamples: int = 50, seed: int = 0
) -> Estimate:
    """Energy distance `(2 ∫ (F_N − F)² dy)^{1/2}`; bootstrap error over `resamples`.

    This is `(2E|X−Y| − E|X−X'| − E|Y−Y'|)^{1/2}`, SciPy's convention. `floor` is its root mean
    square under the law, `(2 ∫ F(1−F) dy / N)^{1/2}` (for two samples N is `NM/(N+M)` and F that
    of the pooled sample).
    """
    steps = _Steps(checked_sample(sample), reference(law))
    value, error = steps.bootstrap(_mean_square, _twice_root, resamples=resamples, seed=seed)
    floor = _twice_root(float(steps.gaps @ steps.variance))
    return Estimate(value=value, error=error, floor=floor)


class _Empirical:
    """The distribution function of a sample between consecutive points of a grid."""

    def __init__(self, values: Float[np.ndarray, " runs"], grid: Float[np.ndarray, " grid"]):
        self.size = values.size
        self.below = np.searchsorted(np.sort(values), grid[:-1], side="right")

    def cdf(self, rng: np.random.Generator | None) -> Float[np.ndarray, " gaps"]:
        """Of the sample, or of one redrawn from it by `rng`."""
        if rng is None:
            return self.below / self.size
        counts = np.bincount(rng.integers(self.size, size=self.size), minlength=self.size)
        return np.concatenate([[0], np.cumsum(counts)])[self.below] / self.size


class _Steps:
    """`F_N − F` on a grid that contains the sample: `F_N` is constant between points.

    `F` is linear between points, which lie densely, or constant too if it is that of a sample.
    `variance` is that of `F_N − F` if the sample comes from the law.
    """

    def __init__(self, values: Float[np.ndarray, " runs"], law: Law | np.ndarray):
        if isinstance(law, np.ndarray):
            grid = np.union1d(values, law)
            self.other, self.law_cdf = _Empirical(law, grid), None
            pooled = _Empirical(np.concatenate([values, law]), grid).cdf(None)
            size = values.size * law.size / (values.size + law.size)
        else:
            grid = np.union1d(values, covering_grid(law, values, 4096))
            self.other, self.law_cdf = None, law_values(law.cdf, grid)
            pooled = 0.5 * (self.law_cdf[1:] + self.law_cdf[:-1])
            size = values.size
        self.sample = _Empirical(values, grid)
        self.gaps = np.diff(grid)
        self.variance = np.maximum(pooled * (1.0 - pooled), 0.0) / size

    def bootstrap(
        self,
        mean: Callable[[np.ndarray, np.ndarray], np.ndarray],
        outer: Callable[[float], float],
        *,
        resamples: int,
        seed: int,
    ) -> tuple[float, float]:
        """`outer(∫ mean)` for the sample, and its standard deviation over redrawn samples."""

        def distance(rng: np.random.Generator | None) -> float:
            steps = self.sample.cdf(rng)
            if self.other is not None:
                left = right = self.other.cdf(rng)
            else:
                assert self.law_cdf is not None  # one of the two is always set
                left, right = self.law_cdf[:-1], self.law_cdf[1:]
            return outer(float(self.gaps @ mean(steps - left, steps - right)))

        rng = np.random.default_rng(seed)
        redrawn = [distance(rng) for _ in range(resamples)]
        return distance(None), float(np.std(redrawn, ddof=1))


def _mean_absolute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean of `|f|` for `f` linear from `a` to `b`: a trapezoid, or two triangles."""
    total = np.abs(a) + np.abs(b)
    crossing = np.square(a) + np.square(b)
    triangles = np.divide(crossing, total, out=np.zeros_like(total), where=total > 0.0)
    return 0.5 * np.where(a * b < 0.0, triangles, total)


def _mean_square(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean of `f²` for `f` linear from `a` to `b`."""
    return (np.square(a) + a * b + np.square(b)) / 3.0


def _twice_root(total: float) -> float:
    return float(np.sqrt(2.0 * total))
