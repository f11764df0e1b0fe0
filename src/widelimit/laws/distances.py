"""Distances between a sample and a law: KL, Wasserstein-1, Kolmogorov–Smirnov, energy.

A law is anything with `cdf(y)` (and, where the far upper tail matters, `sf(y) = 1 − cdf(y)`): a
coordinate of a limit law, a `ScaleMixture`, a frozen `scipy.stats` distribution, a cdf as a
function; or a second sample. A law whose cdf is expensive is evaluated once on a grid by
`Tabulated(law, sample)`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from .distances_kl import kl_corrected, kl_histogram, kl_quadrature
from .distances_law import (
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
    other = law if isinstance(law, np.ndarray) else lambda y: law_values(law.cdf, y)
    result: Any = stats.kstest(values, other)
    return KolmogorovSmirnov(
        statistic=float(result.statistic),
        p_value=float(result.pvalue),
        location=float(result.statistic_location),
    )


def wasserstein(sample: Float[np.ndarray, " runs"], law: Reference) -> Estimate:
    """Wasserstein-1 distance `∫ |F_N − F| dy`.

    `floor` is `∫ √(2F(1−F)/(πN)) dy`, the mean under the law for large N (for two samples N is
    `NM/(N+M)` and F that of the pooled sample). `error` is the delta method's, from the influence
    `h(x) = ∫^x sign(F_N − F) dy`; if the law is true it is 40 % too large.
    """
    steps = _Steps(checked_sample(sample), reference(law))
    return Estimate(
        value=steps.integral(_mean_absolute(steps.left, steps.right)),
        error=steps.error(np.sign(steps.left + steps.right)),
        floor=steps.integral(np.sqrt(2.0 * steps.variance / np.pi)),
    )


def energy(sample: Float[np.ndarray, " runs"], law: Reference) -> Estimate:
    """Energy distance `D = (2 ∫ (F_N − F)² dy)^{1/2}`.

    This is `(2E|X−Y| − E|X−X'| − E|Y−Y'|)^{1/2}`, SciPy's convention. `floor` is its root mean
    square under the law, `(2 ∫ F(1−F) dy / N)^{1/2}` (for two samples N is `NM/(N+M)` and F that
    of the pooled sample). `error` is the delta method's, from the influence
    `h(x) = (2/D) ∫^x (F_N − F) dy`; if the law is true it is 40 % too large.
    """
    steps = _Steps(checked_sample(sample), reference(law))
    value = np.sqrt(2.0 * steps.integral(_mean_square(steps.left, steps.right)))
    error = steps.error(steps.left + steps.right) / value if value > 0.0 else 0.0
    floor = np.sqrt(2.0 * steps.integral(steps.variance))
    return Estimate(value=float(value), error=float(error), floor=float(floor))


class _Steps:
    """`F_N − F` between consecutive points of a grid that contains the sample.

    There `F_N` is constant; `F` is linear, the points being dense, or constant as well if it is
    that of a sample. `left` and `right` are the differences at the two ends of each gap,
    `variance` is the difference's variance if the sample comes from the law.
    """

    def __init__(self, values: Float[np.ndarray, " runs"], law: Law | np.ndarray):
        self.samples = [values]
        if isinstance(law, np.ndarray):
            self.samples.append(law)
            self.grid = np.union1d(values, law)
            before = after = self._empirical(law)
            size = values.size * law.size / (values.size + law.size)
            middle = self._empirical(np.concatenate(self.samples))
        else:
            self.grid = np.union1d(values, covering_grid(law, values, 4096))
            cdf = law_values(law.cdf, self.grid)
            before, after = cdf[:-1], cdf[1:]
            size = float(values.size)
            middle = 0.5 * (before + after)
        empirical = self._empirical(values)
        self.left, self.right = empirical - before, empirical - after
        self.variance = np.maximum(middle * (1.0 - middle), 0.0) / size

    def integral(self, means: Float[np.ndarray, " gaps"]) -> float:
        """`∫ f dy` from the mean of `f` over each gap."""
        return float(np.sum(means * np.diff(self.grid)))

    def error(self, slope: Float[np.ndarray, " gaps"]) -> float:
        """`√(Σ Var(h)/N)` over the samples, for the influence `h` with the given slope."""
        influence = np.concatenate([[0.0], np.cumsum(slope * np.diff(self.grid))])
        at = (influence[np.searchsorted(self.grid, x)] for x in self.samples)
        return float(np.sqrt(sum(h.var() / h.size for h in at)))

    def _empirical(self, values: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " gaps"]:
        return np.searchsorted(np.sort(values), self.grid[:-1], side="right") / values.size


def _mean_absolute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean of `|f|` for `f` linear from `a` to `b`: a trapezoid, or two triangles."""
    total = np.abs(a) + np.abs(b)
    crossing = np.square(a) + np.square(b)
    triangles = np.divide(crossing, total, out=np.zeros_like(total), where=total > 0.0)
    return 0.5 * np.where(a * b < 0.0, triangles, total)


def _mean_square(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean of `f²` for `f` linear from `a` to `b`."""
    return (np.square(a) + a * b + np.square(b)) / 3.0
