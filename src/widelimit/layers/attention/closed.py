"""Infinitely many heads and an elementwise score map: kernels of one pair in closed form.

ReLU, abs and their like take O(S²) for a pair of inputs. Their arc-cosine kernel is a function of a
product of two correlations, s of queries and c of keys: one power series in s·c separates them. A
few hundred of its terms are not enough where both are close to 1, so its tail is a sum over powers
that double from one level to the next, as many levels as the closest tokens ask for.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...duals import Dual, Identity
from ...duals.geometry import arccos, safe_sqrt
from ..activations import Reach
from .rules import ElementwiseScores

# Gaps `1 − |c|` up to this are rounding: products of equal tokens leave a few of them. In single
# precision the angle of one is 5e-4 already, and costs few levels: it is kept.
_ALIKE = {
    "float64": 4 * float(np.finfo(np.float64).eps),
    "float32": float(np.finfo(np.float32).eps),
}
# Powers beyond which nothing is left of a product below 1: e^{-24} < 4e-11.
_REST = 24.0


class _Series(NamedTuple):
    """`arcsin t ≈ t + Σ_j w_j t^(2j+3) + Σ_m Σ_b w_mb t^(bases_b 2^m)` on [0, 1].

    Weights come with those of the integral, `w/(power + 1)`.
    """

    odd: Float[np.ndarray, "power 2"]
    bases: tuple[float, float]
    levels: Float[np.ndarray, "level base 2"]


@cache
def _series(dtype: str) -> _Series:
    """Weights by least squares in −log t, down to the least gap of this precision.

    The two bases are about √2 apart, and so are then all powers: the sum is a trapezoidal rule for
    the integral over the logarithm of the power, with an error below 2e-10 (single: 6e-8).
    """
    odd, bases, count = (8, (17.0, 24.0), 50) if dtype == "float64" else (3, (7.0, 10.0), 25)
    powers = 2.0 ** np.arange(count)[:, None] * np.array(bases)
    exponents = np.concatenate([2.0 * np.arange(1, odd) + 1, powers.reshape(-1)])
    depths = np.concatenate([[0.0], np.exp(np.linspace(np.log(_ALIKE[dtype]), np.log(40), 400))])
    arcsine = np.pi / 2 - 2 * np.arcsin(np.sqrt(-np.expm1(-depths) / 2))
    terms = np.exp(-exponents * depths[:, None])
    weights = np.linalg.lstsq(terms, arcsine - np.exp(-depths), rcond=None)[0]
    both = np.stack([weights, weights / (exponents + 1)], axis=-1)
    return _Series(both[: odd - 1], bases, both[odd - 1 :].reshape(count, 2, 2))


class _Cosines(NamedTuple):
    """Correlations: magnitude and sign, and `gap = 1 − |c|` without cancellation.

    A gap of rounding is 0, with a gradient of 0: nothing tells such tokens apart.
    """

    size: Float[Array, "a b"]
    sign: Float[Array, "a b"]
    gap: Float[Array, "a b"]

    @classmethod
    def of(cls, kernel: Array, variance1: Array, variance2: Array) -> "tuple[_Cosines, Array]":
        """From covariances, and √(variances)."""
        one, two = variance1[:, None], variance2[None, :]
        scale = jnp.where(one == two, one, safe_sqrt(one) * safe_sqrt(two))
        live = scale > 0
        gap = jnp.where(live, (scale - jnp.abs(kernel)) / jnp.where(live, scale, 1), 1)
        gap = jnp.where(gap > _ALIKE[str(gap.dtype)], gap, 0)
        return cls(1 - gap, jnp.where(kernel < 0, -1, 1).astype(gap.dtype), gap), scale

    @property
    def signed(self) -> Array:
        """c itself."""
        return self.sign * self.size

    def tails(self) -> tuple[Array, Array]:
        """`U(c) = ∫₀ᶜ T = c arcsin c + √(1 − c²) − 1 − c²/2` and `T(c) = arcsin c − c` of |c|."""
        sine = safe_sqrt(self.gap * (1 + self.size))
        arcsine = jnp.pi / 2 - arccos(self.size, sine)
        return self.size * arcsine + sine - 1 - self.size**2 / 2, arcsine - self.size


class _Tables(NamedTuple):
    """What is sum_keys over keys i, j: with U (values: of κ, and of Θ), and with T (slopes)."""

    values: tuple[Array, ...]
    slopes: tuple[Array, ...]

    def each(self, change: Callable[[Array], Array]) -> "_Tables":
        """Every table changed."""
        return _Tables(*(tuple(change(table) for table in tables) for tables in self))


KeyTables = tuple[Array | None, Array | None]


def sum_keys(kernel: Array, allowed1: Array | None, allowed2: Array | None) -> Array:
    """Σ_ij B_ai w_ij B'_bj: over allowed keys, or over all of them."""
    if allowed1 is None or allowed2 is None:
        return jnp.sum(kernel)
    return allowed1 @ kernel @ allowed2.T


