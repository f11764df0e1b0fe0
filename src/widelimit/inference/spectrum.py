"""One eigendecomposition of a kernel, from which answers for every noise variance follow."""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from .gp import LeaveOneOut
from .repeats import Groups, repeated


@dataclass(frozen=True, eq=False)
class Spectrum:
    """`K = V diag(λ) Vᵀ`, from which leave-one-out predictions follow for any noise in `O(N²)`.

    Where examples have `counts` `c`, it is that of `√c K √c`: noise variances `ρ/c` are one `ρ`
    there, `(K + ρ/c)⁻¹ = √c V (λ+ρ)⁻¹ Vᵀ √c`.
    """

    values: Float[np.ndarray, " n"] = field(repr=False)
    vectors: Float[np.ndarray, "n n"] = field(repr=False)
    counts: Float[np.ndarray, " n"] | None = field(repr=False, default=None)

    @classmethod
    def of(cls, kernel: np.ndarray, counts: Float[np.ndarray, " n"] | None = None) -> "Spectrum":
        """Rounding makes the smallest eigenvalues slightly negative: they are zero."""
        wide = np.asarray(kernel, np.float64)
        if counts is not None:
            wide = wide * np.sqrt(np.multiply.outer(counts, counts))
        # NumPy's, not SciPy's: it lets other threads run, so that Ctrl-C is heard.
        values, vectors = np.linalg.eigh(wide)
        return cls(np.maximum(values, 0.0), vectors, counts)

    def truncated(self, rank: int) -> "Spectrum":
        """The nearest kernel of a rank: the largest eigenvalues, the others zero."""
        small = np.arange(len(self.values)) < len(self.values) - rank
        return replace(self, values=np.where(small, 0.0, self.values))

    def leave_one_out(
        self, targets: np.ndarray, noise: float, groups: Groups | None = None
    ) -> LeaveOneOut:
        """Each target (n, outputs) predicted from the others that are not of its group.

        Its variance is that of an observation that counts once.
        """
        inverse, vectors, missed = 1.0 / (self.values + noise), self.vectors, 0.0
        if self.counts is not None:
            vectors = np.sqrt(self.counts)[:, None] * vectors
            missed = noise - noise / self.counts
        weights = vectors @ (inverse[:, None] * (vectors.T @ targets))
        together = [
            (rows, (vectors[rows] * inverse) @ vectors[rows].T)
            for rows in repeated(groups, np.arange(len(targets)))
        ]
        diagonal = vectors**2 @ inverse
        return LeaveOneOut.of(targets, weights, diagonal, together=together, missed=missed)
