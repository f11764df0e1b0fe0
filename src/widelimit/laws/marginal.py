"""One coordinate, or one linear functional, of a law: a Gaussian with a random variance.

`y = √v g`, `g ~ N(0,1)` independent of v. Everything is an average over drawn variances v of
something known exactly, which leaves far less error than averages over drawn y.
"""

import math
from collections.abc import Callable

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy.optimize.elementwise import find_root
from scipy.special import ndtr

from ..errors import NumericalError, WidelimitError
from ..options import RandomKey, generator, whole
from ..statistics import Estimate

_BLOCK = 1 << 20
_MIXTURE_BLOCK = 1 << 18
_NODES = 4096


def group_means(values: Float[np.ndarray, "draws *rest"], groups: int) -> np.ndarray:
    """Means over each of `groups` equal groups of consecutive draws."""
    return values.reshape(groups, -1, *values.shape[1:]).mean(axis=1)


def average(means: Float[np.ndarray, "groups *rest"]) -> Estimate:
    """The mean of independent group means, and its standard error, at any scale."""
    if not np.isfinite(means).all():
        raise NumericalError(
            "An average over draws is beyond the range of double precision.",
            got=f"{np.count_nonzero(~np.isfinite(means))} values that are NaN or infinite",
            remedy="ask for a lower moment, or divide the inputs or the weights by a number",
        )
    groups, scale = means.shape[0], _power_of_two(np.abs(means).max(axis=0))
    value = scale * (means / scale).mean(axis=0)
    if groups == 1:
        return Estimate(value, np.zeros_like(value))
    return Estimate(value, scale * ((means / scale).std(axis=0, ddof=1) / np.sqrt(groups)))


def _power_of_two(size: np.ndarray) -> np.ndarray:
    """The power of two below each number, by which one divides without rounding; 1 for 0."""
    return np.ldexp(1.0, np.where(size > 0, np.frexp(size)[1] - 1, 0))


def jackknife(
    function: Callable[..., np.ndarray], *means: Float[np.ndarray, "groups *rest"]
) -> Estimate:
    """A smooth function of means: bias-reduced value and standard error, leaving out each group."""
    groups = means[0].shape[0]
    value = function(*(m.mean(axis=0) for m in means))
    if groups == 1:
        return Estimate(value, np.zeros_like(value))
    without = function(*((m.sum(axis=0) - m) / (groups - 1) for m in means))
    spread = np.square(without - without.mean(axis=0)).sum(axis=0)
    value = groups * value - (groups - 1) * without.mean(axis=0)
    return Estimate(value, np.sqrt((groups - 1) / groups * spread))


