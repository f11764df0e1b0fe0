"""The Gaussian score field: the one place where infinitely many and finitely many heads meet.

At 1/√d the scores of a head are a Gaussian field over all positions of all inputs,
`Cov(G_ai(x), G_bj(x')) = κ̃_ab(x,x') κ̃_ij(x,x')`. If κ̃ = ΦΦᵀ with feature rows φ_a(x), then
`G(x) = Φ_x W Φ_xᵀ` with one i.i.d. normal matrix W shared by all inputs has exactly this law. One W
is one head: a few of them are a finite-head network, many estimate the infinite-head kernel.
"""

import dataclasses
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from ...errors import NetworkError, WidelimitError
from ...factorizations import lower_inverse, qr
from ...flat_draws import normals
from ..activations import Reach
from ..base import require_drawn

INFINITE = math.inf
"""Infinitely many heads: the Gaussian-process limit."""


# Exact feature rows longer than this are compressed with landmarks like any others.
_MOST_EXACT = 1024
# Orthogonal directions of W pay from this share of the pairs of heads on, up to this size of W.
_FRAME_SHARE, _MOST_FRAME = 4, 1024


class Basis(eqx.Module):
    """How positions get their feature rows: exactly, or from their covariance with pivots.

    Without pivots the rows are known exactly; with them, `φ_a(x) = κ̃(x_a, pivots) · matrix`. Exact
    rows of a positional encoding refer to the positions of `grid`, within which inputs must lie.
    """

    grid: tuple[int, ...] | None = eqx.field(static=True, default=None)
    pivots: Int[Array, "rank"] | None = None
    matrix: Float[Array, "rank rank"] | None = None
    # Share of the landmarks' own variance that the features miss, at the worst position.
    residual: Float[Array, ""] | None = None


class ValueField(eqx.Module):
    """Values of heads of finite width, `V_h = Φ_v T_h`: the basis of Φ_v, and the T's.

    Without a factor values are infinitely wide.
    """

    basis: Basis
    factor: Float[Array, "head rank short"] | None = None


class ScoreField(eqx.Module):
    """Heads of one attention layer, drawn: feature bases of queries and keys, W's of every head.

    `weights` has axes (head, matrix, query feature, key feature); there is one matrix except for
    rotary encodings, whose scores are sums of waves, and maps of several scores. In self-attention
    queries and keys share their features.
    """

    weights: Float[Array, "head matrix query key"]
    query: Basis
    key: Basis
    # Features that belong to one pass alone, for queries and for keys (see `AttentionMemo`).
    slots: tuple[int, int] = eqx.field(static=True, default=(0, 0))
    # Where values have finite width.
    values: ValueField | None = None
    # Whether tangent kernels have the terms of weights that make queries and keys.
    trained: bool = eqx.field(static=True, default=True)

    @property
    def noisy(self) -> bool:
        """Whether passes have scores of their own."""
        return any(self.slots)


class HeldScores(eqx.Module):
    """Scores of one input as numbers, in place of a field: given these, weights are fixed.

    `share` multiplies what two inputs have in common (see `laws.tangent`).
    """

    scores: Float[Array, "head field query key"]
    share: float = eqx.field(static=True, default=1.0)


class Coupling(Enum):
    """How the heads of one layer depend on each other; every one by itself is i.i.d. normal.

    OPPOSITE heads come in pairs W and −W, which cancels what is odd in the scores. FRAMES adds that
    directions of vec(W) are orthogonal, which cancels most of what is quadratic; it shows once
    there are as many heads as W has entries.
    """

    FREE = "free"
    OPPOSITE = "opposite"
    FRAMES = "frames"


class Scheme(eqx.Module):
    """How scores are drawn: heads per layer where a layer has infinitely many, and feature rank."""

    samples: int = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    coupling: Coupling = eqx.field(static=True, default=Coupling.FRAMES)


class PivotedFactor(NamedTuple):
    """`K ≈ F Fᵀ`, built from the rows at `pivots`."""

    pivots: Int[Array, "rank"]
    factor: Float[Array, "n rank"]
    residual: Float[Array, "n"]
    active: Bool[Array, "rank"]


