"""The finite-head paper's setting, and how a finite network is compared with its limit law.

Inputs `x^i = ψ(W^i h)`, four tokens; attention `y = H^{-1/2} Σ_h softmax(Q_hK_hᵀ/√n) X W_V W_O`,
unit variances; every network is a fresh draw of weights and input, and one output `y_{1,1}` is
looked at.
Networks are simulated exactly in law at a cost that does not depend on the width.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from ...laws import law_from_covariance
from ...laws.distances import kl_corrected, kl_histogram, kl_kernel_density
from ...laws.marginal import Marginal, ScaleMixture
from ...laws.simulation import simulate
from ...laws.simulation_inputs import GaussianInputs
from ...layers.attention.layer import Attention
from .study import Size

TOKENS = 4
# Beyond this many standard deviations neither density matters to a divergence.
_REACH = 30.0
_POINTS = 1501
# A table of a law for Kolmogorov and Smirnov, good to 1e-7: a network counts for 2e-5 or more.
_TABLE = 1024

InputMap = Callable[[np.ndarray], np.ndarray]


class SimulationSize(NamedTuple):
    """How much is simulated: networks per seed, seeds, and draws behind the limit law."""

    runs: int
    seeds: int
    draws: int


PUBLISHED = SimulationSize(runs=50_000, seeds=10, draws=2**17)
SMALL = SimulationSize(runs=10_000, seeds=3, draws=2**14)


def simulation_size(size: Size) -> SimulationSize:
    """How much a study of this size simulates."""
    return SMALL if size == Size.SMALL else PUBLISHED


def identity_covariance(tokens: int = TOKENS) -> np.ndarray:
    """κ of the clipped identity: the tokens are independent, with variance 1 (the clip is far)."""
    return np.eye(tokens)


def relu_covariance() -> np.ndarray:
    """κ of ReLU inputs: `E[ψ(u)²] = 1/2`, and `E[ψ(u)]² = 1/2π` between independent tokens."""
    off = 1 / (2 * math.pi)
    return np.full((TOKENS, TOKENS), off) + (0.5 - off) * np.eye(TOKENS)


def limit_law(heads: int, covariance: np.ndarray, draws: int) -> Marginal:
    """The law of `y_{1,1}` at infinite width."""
    # With many heads the law is all but Gaussian and a small part of the draws says so.
    draws = max(2**12, min(draws, 2**22 // (heads * len(covariance) ** 2)))
    return law_from_covariance(Attention(heads=heads), covariance, draws=draws).at(0, 0)


def networks(
    layer: Attention,
    *,
    runs: int,
    seed: int,
    input_map: InputMap | None = None,
    tokens: int = TOKENS,
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs `y_{1,1}` of drawn networks, and the variance of each given its scores."""
    inputs = GaussianInputs(positions=tokens, input_map=input_map)
    done = simulate(
        layer, inputs, draws=runs, key=seed, positions=[0], variances=True, progress=False
    )
    assert done.variances is not None
    return done.outputs[:, 0, 0], done.variances[:, 0, 0]


def compared(
    y: np.ndarray, variances: np.ndarray, limit: Marginal, gaussian: ScaleMixture, *, seed: int
) -> dict[str, Any]:
    """How far networks are from the limit law and a Gaussian, with every estimator's own floor.

    `kl_kernel_density` is the published estimator, on two samples; `kl_histogram` has 100 bins and
    knows the limit exactly. Their floors are what a sample of the limit itself would show.
    `kl_density` has neither bins nor bandwidth: the finite network's density is an average of
    Gaussians over `variances`, and its floor comes from as many variances of the limit.
    """
    mixture = limit.mixture
    smooth = kl_kernel_density(y, limit.sample(len(y), key=seed))
    plain = kl_histogram(y, mixture)
    again = np.random.default_rng(seed).choice(limit.variances, size=len(variances))
    finite = 3 * (np.mean(variances**2) / np.mean(variances) ** 2 - 1)
    return {
        "kl_kernel_density": smooth.value,
        "kl_kernel_density_floor": smooth.floor,
        "kl_histogram": plain.value,
        "kl_histogram_floor": plain.floor,
        "kl_corrected": kl_corrected(y, mixture).value,
        "kl_density": density_kl(variances, limit),
        "kl_density_floor": density_kl(again, limit),
        "ks": float(kolmogorov_smirnov(y, mixture).statistic),
        "ks_gaussian": float(scipy.stats.kstest(y, gaussian.cdf).statistic),
        "variance": float(np.mean(variances)),
        "kurtosis": sample_kurtosis(y)[0],
        "kurtosis_from_variances": float(finite),
    }


def kolmogorov_smirnov(y: np.ndarray, law: ScaleMixture) -> Any:
    """SciPy's test of a sample, against a table of the law's distribution function."""
    grid = np.linspace(y.min(), y.max(), _TABLE)
    return scipy.stats.kstest(y, scipy.interpolate.PchipInterpolator(grid, law.cdf(grid)))


def density_kl(variances: np.ndarray, limit: Marginal) -> float:
    """KL of a scale mixture from the limit."""
    p = ScaleMixture(variances).density(_positive_half(limit))
    return _symmetric_kl(p, _tabulated_density(limit), limit)


def gaussian_kl(limit: Marginal) -> float:
    """KL(limit ‖ Gaussian of the same variance): how non-Gaussian the limit is."""
    gaussian = ScaleMixture(np.array([float(limit.variance)]))
    return _symmetric_kl(_tabulated_density(limit), gaussian.density(_positive_half(limit)), limit)


def _symmetric_kl(p: np.ndarray, q: np.ndarray, limit: Marginal) -> float:
    """`∫ (p log(p/q) − p + q) dy` of even densities: twice that over the positive half.

    The two extra terms integrate to zero and make the integrand non-negative, so that noise in a
    sampled density does not cancel into a negative divergence.
    """
    return 2 * float(scipy.integrate.simpson(scipy.special.kl_div(p, q), x=_positive_half(limit)))


def _positive_half(limit: Marginal) -> np.ndarray:
    return np.linspace(0.0, _REACH * math.sqrt(float(limit.variance)), _POINTS)


@functools.lru_cache(maxsize=16)
def _tabulated_density(limit: Marginal) -> np.ndarray:
    """The limit where divergences ask for it, once for all samples compared with it."""
    return limit.mixture.density(_positive_half(limit))


def sample_kurtosis(y: np.ndarray) -> tuple[float, float]:
    """Excess kurtosis of a centred sample, and its standard error (delta method)."""
    m2, m4, m6, m8 = (float(np.mean(y**k)) for k in (2, 4, 6, 8))
    ratio = m4 / m2**2
    spread = m8 - m4**2 - 4 * m4 / m2 * (m6 - m2 * m4) + 4 * (m4 / m2) ** 2 * (m4 - m2**2)
    return ratio - 3, math.sqrt(spread / len(y)) / m2**2


def averaged(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, float]:
    """Means over seeds, and standard errors where there are several."""
    found: dict[str, float] = {}
    for key in keys:
        values = np.array([row[key] for row in rows])
        found[key] = float(values.mean())
        if len(values) > 1:
            found[key + "_se"] = float(values.std(ddof=1) / math.sqrt(len(values)))
    return found
