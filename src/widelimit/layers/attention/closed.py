"""Infinitely many heads and an elementwise score map: kernels of one pair in closed form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...duals import Dual, Identity
from ..activations import Reach
from .homogeneous import homogeneous_kernels, summed
from .rules import ElementwiseScores


def closed_kernels(dual: Dual, scores: ElementwiseScores) -> tuple[Array, Array | None]:
    """`E[Σ_ij κ_ij ζ(G_ai)ζ(G'_bj)]` and its tangent kernel for an elementwise ζ."""
    if isinstance(dual, Identity):
        return identity_kernels(scores)
    rule = homogeneous_kernels if dual.homogeneous else elementwise_kernels
    return rule(dual, scores)


def reach_of_scores(dual: Dual, queries: Array, keys: Array, qk_std: Array) -> Reach | None:
    """How far the variances `σ²κ^q_aa κ^k_ii` of scores reach, where a dual has limits."""
    if not dual.ranged:
        return None
    query, key, scale = Reach.of(queries), Reach.of(keys), qk_std**2
    return Reach(scale * query.least * key.least, scale * query.largest * key.largest)


def identity_kernels(scores: ElementwiseScores) -> tuple[Array, Array | None]:
    """ζ = identity: `σ²κ^q_ab Σ κ^k κ` and its tangent kernel; sums over allowed keys only."""
    sides, _, allowed, qk_variance = scores
    total = summed(sides.key * sides.value, *allowed)
    nngp = qk_variance * sides.query * total
    if sides.ntk is None:
        return nngp, None
    tangent = summed(sides.key * sides.ntk.value + sides.value * sides.ntk.key, *allowed)
    ntk = qk_variance * (sides.query * (4 * total + tangent) + sides.ntk.query * total)
    return nngp, ntk


def elementwise_kernels(dual: Dual, scores: ElementwiseScores) -> tuple[Array, Array | None]:
    """Any elementwise ζ: the dual of every pair of scores, O(S⁴) per pair of inputs."""
    sides, (variances1, variances2), (allowed1, allowed2), qk_variance = scores
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
