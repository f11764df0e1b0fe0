"""Divergences between a sample and a law: three estimates of Kullback and Leibler's.

A law is anything with `cdf(y)` (and, where the far upper tail matters, `sf(y) = 1 − cdf(y)`): a
coordinate of a limit law, a `ScaleMixture`, a frozen `scipy.stats` distribution; or a second
sample. Other distances are SciPy's: `scipy.stats.kstest(sample, law.cdf)`,
`scipy.stats.wasserstein_distance(sample, law.sample(10_000))`, and of two densities on a grid y
`scipy.integrate.simpson(scipy.special.kl_div(p(y), q(y)), x=y)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import scipy
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy import special

from ..errors import NumericalError, ShapeError
from ..options import whole
from ..statistics import Estimate

_DRAWS = 200
"""Null draws behind a floor, whose own error is then 7 % of a standard error."""

_BIN_WIDTH, _MOST_BINS = 0.2, 1 << 20
"""Robust standard deviations in a bin, and bins at most."""

_ADDED = 1e-12
"""What the finite-head paper's authors add to both densities before they take logarithms."""

_POINTS, _SPLITS = 500, 24
"""Of kernel density estimates: their points, and the splits of both samples behind the floor."""

_CELLS = 64
"""Cells of the binned sample in one bandwidth: densities are exact to 1e-5 of the largest."""


@runtime_checkable
class Distribution(Protocol):
    """A distribution on the line."""

    def cdf(self, y: np.ndarray, /) -> np.ndarray:
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


Reference = Distribution | np.ndarray
"""A law, or a second sample."""


def read_sample(sample: ArrayLike) -> Float[np.ndarray, " draws"]:
    """The sample as a finite float64 vector of at least two values."""
    values = np.asarray(sample, dtype=np.float64)
    if values.ndim != 1 or values.size < 2:
        raise ShapeError(
            "The sample is no vector of at least two values.",
            got=f"shape {values.shape}",
            remedy="pick one coordinate, such as simulation.outputs[:, 0, 0]; "
            "a law needs a method cdf",
        )
    if not np.isfinite(values).all():
        raise NumericalError(
            "The sample holds values that are not finite.",
            got=f"{np.count_nonzero(~np.isfinite(values))} NaN or infinite values",
            remedy="find out where the simulation overflowed",
        )
    return values


def _read(
    sample: ArrayLike, law: Reference
) -> tuple[Float[np.ndarray, " draws"], Distribution | Float[np.ndarray, " others"]]:
    """A sample, and a law or a second sample."""
    return read_sample(sample), law if isinstance(law, Distribution) else read_sample(law)


