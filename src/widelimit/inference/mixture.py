"""Bayesian prediction with finitely many heads: a mixture of Gaussian processes over the scores.

Given the scores p of all finite-head layers the network is a Gaussian process with kernel `K_p`,
and its posterior is the usual one. The scores are functions of a vector z of independent standard
normals (see `laws.draws`), so

    p(f_* | y) = ∫ N(f_*; m_z, C_z) π(z | y) dz,   π(z | y) ∝ N(z; 0, I) N(y; 0, K_z + Λ).

`Importance` draws z from the prior and weights it by the marginal likelihood; `EllipticalSlice`
moves z with a Markov chain whose stationary law is π(z | y). With infinitely many heads z drops out
and what remains is `GP`.
"""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import logsumexp, ndtr

from ..compilation import compiled, jitted
from ..engine.inputs import Data, Inputs
from ..errors import (
    MissingExtraError,
    NumericalError,
    OptionError,
    ShapeError,
    WidelimitError,
    warn,
)
from ..factorizations import cholesky, lower_inverse
from ..laws.draws import Latent, block_size, kernel_blocks, law_inputs, require_gaussian_output
from ..laws.points import normal_blocks, plan_draws
from ..layers.base import Layer
from ..options import RandomKey, as_key, whole
from ..printing import counted, written
from . import checks
from .checks import Values
from .conventions import NOISE
from .gp import LOG_2PI, Prediction
from .network_kernels import joined, require_layer, require_scalar_output
from .noise import Noise, settled

# Fewer draws than these are no basis for a prediction.
_FEWEST = 32.0
# Chains that have not met show a scale reduction above this.
_MIXED = 1.05
# Halvings of the interval that holds a quantile.
_BISECTIONS = 60
# Draws of the scores for the variances of the prior, which need no weights.
_PRIOR_DRAWS = 1024


class CollapsedWeightsWarning(UserWarning):
    """The posterior rests on too few effective draws of the scores."""


@dataclass(frozen=True, kw_only=True)
class Importance:
    """`draws` of the scores from the prior, each weighted by its marginal likelihood.

    Exact in the limit of many draws, and the evidence comes with it; the weights collapse onto a
    few draws when the data determine the scores.
    """

    draws: int = 4096


@dataclass(frozen=True, kw_only=True)
class EllipticalSlice:
    """Elliptical slice sampling (blackjax): `chains` chains of `burn + steps` moves.

    Works where importance weights collapse; `thin` moves lie between the states that are kept.
    """

    chains: int = 8
    burn: int = 200
    steps: int = 1000
    thin: int = 2

    def __post_init__(self):
        whole("chains", self.chains, least=2)  # whether they have met shows between chains
        whole("burn", self.burn, least=0)
        whole("thin", self.thin)
        whole("steps", self.steps, least=2 * self.thin)


@dataclass(frozen=True, eq=False)
class MixtureGP:
    """A network with finitely many heads as a prior over functions; `fit` it to data.

    `noise` is the variance of the noise in the targets: one number, one per training example,
    or `Relative(share)` of the prior's. `method` says how scores are averaged over,
    `Importance` or `EllipticalSlice`. Layers with infinitely many heads are averages over
    `samples` of them. Outputs (columns of the targets) are channels of one network: they share
    its scores, and all of them inform about the scores.
    """

    net: Layer
    _: KW_ONLY
    noise: Noise = NOISE
    method: Importance | EllipticalSlice = Importance()
    samples: int = 128
    key: RandomKey = 0

    def __post_init__(self):
        whole("samples", self.samples)
        if not isinstance(self.method, Importance | EllipticalSlice):
            raise OptionError(
                "method= is Importance(...) or EllipticalSlice(...).",
                got=f"method={self.method!r}",
                remedy="pass one of these, or leave it out",
            )

    def __repr__(self) -> str:
        return written(self)

    def fit(self, x: Data, y: Values, mask: Any = None) -> "FittedMixture":
        """Condition on targets (N,) or (N, outputs) at examples x."""
        require_layer(self.net)
        inputs = law_inputs(self.net, x, mask)
        require_scalar_output(self.net, inputs.outline)
        require_gaussian_output(self.net, inputs.outline)
        targets, vector = checks.targets(y, inputs.size)
        noise = settled(self.noise, lambda: self._prior_variances(inputs))
        noise = checks.variances(noise, "The noise", inputs.size)
        return FittedMixture(self, inputs, targets, noise, vector, as_key(self.key))

    def _prior_variances(self, inputs: Inputs) -> Float[np.ndarray, " n"]:
        """`E[K_z(x, x)]` over the prior of the scores.

        Not the kernel of infinitely many heads, which differs under a nonlinearity.
        """
        with jax.enable_x64(True):
            latent = Latent.of(self.net, inputs, samples=self.samples)
            blocks, size = _prior_blocks(latent, _PRIOR_DRAWS, as_key(self.key))
            diagonals = [
                np.diagonal(kernels, axis1=1, axis2=2)
                for kernels in kernel_blocks(latent, blocks, size=size)
            ]
        return np.concatenate(diagonals).mean(axis=0)


