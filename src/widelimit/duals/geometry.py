"""Angles between Gaussian variables, accurate at correlation ±1 in either precision.

With `x = |c|` and `sin² = 1 − c²`, two functions analytic on [0, 1] carry the arc-cosine:

    R(x) = arccos(x) / sin             = ₂F₁(1, 1; 3/2; (1 − x)/2)
    Q(x) = (sin − x·arccos(x)) / sin³  = ₂F₁(2, 2; 5/2; (1 − x)/2) / 3

Polynomials reach rounding error (11 terms in float32, 22 in float64), need no branch and no
division, and multiply `sin`, which keeps relative accuracy where the angle vanishes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev
from scipy.special import hyp2f1

# Rounding of some thirty layers, in double precision; the angle that belongs to it is 8e-8.
_PARALLEL = 16 * np.finfo(np.float64).eps


class Variance(NamedTuple):
    """A variance with its square root and the inverse of that root (0 for variance 0)."""

    q: Float[Array, "*p"]
    root: Float[Array, "*p"]
    inverse: Float[Array, "*p"]


def safe_sqrt(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`√max(x, 0)` whose gradient is 0, not infinite, where the argument is not positive."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def safe_inverse(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`1/x`, and 0 with gradient 0 where `x = 0`."""
    nonzero = x != 0
    return jnp.where(nonzero, 1 / jnp.where(nonzero, x, 1), 0)


def roots(q: Float[Array, "*p"]) -> Variance:
    """Attach `√q` and `1/√q`, differentiable."""
    root = safe_sqrt(q)
    return Variance(q, root, safe_inverse(root))


def prepare_variance(q: Float[Array, "*p"]) -> Variance:
    """Attach `√q` and `1/√q` as constants: pair functions own the gradient, through `q` alone."""
    _, root, inverse = roots(jax.lax.stop_gradient(q))
    return Variance(q, root, inverse)


def _scale(left: Variance, right: Variance) -> Float[Array, "*s"]:
    """`√(q₁q₂)`, exact for equal variances so that identical inputs have correlation exactly 1."""
    return jnp.where(left.q == right.q, left.q, left.root * right.root)


def _correlation(left: Variance, right: Variance, k: Float[Array, "*s"]) -> Float[Array, "*s"]:
    return k * left.inverse * right.inverse


def angle(left: Variance, right: Variance, k: Float[Array, "*s"]) -> tuple[Array, Array]:
    """`x = |c|` and `√(1 − c²)`; `1 − |c|` comes from `√(q₁q₂) − |κ|`, which does not cancel."""
    x = jnp.minimum(jnp.abs(_correlation(left, right, k)), 1)
    gap = jnp.maximum(_correlation(left, right, _scale(left, right) - jnp.abs(k)), 0)
    gap = jnp.where(x < 0.5, 1 - x, gap)
    if gap.dtype == jnp.float64:
        # An example and itself: what rounding left of the gap would be an angle of 1e-8, and move
        # with the order in which sums are taken. In single precision such pairs are redone.
        gap = jnp.where(gap > _PARALLEL, gap, 0)
    return x, jnp.sqrt(gap * (1 + x))


