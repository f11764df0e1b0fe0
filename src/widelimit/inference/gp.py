"""Gaussian-process regression from kernel matrices, one factorisation for every question.

With training kernel `K`, targets `y` and noise variances `Λ = diag(λ)`, `A = K + Λ`:

    mean        m_* = K_* A⁻¹ y
    covariance  C_* = K_** − K_* A⁻¹ K_*ᵀ
    evidence    log p(y) = −½ yᵀA⁻¹y − ½ log det A − (N/2) log 2π

Several outputs (columns of `y`) are independent processes that share the kernel and the noise.
The covariances are those of the function `f`; add the noise to speak of new observations.
"""

import abc
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from ..engine.inputs import unmasked
from ..options import RandomKey, generator, whole
from ..printing import counted
from . import checks
from .checks import Values
from .repeats import Groups, repeated
from .solve import Inverse, Jitter, factorise, semidefinite_root

LOG_2PI = float(np.log(2.0 * np.pi))


class KernelKind(enum.Enum):
    """Which kernel of a network serves as the covariance of the process, and what that means."""

    NNGP = "nngp"
    """The Bayesian network: the prior is the network at initialisation, and mean and variance
    are the exact posterior of all weights, in the limit of infinite width."""

    NTK = "ntk"
    """Kernel regression: the mean is that of fully trained networks (gradient flow to the end
    from a zero function, with `noise` as weight decay). The variance is the posterior variance of
    the network linearised in all its weights, each with a standard normal prior about its initial
    value. It is *not* the spread of an ensemble of trained networks: that one needs both kernels
    and is what `Training` predicts at time infinity."""


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Mean (…, outputs) and variance (…) of the function; the outputs share the variance.

    Unpacks into mean and standard deviation: `mean, std = posterior.predict(...)`.
    """

    mean: Float[np.ndarray, "*points_and_outputs"]
    variance: Float[np.ndarray, "*points"]

    @classmethod
    def joined(cls, parts: "list[Prediction]", *, axis: int = 0) -> "Prediction":
        """Predictions of several portions of examples as one."""
        return cls(
            np.concatenate([part.mean for part in parts], axis=axis),
            np.concatenate([part.variance for part in parts], axis=axis),
        )

    def __repr__(self) -> str:
        spread = f"{self.std.min():.3g} to {self.std.max():.3g}" if self.std.size else "none"
        return f"Prediction(mean of shape {self.mean.shape}, std {spread})"

    def __iter__(self) -> Iterator[np.ndarray]:
        """Mean, then standard deviation."""
        return iter((self.mean, self.std))

    @property
    def std(self) -> Float[np.ndarray, "*points"]:
        """Standard deviation of the function."""
        return np.sqrt(self.variance)

    def interval(
        self, level: float, *, noise: Values = 0.0
    ) -> tuple[Float[np.ndarray, " *points"], Float[np.ndarray, " *points"]]:
        """Lower and upper end of the central interval that holds `level` of the probability.

        `noise` is the noise variance of the observations the interval is for, one for all or one
        for each example; 0 for the function.
        """
        noise = checks.variances(noise, "The noise", self.variance.shape[-1])
        half = ndtri(0.5 + checks.level(level) / 2.0) * np.sqrt(self.variance + noise)
        half = half if self.mean.ndim == self.variance.ndim else half[..., None]
        return self.mean - half, self.mean + half


class LeaveOneOut(NamedTuple):
    """Each training target predicted from all others that are not the same input.

    `mean` (n, outputs) and `variance` (n) are those of the *observed* target, noise included;
    `log_density` (n, outputs) is the log density of the target under that prediction.
    """

    mean: Float[np.ndarray, " *points"]
    variance: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " *points"]

    def __repr__(self) -> str:
        density = f"mean log density {np.mean(self.log_density):.4g}"
        return f"LeaveOneOut({counted(len(self.variance), 'example')}, {density})"

    @classmethod
    def of(
        cls,
        targets: np.ndarray,
        weights: np.ndarray,
        inverse: np.ndarray,
        *,
        together: Sequence[tuple[np.ndarray, np.ndarray]] = (),
        missed: Any = 0.0,
    ) -> "LeaveOneOut":
        """`m_i = y_i − α_i/c_i` and `v_i = 1/c_i`, with `α = A⁻¹y` and `c = diag(A⁻¹)`.

        `together` are groups G that are left out as one, each with its block `(A⁻¹)_GG`: their
        residuals are `S α_G` and their variances `diag S`, with `S = ((A⁻¹)_GG)⁻¹`. `missed` is
        variance beyond that of `A`.
        """
        residual = weights / inverse[:, None]
        variance = 1.0 / inverse
        for rows, block in together:
            joint = np.linalg.inv(block)
            residual[rows], variance[rows] = joint @ weights[rows], np.diagonal(joint)
        variance = variance + missed
        spread = variance[:, None]
        density = -0.5 * (residual**2 / spread + np.log(spread) + LOG_2PI)
        return cls(targets - residual, variance, density)

    def mapped(self, outputs: Callable[[np.ndarray], np.ndarray]) -> "LeaveOneOut":
        """A copy with a function applied to the arrays that have one column per output."""
        return LeaveOneOut(outputs(self.mean), self.variance, outputs(self.log_density))


class Conditioned(abc.ABC):
    """A process conditioned on targets, whatever the solver.

    Blocks of kernels are (test, train), or (test, landmarks).
    """

    weights: Float[np.ndarray, "n outputs"]
    """Those of the features in the mean."""
    vector_targets: bool
    unit: Any
    """Machine epsilon of the precision in which kernels were computed."""

    def _features(self, block: np.ndarray) -> np.ndarray:
        """Those of test examples: the kernel's rows themselves, unless there are landmarks."""
        return block

    @abc.abstractmethod
    def _gram(self, block: np.ndarray) -> np.ndarray:
        """`K_* A⁻¹ K_*ᵀ`."""

    @abc.abstractmethod
    def _remaining(self, prior: np.ndarray, block: np.ndarray) -> np.ndarray:
        """Variances of the prior less the diagonal of that."""

    def mean(self, cross: Values) -> Float[np.ndarray, " *points"]:
        """`K_* A⁻¹ y` from a block of kernels with test examples."""
        return self._outputs(self._features(self._cross(cross)) @ self.weights)

    def predict(self, cross: Values, prior_variance: Values) -> Prediction:
        """Mean and variance from that block and the test diagonal (test,)."""
        block = self._cross(cross)
        prior = checks.variances(prior_variance, "The prior variance of the tests", len(block))
        mean = self._outputs(self._features(block) @ self.weights)
        return Prediction(mean, self._remaining(prior, block))

    def covariance(self, cross: Values, corner: Values) -> Float[np.ndarray, "m m"]:
        """`K_** − K_* A⁻¹ K_*ᵀ` from that block and (test, test)."""
        block = self._cross(cross)
        name = "The kernel of the test examples"
        prior = checks.square(corner, name, rows=len(block)).astype(np.float64)
        posterior = prior - self._gram(block)
        variance = self._difference(np.diagonal(posterior), np.diagonal(prior), block)
        np.fill_diagonal(posterior, variance)
        return (posterior + posterior.T) / 2.0

    def sample(
        self, cross: Values, corner: Values, *, draws: int = 1, key: RandomKey = 0
    ) -> Float[np.ndarray, " draws *points"]:
        """Functions drawn from the posterior at the test examples: (draws, test[, outputs])."""
        whole("draws", draws)
        mean, covariance = self.mean(cross), self.covariance(cross, corner)
        # Rounding is measured by the prior: the posterior may be all rounding.
        scale = float(np.diagonal(np.asarray(corner)).max())
        root = semidefinite_root(covariance, scale=scale, unit=self.unit)
        outputs = mean.size // len(mean)
        white = generator(key).standard_normal((draws * outputs, root.shape[1]))
        spread = (white @ root.T).reshape(draws, outputs, len(mean)).transpose(0, 2, 1)
        return mean + spread.reshape(draws, *mean.shape)

    def _cross(self, cross: Values) -> np.ndarray:
        name = "The kernel of test against training examples (or landmarks)"
        return checks.matrix(cross, name, columns=len(self.weights))

    def _outputs(self, columns: np.ndarray) -> np.ndarray:
        return columns[:, 0] if self.vector_targets else columns

    def _difference(self, left: np.ndarray, prior: np.ndarray, block: np.ndarray) -> np.ndarray:
        """Variances that are left of the prior's."""
        unit = max(self.unit, checks.rounding_unit(block))
        return checks.variances_from_difference(left, largest_prior=float(prior.max()), unit=unit)


