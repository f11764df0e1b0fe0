"""Gaussian processes through landmarks: `O(N·m)` kernel entries instead of `O(N²)`.

With landmarks `z` and `F = K(x, z) L⁻ᵀ`, `L Lᵀ = K(z, z)`, the training kernel is replaced by
`F Fᵀ`, which it exceeds by `R = K − F Fᵀ ≥ 0`. With noise `Λ` and `B = I + Fᵀ Λ⁻¹ F`:

    mean      F_* B⁻¹ Fᵀ Λ⁻¹ y
    variance  k_** − F_* F_*ᵀ + F_* B⁻¹ F_*ᵀ
    evidence  log p(y) ≥ log N(y; 0, F Fᵀ + Λ) − ½ tr(Λ⁻¹ R)      for every output

The variance keeps what landmarks do not see: far from all of them it is the prior's.

Where `R` matters (spectra that fall slowly), one step from there towards the exact solve takes no
more kernels among training examples than a few rows of them:

    mean      F_* w + R_* s,      w = B⁻¹ Fᵀ Λ⁻¹ y,   s = c diag(R + Λ)⁻¹ (y − F w)

where `(R + Λ)⁻¹` would be exact for the residual of `w`. The length `c` is the one with the least
squared error of examples of those rows, each left out in turn. A test example then needs its
kernels with all training examples. The variance stays that of the landmarks, which is never below
the exact one.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_solve, cholesky, solve_triangular

from ..errors import NumericalError
from . import checks
from .checks import Values
from .conventions import some_left_out
from .gp import LOG_2PI, Conditioned, LeaveOneOut, Prediction, symmetrised
from .pivots import Pivoted
from .repeats import Groups, repeated

_ENOUGH = 200  # examples for a calibration


def left_out_rows(
    landmarks: Int[np.ndarray, " m"],
    size: int,
    rng: np.random.Generator,
    groups: Groups | None = None,
) -> Int[np.ndarray, " rows"]:
    """Some examples that are not landmarks, by which the length of the step is chosen.

    Examples that repeat others are taken only where there is none beside them.
    """
    others = np.setdiff1d(np.arange(size), landmarks)
    single = np.setdiff1d(others, np.concatenate([[], *repeated(groups, others)]))
    return some_left_out(single if len(single) else others, rng)


@dataclass(frozen=True, eq=False, kw_only=True)
class NystromPosterior(Conditioned):
    """A process conditioned on targets through landmarks.

    Blocks are (test, landmarks), and (test, train) once a `step` was taken.
    """

    landmarks: Int[np.ndarray, " m"] = field(repr=False)
    """Indices of the training examples that are landmarks."""
    lower: Float[np.ndarray, "m m"] = field(repr=False)
    inner: Float[np.ndarray, "m m"] = field(repr=False)
    """The Cholesky factor of `B`."""
    weights: Float[np.ndarray, "m outputs"] = field(repr=False)
    """`w`; after a step `w − Fᵀ s`, so that the mean is `F_* weights + K_* s`."""
    rows: Int[np.ndarray, " rows"] = field(repr=False)
    """Examples that were left out in turn, all of them where no step was taken."""
    left_out: LeaveOneOut = field(repr=False)
    """Their predictions from the others, with the landmarks and the length as they are."""
    bound: float
    missed: float
    """The share of the prior variance of the training examples that landmarks do not see."""
    size: int
    unit: float
    vector_targets: bool = field(repr=False)
    step: Float[np.ndarray, "n outputs"] | None = field(repr=False, default=None)
    """`s`, zero at landmarks."""
    length: float = 0.0
    """`c`; 0 keeps what landmarks alone predict, 1 believes the diagonal of `R` to be all of it."""
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
            rows=np.arange(size),
            left_out=left_out.mapped(lambda one: one[:, 0] if vector else one),
            bound=-0.5 * (fit + outputs * (determinant + size * LOG_2PI + trace)),
            missed=float(found.missed.sum() / np.asarray(diagonal, np.float64).sum()),
            size=size,
            unit=unit,
            vector_targets=vector,
        )

    def refined(
        self,
        found: Pivoted,
        targets: Values,
        *,
        noise: Values,
        rows: Int[np.ndarray, " rows"],
        kernels: Float[np.ndarray, "rows n"],
    ) -> "NystromPosterior":
        """A step further; `kernels` are those of the examples `rows`, no landmarks, with all.

        Without example i, the weights `w` change by `−U_i l_i`, with its left-out residual `l_i`
        and `U_i = B⁻¹ F_i/Λ_i`: its prediction gains `c Σ_{j≠i} R_ij (y − F w + F U_i l_i)_j/D_j`.
        """
        factor = found.factor
        columns, _ = checks.targets(targets, self.size)
        variances = checks.positive_noise(noise, self.size, "Landmarks")
        residual = columns - factor @ self.weights
        scale = found.missed + variances
        missing = kernels.astype(np.float64) - factor[rows] @ factor.T
        missing[:, found.pivots] = 0.0
        missing[np.arange(len(rows)), rows] = 0.0
        missing /= scale
        change = cho_solve((self.inner, True), factor[rows].T) / variances[rows]
        own = np.einsum("rm,mr->r", missing @ factor, change)
        left_out = self.left_out_at(rows)
        wanted = columns[rows] - left_out.mean.reshape(len(rows), -1)
        gain = missing @ residual + own[:, None] * wanted
        squares = float(np.sum(gain**2))
        length = max(0.0, float(np.sum(wanted * gain)) / squares) if squares > 0 else 0.0
        step = length * residual / scale[:, None]
        step[found.pivots] = 0.0
        inverse = 1.0 / left_out.variance
        better = LeaveOneOut.of(
            columns[rows], (wanted - length * gain) * inverse[:, None], inverse
        ).mapped(self._outputs)
        weights = self.weights - factor.T @ step
        return replace(self, weights=weights, rows=rows, left_out=better, step=step, length=length)

    def __len__(self) -> int:
        return self.size

    def _read(self, cross: Values) -> tuple[np.ndarray, np.ndarray]:
        """Features and means of test examples, from kernels with those that they need."""
        name, columns = "The kernel of test examples against landmarks", len(self.landmarks)
        if self.step is not None:
            name, columns = "The kernel of test against training examples", self.size
        block = checks.matrix(cross, name, columns=columns).astype(np.float64)
        seen = block if self.step is None else block[:, self.landmarks]
        features = solve_triangular(self.lower, seen.T, lower=True).T
        mean = features @ self.weights
        return features, mean if self.step is None else mean + block @ self.step

    def mean(self, cross: Values) -> Float[np.ndarray, " *points"]:
        """Means from a block of kernels."""
        return self._outputs(self._read(cross)[1])

    def predict(self, cross: Values, prior_variance: Values) -> Prediction:
        """Mean and variance from a block of kernels and the test diagonal."""
        features, mean = self._read(cross)
        prior = checks.variances(prior_variance, "The prior variance of the tests", len(features))
        half = solve_triangular(self.inner, features.T, lower=True)
        seen = np.einsum("nm,nm->n", features, features)
        variance = checks.variances_from_difference(
            prior - seen, largest_prior=float(prior.max()), unit=self.unit
        )
        variance = variance + np.einsum("mn,mn->n", half, half)
        return Prediction(self._outputs(mean), variance)

    def covariance(self, cross: Values, corner: Values) -> Float[np.ndarray, "m m"]:
        """The joint covariance of the tests, from a block of kernels and (test, test)."""
        features, _ = self._read(cross)
        prior = checks.square(corner, "The kernel of the test examples").astype(np.float64)
        half = solve_triangular(self.inner, features.T, lower=True)
        return symmetrised(prior - features @ features.T + half.T @ half, prior, self.unit)

    @property
    def log_evidence(self) -> float:
        """A lower bound of `log p(y)`, summed over the outputs; exact where nothing is missed."""
        return self.bound

    @property
    def leave_one_out(self) -> LeaveOneOut:
        """Each target from the others that are not the same input.

        A landmark that is left out keeps its feature, which the others hardly know: it is predicted
        worse than any test example is. See `calibration_rows`.
        """
        return self.left_out_at(np.arange(self.size))

    def left_out_at(self, rows: Int[np.ndarray, " rows"]) -> LeaveOneOut:
        """Some of them."""
        if not np.isin(rows, self.rows).all():
            raise NumericalError(
                f"After a step from landmarks, {len(self.rows)} of {self.size} examples are left "
                "out in turn, not all.",
                got="others among the rows",
                remedy="use posterior.left_out_at(posterior.rows), or Nystrom(refined=False)",
            )
        places = np.searchsorted(self.rows, rows)
        return LeaveOneOut(*(part[places] for part in self.left_out))

    @property
    def calibration_rows(self) -> Int[np.ndarray, " rows"]:
        """Examples that are not landmarks, like tests; all where too few are left."""
        others = np.setdiff1d(self.rows, self.landmarks)
        return others if len(others) >= min(_ENOUGH, len(self.rows) / 2) else self.rows
