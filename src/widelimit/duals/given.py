"""Duals whose expectations are written down: by a user, or as polynomials of an angle."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from numpy.polynomial import Polynomial as Powers

from ..errors import NetworkError
from ..options import cast, whole
from . import geometry
from .base import Dual, as_module


class Given(Dual):
    """An activation whose expectations a user knows: `value(κ, q₁, q₂)` and `slope(κ, q₁, q₂)`.

    Both are functions of three numbers, written with `jax.numpy`. Without a slope it is ∂value/∂κ
    (Price's theorem). A kernel that belongs to no function has `function=None`, and no finite
    network. Where a variance is zero (padding), what is not a number counts as zero.
    """

    function: Any
    value: Any
    slope: Any

    def __init__(
        self,
        function: Callable[..., Any] | None,
        value: Callable[..., Any],
        slope: Callable[..., Any] | None = None,
    ):
        """φ, `E[φ(u)φ(v)]` and `E[φ'(u)φ'(v)]`."""
        self.function = None if function is None else as_module(function)
        self.value = as_module(value)
        self.slope = as_module(jax.grad(value) if slope is None else slope)

    def fn(self, x):
        if self.function is None:
            raise NetworkError(
                "An activation that is known by its kernel alone has no finite network.",
                got="an activation without a function",
                remedy="give the function too, or use kernels only",
            )
        return self.function(x)

    def prepare(self, q):
        return q

    def __call__(self, left, right, k, *, need_derivative: bool = True):
        empty = (left == 0) | (right == 0)

        def each(function: Any):
            found = jnp.vectorize(function)(k, *jnp.broadcast_arrays(left, right, k)[:2])
            return jnp.where(empty & jnp.isnan(found), 0, found).astype(k.dtype)

        return each(self.value), each(self.slope) if need_derivative else None

    def mean(self, q):
        """None: not known."""
        return


def gabor() -> Given:
    """`exp(−x²) sin(x)`: with covariance Σ of (u, v), D = det(1 + 2Σ) and S = Σ(1 + 2Σ)⁻¹,

    E[φ(u)φ(v)] = exp(−(S₁₁ + S₂₂)/2) sinh(S₁₂)/√D.
    """
    return Given(_gabor, _gabor_value)


def _gabor(x):
    return jnp.exp(-(x**2)) * jnp.sin(x)


def _gabor_value(k, q1, q2):
    det = (1 + 2 * q1) * (1 + 2 * q2) - 4 * k**2
    trace = (q1 + q2 + 4 * (q1 * q2 - k**2)) / det
    return jnp.exp(-trace / 2) * jnp.sinh(k / det) / jnp.sqrt(det)


def step() -> Given:
    """1 for `x ≥ 0`, else 0: value `1/4 + arcsin(c)/2π`, derivative 0."""
    return Given(_step, _step_value, _step_slope)


def _step(x):
    return (x >= 0).astype(x.dtype)


def _step_value(k, q1, q2):
    return 0.25 + jnp.arcsin(jnp.clip(k / jnp.sqrt(q1 * q2), -1, 1)) / (2 * jnp.pi)


def _step_slope(k, q1, q2):
    return jnp.zeros_like(k)


def normalised_exponential(gamma: Any = 1.0, shift: Any = -1.0, *, clip: bool = False) -> Given:
    """A kernel of no function, `√(q₁q₂) exp(γ(c + shift))` at correlation c; `clip` bounds c."""

    def grown(k, q1, q2):
        scale = jnp.sqrt(q1 * q2)
        c = jnp.clip(k / scale, -1, 1) if clip else k / scale
        return scale, jnp.exp(gamma * (c + shift))

    def value(k, q1, q2):
        scale, growth = grown(k, q1, q2)
        return scale * growth

    def slope(k, q1, q2):
        return gamma * grown(k, q1, q2)[1]

    return Given(None, value, slope)


class RectifiedMonomial(Dual):
    """`φ(x) = max(x, 0)^n` for n ≥ 2: the arc-cosine kernels of order n.

    With c = cos θ the correlation, value `(q₁q₂)^{n/2} J_n(θ)/2π` and derivative n² times that of
    order n − 1. `J_n = A_n(c)(π − θ) + B_n(c) sin θ` with `A₀ = 1`, `B₀ = 0` and

        A_{n+1} = (1 − c²) A_n' + (2n + 1) c A_n,   B_{n+1} = A_n + (1 − c²) B_n' + 2n c B_n.
    """

    degree: int = eqx.field(static=True)

    def __init__(self, degree: int):
        """`degree` is n; 1 is `relu()`."""
        self.degree = whole("degree", degree, least=2)

    def fn(self, x):
        return jnp.maximum(x, 0) ** self.degree

    def prepare(self, q):
        return geometry.roots(q)

    def __call__(self, left, right, k, *, need_derivative: bool = True):
        sine = geometry.sine(left, right, k)
        cosine = jnp.clip(k * left.inverse * right.inverse, -1, 1)
        other = jnp.pi - geometry.arccos(cosine, sine)
        scale = left.root * right.root

        def order(n: int):
            turn, chord = _angle_polynomials(n)
            found = geometry.horner(turn, cosine) * other + geometry.horner(chord, cosine) * sine
            return scale**n * found / (2 * jnp.pi)

        value = order(self.degree)
        return value, self.degree**2 * order(self.degree - 1) if need_derivative else None

    def mean(self, q):
        """`E[max(u, 0)^n] = q^{n/2} 2^{n/2 − 1} Γ((n + 1)/2)/√π`."""
        half = self.degree / 2
        factor = 2 ** (half - 1) * math.gamma(half + 0.5) / math.sqrt(math.pi)
        return cast(factor, q) * geometry.safe_sqrt(q) ** self.degree


def _angle_polynomials(degree: int) -> tuple[list[float], list[float]]:
    """Coefficients of `A_n` and `B_n`, lowest power first."""
    turn, chord, c = Powers([1.0]), Powers([0.0]), Powers([0.0, 1.0])
    for n in range(degree):
        turn, chord = (
            (1 - c**2) * turn.deriv() + (2 * n + 1) * c * turn,
            turn + (1 - c**2) * chord.deriv() + 2 * n * c * chord,
        )
    return turn.coef.tolist(), chord.coef.tolist()