def pivoted_cholesky(
    matrix: Float[Array, "n n"],
    rank: int,
    tolerance: float = 0.0,
    pivots: Int[Array, "rank"] | None = None,
) -> PivotedFactor:
    """Greedy low-rank Cholesky factor of a positive semi-definite matrix.

    Each step takes the row with the largest remaining variance (or the next of the given `pivots`)
    and removes what it explains; steps whose variance is below `tolerance` times the largest of all
    leave a zero column. Traceable and differentiable, with a fixed number of steps.
    """
    size = matrix.shape[0]
    diagonal = jnp.diagonal(matrix)
    # Below this, what remains is rounding.
    floor = max(tolerance, 4 * size * float(jnp.finfo(matrix.dtype).eps)) * jnp.max(diagonal)

    def step(carry, index):
        factor, residual = carry
        pivot = jnp.argmax(residual) if pivots is None else pivots[index]
        variance = residual[pivot]
        live = variance > floor
        column = matrix[:, pivot] - factor @ factor[pivot]
        column = jnp.where(live, column / jnp.sqrt(jnp.where(live, variance, 1)), 0)
        factor = factor.at[:, index].set(column)
        residual = jnp.maximum(residual - column**2, 0).at[pivot].set(jnp.where(live, 0, variance))
        return (factor, residual), (pivot, live)

    start = (jnp.zeros((size, rank), matrix.dtype), diagonal)
    (factor, residual), (taken, active) = jax.lax.scan(step, start, jnp.arange(rank))
    return PivotedFactor(taken, factor, residual, active)


class FeatureSide(NamedTuple):
    """What queries or keys offer as features: exact rows, or a covariance over landmarks."""

    rows: Float[Array, "example position rank"] | None
    covariance: Callable[[], Float[Array, "n n"] | None]
    grid: tuple[int, ...] | None = None  # the positions that exact rows refer to
    slots: int = 0  # positions, where entries were dropped and passes differ


def draw_field(
    key: Key[Array, ""],
    keys: FeatureSide,
    queries: FeatureSide | None = None,
    *,
    heads: float,
    matrices: int = 1,
    scheme: Scheme,
    chosen: ScoreField | None = None,
) -> ScoreField:
    """Draw the heads of one layer; without `queries` they share the keys' features.

    `chosen` is an earlier field whose pivots are kept: the same landmarks for every precision and
    every value of the hyperparameters, so that kernels depend smoothly on these.
    """
    count = scheme.samples if heads == INFINITE else int(heads)
    # A finite-head law needs independent heads; averages over infinitely many may couple them.
    coupling = scheme.coupling if heads == INFINITE else Coupling.FREE
    key_basis, key_rank, dtype = draw_basis(keys, scheme, chosen and chosen.key)
    query_basis, query_rank = key_basis, key_rank
    slots = (keys.slots if queries is None else queries.slots, keys.slots)
    if queries is not None:
        query_basis, query_rank, _ = draw_basis(queries, scheme, chosen and chosen.query)
    shape = (matrices, query_rank + 2 * slots[0], key_rank + 2 * slots[1])
    weights = _normals(key, count, shape, coupling)
    if any(slots):
        # Each head with the two passes exchanged as well: kernels stay symmetric.
        exchanged = weights[:, :, _exchange_order(query_rank, slots[0])]
        exchanged = exchanged[..., _exchange_order(key_rank, slots[1])]
        weights = jnp.concatenate([weights, exchanged])
    return ScoreField(weights.astype(dtype), query_basis, key_basis, slots)


def _exchange_order(rank: int, slots: int) -> np.ndarray:
    """The order of features in which the slots of the two passes have changed places."""
    first, second = rank + np.arange(slots), rank + slots + np.arange(slots)
    return np.concatenate([np.arange(rank), second, first])


def pass_noise(
    own: Float[Array, "position position"], rows: Float[Array, "position rank"], slots: int
) -> Float[Array, "position slot"]:
    """A root of what an example's own covariance has beyond that of its feature rows.

    Dropout makes κ_aa(x, x) larger within a pass of the network than between two passes. The rest
    is a covariance of this pass alone: its features are orthogonal to those of every other pass.
    """
    size = own.shape[0]
    require_drawn((size,), (slots,), "Scores under dropout were")
    root = pivoted_cholesky(own - rows @ rows.T, size).factor
    return jnp.pad(root, ((0, 0), (0, slots - size)))


