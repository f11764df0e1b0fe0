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

from dataclasses import dataclass, field, fields

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


@dataclass(frozen=True, eq=False)
class LandmarkPosterior(Conditioned):
    """What all processes have that are conditioned on targets through landmarks."""

    landmarks: Int[np.ndarray, " m"] = field(repr=False)
    """Indices of the training examples that are landmarks."""
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

    def _read(self, cross: Values) -> tuple[np.ndarray, np.ndarray]:
        """Features and means of test examples, from kernels with those that they need."""
        block = checks.matrix(
            cross, "The kernel of test examples against landmarks", columns=len(self.landmarks)
        )
        features = self._features(block.astype(np.float64))
        return features, features @ self.weights

    def _features(self, seen: np.ndarray) -> np.ndarray:
        return solve_triangular(self.lower, seen.T, lower=True).T

    def mean(self, cross: Values) -> Float[np.ndarray, " *points"]:
        """Means from a block (test, landmarks)."""
        return self._outputs(self._read(cross)[1])

    def predict(self, cross: Values, prior_variance: Values) -> Prediction:
        """Mean and variance from the block (test, landmarks) and the test diagonal."""
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
        """The joint covariance of the tests, from (test, landmarks) and (test, test)."""
        features, _ = self._read(cross)
        prior = checks.square(corner, "The kernel of the test examples").astype(np.float64)
        half = solve_triangular(self.inner, features.T, lower=True)
        return symmetrised(prior - features @ features.T + half.T @ half, prior, self.unit)

    @property
    def log_evidence(self) -> float:
        """A lower bound of `log p(y)`, summed over the outputs; exact where nothing is missed."""
        return self.bound


@dataclass(frozen=True, eq=False)
class NystromPosterior(LandmarkPosterior):
    """A process conditioned on targets through landmarks; blocks are (test, landmarks)."""

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
        together = []
        for part in repeated(groups, np.arange(rows)):
            scale = np.sqrt(variances[part])
            block = (np.eye(len(part)) - half[:, part].T @ half[:, part]) / np.outer(scale, scale)
            together.append((part, block))
        left_out = LeaveOneOut.of(columns, solved, inverse, together=together, missed=found.missed)
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

    @property
    def leave_one_out(self) -> LeaveOneOut:
        """Each target from the others that are not the same input, with the landmarks as they are.

        A landmark that is left out keeps its feature, which the others hardly know: it is predicted
        worse than any test example is. See `calibration_rows`.
        """
        return self.left_out

    def left_out_at(self, rows: Int[np.ndarray, " rows"]) -> LeaveOneOut:
        """Some of them."""
        return LeaveOneOut(*(part[rows] for part in self.left_out))

    @property
    def calibration_rows(self) -> Int[np.ndarray, " rows"]:
        """Examples that are not landmarks, like tests; all where too few are left."""
        others = np.setdiff1d(np.arange(len(self)), self.landmarks)
        return others if len(others) >= min(_ENOUGH, len(self) / 2) else np.arange(len(self))


@dataclass(frozen=True, eq=False, kw_only=True)
class RefinedPosterior(LandmarkPosterior):
    """Landmarks, and a step from them towards the exact solve; blocks are (test, train).

    `weights` are those of features once the step's own part in them is taken away, `w − Fᵀ s`:
    the mean is `F_* (w − Fᵀ s) + K_* s`.
    """

    step: Float[np.ndarray, "n outputs"] = field(repr=False)
    """`s`, zero at landmarks."""
    length: float
    """`c`; 0 keeps what landmarks alone predict, 1 believes the diagonal of `R` to be all of it."""
    rows: Int[np.ndarray, " rows"] = field(repr=False)
    """Examples that were left out in turn to find it; their predictions are in `left_out`."""
    size: int

    @classmethod
    def of(
        cls,
        plain: NystromPosterior,
        found: Pivoted,
        targets: Values,
        *,
        noise: Values,
        rows: Int[np.ndarray, " rows"],
        kernels: Float[np.ndarray, "rows n"],
    ) -> "RefinedPosterior":
        """A step from `plain`; `kernels` are those of the examples `rows`, no landmarks, with all.

        Without example i, the weights `w` change by `−U_i l_i`, with its left-out residual `l_i`
        and `U_i = B⁻¹ F_i/Λ_i`: its prediction gains `c Σ_{j≠i} R_ij (y − F w + F U_i l_i)_j/D_j`.
        """
        factor, size = found.factor, len(found.factor)
        columns, _ = checks.targets(targets, size)
        variances = checks.positive_noise(noise, size, "Landmarks")
        residual = columns - factor @ plain.weights
        scale = found.missed + variances
        missing = kernels.astype(np.float64) - factor[rows] @ factor.T
        missing[:, found.pivots] = 0.0
        missing[np.arange(len(rows)), rows] = 0.0
        missing /= scale
        change = cho_solve((plain.inner, True), factor[rows].T) / variances[rows]
        own = np.einsum("rm,mr->r", missing @ factor, change)
        left_out = plain.left_out_at(rows)
        wanted = columns[rows] - left_out.mean.reshape(len(rows), -1)
        gain = missing @ residual + own[:, None] * wanted
        squares = float(np.sum(gain**2))
        length = max(0.0, float(np.sum(wanted * gain)) / squares) if squares > 0 else 0.0
        step = length * residual / scale[:, None]
        step[found.pivots] = 0.0
        inverse = 1.0 / left_out.variance
        better = LeaveOneOut.of(
            columns[rows], (wanted - length * gain) * inverse[:, None], inverse
        ).mapped(plain._outputs)
        return cls(
            **{each.name: getattr(plain, each.name) for each in fields(plain)}
            | {"weights": plain.weights - factor.T @ step, "left_out": better},
            step=step,
            length=length,
            rows=rows,
            size=size,
        )

    def __len__(self) -> int:
        return self.size

    def _read(self, cross: Values) -> tuple[np.ndarray, np.ndarray]:
        name = "The kernel of test and training examples"
        block = checks.matrix(cross, name, columns=self.size).astype(np.float64)
        features = self._features(block[:, self.landmarks])
        return features, features @ self.weights + block @ self.step

    @property
    def calibration_rows(self) -> Int[np.ndarray, " rows"]:
        """Examples that were left out."""
        return self.rows

    def left_out_at(self, rows: Int[np.ndarray, " rows"]) -> LeaveOneOut:
        """Examples of `rows`."""
        if not np.isin(rows, self.rows).all():
            raise NumericalError(
                f"After a step from landmarks, {len(self.rows)} of {self.size} examples are left "
                "out in turn, not all.",
                got="others among the rows",
                remedy="use posterior.left_out_at(posterior.rows), or Nystrom(refined=False)",
            )
        places = np.searchsorted(self.rows, rows)
        return LeaveOneOut(*(part[places] for part in self.left_out))