def homogeneous_kernels(dual: Dual, scores: ElementwiseScores) -> tuple[Array, Array | None]:
    """ζ with ζ(rg) = rζ(g) for r > 0: `ζ(g) = α min(g, 0) + β max(g, 0)`.

    With correlations s_ab of queries and c_ij of keys, `E[ζ(G_ai)ζ(G'_bj)] = √variances f(s c)` and
    `E[ζ'(G_ai)ζ'(G'_bj)] = f'(s c)`,

        f(t) = (β − α)²/2π (√(1 − t²) + t arcsin t) + (α + β)²/4 t.
    """
    sides, variances, allowed, qk_variance = scores
    positive, negative = (dual.fn(jnp.asarray(x, sides.key.dtype)) for x in (1.0, -1.0))
    bend = (positive + negative) ** 2 / (2 * jnp.pi)
    line = (positive - negative) ** 2 / 4
    (query, scale_q), (key, scale_k) = (
        _Cosines.of(kernel, one, two)
        for kernel, one, two in zip((sides.query, sides.key), *variances, strict=True)
    )
    c, value = key.signed, scale_k * sides.value
    tables = _Tables((value,), ())
    if sides.ntk is not None:
        slopes = value * key.size, key.sign * sides.value * sides.ntk.key
        tables = _Tables((value, scale_k * sides.ntk.value), slopes)
    tails = _tails(query, key, tables, allowed)
    s, square = query.signed, query.size**2 / 2

    def value_sum(table: Array, tail: Array) -> Array:
        """Σ_ij w_ij f(s c_ij) from Σ_ij w_ij U(|s c_ij|)."""
        flat, bent = (sum_keys(part, *allowed) for part in (table, table * c**2))
        return bend * (flat + square * bent + tail) + line * s * sum_keys(table * c, *allowed)

    def slope(table: Array, tail: Array) -> Array:
        """Σ_ij w_ij f'(s c_ij) from Σ_ij w_ij sign(c_ij) T(|s c_ij|)."""
        straight = s * sum_keys(table * c, *allowed) + query.sign * tail
        return line * sum_keys(table, *allowed) + bend * straight

    nngp = value_sum(value, tails.values[0])
    if sides.ntk is None:
        return qk_variance * scale_q * nngp, None
    direct = 2 * nngp + value_sum(tables.values[1], tails.values[1])
    response = (2 * sides.query + sides.ntk.query) * slope(value * c, tails.slopes[0])
    response = response + sides.query * slope(sides.value * sides.ntk.key, tails.slopes[1])
    return qk_variance * scale_q * nngp, qk_variance * (scale_q * direct + response)


def _tails(query: _Cosines, key: _Cosines, tables: _Tables, allowed: KeyTables) -> _Tables:
    """Σ_ij w_ij U(|s c_ij|) of the values, Σ_ij w_ij T(|s c_ij|) of the slopes, at all a, b.

    A correlation of exactly ±1 leaves a function of the other one; the series is for the rest.
    """
    # Values have one power more than slopes: with it, their first table is that of the slopes.
    near = tables.each(lambda table: jnp.where(key.gap > 0, table, 0))
    near = near._replace(values=tuple(table * key.size for table in near.values))
    series = _series_sums(query, key, near, allowed)
    series = series._replace(values=tuple(query.size * one for one in series.values))

    def join(table: Array, rest: Array, of_query: Array, of_key: Array) -> Array:
        same = sum_keys(jnp.where(key.gap > 0, 0, table), *allowed)
        alike = jnp.broadcast_to(sum_keys(table * of_key, *allowed), query.gap.shape)
        return jnp.where(query.gap > 0, rest + same * of_query, alike)

    parts = zip(query.tails(), key.tails(), tables, series, strict=True)
    return _Tables(
        *(
            tuple(join(*both, *tail) for both in zip(table, rest, strict=True))
            for *tail, table, rest in parts
        )
    )