def _normals(
    key: Key[Array, ""], count: int, shape: tuple[int, ...], coupling: Coupling
) -> Float[Array, "head *shape"]:
    """Arrays of i.i.d. normals, coupled with each other.

    In single precision whatever the kernels' is: the same heads for both.
    """
    if coupling is Coupling.FREE or count == 1:
        return normals(key, (count, *shape), jnp.float32)
    half, size = (count + 1) // 2, math.prod(shape)
    if coupling is Coupling.FRAMES and size <= min(_FRAME_SHARE * half, _MOST_FRAME):
        # A uniformly random direction times the length of an independent normal vector is normal.
        frame_key, length_key = jax.random.split(key)
        frames = -(-half // size)
        square = normals(frame_key, (frames, size, size), jnp.float32)
        rows = jax.vmap(_frame)(square)
        others = normals(length_key, (frames, size, size), jnp.float32)
        lengths = jnp.linalg.norm(others, axis=-1, keepdims=True)
        heads = (rows * lengths).reshape(-1, *shape)[:half]
    else:
        heads = normals(key, (half, *shape), jnp.float32)
    return jnp.concatenate([heads, -heads])[:count]


def _frame(square: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A uniformly random orthogonal matrix from n² normals: Q of QR with positive diagonal R."""
    q, r = qr(square)
    return q * jnp.sign(jnp.diagonal(r))[None, :]


def draw_basis(
    side: FeatureSide, scheme: Scheme, chosen: Basis | None = None
) -> tuple[Basis, int, Any]:
    """A basis, its rank and its dtype."""
    if side.rows is not None and side.rows.shape[-1] <= max(scheme.rank, _MOST_EXACT):
        return Basis(side.grid), side.rows.shape[-1], side.rows.dtype
    joint = side.covariance()
    if joint is None:
        raise NetworkError(
            "The sampler was fitted for another network.",
            got="a network whose scores take landmark inputs, and a sampler without any",
            remedy="fit one for this network: sampler = net.sampler(x)",
        )
    rank = min(scheme.rank, joint.shape[0])
    given = None if chosen is None else chosen.pivots
    found = pivoted_cholesky(joint, rank, scheme.tolerance, given)
    triangle = found.factor[found.pivots]
    # Columns without a pivot are zero; a one on the diagonal keeps the solve regular there.
    triangle = triangle + jnp.diag(jnp.where(found.active, 0, 1).astype(triangle.dtype))
    matrix = lower_inverse(triangle).T * found.active[None, :].astype(triangle.dtype)
    scale = jnp.maximum(jnp.max(jnp.diagonal(joint)), jnp.finfo(joint.dtype).tiny)
    missed = jnp.max(found.residual) / scale
    if rank == joint.shape[0]:  # all landmarks are pivots, and what is left is rounding
        missed = jnp.zeros_like(missed)
    return Basis(side.grid, found.pivots, matrix, missed), rank, joint.dtype


def check_heads(heads: float, name: str = "heads") -> float:
    """A positive integer, or INFINITE."""
    finite = isinstance(heads, int | np.integer) and not isinstance(heads, bool)
    finite = finite and 1 <= heads < 2**31
    infinite = isinstance(heads, float) and heads == INFINITE
    if not finite and not infinite:
        raise WidelimitError(
            "The number of heads is no positive integer below 2³¹, nor widelimit.INFINITE.",
            got=f"{name}={heads!r}",
            remedy="give an integer of at least 1, or heads=widelimit.INFINITE for the GP limit",
        )
    return INFINITE if infinite else int(heads)


class AttentionMemo(eqx.Module):
    """What pairs need of one input; None where a rule does without."""

    grid: tuple[int, ...] = eqx.field(static=True)  # positions of the context
    query_mask: Array | None
    key_mask: Array | None
    channels: Array | None
    allowed: Bool[Array, "query key"] | None
    # Variances or feature rows. Queries: None where they are those of the keys.
    keys: Array | None = None
    queries: Array | None = None
    # Feature rows of this pass alone, where entries were dropped.
    key_noise: Array | None = None
    query_noise: Array | None = None
    # Of queries and keys that are brought to one length.
    inverse_lengths: Array | None = None
    # Weights of every head, or those that all share, where they are known.
    weights: Float[Array, "*head query key"] | None = None
    # Feature rows of the output, where heads have finite width.
    outputs: Float[Array, "query feature"] | None = None
    # Of the scores' variances, where the score map's dual has limits.
    reach: Reach | None = None

    def on_side(self, side: int) -> "AttentionMemo":
        """The memo of the first or the second of two passes, each with masks of its own.

        Beside the feature rows that both share, they have rows of their own in different slots.
        """

        def noisy(rows: Array | None, noise: Array | None) -> Array | None:
            if rows is None or noise is None:
                return rows
            both = [noise, jnp.zeros_like(noise)]
            return jnp.concatenate([rows, *(both if side == 0 else both[::-1])], axis=-1)

        keys = noisy(self.keys, self.key_noise)
        queries = noisy(self.queries, self.query_noise)
        return dataclasses.replace(
            self, keys=keys, queries=queries, key_noise=None, query_noise=None
        )

    @property
    def tables(self) -> tuple[Array, Array]:
        """Variances or feature rows of queries and of keys."""
        assert self.keys is not None
        return self.keys if self.queries is None else self.queries, self.keys
