"""Infinitely many heads and an elementwise score map: kernels of one pair in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...duals import Dual, Identity
from .rules import Sides


def closed_kernels(
    dual: Dual,
    sides: Sides,
    variances1: tuple[Array, Array],
    variances2: tuple[Array, Array],
    allowed1: Array | None,
    allowed2: Array | None,
    qk_variance: Array,
) -> tuple[Array, Array | None]:
    """`E[Σ_ij κ_ij ζ(G_ai)ζ(G'_bj)]` and its tangent kernel for an elementwise ζ.

    The variances are those of queries and of keys, of either input.
    """
    if isinstance(dual, Identity):
        return identity_kernels(sides, allowed1, allowed2, qk_variance)
    if dual.homogeneous:
        return homogeneous_kernels(
            dual, sides, variances1, variances2, allowed1, allowed2, qk_variance
        )
    return elementwise_kernels(dual, sides, variances1, variances2, allowed1, allowed2, qk_variance)


def _root(variance: Array) -> Array:
    """√variance, with a finite slope at 0."""
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)


def identity_kernels(
    sides: Sides, allowed1: Array | None, allowed2: Array | None, qk_variance: Array
) -> tuple[Array, Array | None]:
    """ζ = identity: `σ²κ^q_ab Σ κ^k κ` and its tangent kernel; sums over allowed keys only."""
    total = _summed(sides.key * sides.value, allowed1, allowed2)
    nngp = qk_variance * sides.query * total
    if sides.ntk is None:
        return nngp, None
    tangent = _summed(sides.key * sides.ntk.value + sides.value * sides.ntk.key, allowed1, allowed2)
    ntk = qk_variance * (sides.query * (4 * total + tangent) + sides.ntk.query * total)
    return nngp, ntk


def _summed(kernel: Array, allowed1: Array | None, allowed2: Array | None) -> Array:
    """Σ_ij B_ai w_ij B'_bj: over allowed keys, or over all of them."""
    if allowed1 is None or allowed2 is None:
        return jnp.sum(kernel)
    return allowed1 @ kernel @ allowed2.T


# Chebyshev points in the angle: the homogeneous maps' F(cos θ) is smooth in θ, so few suffice.
_NODES = 16
_ANGLES = (np.pi / 2) * (1 - np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES))
_BARYCENTRIC = (-1.0) ** np.arange(_NODES) * np.sin(np.pi * (np.arange(_NODES) + 0.5) / _NODES)


def homogeneous_kernels(
    dual: Dual,
    sides: Sides,
    variances1: tuple[Array, Array],
    variances2: tuple[Array, Array],
    allowed1: Array | None,
    allowed2: Array | None,
    qk_variance: Array,
) -> tuple[Array, Array | None]:
    """ζ with ζ(sg) = sζ(g), s > 0 (ReLU family, abs) in O(S²) per pair.

    With correlations c, `E[ζ(G_ai)ζ(G'_bj)] = √variances · f(c_ab c_ij)`. So
    `F(s) = Σ_ij w_ij f(s c_ij)` is one scalar function per pair of inputs, needed at s = c_ab:
    it is evaluated at 16 nodes in arccos s and interpolated.
    """
    scale_q, scale_k = (
        _root(one)[:, None] * _root(two)[None, :]
        for one, two in zip(variances1, variances2, strict=True)
    )
    c_query, c_key = _ratio(sides.query, scale_q), _ratio(sides.key, scale_k)
    unit = dual.prepare(jnp.ones((1, 1), c_key.dtype))
    with_ntk = sides.ntk is not None
    nodes = jnp.asarray(np.cos(_ANGLES), c_key.dtype)

    def at_node(s: Array) -> Array:
        value, slope = dual(unit, unit, s * c_key, need_derivative=with_ntk)
        parts = [value * scale_k * sides.value]
        if sides.ntk is not None and slope is not None:
            parts.append(value * scale_k * sides.ntk.value)
            parts.append(slope * sides.value * sides.key)
            parts.append(slope * sides.value * sides.ntk.key)
        return jnp.stack([_summed(part, allowed1, allowed2) for part in parts])

    table = jax.lax.map(at_node, nodes)  # (node, part) or (node, part, a, b)
    weights = _interpolation(c_query)  # (node, a, b)
    if table.ndim == 2:
        f = jnp.einsum("nab,np->pab", weights, table)
    else:
        f = jnp.einsum("nab,npab->pab", weights, table)
    nngp = qk_variance * scale_q * f[0]
    if sides.ntk is None:
        return nngp, None
    response = (2 * sides.query + sides.ntk.query) * f[2] + sides.query * f[3]
    ntk = qk_variance * (scale_q * (2 * f[0] + f[1]) + response)
    return nngp, ntk