State = tuple[tuple[Array, ...], tuple[Array, ...], _Tables]
"""The series on its way: `1 − |s|^n` and `1 − |c|^n` for either base, and the sums so far."""


def _powers(
    query: _Cosines, key: _Cosines, tables: _Tables, allowed: KeyTables
) -> tuple[State, Callable[[State, Array], State]]:
    """The series after its odd powers, and how to add those of a level and double them."""
    series = _series(str(key.gap.dtype))

    def add(sums: _Tables, query: Array, key: Array, weights: Array) -> _Tables:
        """One power: `|s|^n Σ_ij w_ij |c_ij|^n`, times its weights."""
        values = [sum_keys(table * key, *allowed) for table in tables.values]
        slopes = [values[0], *(sum_keys(table * key, *allowed) for table in tables.slopes[1:])]
        return _Tables(
            tuple(one + weights[1] * query * m for one, m in zip(sums.values, values, strict=True)),
            tuple(
                one + weights[0] * query * m for one, m in zip(sums.slopes, slopes, strict=False)
            ),
        )

    def level(state: State, weights: Float[Array, "base 2"]) -> State:
        *gaps, sums = state
        for index, (q, k) in enumerate(zip(*gaps, strict=True)):
            sums = add(sums, 1 - q, 1 - k, weights[index])
        queries, keys = (tuple(gap * (2 - gap) for gap in side) for side in gaps)
        return queries, keys, sums

    sums = tables.each(lambda table: jnp.zeros_like(query.gap))
    q, k = query.size, key.size
    for weights in series.odd:
        q, k = q * query.size**2, k * key.size**2
        sums = add(sums, q, k, jnp.asarray(weights, q.dtype))
    queries, keys = (
        tuple(-jnp.expm1(base * jnp.log1p(-jnp.minimum(side.gap, 0.999))) for base in series.bases)
        for side in (query, key)
    )
    return (queries, keys, sums), level


@jax.custom_jvp
def _series_sums(query: _Cosines, key: _Cosines, tables: _Tables, allowed: KeyTables) -> _Tables:
    """`Σ_n w_n |s|^n Σ_ij w_ij |c_ij|^n`, up to the level at which nothing is left of powers."""
    series, dtype = _series(str(key.gap.dtype)), key.gap.dtype
    weights = jnp.asarray(series.levels, dtype)
    closest = [jnp.min(jnp.where(side.gap > 0, side.gap, 1)) for side in (query, key)]
    start, level = _powers(query, key, tables, allowed)

    def left(carry: tuple[Array, State]) -> Array:
        power = min(series.bases) * jnp.exp2(carry[0].astype(dtype))
        return (carry[0] < len(weights)) & (power * (closest[0] + closest[1]) < _REST)

    def step(carry: tuple[Array, State]) -> tuple[Array, State]:
        return carry[0] + 1, level(carry[1], weights[carry[0]])

    return jax.lax.while_loop(left, step, (jnp.zeros((), jnp.int32), start))[1][2]


@_series_sums.defjvp
def _series_sums_jvp(primals, tangents):
    """All levels: a loop of known length can be run backwards."""

    def sums(*arguments: Any) -> _Tables:
        start, level = _powers(*arguments)
        dtype = start[0][0].dtype
        weights = jnp.asarray(_series(str(dtype)).levels, dtype)
        return jax.lax.scan(lambda state, w: (level(state, w), None), start, weights)[0][2]

    return jax.jvp(sums, primals, tangents)


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
    total = sum_keys(sides.key * sides.value, *allowed)
    nngp = qk_variance * sides.query * total
    if sides.ntk is None:
        return nngp, None
    tangent = sum_keys(sides.key * sides.ntk.value + sides.value * sides.ntk.key, *allowed)
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
