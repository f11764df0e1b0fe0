"""Distances between a sample and a law: KL, Wasserstein-1, Kolmogorov–Smirnov, energy.

A law is anything with `cdf(y)` (and, where the far upper tail matters, `sf(y) = 1 − cdf(y)`): a
coordinate of a limit law, a `ScaleMixture`, a frozen `scipy.stats` distribution, a cdf as a
function; or a second sample. A law whose cdf is expensive is evaluated once on a grid by
`Tabulated(law, sample)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy import integrate, interpolate, special

from ..errors import NumericalError, ShapeError
from ..statistics import Estimate

_NO_MASS = 1e-12
_DOUBLINGS = 60
_DRAWS = 200
"""Null draws behind a floor, whose own error is then 7 % of a standard error."""

_MOST_BINS = 1 << 20


@runtime_checkable
class Distribution(Protocol):
    """A distribution on the line."""

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Probability of values up to `y`."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Distance(Estimate):
    """A distance, its standard error, and the value that a sample of the law itself would show."""

    floor: float

    @property
    def excess(self) -> float:
        """The distance with the estimator's own floor subtracted."""
        return float(self.value) - self.floor


class _FromCdf:
    """A law given as a function."""

    def __init__(self, fn: Callable[[np.ndarray], np.ndarray]):
        self._fn = fn

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Probability of values up to `y`."""
        return self._fn(y)


Reference = Distribution | Callable[[np.ndarray], np.ndarray] | np.ndarray
"""A law, the cdf of a law as a function, or a second sample."""


class Tabulated:
    """A law known through its cdf on a grid over the sample and the law's tails.

    Monotone cubic interpolation; with the default grid the error is below 1e-8 for a law whose
    density is smooth on the scale of the sample's range divided by a hundred.
    """

    def __init__(self, law: Reference, sample: Float[np.ndarray, " draws"], *, points: int = 4096):
        """Evaluate `law` at about `points` places."""
        law = reference(law)
        if isinstance(law, np.ndarray):
            raise ShapeError(
                "Only a law can be tabulated.",
                got="a second sample",
                remedy="use the sample as it is: its distribution function is a table already",
            )
        grid = covering_grid(law, checked_sample(sample), points)
        self._cdf = interpolate.PchipInterpolator(grid, law_values(law.cdf, grid))
        self._sf = interpolate.PchipInterpolator(grid, survival(law, grid))
        self._ends = grid[0], grid[-1]

    def cdf(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """Interpolated probability of values up to `y`."""
        return self._cdf(np.clip(y, *self._ends))

    def sf(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """Interpolated probability of values above `y`."""
        return self._sf(np.clip(y, *self._ends))


def reference(law: Reference) -> Distribution | Float[np.ndarray, " others"]:
    """Sort out what was given: a law stays, a function becomes a law, the rest is a sample."""
    if isinstance(law, Distribution):
        return law
    return _FromCdf(law) if callable(law) else checked_sample(law)


def covering_grid(
    law: Distribution, values: Float[np.ndarray, " draws"], points: int
) -> Float[np.ndarray, " grid"]:
    """Even points over the sample, then geometric steps out to where the law has no mass left."""
    low, high = values.min(), values.max()
    span = (high - low) or 1.0
    parts = [np.linspace(low, high, points)]
    for end, sign in ((low, -1.0), (high, 1.0)):
        reach = span * 2.0 ** np.arange(_DOUBLINGS)
        beyond = law.cdf(low - reach) if sign < 0 else survival(law, high + reach)
        enough = np.flatnonzero(np.asarray(beyond) < _NO_MASS)
        far = reach[enough[0]] if enough.size else reach[-1]
        parts.append(end + sign * np.geomspace(span / points, far, points // 8))
    return np.unique(np.concatenate(parts))


def survival(law: Distribution, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """`1 − cdf`, from the law's own `sf` if it has one."""
    sf = getattr(law, "sf", None)
    return 1.0 - law_values(law.cdf, y) if sf is None else law_values(sf, y)


