"""One coordinate, or one linear functional, of a law: a Gaussian with a random variance.

`y = √v g`, `g ~ N(0,1)` independent of v. Everything is an average over drawn variances v of
something known exactly, which leaves far less error than averages over drawn y.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy.special import ndtr

from ..errors import NumericalError, WidelimitError
from .simulate_mixture import ScaleMixture

_BLOCK = 1 << 20
_BISECTIONS = 80


@dataclass(frozen=True)
class Estimated:
    """A value and its standard error from the finite number of drawn scores.

    Where NumPy expects an array, it is the value.
    """

    value: Any
    error: Any

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype=dtype)

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        """The value in this format, as for a number; without one, value ± error."""
        return format(float(self.value), spec) if spec else f"{self.value} ± {self.error}"


def group_means(values: Float[np.ndarray, "draws *rest"], groups: int) -> np.ndarray:
    """Means over each of `groups` equal groups of consecutive draws."""
    return values.reshape(groups, -1, *values.shape[1:]).mean(axis=1)


def averaged(means: Float[np.ndarray, "groups *rest"]) -> Estimated:
    """The mean of independent group means, and its standard error."""
    groups = means.shape[0]
    value = means.mean(axis=0)
    if groups == 1:
        return Estimated(value, np.zeros_like(value))
    return Estimated(value, means.std(axis=0, ddof=1) / np.sqrt(groups))


def jackknifed(
    function: Callable[..., np.ndarray], *means: Float[np.ndarray, "groups *rest"]
) -> Estimated:
    """A smooth function of means: bias-reduced value and standard error, leaving out each group."""
    groups = means[0].shape[0]
    whole = function(*(m.mean(axis=0) for m in means))
    if groups == 1:
        return Estimated(whole, np.zeros_like(whole))
    without = function(*((m.sum(axis=0) - m) / (groups - 1) for m in means))
    spread = np.square(without - without.mean(axis=0)).sum(axis=0)
    value = groups * whole - (groups - 1) * without.mean(axis=0)
    return Estimated(value, np.sqrt((groups - 1) / groups * spread))


class Marginal:
    """The law of one number; made by `Law.at` and `Law.functional`."""

    def __init__(self, variances: Float[np.ndarray, " draws"], *, groups: int):
        """`variances` of the number given each draw of the scores, in `groups` equal groups."""
        if not (np.isfinite(variances).all() and variances.max() > 0):
            raise NumericalError(
                "A coordinate with a law has a positive variance.",
                got="a variance of 0 (or not a number) in every draw",
                remedy="ask for a real position, and for a functional that is not zero",
            )
        # Rounding can leave a variance at, or just below, zero.
        self.variances = np.maximum(variances, np.finfo(np.float64).tiny)
        self.groups = groups

    @property
    def mixture(self) -> ScaleMixture:
        """The same law without errors, at a cost per point that does not grow with the draws."""
        return ScaleMixture(self.variances)

    def density(self, y: ArrayLike) -> Estimated:
        """`E[N(y; 0, v)]`."""

        def gaussian(z: np.ndarray, scale: np.ndarray) -> np.ndarray:
            return np.exp(-0.5 * np.square(z)) / (math.sqrt(2 * math.pi) * scale)

        return self._average(y, gaussian)

    def cdf(self, y: ArrayLike) -> Estimated:
        """`P(Y ≤ y) = E[Φ(y/√v)]`."""
        return self._average(y, lambda z, _: ndtr(z))

    def sf(self, y: ArrayLike) -> Estimated:
        """`P(Y > y)`, accurate far out."""
        return self.cdf(-np.asarray(y, np.float64))

    def _average(
        self, y: ArrayLike, function: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> Estimated:
        points = np.asarray(y, np.float64)
        scales, flat = np.sqrt(self.variances), points.ravel()
        size = max(1, _BLOCK // scales.size)
        parts = []
        for begin in range(0, flat.size, size):
            values = function(flat[None, begin : begin + size] / scales[:, None], scales[:, None])
            parts.append(averaged(group_means(values, self.groups)))
        empty = [np.zeros(0)]
        value = np.concatenate([part.value for part in parts] or empty)
        error = np.concatenate([part.error for part in parts] or empty)
        return Estimated(value.reshape(points.shape), error.reshape(points.shape))

    def moment(self, order: int) -> Estimated:
        """`E[y^k]`: `(k−1)!! E[v^{k/2}]` for even k, 0 for odd k."""
        if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 0:
            raise WidelimitError(
                "A moment has a non-negative integer order.",
                got=f"{order!r}",
                remedy="give 2 for the variance, 4 for the fourth moment",
            )
        if order % 2:
            return Estimated(0.0, 0.0)
        odds = float(math.prod(range(order - 1, 0, -2)))
        return averaged(odds * group_means(self.variances ** (order // 2), self.groups))

    @property
    def variance(self) -> Estimated:
        """`E[v]`."""
        return self.moment(2)

    def kurtosis(self) -> Estimated:
        """Excess kurtosis `3 Var(v) / E[v]²`: 0 for a Gaussian, positive for every mixture."""
        first = group_means(self.variances, self.groups)
        second = group_means(np.square(self.variances), self.groups)
        return jackknifed(lambda m, s: 3 * (s / m**2 - 1), first, second)

    def quantiles(self, probabilities: ArrayLike) -> Estimated:
        """The y with `cdf(y) = q`, by bisection; the error is that of the cdf over the density."""
        q = np.asarray(probabilities, np.float64)
        if q.size == 0 or not ((q > 0) & (q < 1)).all():
            raise WidelimitError(
                "Probabilities of quantiles lie between 0 and 1.",
                got=f"{probabilities!r}",
                remedy="e.g. [0.025, 0.5, 0.975]",
            )
        mixture = self.mixture
        # The law is symmetric: look for the upper quantile of the smaller tail.
        tail = np.minimum(q, 1 - q).ravel()
        low, high = np.zeros_like(tail), np.full_like(tail, 40 * math.sqrt(self.variances.max()))
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            beyond = mixture.sf(middle) > tail
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        value = (np.sign(q.ravel() - 0.5) * 0.5 * (low + high)).reshape(q.shape)
        error = self.cdf(value).error / np.maximum(self.density(value).value, 1e-300)
        return Estimated(value, error)

    def sample(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, " count"]:
        """Independent values (with replacement from the drawn variances)."""
        chosen = rng.choice(self.variances, size=count)
        return np.sqrt(chosen) * rng.standard_normal(count)
