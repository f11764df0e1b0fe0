"""Attention whose queries come from elsewhere: another stream, or a learned read-out token."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ...errors import ShapeError, WidelimitError
from ...flat_draws import normals
from ...printing import written
from ...state import Example, Outline, Pair
from ..base import Facts, Params, require_positions
from .heads import INFINITE, FeatureSide
from .multihead import MultiHead, standard_normals
from .scores import ScoreMap, Softmax


class QueriedAttention(MultiHead):
    """Attention at 1/√d from queries with covariance κ^q to keys and values with covariance κ.

    Scores have `Cov(G_ai, G_bj) = qk² κ^q_ab κ̃_ij`; κ ← ov² E[A κ A'ᵀ], and the tangent kernel has
    the terms of self-attention with κ^q, Θ^q in place of the query side.
    """

    def __init__(
        self,
        width: int | None = None,
        *,
        heads: float = INFINITE,
        score_map: ScoreMap | None = None,
        qk_std: Any = 1.0,
        ov_std: Any = 1.0,
        b_std: Any = 0.0,
        positions: Any = None,
        key_width: int | None = None,
        value_width: int | None = None,
    ):
        """As for `Attention` at 1/√d; `positions` encodes the keys (Decay)."""
        super().__init__(
            width,
            heads=heads,
            score_map=score_map,
            positions=positions,
            qk_std=qk_std,
            ov_std=ov_std,
            b_std=b_std,
            key_width=key_width,
            value_width=value_width,
        )
        if self.positions.rotary is not None or self.positions.biases:
            raise WidelimitError(
                f"positions= of {type(self).__name__} does not encode its keys alone.",
                got=f"positions={positions!r}, which compares them with positions of queries",
                remedy="use Decay, which encodes the keys alone",
            )

    def __repr__(self) -> str:
        return written(self, hidden=("score_map",) if isinstance(self.score_map, Softmax) else ())


class AttentionPool(QueriedAttention):
    """One learned query (a read-out token) attends to all positions: a learned pooling.

    The query is a trained vector of N(0, 1) entries, as wide as a head's keys: κ^q = Θ^q = 1.
    """

    __init__ = QueriedAttention.__init__  # type checkers take inherited fields for arguments

    def sides(self, state: Any) -> tuple[Any, Any]:
        return (_token_pair(state) if isinstance(state, Pair) else _token()), state

    def score_sides(self, examples: Any) -> tuple[FeatureSide, FeatureSide]:
        return self.positions.side(examples), FeatureSide(jnp.ones((1, 1, 1)), lambda: None)

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "AttentionPool")
        self.positions.require(before.positions)
        return before.with_weights(positions=(), channels=self.width or before.channels)

    def mask(self, mask: Array) -> Array | None:
        return None

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        token_key, key = jax.random.split(key)
        width = self.key_width or self.width or before.channels
        weights = standard_normals(key, self.weight_shapes(before, queries=width))
        return {"token": normals(token_key, (width,)), **weights}

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        return self.attend(params, params["token"], x, (None, mask), key)[0]


def _token_pair(pair: Pair) -> Pair:
    """κ^q = Θ^q = 1."""
    one = jnp.ones((), pair.nngp.dtype)
    return Pair(one, None if pair.ntk is None else one, 0, True)


def _token() -> Example:
    """A query without positions, κ^q = 1."""
    outline = Outline((), 1, raw=False)
    return Example(jnp.ones(()), None, None, jnp.ones((1,)), None, False, outline)


class CrossAttention(QueriedAttention):
    """Queries from the first of two streams, keys and values from the second.

    Inputs are tuples `(queries, context)`; `Parallel` runs a network on each stream first. At 1/d
    queries and keys would share their weights, and the limit would need the covariance between the
    two streams: put both into one sequence and use `Attention(pattern=Allowed(…))` for that.
    """

    __init__ = QueriedAttention.__init__  # type checkers take inherited fields for arguments

    @property
    def facts(self) -> Facts:
        return dataclasses.replace(super().facts, streams=2)

    def sides(self, state: Any) -> tuple[Any, Any]:
        return state[0], state[1]

    def outline(self, before: Any) -> Outline:
        if not isinstance(before, tuple) or len(before) != 2 or not before[1].positions:
            raise ShapeError(
                "CrossAttention lacks two streams (queries, context), the second with positions.",
                got=repr(before),
                remedy="pass x as a tuple of two arrays, and start with Parallel or CrossAttention",
            )
        queries, context = before
        self.positions.require(context.positions)
        noisy = queries.noisy or context.noisy
        return queries.with_weights(channels=self.width or context.channels, noisy=noisy)

    def mask(self, mask: Any) -> Array | None:
        return mask[0]

    def init_params(self, key: Key[Array, ""], before: Any) -> Params:
        shapes = self.weight_shapes(before[1], queries=before[0].channels)
        return standard_normals(key, shapes)

    def forward(self, params: Params, x: Any, mask: Any, key: Any):
        queries, context = x
        y = self.attend(params, queries, context, (None, None) if mask is None else mask, key)
        return y.reshape(*queries.shape[:-1], -1)