class ScaleMixture:
    """`y = √v g` with `g ~ N(0,1)` and `v` uniform on the given variances.

    `density(y) = mean_r N(y; 0, v_r)` and `cdf(y) = mean_r Φ(y/√v_r)`: given the scores an
    attention output is Gaussian, so these are the law of the output, with an error from the finite
    number of variances that is far below that of a histogram of outputs.

    More than 4096 variances are shared out over that many evenly spaced values of `log v`, each
    between its two neighbours in proportion (relative error below 1e-5 at the far end of the
    tails, 1e-6 elsewhere): the cost of a point does not grow with the number of draws.
    """

    def __init__(self, variances: Float[np.ndarray, "draws *one"]):
        """Keep the variances, which must be positive and finite."""
        flat = np.asarray(variances, dtype=np.float64).ravel()
        if flat.size == 0 or not (np.isfinite(flat).all() and flat.min() > 0.0):
            raise NumericalError(
                "The variances of the mixture are not all positive and finite.",
                got=f"{flat.size} values, smallest {flat.min() if flat.size else 'none'}",
                remedy="drop draws whose output is constant",
            )
        weights = np.full(flat.size, 1.0 / flat.size)
        if flat.size > _NODES and np.ptp(flat) > 0.0:
            flat, weights = _share_out(flat)
        self.scales, self.weights = np.sqrt(flat), weights

    def __repr__(self) -> str:
        return f"ScaleMixture(variance {self.weights @ np.square(self.scales):.4g})"

    def density(self, y: ArrayLike) -> Float[np.ndarray, "*points"]:
        """`E[N(y; 0, v)]`."""
        weights = self.weights / (np.sqrt(2.0 * np.pi) * self.scales)
        return self._mean(y, lambda z: np.exp(-0.5 * np.square(z)), weights)

    def cdf(self, y: ArrayLike) -> Float[np.ndarray, "*points"]:
        """`E[Φ(y/√v)]`."""
        return self._mean(y, ndtr, self.weights)

    def sf(self, y: ArrayLike) -> Float[np.ndarray, "*points"]:
        """`1 − cdf(y)`, accurate in the upper tail: the law is symmetric."""
        return self.cdf(-np.asarray(y))

    def _mean(
        self,
        y: ArrayLike,
        fn: Callable[[np.ndarray], np.ndarray],
        weights: Float[np.ndarray, " nodes"],
    ) -> Float[np.ndarray, "*points"]:
        """`Σ_r weights_r fn(y/√v_r)`, in blocks of points."""
        points = np.atleast_1d(np.asarray(y, dtype=np.float64)).ravel()
        size = max(1, _MIXTURE_BLOCK // self.scales.size)
        parts = [
            np.einsum("pr,r->p", fn(points[i : i + size, None] / self.scales), weights)
            for i in range(0, len(points), size)
        ]
        return np.concatenate(parts).reshape(np.shape(y))


def _share_out(
    variances: Float[np.ndarray, " draws"],
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """Values and weights of linear binning in `log v`, which keeps mass and mean of `log v`."""
    logs = np.log(variances)
    nodes = np.linspace(logs.min(), logs.max(), _NODES)
    place = (logs - nodes[0]) / (nodes[1] - nodes[0])
    lower = np.clip(place.astype(np.int64), 0, _NODES - 2)
    share = place - lower
    weights = np.bincount(lower, 1.0 - share, _NODES) + np.bincount(lower + 1, share, _NODES)
    used = weights > 0.0
    return np.exp(nodes[used]), weights[used] / variances.size


class Marginal:
    """The law of one number; made by `Law.at` and `Law.functional`."""

    def __init__(self, variances: Float[np.ndarray, " draws"], *, groups: int):
        """`variances` of the number given each draw of the scores, in `groups` equal groups."""
        if not (np.isfinite(variances).all() and variances.max() > 0):
            raise NumericalError(
                "The coordinate has no positive variance, and no law.",
                got="a variance of 0 (or not a number) in every draw",
                remedy="ask for a real position, and for a functional that is not zero",
            )
        # Rounding can leave a variance at, or just below, zero.
        self.variances = np.maximum(variances, np.finfo(np.float64).tiny)
        self.groups = groups

    def __repr__(self) -> str:
        return f"Marginal(variance {self.variance}, excess kurtosis {self.kurtosis()})"

    @property
    def mixture(self) -> ScaleMixture:
        """The same law without errors, at a cost per point that does not grow with the draws."""
        return ScaleMixture(self.variances)

    def density(self, y: ArrayLike) -> Estimate:
        """`E[N(y; 0, v)]`."""

        def gaussian(z: np.ndarray, scale: np.ndarray) -> np.ndarray:
            return np.exp(-0.5 * np.square(z)) / (math.sqrt(2 * math.pi) * scale)

        return self._average(y, gaussian)

    def cdf(self, y: ArrayLike) -> Estimate:
        """`P(Y ≤ y) = E[Φ(y/√v)]`."""
        return self._average(y, lambda z, _: ndtr(z))

    def sf(self, y: ArrayLike) -> Estimate:
        """`P(Y > y)`, accurate in the far tail."""
        return self.cdf(-np.asarray(y, np.float64))

    def _average(
        self, y: ArrayLike, function: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> Estimate:
        points = np.asarray(y, np.float64)
        scales, flat = np.sqrt(self.variances), points.ravel()
        size = max(1, _BLOCK // scales.size)
        parts = []
        for begin in range(0, flat.size, size):
            values = function(flat[None, begin : begin + size] / scales[:, None], scales[:, None])
            parts.append(average(group_means(values, self.groups)))
        empty = [np.zeros(0)]
        value = np.concatenate([part.value for part in parts] or empty)
        error = np.concatenate([part.error for part in parts] or empty)
        return Estimate(value.reshape(points.shape), error.reshape(points.shape))

    def moment(self, order: int) -> Estimate:
        """`E[y^k]`: `(k−1)!! E[v^{k/2}]` for even k, 0 for odd k."""
        whole("order", order, least=0)
        if order % 2:
            return Estimate(0.0, 0.0)
        odds = float(math.prod(range(order - 1, 0, -2)))
        with np.errstate(over="ignore"):  # what is beyond all numbers, `average` refuses
            return average(odds * group_means(self.variances ** (order // 2), self.groups))

    @property
    def variance(self) -> Estimate:
        """`E[v]`."""
        return self.moment(2)

    def kurtosis(self) -> Estimate:
        """Excess kurtosis `3 Var(v) / E[v]²`: 0 for a Gaussian, positive for every mixture."""
        # Whatever the scale of the outputs, squares are within range.
        variances = self.variances / _power_of_two(self.variances.max())
        first = group_means(variances, self.groups)
        second = group_means(np.square(variances), self.groups)
        return jackknife(lambda m, s: 3 * (s / m**2 - 1), first, second)

    def quantiles(self, probabilities: ArrayLike) -> Estimate:
        """The y with `cdf(y) = q`; the error is that of the cdf over the density."""
        q = np.asarray(probabilities, np.float64)
        if q.size == 0 or not ((q > 0) & (q < 1)).all():
            raise WidelimitError(
                "The probabilities of quantiles do not lie between 0 and 1.",
                got=f"{probabilities!r}",
                remedy="e.g. [0.025, 0.5, 0.975]",
            )
        mixture = self.mixture
        # The law is symmetric: look for the upper quantile of the smaller tail.
        tail = np.minimum(q, 1 - q).ravel()
        highest = 40 * math.sqrt(self.variances.max())
        found = find_root(lambda y, q: mixture.sf(y) - q, (-highest, highest), args=(tail,))
        value = (np.sign(q.ravel() - 0.5) * found.x).reshape(q.shape)
        error = self.cdf(value).error / np.maximum(self.density(value).value, 1e-300)
        return Estimate(value, error)

    def sample(self, draws: int, *, key: RandomKey = 0) -> Float[np.ndarray, " draws"]:
        """Independent values (with replacement from the drawn variances)."""
        rng = generator(key)
        chosen = rng.choice(self.variances, size=whole("draws", draws))
        return np.sqrt(chosen) * rng.standard_normal(draws)
