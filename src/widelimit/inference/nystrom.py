"""Gaussian processes through landmarks: `O(N·m)` kernel entries instead of `O(N²)`.

With landmarks `z` and `F = K(x, z) L⁻ᵀ`, `L Lᵀ = K(z, z)`, the training kernel is replaced by
`F Fᵀ`, which it exceeds by `R = K − F Fᵀ ≥ 0`. With noise `Λ` and `B = I + Fᵀ Λ⁻¹ F`:

    mean      F_* B⁻¹ Fᵀ Λ⁻¹ y
    variance  k_** − F_* F_*ᵀ + F_* B⁻¹ F_*ᵀ
    evidence  log p(y) ≥ log N(y; 0, F Fᵀ + Λ) − ½ tr(Λ⁻¹ R)      for every output

The variance keeps what landmarks do not see: far from all of them it is the prior's.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_solve, cholesky, solve_triangular

from . import checks
from .checks import Values
from .gp import LOG_2PI, Conditioned, LeaveOneOut
from .pivots import Pivoted
from .repeats import Groups, repeated

_ENOUGH = 200  # examples for a calibration


@dataclass(frozen=True, eq=False, kw_only=True)
class NystromPosterior(Conditioned):
    """A process conditioned on targets through landmarks; blocks are (test, landmarks)."""

    landmarks: Int[np.ndarray, " m"] = field(repr=False)
    """Indices of the training examples that are landmarks."""
    lower: Float[np.ndarray, "m m"] = field(repr=False)
    inner: Float[np.ndarray, "m m"] = field(repr=False)
    """The Cholesky factor of `B`."""
    weights: Float[np.ndarray, "m outputs"] = field(repr=False)
    """`B⁻¹ Fᵀ Λ⁻¹ y`."""
    leave_one_out: LeaveOneOut = field(repr=False)
    """Each target from the others that are not the same input, with the landmarks as they are.

    A landmark that is left out keeps its feature, which the others hardly know: it is predicted
    worse than any test example is. See `calibration_rows`.
    """
    log_evidence: float
    """A lower bound of `log p(y)`, summed over the outputs; exact where nothing is missed."""
    missed: float
    """The share of the prior variance of the training examples that landmarks do not see."""
    size: int
    unit: float
    vector_targets: bool = field(repr=False)
    jitter: float = 0.0

    @classmethod
    def condition(
        cls,
        found: Pivoted,
        diagonal: Values,
        targets: Values,
        *,
        noise: Values,
        unit: float,
        groups: Groups | None = None,
    ) -> "NystromPosterior":
        """The posterior given a low-rank kernel, its exact diagonal and targets."""
        size = len(found.factor)
        columns, vector = checks.targets(targets, size)
        variances = checks.positive_noise(noise, size, "Landmarks")
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
        together = []
        for part in repeated(groups, np.arange(size)):
            scale = np.sqrt(variances[part])
            block = (np.eye(len(part)) - half[:, part].T @ half[:, part]) / np.outer(scale, scale)
            together.append((part, block))
        left_out = LeaveOneOut.of(columns, solved, inverse, together=together, missed=found.missed)
        determinant = float(2 * np.log(np.diagonal(inner)).sum() + np.log(variances).sum())
        trace = float((found.missed / variances).sum())
        fit, outputs = float(np.sum(columns * solved)), columns.shape[1]
        return cls(
            landmarks=found.pivots,
            lower=found.lower,
            inner=inner,
            weights=weights,
            leave_one_out=left_out.mapped(lambda one: one[:, 0] if vector else one),
            log_evidence=-0.5 * (fit + outputs * (determinant + size * LOG_2PI + trace)),
            missed=float(found.missed.sum() / np.asarray(diagonal, np.float64).sum()),
            size=size,
            unit=unit,
            vector_targets=vector,
        )

    def __len__(self) -> int:
        return self.size

    def _features(self, block: np.ndarray) -> np.ndarray:
        return solve_triangular(self.lower, block.astype(np.float64).T, lower=True).T

    def _gram(self, block: np.ndarray) -> np.ndarray:
        features = self._features(block)
        half = solve_triangular(self.inner, features.T, lower=True)
        return features @ features.T - half.T @ half

    def _remaining(self, prior: np.ndarray, block: np.ndarray) -> np.ndarray:
        """Never below what the features leave, whatever rounding leaves of the prior's."""
        features = self._features(block)
        half = solve_triangular(self.inner, features.T, lower=True)
        unseen = self._difference(prior - np.einsum("nm,nm->n", features, features), prior, block)
        return unseen + np.einsum("mn,mn->n", half, half)

    def left_out_at(self, rows: Int[np.ndarray, " rows"]) -> LeaveOneOut:
        """Some of those that are left out in turn."""
        return LeaveOneOut(*(part[rows] for part in self.leave_one_out))

    @property
    def calibration_rows(self) -> Int[np.ndarray, " rows"]:
        """Examples that are not landmarks, like tests; all where too few are left."""
        others = np.setdiff1d(np.arange(self.size), self.landmarks)
        return others if len(others) >= min(_ENOUGH, self.size / 2) else np.arange(self.size)