def _interpolation(c: Float[Array, "a b"]) -> Float[Array, "node a b"]:
    """Barycentric weights of the nodes at angle arccos c."""
    angle = _angle(c)
    gaps = angle[None] - jnp.asarray(_ANGLES, c.dtype)[:, None, None]
    hit = gaps == 0
    terms = jnp.asarray(_BARYCENTRIC, c.dtype)[:, None, None] / jnp.where(hit, 1, gaps)
    weights = terms / jnp.sum(jnp.where(hit, 0, terms), axis=0, keepdims=True)
    return jnp.where(jnp.any(hit, axis=0, keepdims=True), hit.astype(c.dtype), weights)


@jax.custom_jvp
def _angle(c: Array) -> Array:
    return jnp.arctan2(jnp.sqrt(jnp.maximum((1 - c) * (1 + c), 0)), c)


@_angle.defjvp
def _angle_jvp(primals, tangents):
    """−1/√(1−c²), kept finite where the inputs coincide."""
    (c,), (dc,) = primals, tangents
    sine = jnp.sqrt(jnp.maximum((1 - c) * (1 + c), jnp.finfo(c.dtype).eps))
    return _angle(c), -dc / sine


def elementwise_kernels(
    dual: Dual,
    sides: Sides,
    variances1: tuple[Array, Array],
    variances2: tuple[Array, Array],
    allowed1: Array | None,
    allowed2: Array | None,
    qk_variance: Array,
) -> tuple[Array, Array | None]:
    """Any elementwise ζ: the dual of every pair of scores, O(S⁴) per pair of inputs."""
    with_ntk = sides.ntk is not None

    def entry(index: Array) -> Array:
        a, b = index // sides.query.shape[1], index % sides.query.shape[1]
        left = dual.prepare(qk_variance * variances1[0][a] * variances1[1])
        right = dual.prepare(qk_variance * variances2[0][b] * variances2[1])
        left = jax.tree.map(lambda v: v.reshape(v.shape[0], 1, *v.shape[1:]), left)
        right = jax.tree.map(lambda v: v.reshape(1, *v.shape), right)
        covariance = qk_variance * sides.query[a, b] * sides.key
        value, slope = dual(left, right, covariance, need_derivative=with_ntk)
        weight = jnp.ones_like(value)
        if allowed1 is not None and allowed2 is not None:
            weight = allowed1[a][:, None] * allowed2[b][None, :]
        nngp = jnp.sum(weight * value * sides.value)
        if sides.ntk is None or slope is None:
            return nngp[None]
        tangent = jnp.sum(weight * value * (2 * sides.value + sides.ntk.value))
        slopes = weight * slope * sides.value
        key, key_ntk = jnp.sum(slopes * sides.key), jnp.sum(slopes * sides.ntk.key)
        query, query_ntk = sides.query[a, b], sides.ntk.query[a, b]
        response = (2 * query + query_ntk) * key + query * key_ntk
        return jnp.stack([nngp, tangent + qk_variance * response])

    both = jax.lax.map(entry, jnp.arange(sides.query.size))
    shape = sides.query.shape
    return both[:, 0].reshape(shape), both[:, 1].reshape(shape) if with_ntk else None


def _ratio(covariance: Array, scale: Array) -> Array:
    """Correlations; 0 where a variance is 0."""
    safe = jnp.where(scale > 0, scale, 1)
    return jnp.where(scale > 0, jnp.clip(covariance / safe, -1, 1), 0)
