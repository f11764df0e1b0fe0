"""One eigendecomposition of a kernel, from which answers for every noise variance follow."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from . import checks
from .gp import LeaveOneOut, Prediction
from .repeats import Groups, repeated


@dataclass(frozen=True, eq=False)
class Spectrum:
    """`K = V diag(λ) Vᵀ`, from which leave-one-out predictions follow for any noise in `O(N²)`."""

    values: Float[np.ndarray, " n"] = field(repr=False)
    vectors: Float[np.ndarray, "n n"] = field(repr=False)

    @classmethod
    def of(cls, kernel: np.ndarray) -> "Spectrum":
        """Rounding makes the smallest eigenvalues slightly negative: they are zero."""
        # NumPy's, not SciPy's: it lets other threads run, so that Ctrl-C is heard.
        values, vectors = np.linalg.eigh(np.asarray(kernel, np.float64))
        return cls(np.maximum(values, 0.0), vectors)

    def truncated(self, rank: int) -> "Spectrum":
        """The nearest kernel of a rank: the largest eigenvalues, the others zero."""
        small = np.arange(len(self.values)) < len(self.values) - rank
        return Spectrum(np.where(small, 0.0, self.values), self.vectors)

    def leave_one_out(
        self, targets: np.ndarray, noise: float, groups: Groups | None = None
    ) -> LeaveOneOut:
        """Each target (n, outputs) predicted from the others that are not of its group."""
        inverse = 1.0 / (self.values + noise)
        weights = self.vectors @ (inverse[:, None] * (self.vectors.T @ targets))
        together = [
            (rows, (self.vectors[rows] * inverse) @ self.vectors[rows].T)
            for rows in repeated(groups, np.arange(len(targets)))
        ]
        return LeaveOneOut.of(targets, weights, self.vectors**2 @ inverse, together=together)


@dataclass(frozen=True, eq=False)
class NoiseLadder:
    """Predictions for other examples at every noise variance `ρ`.

    `m = (K_* V) (λ+ρ)⁻¹ Vᵀy` and `v = k_** − Σ_j (K_* V)_j² / (λ_j+ρ)`.
    """

    spectrum: Spectrum
    response: Float[np.ndarray, "m n"] = field(repr=False)
    rotated: Float[np.ndarray, "n outputs"] = field(repr=False)
    prior: Float[np.ndarray, " m"] = field(repr=False)
    unit: float

    @classmethod
    def of(cls, kernel: np.ndarray, targets: Float[np.ndarray, "n outputs"]) -> "NoiseLadder":
        """From the kernel of the examples that have targets, and then of the others."""
        whole = checks.square(kernel, "The kernel of training and validation examples")
        rows, wide = len(targets), whole.astype(np.float64)
        spectrum = Spectrum.of(wide[:rows, :rows])
        response, rotated = wide[rows:, :rows] @ spectrum.vectors, spectrum.vectors.T @ targets
        prior = np.diagonal(wide)[rows:]
        return cls(spectrum, response, rotated, prior, checks.rounding_unit(whole))

    def predict(self, noise: float) -> Prediction:
        """Mean (m, outputs) and variance (m,)."""
        shrunk = self.response / (self.spectrum.values + noise)
        variance = self.prior - np.einsum("mn,mn->m", shrunk, self.response)
        variance = checks.variances_from_difference(
            variance, largest_prior=float(self.prior.max()), unit=self.unit
        )
        return Prediction(shrunk @ self.rotated, variance)
