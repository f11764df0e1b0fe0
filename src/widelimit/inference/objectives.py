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

from ..errors import OptionError
from .gp import GPPosterior
from .solve import Factor


class Objective(eqx.Module):
    """A criterion of a fitted process; larger is better."""

    @abstractmethod
    def value(self, posterior: GPPosterior) -> float:
        """The criterion."""

    @abstractmethod
    def gradient(self, posterior: GPPosterior) -> Float[np.ndarray, "n n"]:
        """Its symmetric gradient in the entries of `A = K + Λ`."""


class LogEvidence(Objective):
    """`log p(y)`, with gradient `½ Σ_d α_d α_dᵀ − (D/2) A⁻¹` for `α = A⁻¹y` and D outputs."""

    def value(self, posterior: GPPosterior) -> float:
        """`log p(y)`, summed over outputs."""
        return posterior.log_evidence

    def gradient(self, posterior: GPPosterior) -> Float[np.ndarray, "n n"]:
        """`½ (ααᵀ − D A⁻¹)`."""
        gradient = _inverse(posterior)
        gradient *= -0.5 * posterior.targets.shape[1]
        gradient += 0.5 * (posterior.weights @ posterior.weights.T)
        return gradient


class LeaveOneOutDensity(Objective):
    """`Σ_i log p(y_i | y_−i)`, the log score of cross-validation with one left out."""

    def value(self, posterior: GPPosterior) -> float:
        """The leave-one-out log density, summed over examples and outputs."""
        return float(posterior.leave_one_out.log_density.sum())

    def gradient(self, posterior: GPPosterior) -> Float[np.ndarray, "n n"]:
        """From `L = Σ ½ log c_i − ½ α_i²/c_i`, `c = diag(A⁻¹)`."""
        variance = posterior.leave_one_out.variance[:, None]
        weights = posterior.weights
        in_weights = -weights * variance
        in_diagonal = 0.5 * np.sum(variance + (weights * variance) ** 2, axis=1)
        return _through_inverse(posterior, in_weights, in_diagonal)


class LeaveOneOutError(Objective):
    """`−½ Σ_i (y_i − m_i)²` with leave-one-out means `m_i`: blind to the variances."""

    def value(self, posterior: GPPosterior) -> float:
        """Minus half the squared leave-one-out residuals, summed over examples and outputs."""
        residual = posterior.weights * posterior.leave_one_out.variance[:, None]
        return -0.5 * float(np.sum(residual**2))

    def gradient(self, posterior: GPPosterior) -> Float[np.ndarray, "n n"]:
        """From `L = −½ Σ α_i²/c_i²`, `c = diag(A⁻¹)`."""
        variance = posterior.leave_one_out.variance[:, None]
        residual = posterior.weights * variance
        in_diagonal = np.sum(residual**2 * variance, axis=1)
        return _through_inverse(posterior, -residual * variance, in_diagonal)


def _through_inverse(
    posterior: GPPosterior,
    in_weights: Float[np.ndarray, "n outputs"],
    in_diagonal: Float[np.ndarray, " n"],
) -> Float[np.ndarray, "n n"]:
    """Gradient in `A` from the gradients in `α = A⁻¹y` and in `diag(A⁻¹)`.

    `dA⁻¹ = −A⁻¹ dA A⁻¹` gives `−(A⁻¹ g_α) αᵀ − A⁻¹ diag(g_c) A⁻¹`, symmetrised.
    """
    inverse = _inverse(posterior)
    outer = posterior.factor.solve(in_weights) @ posterior.weights.T
    return -(outer + outer.T) / 2.0 - (inverse * in_diagonal) @ inverse


def _inverse(posterior: GPPosterior) -> Float[np.ndarray, "n n"]:
    """`A⁻¹` in full, which a factor in memory has."""
    if not isinstance(posterior.factor, Factor):
        raise OptionError(
            "Gradients of an objective need the whole inverse, from a factor in memory.",
            got=type(posterior.factor).__name__,
            remedy="tune with solver=Cholesky() on fewer examples, and fit with another solver",
        )
    return posterior.factor.inverse()