@dataclass(frozen=True, eq=False, repr=False)
class MixturePrediction(Prediction):
    """Predictions of the function: a mixture of Gaussians at every test example.

    Axes of the components: (draws, tests[, outputs]); the variances of a draw are shared by the
    outputs. `effective` is how many independent draws of the scores the mixture is worth.
    """

    means: Float[np.ndarray, " draws *points"]
    variances: Float[np.ndarray, "draws tests"]
    weights: Float[np.ndarray, " draws"]
    effective: float

    @classmethod
    def of(
        cls, means: np.ndarray, variances: np.ndarray, weights: np.ndarray, effective: float
    ) -> "MixturePrediction":
        """With `E[f | y]` and `Var[f | y]`: within the draws, and between them."""
        mean = np.tensordot(weights, means, axes=1)
        within = variances.reshape(*variances.shape, *(1,) * (means.ndim - variances.ndim))
        variance = np.tensordot(weights, within + np.square(means - mean), axes=1)
        return cls(mean, variance, means, variances, weights, effective)

    def __repr__(self) -> str:
        draws = f"{self.effective:.0f} effective of {len(self.weights)} draws"
        return f"Mixture{super().__repr__()[:-1]}, {draws})"

    def _spread(self, noise: Values = 0.0) -> np.ndarray:
        """Variances in the shape of the means."""
        extra = (1,) * (self.means.ndim - self.variances.ndim)
        noise = checks.variances(noise, "The noise", self.variances.shape[1])
        return (self.variances + noise).reshape(*self.variances.shape, *extra)

    def cdf(self, y: Values, *, noise: Values = 0.0) -> Float[np.ndarray, " *points"]:
        """`P(f ≤ y)` at every test example, for y a number or of the shape of the mean.

        With `noise`, one variance for all or one for each example: of a new observation.
        """
        at = checks.real_array(y, "The values")
        if at.shape not in ((), self.means.shape[1:]):
            raise ShapeError(
                "Probabilities are asked for at one value, or at one for every prediction.",
                got=f"shape {at.shape}, where the predictions have {self.means.shape[1:]}",
                remedy="pass a number, or an array shaped like .mean",
            )
        scale = np.sqrt(np.maximum(self._spread(noise), np.finfo(float).tiny))
        z = (at - self.means) / scale
        return np.tensordot(self.weights, ndtr(z), axes=1)

    def interval(
        self, level: float, *, noise: Values = 0.0
    ) -> tuple[Float[np.ndarray, " *points"], Float[np.ndarray, " *points"]]:
        """Ends of the central interval that holds `level` of the probability, by bisection."""
        checks.level(level)
        low, high = (1 - level) / 2, (1 + level) / 2
        return self._quantile(low, noise), self._quantile(high, noise)

    def _quantile(self, probability: float, noise: Values) -> np.ndarray:
        reach = 40 * np.sqrt(self._spread(noise)).max() + 1e-12
        low, high = self.means.min(axis=0) - reach, self.means.max(axis=0) + reach
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle, noise=noise) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)


