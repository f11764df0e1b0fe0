"""Criteria for choosing hyperparameters, with their gradients in the kernel matrix.

Each criterion is to be made large. Its gradient `G_ij = ∂L/∂A_ij`, with `A = K + Λ` and all
entries of `A` taken as free, is worked out in float64 by hand; multiplied into the derivative of
the kernel (a vector-Jacobian product of the network's kernel function) it gives the gradient in
every hyperparameter, and its diagonal is the gradient in the noise variances.
"""

from abc import abstractmethod

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .gp import GPPosterior
from .repeats import repeated


class Objective(eqx.Module):
    """A criterion of a fitted process; larger is better."""

    @abstractmethod
    def __call__(self, posterior: GPPosterior) -> tuple[float, Float[np.ndarray, "n n"]]:
        """The criterion, and its symmetric gradient in the entries of `A = K + Λ`."""


class LogEvidence(Objective):
    """`log p(y)`, with gradient `½ Σ_d α_d α_dᵀ − (D/2) A⁻¹` for `α = A⁻¹y` and D outputs."""

    def __call__(self, posterior: GPPosterior) -> tuple[float, Float[np.ndarray, "n n"]]:
        gradient = posterior.factor.inverse()
        gradient *= -0.5 * posterior.targets.shape[1]
        gradient += 0.5 * (posterior.weights @ posterior.weights.T)
        return posterior.log_evidence, gradient


class LeaveOneOutDensity(Objective):
    """`Σ_i log p(y_i | y_−i)`, the log score of cross-validation with one left out.

    It is `Σ −½ r_i²/v_i − ½ log 2πv_i` with residuals r and variances v.
    """

    def __call__(self, posterior: GPPosterior) -> tuple[float, Float[np.ndarray, "n n"]]:
        residual, variance = _left_out(posterior)
        in_variance = 0.5 * np.sum((residual / variance) ** 2 - 1.0 / variance, axis=1)
        gradient = _through_inverse(posterior, -residual / variance, in_variance)
        return float(posterior.leave_one_out.log_density.sum()), gradient


class LeaveOneOutError(Objective):
    """`−½ Σ_i (y_i − m_i)²` with leave-one-out means `m_i`: blind to the variances."""

    def __call__(self, posterior: GPPosterior) -> tuple[float, Float[np.ndarray, "n n"]]:
        residual, _ = _left_out(posterior)
        gradient = _through_inverse(posterior, -residual, np.zeros(len(residual)))
        return -0.5 * float(np.sum(residual**2)), gradient


def _left_out(
    posterior: GPPosterior,
) -> tuple[Float[np.ndarray, "n outputs"], Float[np.ndarray, "n 1"]]:
    """Residuals and variances of the left-out predictions."""
    found = posterior.leave_one_out
    mean = found.mean.reshape(posterior.targets.shape)
    return posterior.targets - mean, found.variance[:, None]


def _through_inverse(
    posterior: GPPosterior,
    in_residual: Float[np.ndarray, "n outputs"],
    in_variance: Float[np.ndarray, " n"],
) -> Float[np.ndarray, "n n"]:
    """Gradient in `A` from the gradients in the left-out residuals and variances.

    For a group G (most hold one example) `r = S α_G` and `v = diag S` with `S = ((A⁻¹)_GG)⁻¹`, so
    that `g_α = S g_r` and `g_C = −S g_r rᵀ − S diag(g_v) S` for `C = A⁻¹`. With
    `dA⁻¹ = −A⁻¹ dA A⁻¹` this gives `−(A⁻¹ g_α) αᵀ − A⁻¹ g_C A⁻¹`, symmetrised.
    """
    inverse, (residual, variance) = posterior.factor.inverse(), _left_out(posterior)
    in_weights = variance * in_residual
    in_inverse = np.diag(-np.sum(in_weights * residual, axis=1) - in_variance * variance[:, 0] ** 2)
    for rows in repeated(posterior.groups, np.arange(len(inverse))):
        block = np.linalg.inv(inverse[np.ix_(rows, rows)])
        in_weights[rows] = block @ in_residual[rows]
        in_inverse[np.ix_(rows, rows)] = (
            -in_weights[rows] @ residual[rows].T - (block * in_variance[rows]) @ block
        )
    outer = posterior.factor.solve(in_weights) @ posterior.weights.T
    outer += inverse @ in_inverse @ inverse
    return -(outer + outer.T) / 2.0