def law_values(
    fn: Callable[[np.ndarray], np.ndarray], y: Float[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """`fn(y)` as float64, or the error that says what a law must return."""
    result = np.asarray(fn(y), dtype=np.float64)
    if result.shape != y.shape or not np.isfinite(result).all():
        raise NumericalError(
            "The cdf or density of a law must return one finite number per point.",
            got=f"shape {result.shape} for {y.shape} points, or NaN",
            remedy="vectorise the function over an array of points",
        )
    return result


def checked_sample(sample: ArrayLike) -> Float[np.ndarray, " draws"]:
    """Return the sample as a finite float64 vector of at least two values."""
    values = np.asarray(sample, dtype=np.float64)
    if values.ndim != 1 or values.size < 2:
        raise ShapeError(
            "A sample must be a vector of at least two values.",
            got=f"shape {values.shape}",
            remedy="pick one coordinate, such as simulation.outputs[:, 0, 0]; "
            "a law needs a method cdf",
        )
    if not np.isfinite(values).all():
        raise NumericalError(
            "A sample must be finite.",
            got=f"{np.count_nonzero(~np.isfinite(values))} NaN or infinite values",
            remedy="find out where the simulation overflowed",
        )
    return values


# --- distances of distribution functions ---


@dataclass(frozen=True)
class KolmogorovSmirnov:
    """`sup |F_N − F|`, where it is attained, and the probability of more if the law is true."""

    statistic: float
    p_value: float
    location: float


def kolmogorov_smirnov(sample: ArrayLike, law: Reference) -> KolmogorovSmirnov:
    """`sup_y |F_N(y) − F(y)|` with its p-value, one-sample or two-sample."""
    values, law = checked_sample(sample), reference(law)
    other = law if isinstance(law, np.ndarray) else lambda y: law_values(law.cdf, y)
    result: Any = scipy.stats.kstest(values, other)
    return KolmogorovSmirnov(
        statistic=float(result.statistic),
        p_value=float(result.pvalue),
        location=float(result.statistic_location),
    )


def wasserstein(sample: ArrayLike, law: Reference) -> Distance:
    """Wasserstein-1 distance `∫ |F_N − F| dy`.

    `floor` is `∫ √(2F(1−F)/(πN)) dy`, the mean under the law for large N (for two samples N is
    `NM/(N+M)` and F that of the pooled sample). `error` is the delta method's, from the influence
    `h(x) = ∫^x sign(F_N − F) dy`; if the law is true it is 40 % too large.
    """
    steps = _Steps(checked_sample(sample), reference(law))
    return Distance(
        value=steps.integral(_mean_absolute(steps.left, steps.right)),
        error=steps.error(np.sign(steps.left + steps.right)),
        floor=steps.integral(np.sqrt(2.0 * steps.variance / np.pi)),
    )


def energy(sample: ArrayLike, law: Reference) -> Distance:
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
    return Distance(value=float(value), error=float(error), floor=float(floor))


class _Steps:
    """`F_N − F` between consecutive points of a grid that contains the sample.

    There `F_N` is constant; `F` is linear, the points being dense, or constant as well if it is
    that of a sample. `left` and `right` are the differences at the two ends of each gap,
    `variance` is the difference's variance if the sample comes from the law.
    """

    def __init__(self, values: Float[np.ndarray, " draws"], law: Distribution | np.ndarray):
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

    def _empirical(self, values: Float[np.ndarray, " draws"]) -> Float[np.ndarray, " gaps"]:
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


# --- Kullback–Leibler divergence ---


def kl_histogram(sample: ArrayLike, law: Reference, *, bins: int = 100) -> Distance:
    """KL(sample ‖ law) by plain histogram, `Σ_k p̂_k log(p̂_k/q_k)`.

    `bins` equal bins span the sample (both samples, if `law` is one). `q_k` is the law's
    probability of the bin, or `(d_k + ½)/M` from the `M` values of a second sample, so that a bin
    without them stays finite. Its bias is about `(K−1)/2N` for `K` occupied bins, `+(K−1)/2M` for
    a second sample: `floor` is that value, from draws of the law itself on the same bins.
    """
    values, law = checked_sample(sample), reference(law)
    pooled = np.concatenate([values, law]) if isinstance(law, np.ndarray) else values
    if bins < 1 or not np.ptp(pooled) > 0.0:
        raise NumericalError(
            "A histogram needs at least one bin and values that differ.",
            got=f"{bins} bins, range {np.ptp(pooled):.3g}",
            remedy="check that the sample is not constant",
        )
    edges = np.linspace(pooled.min(), pooled.max(), bins + 1)
    return _divergence(values, law, edges, np.log)


def kl_corrected(sample: ArrayLike, law: Reference, *, bin_width: float = 0.2) -> Distance:
    """KL(sample ‖ law) with the histogram's bias removed to leading orders.

    `Σ_k (c_k/N) (G(c_k) − log N − log q_k)` with Grassberger's
    `G(c) = ψ(c) + (−1)^c/2 [ψ((c+1)/2) − ψ(c/2)]` in place of `log c`, on an unbounded grid of
    bins of `bin_width` robust standard deviations (interquartile range / 1.349). Binning loses a
    share of about `bin_width²/12` of the divergence, 0.3 % as set. May be negative, as an unbiased
    estimate of zero must. For a second sample `log q_k = log((d_k + ½)/M)`, unbiased to first
    order; but `M` values know nothing of tails beyond `1/M`: a law is the better reference.
    m-spacings and equal-probability bins need no bin width, but lose a third of the divergence and
    more where sample and law differ in the tails (t with 10 degrees against a normal, N=50,000).
    """
    values, law = checked_sample(sample), reference(law)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    width = bin_width * (high - low) / 1.349
    if not width > 0.0:
        raise NumericalError(
            "A divergence needs a sample from a continuous law and a positive bin width.",
            got=f"interquartile range {high - low:.3g} and bin width {bin_width:.3g}",
            remedy="check that the sample is not constant",
        )
    pooled = np.concatenate([values, law]) if isinstance(law, np.ndarray) else values
    first = np.floor((pooled.min() - middle) / width)
    last = np.floor((pooled.max() - middle) / width) + 1
    if last - first > _MOST_BINS:
        raise NumericalError(
            f"The range of the values must be below {_MOST_BINS} bins.",
            got=f"{last - first:.0f} bins",
            remedy="raise bin_width, or look for outliers in the sample",
        )
    edges = middle + width * np.arange(first, last + 1)
    return _divergence(values, law, edges, _grassberger)


def kl_quadrature(
    p: Callable[[np.ndarray], np.ndarray],
    q: Callable[[np.ndarray], np.ndarray],
    *,
    low: float,
    high: float,
    points: int = 4001,
) -> float:
    """KL(p ‖ q) of two densities, `∫ (p log(p/q) − p + q) dy` by Simpson's rule on [low, high].

    The two extra terms integrate to zero and make the integrand non-negative, so that noise in a
    sampled density does not cancel into a negative divergence.
    """
    y = np.linspace(low, high, points)
    p_values, q_values = law_values(p, y), law_values(q, y)
    integrand = special.kl_div(p_values, q_values)
    return float(integrate.simpson(integrand, x=y))


def _grassberger(counts: np.ndarray) -> np.ndarray:
    """`ψ(c) + (−1)^c/2 [ψ((c+1)/2) − ψ(c/2)]`: `E[c G(c)] ≈ λ log λ` for Poisson counts."""
    half = special.digamma(0.5 * (counts + 1)) - special.digamma(0.5 * counts)
    return special.digamma(counts) + np.where(counts % 2, -0.5, 0.5) * half


def _divergence(
    values: Float[np.ndarray, " draws"],
    law: Distribution | np.ndarray,
    edges: Float[np.ndarray, " edges"],
    log_count: Callable[[np.ndarray], np.ndarray],
) -> Distance:
    """`Σ (c/N)(log_count(c) − log N − log q)` on given bins, its error and its floor."""
    rng = np.random.default_rng(0)
    n = values.size
    counts = np.histogram(values, edges)[0]

    def divergence(c: np.ndarray, log_q: np.ndarray) -> np.ndarray:
        logs = log_count(np.maximum(c, 1)) - np.log(n)
        return np.sum(np.where(c > 0, c / n * (logs - np.where(c > 0, log_q, 0.0)), 0.0), axis=-1)

    if isinstance(law, np.ndarray):
        m = law.size
        others = np.histogram(law, edges)[0]
        q, size = (others + 0.5) / m, n * m / (n + m)
        log_q = np.log(q)
        pooled = (counts + others) / (n + m)
        null_q = np.log((rng.multinomial(m, pooled, _DRAWS) + 0.5) / m)
        null = divergence(rng.multinomial(n, pooled, _DRAWS), null_q)
    else:
        # Differences of the cdf below the median and of 1 − cdf above keep both tails' digits.
        lower, upper = law_values(law.cdf, edges), survival(law, edges)
        q = np.where(lower[:-1] < 0.5, np.diff(lower), -np.diff(upper))
        q, m, size = np.maximum(q, 0.0), np.inf, float(n)
        log_q = np.log(q, out=np.full_like(q, -np.inf), where=q > 0.0)
        inside = np.append(q, max(lower[0] + upper[-1], 0.0))
        draws = rng.multinomial(n, inside / inside.sum(), _DRAWS)
        null = divergence(draws, np.append(log_q, np.log(max(inside[-1], 1e-300))))
    value = float(divergence(counts, log_q))
    error = _divergence_error(counts / n, q, n=n, m=m, size=size) if value < np.inf else np.inf
    return Distance(value=value, error=error, floor=float(null.mean()))


def _divergence_error(
    p: Float[np.ndarray, " bins"], q: Float[np.ndarray, " bins"], *, n: int, m: float, size: float
) -> float:
    """Delta-method error of `Σ p log(p/q)`, plus the part that remains when `p = q`.

    `Var_p(log p/q)/N + Var_q(p/q)/M + (K−1)/(2 size²)`, the two variances less the `(K−1)/size`
    that counting noise adds to each.
    """
    p, q = p[p > 0.0], q[p > 0.0]
    logs = np.log(p / q)
    noise = (p.size - 1) / size
    first = max(p @ np.square(logs) - (p @ logs) ** 2 - noise, 0.0) / n
    second = max(np.sum(np.square(p) / q) - 1.0 - noise, 0.0) / m
    return float(np.sqrt(first + second + 0.5 * noise / size))