@dataclass(frozen=True, eq=False, repr=False)
class FittedMixture:
    """A mixture of Gaussian processes that has seen data; made by `MixtureGP.fit`."""

    model: MixtureGP
    inputs: Inputs
    targets: Float[np.ndarray, "n outputs"]
    noise: Float[np.ndarray, " n"]
    vector_targets: bool
    key: Key[Array, ""]

    def __repr__(self) -> str:
        return f"FittedMixture({counted(len(self), 'example')}, {self.model!r})"

    def __len__(self) -> int:
        return self.inputs.size

    def predict(self, x: Data, mask: Any = None) -> MixturePrediction:
        """The function at test examples, as a mixture; noise is not included.

        Scores are drawn for training and test examples together, once per call.
        """
        other = law_inputs(self.model.net, x, mask)
        require_scalar_output(self.model.net, other.outline)
        run = self._run(joined(self.inputs, other))
        means = run.means[..., 0] if self.vector_targets else run.means
        return MixturePrediction.of(means, run.variances, run.weights, run.effective)

    def mean(self, x: Data, mask: Any = None) -> Float[np.ndarray, " *points"]:
        """The mean alone."""
        return self.predict(x, mask).mean

    @cached_property
    def _alone(self) -> "_Run":
        return self._run(self.inputs)

    @property
    def effective_sample_size(self) -> float:
        """How many independent draws of the scores the posterior is made of."""
        return self._alone.effective

    @property
    def log_evidence(self) -> float:
        """`log p(y) = log E[N(y; 0, K_z + Λ)]` over the prior of the scores; `Importance` only."""
        if not isinstance(self.model.method, Importance):
            raise WidelimitError(
                "The evidence is an average over the prior of the scores.",
                got="elliptical slice sampling, which only visits the posterior",
                remedy="fit with method=Importance(draws=…)",
            )
        logs = self._alone.log_likelihoods
        return float(np.asarray(logsumexp(logs))) - math.log(len(logs))

    def _run(self, inputs: Inputs) -> "_Run":
        with jax.enable_x64(True):
            latent = Latent.of(self.model.net, inputs, samples=self.model.samples)
            data = _Data(jnp.asarray(self.targets), jnp.asarray(self.noise))
            if not latent.recipes:
                return _collected(latent, data, iter([np.zeros((1, 0))]), 1)
            if isinstance(self.model.method, Importance):
                return self._weighted(latent, data, self.model.method)
            return self._chained(latent, data, self.model.method)

    def _weighted(self, latent: Latent, data: "_Data", method: Importance) -> "_Run":
        run = _collected(latent, data, *_prior_blocks(latent, method.draws, self.key))
        weights = np.exp(run.log_likelihoods - logsumexp(run.log_likelihoods))
        effective = float(1.0 / np.square(weights).sum())
        if effective < _FEWEST:
            warn(
                CollapsedWeightsWarning(
                    f"Importance weights have collapsed: {len(weights)} draws of the scores are "
                    f"worth {effective:.1f} independent ones (fewer than {_FEWEST:.0f}). Remedy: "
                    "method=EllipticalSlice(), or more draws."
                )
            )
        return replace(run, weights=weights, effective=effective)

    def _chained(self, latent: Latent, data: "_Data", method: EllipticalSlice) -> "_Run":
        states, logs = _chains(latent, data, self.key, method)
        effective, reduction = _mixing(logs)
        if effective < _FEWEST or reduction > _MIXED:
            warn(
                CollapsedWeightsWarning(
                    f"The chains have not mixed: {logs.size} states are worth {effective:.1f} "
                    f"independent ones, and the scale reduction is {reduction:.3f} (1 when mixed). "
                    "Remedy: more steps and a longer burn-in."
                )
            )
        flat = np.asarray(states).reshape(-1, latent.size)
        size = min(block_size(latent), len(flat))
        blocks = (flat[i : i + size] for i in range(0, len(flat), size))
        return replace(_collected(latent, data, blocks, size), effective=effective)


def _prior_blocks(
    latent: Latent, draws: int, key: Key[Array, ""]
) -> tuple[Iterator[np.ndarray], int]:
    """Draws of z from its prior, in blocks of a size."""
    points = plan_draws(draws, latent.size)
    size = min(block_size(latent), points.draws)
    return normal_blocks(points, latent.size, key, size=size), size


@dataclass(frozen=True, eq=False)
class _Run:
    """What each draw of the scores says, and what each draw weighs."""

    log_likelihoods: Float[np.ndarray, " draws"]
    means: Float[np.ndarray, "draws tests outputs"]
    variances: Float[np.ndarray, "draws tests"]
    weights: Float[np.ndarray, " draws"]
    effective: float


