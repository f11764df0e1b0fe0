"""The ReLU family, abs, sign and identity: arc-cosine duals."""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..options import cast, leaf
from ..printing import brief
from . import geometry
from .base import Dual, separate
from .geometry import Variance, prepare_variance


class _Weights(NamedTuple):
    """Of `a·min(x,0) + b·max(x,0)`: bend `(b − a)²/2π`, same sign `(a² + b²)/2`, opposite `ab`."""

    bend: Float[Array, ""]
    same: Float[Array, ""]
    opposite: Float[Array, ""]


class Rectifier(Dual):
    """`φ(x) = a·min(x, 0) + b·max(x, 0)`: ReLU, leaky ReLU, abs.

    With `x = |c|` and θ = arccos x in [0, π/2], free of cancellation on both sides:

        value      = (b − a)²/2π · √(q₁q₂) (sin θ − θ cos θ) + κ · ((a² + b²)/2 if κ > 0 else ab)
        derivative = (a² + b²)/2 − (b − a)² θ/2π  if κ > 0  else  ab + (b − a)² θ/2π

    The derivative's slope in κ is infinite at `c = ±1`; there its gradient is set to 0.
    """

    kinked: ClassVar[bool] = True
    homogeneous: ClassVar[bool] = True

    negative: Any = leaf("negative", default=0.0)
    positive: Any = leaf("positive", default=1.0)

    @property
    def name(self) -> str:
        found = repr(self)
        plain = f"Relu, slopes {brief(self.negative)} and {brief(self.positive)}"
        return found[:-2] if found.endswith("()") else plain

    def __repr__(self) -> str:
        a, b = brief(self.negative), brief(self.positive)
        known = {("0", "1"): "Relu()", ("-1", "1"): "Abs()"}
        return known.get((a, b), f"LeakyRelu({a})" if b == "1" else f"ABRelu({a}, {b})")

    def fn(self, x):
        return jnp.where(x > 0, cast(self.positive, x), cast(self.negative, x)) * x

    def prepare(self, q) -> Variance:
        return prepare_variance(q)

    def __call__(self, left: Variance, right: Variance, k, *, need_derivative: bool = True):
        a, b = cast(self.negative, k), cast(self.positive, k)
        weights = _Weights((b - a) ** 2 / (2 * jnp.pi), (a**2 + b**2) / 2, a * b)
        return _rectified(need_derivative, weights, left, right, k)

    def mean(self, q):
        """`(b − a) √(q/2π)`."""
        a, b = cast(self.negative, q), cast(self.positive, q)
        return (b - a) * geometry.safe_sqrt(q / (2 * jnp.pi))


def relu() -> Rectifier:
    """`max(x, 0)`."""
    return Rectifier()


@partial(jax.custom_jvp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)  # networks have many of them, which are traced once
def _rectified(need_derivative: bool, weights: _Weights, left: Variance, right: Variance, k):
    bend, same, opposite = weights
    x, sine = geometry.angle(left, right, k)
    bent = left.root * right.root * sine**3 * geometry.arccos_excess(x)
    value = bend * bent + jnp.where(k > 0, same, opposite) * k
    if not need_derivative:
        return value, None
    left, right, k = separate((left, right, k))
    x, sine = geometry.angle(left, right, k)
    theta = bend * (sine * geometry.arccos_ratio(x))
    return value, jnp.where(k > 0, same - theta, opposite + theta)


@_rectified.defjvp
def _rectified_jvp(need_derivative: bool, primals, tangents):
    weights, left, right, k = primals
    d_weights, *d_pair = tangents
    d_left, d_right, d_k = d_pair
    # Value and derivative are linear in the weights. The derivative dual is needed even for the
    # value alone, being the value's slope in κ.
    value, derivative = _rectified(True, weights, left, right, k)
    d_value, d_derivative = _rectified(True, d_weights, left, right, k)
    # From here on, functions of q: so that this rule can be differentiated again.
    left, right = geometry.roots(left.q), geometry.roots(right.q)
    sine = geometry.sine(left, right, k)
    d_scale = right.root * left.inverse * d_left.q + left.root * right.inverse * d_right.q
    d_value = d_value + derivative * d_k + weights.bend / 2 * sine * d_scale
    if not need_derivative:
        return (value, None), (d_value, None)
    d_c = geometry.correlation_tangent(left, right, k, (d_left, d_right, d_k))
    d_derivative = d_derivative + weights.bend * geometry.inverse_sine(sine) * d_c
    return (value, derivative), (d_value, d_derivative)


class Sign(Dual):
    """`φ(x) = sign(x)`: value `(2/π) arcsin c`, derivative 0.

    The derivative is that of φ almost everywhere, which is what the gradient of a finite network
    sees; the value's gradient in κ is the true slope `(2/π)/√(q₁q₂ − κ²)`, and 0 at `c = ±1`.
    """

    kinked: ClassVar[bool] = True

    def fn(self, x):
        return jnp.sign(x)

    def prepare(self, q) -> Variance:
        return prepare_variance(q)

    def __call__(self, left: Variance, right: Variance, k, *, need_derivative: bool = True):
        """`((2/π) arcsin c, 0)`."""
        value = 2 / jnp.pi * _arcsine(left, right, k)
        return value, jnp.zeros_like(value) if need_derivative else None

    def mean(self, q):
        """0: φ is odd."""
        return jnp.zeros_like(q)


@jax.custom_jvp
def _arcsine(left: Variance, right: Variance, k):
    x, cosine = geometry.angle(left, right, k)
    return geometry.arcsin(jnp.sign(k) * x, cosine)


@_arcsine.defjvp
def _arcsine_jvp(primals, tangents):
    left, right, k = primals
    value = _arcsine(left, right, k)
    left, right = geometry.roots(left.q), geometry.roots(right.q)
    slope = geometry.inverse_sine(geometry.sine(left, right, k))
    return value, slope * geometry.correlation_tangent(left, right, k, tangents)


class Identity(Dual):
    """`φ(x) = x`: value κ, derivative 1."""

    homogeneous: ClassVar[bool] = True

    def fn(self, x):
        return x

    def prepare(self, q) -> tuple[()]:
        return ()

    def __call__(self, left: tuple[()], right: tuple[()], k, *, need_derivative: bool = True):
        """`(κ, 1)`."""
        return k, jnp.ones_like(k) if need_derivative else None

    def mean(self, q):
        """0: φ is odd."""
        return jnp.zeros_like(q)
