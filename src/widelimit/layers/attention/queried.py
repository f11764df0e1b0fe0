"""What attention layers share whose queries come from elsewhere than their keys."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...errors import WidelimitError
from ...printing import written
from ...state import Example, Need, Pair
from ..activations import Reach
from ..base import Params, cast
from .closed import reach_of_scores
from .heads import INFINITE, Basis, noisy_rows, required_field
from .multihead import MultiHead, project
from .placement import Positions
from .rules import Head, Sides, make_head
from .scores import ElementwiseMap, ScoreMap, Softmax


class _QueriedMemo(eqx.Module):
    """What pairs need of one input: variances or feature rows of queries and keys, and masks."""

    query_mask: Array | None
    key_mask: Array | None
    queries: Array
    keys: Array
    channels: Array | None
    # Feature rows of this pass alone, where entries were dropped.
    query_noise: Array | None = None
    key_noise: Array | None = None
    # Of the scores' variances, where the score map's dual has limits.
    reach: Reach | None = None

    def on_side(self, side: int) -> "_QueriedMemo":
        """The memo of the first or the second of two passes."""
        queries = noisy_rows(self.queries, self.query_noise, side)
        keys = noisy_rows(self.keys, self.key_noise, side)
        return dataclasses.replace(
            self, queries=queries, keys=keys, query_noise=None, key_noise=None
        )

    @property
    def variances(self) -> tuple[Array, Array]:
        """Of queries and of keys."""
        return self.queries, self.keys


class QueriedAttention(MultiHead):
    """Attention at 1/√d from queries with covariance κ^q to keys and values with covariance κ.

    Scores have `Cov(G_ai, G_bj) = qk² κ^q_ab κ̃_ij`; κ ← ov² E[A κ A'ᵀ], and the tangent kernel has
    the terms of self-attention with κ^q, Θ^q in place of the query side.
    """

    def __repr__(self) -> str:
        return written(self, hidden=("score_map",) if isinstance(self.score_map, Softmax) else ())

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
        placed = _checked_positions(positions)
        stds, widths = (qk_std, ov_std, b_std), (key_width, value_width)
        self._set_shared(width, heads, score_map, placed, stds, widths)

    def closed(self) -> bool:
        return isinstance(self.score_map, ElementwiseMap) and self.heads == INFINITE

    @property
    def need_own(self) -> Need:
        """Variances where duals need them."""
        return Need.DIAGONAL if self.closed() else Need.NONE

    @property
    def cuttable(self) -> bool:
        return True

    # --- finite width -----------------------------------------------------------------------------

    def attend(
        self,
        params: Params,
        queries: Float[Array, "query n"],
        context: Float[Array, "*key m"],
        key_mask: Array | None,
    ) -> Float[Array, "query width"]:
        """The finite layer."""
        scored, valued = (x.reshape(-1, x.shape[-1]) for x in self.encoded(params, context))
        q, k = project(queries, params["query"]), project(scored, params["key"])
        scores = cast(self.qk_std, q) * (q @ jnp.swapaxes(k, 1, 2))
        scores = scores / jnp.sqrt(jnp.asarray(q.shape[-1], q.dtype))
        allowed = None if key_mask is None else _keys_allowed(key_mask, q.shape[1])
        weights = jax.vmap(lambda g: self.score_map(g, allowed))(scores)
        return self.joined(params, weights, project(valued, params["value"]))

    # --- infinite width ---------------------------------------------------------------------------

    @abstractmethod
    def query_table(self, example: Any, basis: Basis | None) -> Array:
        """Variances (no basis) or feature rows of the queries."""

    def make_memo(self, example: Any, context: Example, query_mask: Array | None) -> _QueriedMemo:
        """Per-example quantities; `context` makes keys and values."""
        channels = self.positions.channels(context.outline)
        if self.closed():
            keys, queries = self.positions.variance(context), self.query_table(example, None)
            assert isinstance(self.score_map, ElementwiseMap)
            queries, qk_std = queries.astype(keys.dtype), cast(self.qk_std, keys)
            reach = reach_of_scores(self.score_map.dual, queries, keys, qk_std)
            return _QueriedMemo(query_mask, context.mask, queries, keys, channels, reach=reach)
        field = required_field(self.field)
        keys = self.positions.features(context, field.key)
        queries = self.query_table(example, field.query).astype(keys.dtype)
        noise = (
            self.query_noise(example, queries, field.slots[0]),
            self.positions.noise(context, keys, field.slots[1]),
        )
        return _QueriedMemo(query_mask, context.mask, queries, keys, channels, *noise)

    @abstractmethod
    def query_noise(self, example: Any, rows: Array, slots: int) -> Array | None:
        """What this pass has beyond the queries' feature rows; None without dropout."""

    def kernels(
        self, queries: Pair, context: Pair, memo1: _QueriedMemo, memo2: _QueriedMemo
    ) -> Pair:
        """The rule of the class, at the queries' positions."""
        queries, context = queries.forced(), context.forced()
        scored = self.positions.scored(context, memo1.channels)
        valued = self.positions.valued(context, memo1.channels)
        sides = Sides.of(queries, scored, valued.masked(memo1.key_mask, memo2.key_mask))
        moved = self.mixed(queries, sides, memo1, memo2)
        return moved.masked(memo1.query_mask, memo2.query_mask)

    def scorer(self, memo: _QueriedMemo, *, ntk: bool) -> Callable[[Array], Head]:
        rows, keys = memo.queries, memo.keys
        allowed = None if memo.key_mask is None else _keys_allowed(memo.key_mask, rows.shape[0])

        def head(weights: Float[Array, "wave q k"]) -> Head:
            scores = rows @ weights[0] @ keys.T
            scores = cast(self.qk_std, scores) * scores
            return make_head(self.score_map, scores, allowed, None, ntk=ntk)

        return head


def _keys_allowed(key_mask: Array, queries: int) -> Array:
    return jnp.broadcast_to(key_mask.reshape(1, -1), (queries, key_mask.size))


def _checked_positions(positions: Any) -> Positions:
    made = Positions.make(positions)
    if made.rotary is not None or made.biases:
        raise WidelimitError(
            "Positions of queries from elsewhere have no offset to the keys' positions.",
            got=repr(positions),
            remedy="use Decay, which encodes the keys alone",
        )
    return made