def _survival(law: Distribution, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """`1 − cdf`, from the law's own `sf` if it has one."""
    sf = getattr(law, "sf", None)
    return 1.0 - _evaluate(law.cdf, y) if sf is None else _evaluate(sf, y)


def _evaluate(
    fn: Callable[[np.ndarray], np.ndarray], y: Float[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """`fn(y)` as float64, or the error that says what a law must return."""
    result = np.asarray(fn(y), dtype=np.float64)
    if result.shape != y.shape:
        raise ShapeError(
            "The cdf or density of the law does not return one number per point.",
            got=f"shape {result.shape} for {y.shape} points",
            remedy="vectorise the function over an array of points",
        )
    if not np.isfinite(result).all():
        raise NumericalError(
            "The cdf or density of the law is not finite.",
            got=f"{np.count_nonzero(~np.isfinite(result))} of {y.size} values NaN or infinite",
            remedy="guard the function against overflow in the tails",
        )
    return result


def kl_histogram(sample: ArrayLike, law: Reference, *, bins: int = 100) -> Distance:
    """KL(sample ‖ law) by plain histogram, `Σ_k p̂_k log(p̂_k/q_k)`.

    `bins` equal bins span the sample (both samples, if `law` is one). `q_k` is the law's
    probability of the bin, or `(d_k + ½)/M` from the `M` values of a second sample, so that a bin
    without them stays finite. Its bias is about `(K−1)/2N` for `K` occupied bins, `+(K−1)/2M` for
    a second sample: `floor` is that value, from draws of the law itself on the same bins.
    """
    whole("bins", bins)
    values, law = _read(sample, law)
    pooled = np.concatenate([values, law]) if isinstance(law, np.ndarray) else values
    if not np.ptp(pooled) > 0.0:
        raise NumericalError(
            "The sample is constant: a histogram needs values that differ.",
            got=f"{pooled.size} times {pooled[0]:.6g}",
            remedy="check what was sampled",
        )
    edges = np.linspace(pooled.min(), pooled.max(), bins + 1)
    return _divergence(values, law, edges, np.log)


def kl_corrected(sample: ArrayLike, law: Reference) -> Distance:
    """KL(sample ‖ law) with the histogram's bias removed to leading orders.

    `Σ_k (c_k/N) (G(c_k) − log N − log q_k)` with Grassberger's
    `G(c) = ψ(c) + (−1)^c/2 [ψ((c+1)/2) − ψ(c/2)]` in place of `log c`, on an unbounded grid of
    bins of a fifth of a robust standard deviation (interquartile range / 1.349). Binning loses a
    share of about `0.2²/12` of the divergence, 0.3 %. May be negative, as an unbiased
    estimate of zero must. For a second sample `log q_k = log((d_k + ½)/M)`, unbiased to first
    order; but `M` values know nothing of tails beyond `1/M`: a law is the better reference.
    m-spacings and equal-probability bins need no bin width, but lose a third of the divergence and
    more where sample and law differ in the tails (t with 10 degrees against a normal, N=50,000).
    """
    values, law = _read(sample, law)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    width = _BIN_WIDTH * (high - low) / 1.349
    if not width > 0.0:
        raise NumericalError(
            "The sample is not from a continuous law: half of it is one value.",
            got=f"interquartile range {high - low:.3g}",
            remedy="check what was sampled",
        )
    pooled = np.concatenate([values, law]) if isinstance(law, np.ndarray) else values
    first = np.floor((pooled.min() - middle) / width)
    last = np.floor((pooled.max() - middle) / width) + 1
    if last - first > _MOST_BINS:
        raise NumericalError(
            f"The range of the values is more than {_MOST_BINS} bins.",
            got=f"{last - first:.0f} bins",
            remedy="look for outliers in the sample",
        )
    edges = middle + width * np.arange(first, last + 1)
    return _divergence(values, law, edges, _grassberger)


def kl_kernel_density(sample: ArrayLike, other: ArrayLike) -> Distance:
    """KL(sample ‖ other) of two samples, each smoothed by Gaussians of Scott's bandwidth.

    `Σ_k p_k log(p_k/q_k)` over 500 even points on the range of both samples, with `1e-12` added to
    both densities and both normalised to sum 1: the estimator of the numerical
    simulations of *Infinite-Width Limit of a Single Attention Layer*
    (github.com/manasakai/infinite-width-attention, `src/kl_divergence.py`), where the second sample
    is one of the limit. `floor` is its mean over random splits of both samples together, the
    value for two samples of one distribution; `error` is the spread over these splits, which holds
    while the divergence is small.
    """
    one, two = read_sample(sample), read_sample(other)
    if not (one.std() > 0.0 and two.std() > 0.0):
        raise NumericalError(
            "A sample is constant: kernel density estimates need values that differ.",
            got=f"standard deviations {one.std():.3g} and {two.std():.3g}",
            remedy="check what was sampled",
        )
    pooled = np.concatenate([one, two])
    grid = np.linspace(pooled.min(), pooled.max(), _POINTS)
    rng = np.random.default_rng(0)
    mixed = (rng.permutation(pooled) for _ in range(_SPLITS))
    splits = [_smooth_divergence(both[: one.size], both[one.size :], grid) for both in mixed]
    return Distance(
        value=_smooth_divergence(one, two, grid),
        error=float(np.std(splits, ddof=1)),
        floor=float(np.mean(splits)),
    )


def _smooth_divergence(one: np.ndarray, two: np.ndarray, grid: np.ndarray) -> float:
    # The entropy of SciPy normalises, as the authors do.
    return float(scipy.stats.entropy(*(smooth(x, grid) + _ADDED for x in (one, two))))


def smooth(
    values: Float[np.ndarray, " draws"], grid: Float[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """`mean_i N(y; x_i, h²)`, `h = std N^{-1/5}`, as `scipy.stats.gaussian_kde` computes it.

    From values shared out between neighbours on a grid of h/64: that takes a hundredth
    of its time for 50,000 values.
    """
    bandwidth = values.std(ddof=1) * values.size**-0.2
    cell, reach = bandwidth / _CELLS, 8 * _CELLS
    place = (values - values.min()) / cell + reach
    left = place.astype(np.int64)
    share, count = place - left, int(left.max()) + 2 + reach
    mass = np.bincount(left, 1.0 - share, count) + np.bincount(left + 1, share, count)
    # Sharing out between two cells widens a value by cell²/6 on average.
    wide = scipy.ndimage.gaussian_filter1d(mass, np.sqrt(_CELLS**2 - 1 / 6), truncate=8.0)
    centres = values.min() + cell * (np.arange(count) - reach)
    return np.interp(grid, centres, wide, left=0.0, right=0.0) / (cell * values.size)


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
        lower, upper = _evaluate(law.cdf, edges), _survival(law, edges)
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