class _Data(eqx.Module):
    """Targets (n, outputs) and noise variances (n,)."""

    targets: Array
    noise: Array


def _whitening(kernel: Array, data: _Data) -> Array:
    """`L⁻¹` of `K + Λ = LLᵀ` at the training examples."""
    count = data.noise.shape[0]
    return lower_inverse(cholesky(kernel[:count, :count] + jnp.diag(data.noise)))


def _log_likelihood(whitening: Array, data: _Data) -> Array:
    """`log N(y; 0, K + Λ)`, summed over the outputs."""
    rows, outputs = data.targets.shape
    white = whitening @ data.targets
    determinant = -jnp.sum(jnp.log(jnp.diagonal(whitening)))
    return -0.5 * jnp.sum(white**2) - outputs * (determinant + 0.5 * rows * LOG_2PI)


@compiled
def _answers(latent: Latent, data: _Data, normals: Array) -> tuple[Array, Array, Array]:
    """Log-likelihood, means and variances at the tests for a block of latents."""

    def one(z: Array) -> tuple[Array, Array, Array]:
        kernel = latent.kernel(z)
        count = data.noise.shape[0]
        whitening = _whitening(kernel, data)
        half = whitening @ kernel[:count, count:]
        mean = half.T @ (whitening @ data.targets)
        variance = jnp.diagonal(kernel)[count:] - jnp.sum(half**2, axis=0)
        return _log_likelihood(whitening, data), mean, jnp.maximum(variance, 0)

    return jax.vmap(one)(normals)


def _collected(latent: Latent, data: _Data, blocks: Iterator[np.ndarray], size: int) -> _Run:
    parts = []
    for block in blocks:
        filled = np.concatenate([block, np.zeros((size - len(block), block.shape[1]))])
        found = _answers(latent, data, jnp.asarray(filled))
        parts.append([np.asarray(array)[: len(block)] for array in found])
    logs, means, variances = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not np.isfinite(logs).all():
        raise NumericalError(
            "Kernels of the training examples, with the noise, are positive definite.",
            got=f"{np.count_nonzero(~np.isfinite(logs))} of {len(logs)} draws that are not",
            remedy="give the targets noise, and remove examples that are equal",
        )
    count = len(logs)
    return _Run(logs, means, variances, np.full(count, 1.0 / count), float(count))


def _chains(
    latent: Latent, data: _Data, key: Key[Array, ""], method: EllipticalSlice
) -> tuple[Array, Array]:
    """Kept states (chains, kept, latent) and their log-likelihoods (chains, kept)."""
    try:
        import blackjax
    except ImportError:
        raise MissingExtraError("blackjax", "bayes") from None

    def log_likelihood(z: Array) -> Array:
        value = _log_likelihood(_whitening(latent.kernel(z), data), data)
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    normal = {"mean": jnp.zeros(latent.size), "cov": jnp.ones(latent.size)}
    sampler: Any = blackjax.elliptical_slice(log_likelihood, **normal)

    def chain(key: Key[Array, ""]) -> tuple[Array, Array]:
        first, second, third = jax.random.split(key, 3)
        state = sampler.init(jax.random.normal(first, (latent.size,)))

        def kept(state: Any, subkey: Any) -> tuple[Any, Any]:
            """`thin` moves."""
            keys = jax.random.split(subkey, method.thin)
            state = jax.lax.scan(lambda s, k: (sampler.step(k, s)[0], None), state, keys)[0]
            return state, (state.position, state.logdensity)

        burn = jax.random.split(second, method.burn // method.thin)
        state = jax.lax.scan(kept, state, burn)[0]
        keys = jax.random.split(third, method.steps // method.thin)
        return jax.lax.scan(kept, state, keys)[1]

    return jitted(jax.vmap(chain))(jax.random.split(key, method.chains))


def _mixing(logs: Array) -> tuple[float, float]:
    """Effective sample size and scale reduction of chains: as one program, not step by step."""
    from blackjax import diagnostics

    both = diagnostics.effective_sample_size, diagnostics.potential_scale_reduction
    effective, reduction = jitted(lambda logs: [number(logs) for number in both])(logs)
    return float(np.ravel(effective)[0]), float(np.ravel(reduction)[0])
