"""Kernels of attention for one pair of inputs, given covariances of queries, keys and values.

Notation as in the mathematics page: `κ^q, κ^k` are covariances of what makes queries and keys
(after positional encoding), `κ` of what makes values; Θ likewise. A is the attention matrix of the
first input, A' of the second; `*` is elementwise.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...state import Pair
from .scores import ElementwiseMap, RowwiseMap, ScoreMap, Softmax


class Sides(NamedTuple):
    """Kernels of one pair on the three sides of attention, positions flattened."""

    query: Float[Array, "q q2"]
    key: Float[Array, "k k2"]
    value: Float[Array, "k k2"]
    ntk: "Sides | None" = None  # the same of Θ

    @classmethod
    def of(cls, query: Pair, key: Pair, value: Pair) -> "Sides":
        """From the pairs of the three sides."""

        def flat(pair: Pair, kernel: Any) -> Array:
            return kernel.reshape(math.prod(kernel.shape[: pair.rank]), -1)

        pairs = [pair.compute() for pair in (query, key, value)]
        with_ntk = all(pair.ntk is not None for pair in pairs)
        ntk = cls._make([*(flat(p, p.ntk) for p in pairs), None]) if with_ntk else None
        return cls._make([*(flat(p, p.nngp) for p in pairs), ntk])


class ElementwiseScores(NamedTuple):
    """Gaussian scores of one pair of inputs, as elementwise maps see them.

    `variances` are those of queries and of keys, of either input; `allowed` are the keys that count
    for each query, of either input (None: all).
    """

    sides: Sides
    variances: tuple[tuple[Array, Array], tuple[Array, Array]]
    allowed: tuple[Array | None, Array | None]
    qk_variance: Array


class Head(NamedTuple):
    """One head on one input: its weights, and how they respond to the scores.

    `derivative` is what the `rule` of tangent kernels takes: slopes ζ' of elementwise maps, the
    weights of softmax, ∂ζ_ai/∂G_ak of rowwise maps, and of the rest ∂ζ_ai/∂G_fck, for these may
    take several scores G_f.
    """

    weights: Float[Array, "q k"]
    derivative: Any
    waves: Float[Array, "w q k"] | None  # rotary cosines and sines
    rule: Callable[..., Array]


def make_head(
    score_map: ScoreMap,
    fields: Float[Array, "f q k"],
    allowed: Array | None,
    waves: Array | None,
    *,
    ntk: bool,
) -> Head:
    """Weights of one head from its scores, and for tangent kernels their derivatives."""
    weights, scores = score_map.weigh(fields, allowed), fields[0]
    if not ntk or isinstance(score_map, Softmax):
        return Head(weights, weights, waves, _softmax_response)
    if isinstance(score_map, ElementwiseMap):
        _, slopes = jax.jvp(score_map.dual.fn, (scores,), (jnp.ones_like(scores),))
        slopes = slopes if allowed is None else jnp.where(allowed, slopes, 0)
        return Head(weights, slopes, waves, _elementwise_response)
    if isinstance(score_map, RowwiseMap):
        keys = jnp.ones(scores.shape, bool) if allowed is None else allowed
        jacobian = jax.vmap(jax.jacfwd(score_map.row))(scores, keys)
        return Head(weights, jacobian, waves, _rowwise_response)
    jacobian = jax.jacfwd(lambda g: score_map.weigh(g, allowed))(fields)
    return Head(weights, jacobian, waves, _full_response)


def head_kernels(
    one: Head, two: Head, sides: Sides, qk_variance: Array | None
) -> tuple[Array, Array | None]:
    """`AκA'ᵀ` and `2AκA'ᵀ + AΘA'ᵀ + σ²[J(2κ^q + Θ^q, κ^k) + J(κ^q, Θ^k)]` of one head.

    `J(P, T)_ab = Σ P_cd T_kl κ_ij ∂ζ_ai/∂G_ck ∂ζ'_bj/∂G'_dl`, over i, j, k, l and, for maps that
    mix queries, c and d; for others c = a and d = b. Of several scores in a head, J is summed.
    Without σ² the scores are held fixed, and J is left out.
    """
    a, b = one.weights, two.weights
    nngp = a @ sides.value @ b.T
    if sides.ntk is None:
        return nngp, None
    ntk = 2 * nngp + a @ sides.ntk.value @ b.T
    if qk_variance is None:
        return nngp, ntk
    for query, key in (
        (2 * sides.query + sides.ntk.query, sides.key),
        (sides.query, sides.ntk.key),
    ):
        ntk = ntk + qk_variance * _response(one, two, sides.value, nngp, query, key)
    return nngp, ntk


def _response(
    one: Head, two: Head, value: Array, nngp: Array, query: Array, key: Array
) -> Float[Array, "q q2"]:
    """J(P, T) of `head_kernels`, summed over rotary waves, which multiply the scores."""
    if one.waves is None or two.waves is None:
        return one.rule(one, two, value, query, key)

    def turn(head: Head, wave: Array) -> Head:
        shape = (wave.shape[0], 1, wave.shape[1])  # of rowwise Jacobians (query, output, key)
        if head.derivative.ndim != 3:
            shape = (*(1,) * (head.derivative.ndim - 2), *wave.shape)
        return head._replace(derivative=head.derivative * wave.reshape(shape))

    def add(total: Array, waves: tuple[Array, Array]) -> tuple[Array, None]:
        turned = turn(one, waves[0]), turn(two, waves[1])
        return total + one.rule(*turned, value, query, key), None

    return jax.lax.scan(add, jnp.zeros_like(nngp), (one.waves, two.waves))[0]


def _elementwise_response(one: Head, two: Head, value: Array, query: Array, key: Array) -> Array:
    """`P*(D(κ*T)D'ᵀ)` with the slopes D."""
    return query * (one.derivative @ (value * key) @ two.derivative.T)


def _softmax_response(one: Head, two: Head, value: Array, query: Array, key: Array) -> Array:
    """`P*[Ã(κ*T)Ã'ᵀ − ((Aκ)*(ÃT))Ã'ᵀ − Ã((κA'ᵀ)*(TÃ'ᵀ)) + (AκA'ᵀ)*(ÃTÃ'ᵀ)]`, Ã = A times wave."""
    a, b = one.derivative, two.derivative
    a_value, value_b = one.weights @ value, value @ two.weights.T
    a_key, key_b = a @ key, key @ b.T
    left = (a @ (value * key) - a_value * a_key) @ b.T
    return query * (left - a @ (value_b * key_b) + (a_value @ two.weights.T) * (a_key @ b.T))


def _rowwise_response(one: Head, two: Head, value: Array, query: Array, key: Array) -> Array:
    """From ∂ζ_ai/∂G_ak, O(S⁴)."""
    moved = jnp.einsum("aik,ij,kl->ajl", one.derivative, value, key)
    return query * jnp.einsum("ajl,bjl->ab", moved, two.derivative)


def _full_response(one: Head, two: Head, value: Array, query: Array, key: Array) -> Array:
    """From ∂ζ_ai/∂G_fck, O(S⁵)."""
    moved = jnp.einsum("aifck,ij,cd,kl->ajfdl", one.derivative, value, query, key)
    return jnp.einsum("ajfdl,bjfdl->ab", moved, two.derivative)


def mean_over_heads(
    head_of: Callable[[Array], tuple[Head, Head]],
    draws: Array,
    sides: Sides,
    qk_variance: Array | None,
) -> tuple[Array, Array | None]:
    """The average of `head_kernels` over drawn heads, one after another to bound memory."""
    shape = (sides.query.shape[0], sides.query.shape[1])
    zero = jnp.zeros(shape, sides.value.dtype)
    with_ntk = sides.ntk is not None

    def step(carry, draw):
        nngp, ntk = head_kernels(*head_of(draw), sides, qk_variance)
        total, total_ntk = carry
        return (total + nngp, total_ntk + ntk if with_ntk else total_ntk), None

    (nngp, ntk), _ = jax.lax.scan(step, (zero, zero), draws)
    count = draws.shape[0]
    return nngp / count, ntk / count if with_ntk else None


def mix_values(
    queries: Pair,
    valued: Pair,
    one: Float[Array, "*head query key"],
    two: Float[Array, "*head query2 key2"],
) -> Pair:
    """`mean_h A_h κ A'_hᵀ` at the queries' positions; of one head, or of equal ones, pending."""
    if one.ndim == 3 and one.shape[0] == 1:
        one, two = one[0], two[0]
    if one.ndim == 2:
        return valued.map_positions_later(one, two)
    like = queries.compute()

    def mix(kernel: Array) -> Array:
        flat = kernel.reshape(one.shape[-1], -1)
        mixed = jnp.einsum("hai,ij,hbj->ab", one, flat, two)
        return (mixed / one.shape[0]).reshape(like.nngp.shape)

    mixed = valued.each(mix)
    return like.to(mixed.nngp, mixed.ntk)