def inverse_sine(sine: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`1/sin`, and 0 where `sin² ≤ 4ε`: there the angle is rounding error.

    At correlation ±1 the true slope in κ alone is infinite, but along every change that keeps two
    inputs parallel it is 0, which is the value chosen.
    """
    inside = sine**2 > 4 * jnp.finfo(sine.dtype).eps
    return jnp.where(inside, 1 / jnp.where(inside, sine, 1), 0)


def correlation_tangent(
    left: Variance,
    right: Variance,
    k: Float[Array, "*s"],
    tangents: tuple[Variance, Variance, Float[Array, "*s"]],
) -> Float[Array, "*s"]:
    """`dc = dκ/√(q₁q₂) − c (dq₁/q₁ + dq₂/q₂)/2`."""
    d_left, d_right, d_k = tangents
    relative = d_left.q * left.inverse**2 + d_right.q * right.inverse**2
    return _correlation(left, right, d_k) - _correlation(left, right, k) * relative / 2


@jax.custom_jvp
def sine(left: Variance, right: Variance, k: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`√(1 − c²)`; its gradient is 0 at correlation ±1."""
    return angle(left, right, k)[1]


@sine.defjvp
def _sine_jvp(primals, tangents):
    left, right, k = primals
    out = sine(left, right, k)
    left, right = roots(left.q), roots(right.q)
    slope = -_correlation(left, right, k) * inverse_sine(out)
    return out, slope * correlation_tangent(left, right, k, tangents)


@jax.custom_jvp
def determinant(left: Variance, right: Variance, k: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`q₁q₂ − κ² ≥ 0`, without cancellation for parallel inputs."""
    scale, size = _scale(left, right), jnp.abs(k)
    return jnp.maximum(scale - size, 0) * (scale + size)


@determinant.defjvp
def _determinant_jvp(primals, tangents):
    left, right, k = primals
    d_left, d_right, d_k = tangents
    slope = right.q * d_left.q + left.q * d_right.q - 2 * k * d_k
    return determinant(left, right, k), slope


def horner(coefficients: Sequence[float], x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`Σ cᵢ xⁱ` for constant coefficients, lowest power first."""
    out = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        out = out * x + coefficient
    return out


class _ArcTables(NamedTuple):
    """Power coefficients: R and Q in `2x − 1`, arcsin(x)/x in `x²/0.15 − 1`."""

    ratio: list[float]
    excess: list[float]
    arcsine: list[float]


def _arc_tables(degree: int, arcsine_degree: int) -> _ArcTables:
    nodes = chebyshev.chebpts1(41)
    z, near = (1 - nodes) / 4, np.sqrt(0.15 * (1 + nodes))
    ratio = chebyshev.chebfit(nodes, hyp2f1(1, 1, 1.5, z), 40)
    excess = chebyshev.chebfit(nodes, hyp2f1(2, 2, 2.5, z) / 3, 40)
    arcsine = chebyshev.chebfit(nodes, np.arcsin(near) / near, 40)
    return _ArcTables(
        chebyshev.cheb2poly(ratio[: degree + 1]).tolist(),
        chebyshev.cheb2poly(excess[: degree + 1]).tolist(),
        chebyshev.cheb2poly(arcsine[: arcsine_degree + 1]).tolist(),
    )


_SINGLE = _arc_tables(10, 6)
_DOUBLE = _arc_tables(21, 13)
_ARCSINE_SWITCH = 0.3**0.5


def _tables(x: Float[Array, "*s"]) -> _ArcTables:
    return _DOUBLE if x.dtype == jnp.float64 else _SINGLE


def arccos_ratio(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`R(x) = arccos(x)/√(1 − x²)` on [0, 1]."""
    return horner(_tables(x).ratio, 2 * x - 1)


def arccos_excess(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`Q(x) = (sin − x·arccos x)/sin³` on [0, 1]."""
    return horner(_tables(x).excess, 2 * x - 1)


@jax.custom_jvp
def arccos(z: Float[Array, "*s"], sine: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`arccos(z)` in [0, π], given `sine = √(1 − z²)`; relatively accurate at `z = 1`."""
    near = sine * arccos_ratio(jnp.minimum(jnp.abs(z), 1))
    return jnp.where(z > 0, near, jnp.pi - near)


@jax.custom_jvp
def arcsin(z: Float[Array, "*s"], cosine: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """`arcsin(z)`, given `cosine = √(1 − z²)`; relatively accurate at 0 and at ±1."""
    x = jnp.minimum(jnp.abs(z), 1)
    inner = z * horner(_tables(z).arcsine, jnp.minimum(z * z, 0.3) / 0.15 - 1)
    outer = jnp.sign(z) * (jnp.pi / 2 - cosine * arccos_ratio(x))
    return jnp.where(x < _ARCSINE_SWITCH, inner, outer)


@arccos.defjvp
def _arccos_jvp(primals, tangents):
    (z, sine), (d_z, d_sine) = primals, tangents
    return arccos(z, sine), z * d_sine - sine * d_z


@arcsin.defjvp
def _arcsin_jvp(primals, tangents):
    (z, cosine), (d_z, d_cosine) = primals, tangents
    return arcsin(z, cosine), cosine * d_z - z * d_cosine
