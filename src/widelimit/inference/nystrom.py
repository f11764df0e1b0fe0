"""Gaussian processes through landmarks: `O(N·m)` kernel entries instead of `O(N²)`.

With landmarks `z` and `F = K(x, z) L⁻ᵀ`, `L Lᵀ = K(z, z)`, the training kernel is replaced by
`F Fᵀ`, which it exceeds by `R = K − F Fᵀ ≥ 0`. With noise `Λ` and `B = I + Fᵀ Λ⁻¹ F`:

    mean      F_* B⁻¹ Fᵀ Λ⁻¹ y
    variance  k_** − F_* F_*ᵀ + F_* B⁻¹ F_*ᵀ
    evidence  log p(y) ≥ log N(y; 0, F Fᵀ + Λ) − ½ tr(Λ⁻¹ R)      for every output

The variance keeps what landmarks do not see: far from all of them it is the prior's.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_solve, cholesky, solve_triangular

from ..errors import WidelimitError
from . import checks
from .checks import Values
from .gp import LOG_2PI, Conditioned, LeaveOneOut, Prediction, symmetrised
from .pivots import Pivoted


@dataclass(frozen=True, eq=False)
class NystromPosterior(Conditioned):
    """A process that has seen targets through landmarks; blocks are (test, landmarks)."""

    landmarks: Int[np.ndarray, " m"] = field(repr=False)
    """Numbers of the training examples that are landmarks."""
    lower: Float[np.ndarray, "m m"] = field(repr=False)
    inner: Float[np.ndarray, "m m"] = field(repr=False)
    """The Cholesky factor of `B`."""
    weights: Float[np.ndarray, "m outputs"] = field(repr=False)
    """`B⁻¹ Fᵀ Λ⁻¹ y`."""
    left_out: LeaveOneOut = field(repr=False)
    bound: float
    missed: float
    """The share of the prior variance of the training examples that landmarks do not see."""
    unit: float
    vector_targets: bool = field(repr=False)
    jitter: float = 0.0

    @classmethod
    def condition(
        cls, found: Pivoted, diagonal: Values, targets: Values, *, noise: Values, unit: float
    ) -> "NystromPosterior":
        """The posterior given a low-rank kernel, its exact diagonal and targets."""
        rows = len(found.factor)
        columns, vector = checks.targets(targets, rows)
        variances = checks.positive_noise(noise, rows, "Landmarks")
        scaled = found.factor / np.sqrt(variances)[:, None]
        inner = scaled.T @ scaled
        inner[np.diag_indices(len(inner))] += 1.0
        inner = cholesky(inner, lower=True, overwrite_a=True)
        white = columns / np.sqrt(variances)[:, None]
        weights = cho_solve((inner, True), scaled.T @ white)
        # A⁻¹ = Λ⁻¹ − Λ⁻½ Fs B⁻¹ Fsᵀ Λ⁻½.
        half = solve_triangular(inner, scaled.T, lower=True)
        inverse = (1.0 - np.einsum("mn,mn->n", half, half)) / variances
        solved = (white - scaled @ weights) / np.sqrt(variances)[:, None]
        left_out = LeaveOneOut.of(columns, solved, inverse, found.missed)
        left_out = left_out.mapped(lambda one: one[:, 0] if vector else one)
        determinant = 2 * np.log(np.diagonal(inner)).sum() + np.log(variances).sum()
        trace = float((found.missed / variances).sum())
        many = columns.shape[1]
        fit = float(np.sum(columns * solved))
        bound = -0.5 * (fit + many * (float(determinant) + rows * LOG_2PI + trace))
        share = float(found.missed.sum() / np.asarray(diagonal, np.float64).sum())
        return cls(found.pivots, found.lower, inner, weights, left_out, bound, share, unit, vector)

    def __len__(self) -> int:
        return len(self.left_out.variance)

    def rounding(self) -> float:
        return self.unit

    def _features(self, cross: Values) -> np.ndarray:
        block = checks.matrix(
            cross, "The kernel of test examples against landmarks", columns=len(self.landmarks)
        )
        return solve_triangular(self.lower, block.T.astype(np.float64), lower=True).T

    def mean(self, cross: Values) -> Float[np.ndarray, " *points"]:
        """Means from a block (test, landmarks)."""
        return self._outputs(self._features(cross) @ self.weights)

    def predict(self, cross: Values, prior_variance: Values) -> Prediction:
        """Mean and variance from the block (test, landmarks) and the test diagonal."""
        features = self._features(cross)
        prior = checks.variances(prior_variance, "The prior variance of the tests", len(features))
        half = solve_triangular(self.inner, features.T, lower=True)
        seen = np.einsum("nm,nm->n", features, features)
        variance = checks.variances_from_difference(
            prior - seen, largest_prior=float(prior.max()), unit=self.unit
        )
        variance = variance + np.einsum("mn,mn->n", half, half)
        return Prediction(self._outputs(features @ self.weights), variance)

    def covariance(self, cross: Values, corner: Values) -> Float[np.ndarray, "m m"]:
        """The joint covariance of the tests, from (test, landmarks) and (test, test)."""
        features = self._features(cross)
        prior = checks.square(corner, "The kernel of the test examples").astype(np.float64)
        half = solve_triangular(self.inner, features.T, lower=True)
        return symmetrised(prior - features @ features.T + half.T @ half, prior, self.unit)

    @property
    def log_evidence(self) -> float:
        """A lower bound of `log p(y)`, summed over the outputs; exact where nothing is missed."""
        return self.bound

    @property
    def leave_one_out(self) -> LeaveOneOut:
        """Each target from the others, with the landmarks as they are."""
        return self.left_out

    def left_out_at(self, rows: np.ndarray | None) -> LeaveOneOut:
        """Some of them."""
        found = self.left_out
        return found if rows is None else LeaveOneOut(*(part[rows] for part in found))

    @property
    def calibration_rows(self) -> None:
        """All training examples serve for calibration."""
        return

    def extend(self, *_: Any, **__: Any) -> Any:
        """Refused: landmarks are chosen for all examples together."""
        raise WidelimitError(
            "A model with landmarks is fitted to all its data at once.",
            got="more data for a fitted one",
            remedy="fit it again with the old and the new data",
        )
