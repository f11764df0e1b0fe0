"""Training without training: the infinite ensemble under squared loss, at any time.

Infinitely wide networks start as draws `f₀ ~ N(0, K)` (K: NNGP kernel) and gradient training
moves them linearly through the NTK `Θ`. With `Θ = U diag(λ) Uᵀ` on the training set, ridge `ρ` and
step `h = η c` (see `conventions`), every network obeys

    f_t(x) = f₀(x) + Θ(x, X) U diag(φ_t) Uᵀ (y − f₀(X)),   φ_t = (1 − e_t) / (λ + ρ),

with `e_t = exp(−h(λ+ρ)t)` for gradient flow and `e_t = (1 − h(λ+ρ))^t` for gradient descent.
Mean and covariance over the ensemble follow, exactly, for every t from one eigendecomposition.
The ridge is weight decay towards the initial weights: the loss is
`c·(½ Σ‖f − y‖² + ½ρ‖θ − θ₀‖²)`, and `t = ∞` is kernel regression with noise variance `ρ`.

Directions whose `λ + ρ` is not above the rounding of the kernel are never learnt: what Θ says
about them is noise. This holds for infinitely many attention heads; with finitely many heads the
kernels of the limit are random and the formulas do not apply.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from ..errors import NumericalError, ShapeError
from ..options import choice, positive, whole
from ..printing import counted
from . import checks
from .checks import Values
from .conventions import Optimizer, Reduction
from .gp import Prediction
from .solve import Jitter

# Variances and losses are squares of what is left of the initial error, times kernels and targets.
_LARGEST = 1e100


def largest_stable_learning_rate(
    ntk: Values, *, outputs: int = 1, reduction: Reduction | str = Reduction.SUM, ridge: float = 0.0
) -> float:
    """`2 / (c (λ_max(Θ) + ρ))`: gradient descent diverges above it. Needs no decomposition."""
    reduction = choice(Reduction, reduction, "reduction")
    kernel = checks.square(ntk, "The NTK of the training examples")
    whole("outputs", outputs)
    ridge = float(checks.variances(ridge, "The ridge", 1)[0])
    if len(kernel) == 1:
        largest = float(kernel[0, 0])
    else:
        start = np.ones(len(kernel))  # a fixed start makes the iteration repeatable
        wide = kernel.astype(np.float64)
        largest = float(eigsh(wide, k=1, v0=start, return_eigenvectors=False)[0])
    return _stable(largest + ridge, reduction.factor(len(kernel), outputs))


def _stable(rate: float, factor: float) -> float:
    return 2.0 / (factor * rate) if rate > 0.0 else float("inf")


class TrainingCurve(NamedTuple):
    """Expected losses over the ensemble, in the units of the chosen reduction.

    `E[loss] = c·½ Σ_i (‖E f(x_i) − y_i‖² + D·Var f(x_i))`; `bias` and `spread` are the two parts.
    """

    times: Float[np.ndarray, " *times"]
    bias: Float[np.ndarray, " *times"]
    spread: Float[np.ndarray, " *times"]

    def __repr__(self) -> str:
        loss = np.ravel(self.loss)
        ends = f", loss {loss[0]:.4g} to {loss[-1]:.4g}" if loss.size else ""
        return f"TrainingCurve({counted(loss.size, 'time')}{ends})"

    @property
    def loss(self) -> Float[np.ndarray, " *times"]:
        """The expected loss of a random member of the ensemble."""
        return np.asarray(self.bias + self.spread)


@dataclass(frozen=True, eq=False, repr=False)
class Dynamics:
    """Training dynamics, seen on the training set, or at the examples of `on(...)`.

    Build with `Dynamics.decompose`. Times may be a number or an array, and `numpy.inf`; results
    have shape `times.shape + (examples[, outputs])`.

    All is written as `f_t(x) = a(x) − R_t (Uᵀ (y − f₀(X)))` with `R_t = rows · diag(r_t)`. On the
    training set `a = y`, rows are `U` and `r_t = 1 − λ φ_t`, so that almost nothing keeps its
    relative accuracy; at other examples `a = f₀(x)`, rows are `Θ(x, X) U` and `r_t = −φ_t`. The
    covariance is `P + R_t Qᵀ + Q R_tᵀ + R_t UᵀKU R_tᵀ` with `P = K(x, x)` and `Q = K(x, X) U`,
    which are left out on the training set.
    """

    eigenvalues: Float[np.ndarray, " n"]
    basis: Float[np.ndarray, "n n"]
    targets: Float[np.ndarray, "n outputs"]
    rotated_nngp: Float[np.ndarray, "n n"] | None
    """`Uᵀ K U`."""
    cutoff: float
    """Eigenvalues (plus ridge) up to this size are rounding."""
    unit: float
    learning_rate: float
    optimizer: Optimizer
    reduction: Reduction
    ridge: float
    vector_targets: bool
    rows: Float[np.ndarray, "m n"] | None = None
    """`Θ(x, X) U` at other examples; None on the training set."""
    initial: Float[np.ndarray, "m n"] | None = None
    """`Q`, where it is known."""
    prior: np.ndarray | None = None
    """`P`, or its diagonal."""

    def __repr__(self) -> str:
        low, high = self.eigenvalues.min(), self.eigenvalues.max()
        seen = "" if self.rows is None else f" seen at {len(self.rows)} others"
        return (
            f"Dynamics({counted(len(self.eigenvalues), 'example')}{seen}, eigenvalues {low:.3g} to "
            f"{high:.3g}, {self.optimizer.value}, learning rate {self.learning_rate:g})"
        )

    @classmethod
    def decompose(
        cls,
        ntk: Values,
        targets: Values,
        *,
        nngp: Values | None = None,
        learning_rate: float = 1.0,
        optimizer: Optimizer | str = Optimizer.GRADIENT_FLOW,
        reduction: Reduction | str = Reduction.SUM,
        ridge: float = 0.0,
    ) -> "Dynamics":
        """Decompose the training NTK (n, n) once, for all times.

        `nngp` (n, n) is the covariance of the initial functions; without it only means, and
        trajectories of given initial functions, can be computed.
        """
        kernel = checks.square(ntk, "The NTK of the training examples")
        rows = len(kernel)
        columns, vector = checks.targets(targets, rows)
        positive("learning_rate", learning_rate)
        optimizer = choice(Optimizer, optimizer, "optimizer")
        reduction = choice(Reduction, reduction, "reduction")
        ridge = float(checks.variances(ridge, "The ridge", 1)[0])
        unit = checks.rounding_unit(kernel)
        eigenvalues, basis = eigh(
            np.array(kernel, dtype=np.float64, order="F"), overwrite_a=True, driver="evd"
        )
        scale = float(np.diagonal(kernel).mean(dtype=np.float64))
        _, limit = Jitter().range_for(rows, unit)
        if eigenvalues[0] < -limit * scale:
            raise NumericalError(
                "The NTK must be positive semi-definite.",
                got=f"smallest eigenvalue {eigenvalues[0]:.3g}, mean diagonal {scale:.3g}",
                remedy="check how it was computed; sampled kernels must share their samples",
            )
        rotated = None
        if nngp is not None:
            initial = checks.square(nngp, "The NNGP kernel of the training examples", rows=rows)
            rotated = basis.T @ initial.astype(np.float64) @ basis
        return cls(
            eigenvalues=np.maximum(eigenvalues, 0.0),
            basis=basis,
            targets=columns,
            rotated_nngp=rotated,
            cutoff=float(np.sqrt(rows) * unit * max(eigenvalues[-1], 0.0)),
            unit=unit,
            learning_rate=float(learning_rate),
            optimizer=optimizer,
            reduction=reduction,
            ridge=ridge,
            vector_targets=vector,
        )

    @property
    def loss_factor(self) -> float:
        """`c`, the factor in front of the summed loss."""
        return self.reduction.factor(*self.targets.shape)

    @property
    def largest_stable_learning_rate(self) -> float:
        """`2 / (c (λ_max + ρ))`: gradient descent diverges above it."""
        return _stable(float(self.eigenvalues[-1]) + self.ridge, self.loss_factor)

    def mean(
        self, times: Values, *, start: Values | None = None, train_start: Values | None = None
    ) -> Float[np.ndarray, " *shape"]:
        """Mean output; with `start` the path of the one network with these initial outputs.

        Off the training set `train_start` are those on it. Both are shaped like the targets.
        """
        if self.rows is None:
            rows, anchor, first = self.basis, self.targets, self._start(start, len(self.targets))
        elif (start is None) != (train_start is None):
            raise ShapeError(
                "The path of one network needs its initial outputs at both sets of examples.",
                got="start alone" if train_start is None else "train_start alone",
                remedy="pass start= for these examples and train_start= for the training set",
            )
        else:
            rows, anchor = self.rows, self._start(start, len(self.rows))
            first = self._start(train_start, len(self.targets))
        gap = self.basis.T @ (self.targets - first)
        found = anchor - rows @ np.einsum("...n,nd->...nd", self._rates(times), gap)
        return found[..., 0] if self.vector_targets else found

    def predict(self, times: Values) -> Prediction:
        """Mean and variance over the ensemble."""
        rates, nngp = self._rates(times), self._nngp()
        rows = self.basis if self.rows is None else self.rows
        variance = np.empty((*rates.shape[:-1], len(rows)))
        initial, prior = self._before()
        for index in np.ndindex(rates.shape[:-1]):
            map_ = rows * rates[index]
            variance[index] = np.einsum("ij,ij->i", map_ @ nngp + 2.0 * initial, map_)
        if prior is None:
            return Prediction(self.mean(times), np.maximum(variance, 0.0))
        diagonal = prior if prior.ndim == 1 else np.diagonal(prior)
        variance = checks.variances_from_difference(
            diagonal + variance, largest_prior=float(diagonal.max()), unit=self.unit
        )
        return Prediction(self.mean(times), variance)

    def covariance(self, times: Values) -> Float[np.ndarray, " *shape"]:
        """Covariance (…, m, m) of one output over the ensemble."""
        rows = self.basis if self.rows is None else self.rows
        map_ = rows * self._rates(times)[..., None, :]
        moved = map_ @ self._nngp() @ np.swapaxes(map_, -1, -2)
        initial, prior = self._before()
        if prior is None:
            return moved
        if prior.ndim == 1:
            raise NumericalError(
                "A full covariance needs the full kernel of the test examples.",
                got="only its diagonal",
                remedy="pass the (test, test) matrix as nngp=",
            )
        mixed = map_ @ initial.T
        return prior + mixed + np.swapaxes(mixed, -1, -2) + moved

    def curve(self, times: Values, targets: Values | None = None) -> TrainingCurve:
        """Expected loss over the ensemble, reduced over the examples at which it is seen.

        Off the training set it takes their targets. `O(N)` per time on it.
        """
        rates, nngp = self._rates(times), self._nngp()
        if self.rows is None:
            half = 0.5 * self.loss_factor
            energy = np.sum((self.basis.T @ self.targets) ** 2, axis=1)
            spread = self.targets.shape[1] * (rates**2 @ np.diagonal(nngp))
            return TrainingCurve(
                self.optimizer.check(times), half * (rates**2 @ energy), half * spread
            )
        columns, _ = checks.targets(() if targets is None else targets, len(self.rows))
        half = 0.5 * self.reduction.factor(*columns.shape)
        mean = self.mean(times)
        mean = mean[..., None] if self.vector_targets else mean
        bias = half * np.sum((mean - columns) ** 2, axis=(-2, -1))
        # The trace of the covariance alone is a quadratic form in φ_t: no matrix per time.
        initial, prior = self._before()
        assert prior is not None
        total = float(prior.sum() if prior.ndim == 1 else np.trace(prior))
        linear = np.einsum("ij,ij->j", initial, self.rows)
        quadratic = (self.rows.T @ self.rows) * nngp
        trace = total + np.einsum("...j,...j->...", rates @ quadratic + 2.0 * linear, rates)
        trace = checks.variances_from_difference(trace, largest_prior=total, unit=self.unit)
        return TrainingCurve(self.optimizer.check(times), bias, half * columns.shape[1] * trace)

    def on(
        self, ntk_cross: Values, nngp_cross: Values | None = None, nngp: Values | None = None
    ) -> "Dynamics":
        """The same dynamics seen at other examples.

        `ntk_cross` and `nngp_cross` are (test, train); `nngp` is (test, test), or just its diagonal
        (test,) when no full covariance will be asked for. Without the two NNGP blocks only means
        can be computed.
        """
        size = len(self.targets)
        cross = checks.matrix(ntk_cross, "The NTK of test against training", columns=size)
        response = cross.astype(np.float64) @ self.basis
        seen = replace(self, rows=response, initial=None, prior=None)
        if nngp is None or nngp_cross is None or self.rotated_nngp is None:
            return seen
        first = checks.matrix(
            nngp_cross, "The NNGP of test against training", rows=len(cross), columns=size
        )
        prior = checks.real_array(nngp, "The NNGP of the test examples")
        if prior.ndim == 1:
            prior = checks.variances(prior, "The NNGP diagonal of the test examples", len(cross))
        else:
            prior = checks.square(prior, "The NNGP of the test examples", rows=len(cross))
            prior = prior.astype(np.float64)
        return replace(seen, initial=first.astype(np.float64) @ self.basis, prior=prior)

    def _rates(self, times: Values) -> np.ndarray:
        """`r_t`."""
        response, kept = self._response_and_kept(times)
        return kept if self.rows is None else -response

    def _response_and_kept(self, times: Values) -> tuple[np.ndarray, np.ndarray]:
        """`φ_t = (1 − e_t)/(λ + ρ)`, and what is left of the initial error, `1 − λ φ_t`.

        Directions that cannot be told from rounding have `φ_t = 0`.
        """
        time = self.optimizer.check(times)[..., None]
        rate = self.eigenvalues + self.ridge
        learnt = rate > self.cutoff
        # A stand-in for the others; the largest rate is as stable as the rates that are learnt.
        rate = np.where(learnt, rate, rate.max() if learnt.any() else 1.0)
        left, gone = self._decay(time, rate)
        response = np.where(learnt, gone / rate, 0.0)
        # (ρ + λe)/(λ+ρ) keeps relative accuracy when almost nothing is left.
        kept = np.where(learnt, (self.ridge + self.eigenvalues * left) / rate, 1.0)
        return response, kept

    def _decay(self, time: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`e_t` and `1 − e_t`, each to full relative accuracy."""
        step = self.learning_rate * self.loss_factor * rate
        if self.optimizer is Optimizer.GRADIENT_FLOW:
            return np.exp(-step * time), -np.expm1(-step * time)
        stable = self.largest_stable_learning_rate
        rates = f"learning rate {self.learning_rate:.3g}, largest stable {stable:.3g}"
        if np.isinf(time).any() and self.learning_rate >= stable:
            raise NumericalError(
                "Gradient descent only converges below the largest stable learning rate.",
                got=rates,
                remedy="lower the learning rate, or ask for a finite number of steps",
            )
        with np.errstate(over="ignore"):
            left = np.where(np.isinf(time), 0.0, (1.0 - step) ** np.where(np.isinf(time), 1, time))
        if not (np.abs(left) < _LARGEST).all():
            raise NumericalError(
                "Gradient descent must not overflow.",
                got=rates,
                remedy="lower the learning rate or ask for fewer steps",
            )
        slow = np.minimum(step, 0.5)  # log1p only where it is used
        gone = np.where(step < 0.5, -np.expm1(time * np.log1p(-slow)), 1.0 - left)
        return left, gone

    def _nngp(self) -> Float[np.ndarray, "n n"]:
        if self.rotated_nngp is None:
            raise _no_spread("no NNGP kernel")
        return self.rotated_nngp

    def _before(self) -> tuple[Any, np.ndarray | None]:
        """`Q` and `P`."""
        if self.rows is None:
            return 0.0, None
        if self.initial is None or self.prior is None:
            raise _no_spread("no NNGP blocks for these examples")
        return self.initial, self.prior

    def _start(self, start: Values | None, rows: int) -> np.ndarray:
        if start is None:
            return np.zeros((rows, self.targets.shape[1]))
        columns, _ = checks.targets(start, rows)
        return checks.matrix(columns, "The initial outputs", columns=self.targets.shape[1])


def _no_spread(got: str) -> NumericalError:
    return NumericalError(
        "The spread of an ensemble comes from its initial functions.",
        got=got,
        remedy="pass nngp= to Dynamics.decompose, and nngp_cross= and nngp= to its method on",
    )
