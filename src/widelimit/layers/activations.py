"""Elementwise activations; each names its dual, the Gaussian expectations its kernel is made of."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import duals
from ..duals.polynomial import check_degree
from ..errors import AccuracyWarning, NetworkError, warn
from ..state import UNKNOWN, Example, Mean, Need, Outline, Pair
from .base import Facts, Memo, Positionwise, fence


class Reach(eqx.Module):
    """The least (above 0) and the largest variance of an example, for duals that have limits."""

    least: Float[Array, ""]
    largest: Float[Array, ""]

    @classmethod
    def of(cls, variance: Float[Array, "*positions"]) -> "Reach":
        """Over all positions; padding has variance 0."""
        return cls(jnp.min(jnp.where(variance > 0, variance, jnp.inf)), jnp.max(variance))


class Activation(Positionwise):
    """`y_a = φ(x_a)`: with (u, v) ~ N(0, [[κ_aa, κ_ab], [κ_ab, κ'_bb]]),

    κ_ab ← E[φ(u) φ(v)],  Θ_ab ← Θ_ab E[φ'(u) φ'(v)].
    """

    dual: duals.Dual

    def outline(self, before: Outline) -> Outline:
        return before.to(gaussian=False, fresh=False)

    def require(self, before: Outline) -> None:
        if not before.gaussian:
            raise NetworkError(
                "An activation does not meet Gaussian pre-activations: the layer before it does "
                "not end in fresh weights (Dense, Conv, Attention, Embedding).",
                got="an activation on raw inputs"
                if before.raw
                else "an activation after another one, a product, dropout, a concatenation, or "
                "another layer whose output is not Gaussian",
                remedy="put a Dense or Conv layer in front of it",
            )

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return self.dual.fn(x)

    def __repr__(self) -> str:
        return repr(self.dual)

    @property
    def facts(self) -> Facts:
        return Facts(need_own=Need.DIAGONAL, keeps_zeros=True, cuttable=True)

    def memo(self, example: Example) -> Memo:
        variance = example.variance()
        reach = Reach.of(variance) if self.dual.ranged else None
        return self.dual.prepare(variance), example.mask, reach

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        pair = pair.compute()
        left = jax.tree.map(pair.left, memo1[0])
        right = jax.tree.map(pair.right, memo2[0])
        with_ntk = pair.ntk is not None
        value, slope = self.dual(left, right, pair.nngp, need_derivative=with_ntk)
        ntk = pair.ntk * slope if pair.ntk is not None and slope is not None else None
        # φ(0) ≠ 0 revives padding.
        return fence(pair.to(value, ntk).hide_padding(memo1[1], memo2[1]), self.dual)

    def mean(self, example: Example, memo: Memo) -> Mean:
        mean = self.dual.mean(example.variance())
        if mean is None:
            return UNKNOWN
        return mean if example.mask is None else mean * example.mask.astype(mean.dtype)


def dual_of(fn: "Activation | duals.Dual | Callable[[Array], Array]") -> duals.Dual:
    """The dual of an activation layer, or of any elementwise function (by quadrature)."""
    if isinstance(fn, Activation):
        return fn.dual
    return fn if isinstance(fn, duals.Dual) else duals.Series(fn)


def Relu() -> Activation:
    """`max(x, 0)`."""
    return Activation(duals.relu())


def LeakyRelu(slope: Any = 0.01) -> Activation:
    """`x` for positive x, `slope·x` for negative x."""
    return Activation(duals.Rectifier(negative=slope))


def ABRelu(negative: Any, positive: Any) -> Activation:
    """`negative·min(x, 0) + positive·max(x, 0)`."""
    return Activation(duals.Rectifier(negative=negative, positive=positive))


def Abs() -> Activation:
    """`|x|`."""
    return Activation(duals.Rectifier(negative=-1.0))


def Sign() -> Activation:
    """`sign(x)`; its derivative is zero almost everywhere, and so is the tangent kernel."""
    return Activation(duals.Sign())


def Erf(*, scale: Any = 1.0, rate: Any = 1.0, shift: Any = 0.0) -> Activation:
    """`scale·erf(rate·x) + shift`."""
    return Activation(duals.Erf(scale=scale, rate=rate, shift=shift))


def Gelu() -> Activation:
    """`x·P(z ≤ x)` for a standard normal z (the exact form, with erf)."""
    return Activation(duals.Gelu())


def Sin(*, scale: Any = 1.0, rate: Any = 1.0, phase: Any = 0.0) -> Activation:
    """`scale·sin(rate·x + phase)`."""
    return Activation(duals.Sine(scale=scale, rate=rate, phase=phase))


def Cos(*, scale: Any = 1.0, rate: Any = 1.0, phase: Any = 0.0) -> Activation:
    """`scale·cos(rate·x + phase)`."""
    return Activation(duals.cosine(scale=scale, rate=rate, phase=phase))


def Exp(*, scale: Any = 1.0, rate: Any = 1.0) -> Activation:
    """`scale·exp(rate·x)`."""
    return Activation(duals.Exp(scale=scale, rate=rate))


def Gaussian(*, scale: Any = 1.0, rate: Any = 1.0) -> Activation:
    """`scale·exp(−rate·x²)`."""
    return Activation(duals.Gaussian(scale=scale, rate=rate))


def Monomial(degree: int) -> Activation:
    """`x^degree`."""
    return Activation(duals.Polynomial([0.0] * check_degree(degree) + [1.0]))


def Polynomial(coefficients: Any) -> Activation:
    """`Σ_k coefficients[k]·x^k`."""
    return Activation(duals.Polynomial(coefficients))


def Hermite(degree: int) -> Activation:
    """The probabilists' Hermite polynomial `He_k(x)/√k!`."""
    return Activation(duals.Hermite(degree))


def Tanh() -> Activation:
    """`tanh(x)`."""
    return Activation(duals.Series(jnp.tanh))


def Sigmoid() -> Activation:
    """`1/(1 + exp(−x))`."""
    return Activation(duals.Series(jax.nn.sigmoid))


def Silu() -> Activation:
    """`x/(1 + exp(−x))`."""
    return Activation(duals.Series(jax.nn.silu))


def Softplus() -> Activation:
    """`log(1 + exp(x))`."""
    return Activation(duals.Series(jax.nn.softplus))


def Elementwise(fn: Callable[[Array], Array], *, max_variance: float = 4.0) -> Activation:
    """Any elementwise function φ, written with `jax.numpy`; its dual is computed by quadrature.

    φ is pure, as JAX asks: numbers that change belong to an Equinox module, whose leaves they
    are, not to a global or a closure, which compiled programs have seen once.

    The quadrature covers variances up to `max_variance`, and is planned again where a kernel needs
    more. Functions with kinks converge slowly: an `AccuracyWarning` states the error.
    """
    dual = duals.Series(fn, max_variance=max_variance)
    error = dual.error(np.geomspace(0.01, max_variance, 3))
    if error > AccuracyWarning.TOLERANCE:
        where = "a function with kinks" if dual.kinked else "this function"
        warn(AccuracyWarning.of(where, error))
    return Activation(dual)