@dataclass(frozen=True, eq=False, repr=False)
class GPPosterior(Conditioned):
    """A Gaussian process conditioned on targets; build it with `GPPosterior.condition`."""

    factor: Inverse
    noise: Float[np.ndarray, " n"] = field(repr=False)
    targets: Float[np.ndarray, "n outputs"] = field(repr=False)
    weights: Float[np.ndarray, "n outputs"] = field(repr=False)
    vector_targets: bool = field(repr=False)
    groups: Groups | None = field(repr=False, default=None)
    """Examples of one number are the same input, and are left out together."""

    def __repr__(self) -> str:
        rows, outputs = self.targets.shape
        low, high = float(self.noise.min()), float(self.noise.max())
        noise = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        facts = f"{rows} examples, outputs={outputs}, noise={noise}, jitter={self.jitter:.3g}"
        return f"GPPosterior({facts})"

    @classmethod
    def condition(
        cls,
        kernel: Values,
        targets: Values,
        *,
        noise: Values = 0.0,
        jitter: Jitter | None = None,
        groups: Groups | None = None,
    ) -> "GPPosterior":
        """The posterior given a training kernel (n, n) and targets (n,) or (n, outputs).

        `noise` holds variances, one for all or one per example. `groups` has the same number for
        examples that are the same input (see `input_groups`).
        """
        matrix = unmasked(kernel, "The kernel")
        rows = len(np.atleast_1d(matrix))
        checks.targets(targets, rows)  # before the expensive part
        variances = checks.variances(noise, "The noise", rows)
        factor = factorise(matrix, noise=variances, jitter=jitter)
        return cls.given(factor, targets, noise=variances, groups=groups)

    @classmethod
    def given(
        cls, factor: Inverse, targets: Values, *, noise: Values, groups: Groups | None = None
    ) -> "GPPosterior":
        """The posterior from a factor of `A`, noise included."""
        columns, vector = checks.targets(targets, len(factor))
        variances = checks.variances(noise, "The noise", len(factor))
        return cls(factor, variances, columns, factor.weights(columns), vector, groups)

    def __len__(self) -> int:
        return len(self.factor)

    @property
    def jitter(self) -> float:
        """What had to be added to the diagonal of the kernel, 0.0 if nothing."""
        return self.factor.jitter

    @property
    def unit(self) -> float:
        """Machine epsilon of the precision in which kernels were computed."""
        return self.factor.unit

    def _gram(self, block: np.ndarray) -> np.ndarray:
        return self.factor.gram(block.T)

    def _remaining(self, prior: np.ndarray, block: np.ndarray) -> np.ndarray:
        """The block is walked in rows, so memory stays at one block of train size."""
        explained = np.empty(len(block))
        for start in range(0, len(block), checks.ROWS_PER_BLOCK):
            rows = slice(start, start + checks.ROWS_PER_BLOCK)
            explained[rows] = self.factor.explained(block[rows].T)
        return self._difference(prior - explained, prior, block)

    @cached_property
    def log_evidence(self) -> float:
        """`log p(y)`, summed over the outputs."""
        rows, outputs = self.targets.shape
        fit = float(np.sum(self.targets * self.weights))
        return -0.5 * (fit + outputs * (self.factor.log_determinant + rows * LOG_2PI))

    @cached_property
    def leave_one_out(self) -> LeaveOneOut:
        """Predictions of each target from the others, without refitting.

        Examples of one of the `groups` are left out together.
        """
        return self.left_out_at(np.arange(len(self)))

    def left_out_at(self, rows: Int[np.ndarray, " rows"]) -> LeaveOneOut:
        """The same for some examples; groups have blocks of the inverse."""
        parts = repeated(self.groups, rows)
        diagonal = np.ones(len(self))
        diagonal[rows] = self.factor.inverse_diagonal_at(rows)
        together = []
        if parts:
            block = self.factor.inverse_block(np.concatenate(parts))
            spans = np.split(np.arange(len(block)), np.cumsum([len(part) for part in parts])[:-1])
            together = [(p, block[np.ix_(s, s)]) for p, s in zip(parts, spans, strict=True)]
        found = LeaveOneOut.of(self.targets, self.weights, diagonal, together=together)
        return LeaveOneOut(*(part[rows] for part in found)).mapped(self._outputs)

    def with_groups(self, groups: Groups | None) -> "GPPosterior":
        """The same posterior with other groups, for instance the folds of a cross-validation."""
        return replace(self, groups=groups)

    @property
    def calibration_rows(self) -> Int[np.ndarray, " rows"]:
        """Examples whose leave-one-out predictions are affordable."""
        return self.factor.calibration_rows
