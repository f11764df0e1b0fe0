"""What attention layers share whose queries come from elsewhere than their keys."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ...errors import WidelimitError
from ...options import Range, whole
from ...printing import written
from ...state import Example, Need, Outline, Pair
from ..base import Layer, Memo, Params, cast, leaf
from ..dense import checked_bias
from ..labels import Label
from .closed import closed_kernels
from .finite import (
    attention_label,
    finite_heads,
    joined_heads,
    project,
    resized_attention,
    standard_normals,
)
from .heads import INFINITE, Basis, ScoreField, checked_heads, noisy_rows, required_field
from .placement import Positions
from .rules import Head, Sides, make_head, mean_over_heads
from .scores import ElementwiseMap, ScoreMap, Softmax, checked_score_map


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

    def on_side(self, side: int) -> "_QueriedMemo":
        """The memo of the first or the second of two passes."""
        queries = noisy_rows(self.queries, self.query_noise, side)
        keys = noisy_rows(self.keys, self.key_noise, side)
        return _QueriedMemo(self.query_mask, self.key_mask, queries, keys, self.channels)


class QueriedAttention(Layer):
    """Attention at 1/√d from queries with covariance κ^q to keys and values with covariance κ.

    Scores have `Cov(G_ai, G_bj) = qk² κ^q_ab κ̃_ij`; κ ← ov² E[A κ A'ᵀ], and the tangent kernel has
    the terms of self-attention with κ^q, Θ^q in place of the query side.
    """

    width: int | None = eqx.field(static=True)
    heads: float = eqx.field(static=True)
    key_width: int | None = eqx.field(static=True)
    value_width: int | None = eqx.field(static=True)
    biased: bool = eqx.field(static=True)
    score_map: ScoreMap
    positions: Positions
    field: ScoreField | None
    qk_std: Any = leaf("qk_std", where=Range.POSITIVE)
    ov_std: Any = leaf("ov_std", where=Range.POSITIVE)
    b_std: Any = leaf("b_std", where=Range.POSITIVE)

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
        self.width = None if width is None else whole("width", width)
        self.heads = checked_heads(heads)
        self.score_map = checked_score_map(score_map)
        self.positions = _checked_positions(positions)
        self.key_width = None if key_width is None else whole("key_width", key_width)
        self.value_width = None if value_width is None else whole("value_width", value_width)
        self.biased, self.b_std = checked_bias(b_std)
        self.qk_std, self.ov_std = qk_std, ov_std
        self.field = None

    def _closed(self) -> bool:
        return isinstance(self.score_map, ElementwiseMap) and self.heads == INFINITE

    def sampled(self) -> bool:
        return not self._closed()

    def need(self, out: Need) -> Need:
        return Need.FULL

    @property
    def need_own(self) -> Need:
        """Variances where duals need them."""
        return Need.DIAGONAL if self._closed() else Need.NONE

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        need = super().encode_need(out, noisy=noisy)
        return Need.FULL if noisy and self.sampled() else need

    # --- finite width -----------------------------------------------------------------------------

    def init_weights(self, key: Key[Array, ""], queries: int, context: Outline) -> Params:
        """Parameters for queries with so many channels."""
        heads, width = finite_heads(self.heads), self.width or context.channels
        key_width, value_width = self.key_width or width, self.value_width or width
        encoding, channels = self.positions.encoding, context.channels
        score_in = channels + (0 if encoding is None else key_width)
        value_in = score_in if encoding is not None and encoding.on_values else channels
        shapes: dict[str, tuple[int, ...]] = {
            "query": (heads, queries, key_width),
            "key": (heads, score_in, key_width),
            "value": (heads, value_in, value_width),
            "out": (heads, value_width, width),
        }
        if encoding is not None:
            shapes["place"] = (*context.positions, key_width)
        if self.biased:
            shapes["bias"] = (width,)
        return standard_normals(key, shapes)

    def attend(
        self,
        params: Params,
        queries: Float[Array, "query n"],
        context: Float[Array, "key m"],
        key_mask: Array | None,
        grid: tuple[int, ...],
    ) -> Float[Array, "query width"]:
        """The finite layer on flattened positions."""
        scored = context
        encoding = self.positions.encoding
        if encoding is not None:
            scored = encoding.encoded(params["place"], context.reshape(*grid, -1))
            scored = scored.reshape(context.shape[0], -1)
        valued = scored if encoding is not None and encoding.on_values else context
        q, k = project(queries, params["query"]), project(scored, params["key"])
        values = project(valued, params["value"])
        scores = cast(self.qk_std, q) * (q @ jnp.swapaxes(k, 1, 2))
        scores = scores / jnp.sqrt(jnp.asarray(q.shape[-1], q.dtype))
        allowed = None if key_mask is None else _keys_allowed(key_mask, q.shape[1])
        weights = jax.vmap(lambda g: self.score_map(g, allowed))(scores)
        return joined_heads(weights, values, params, self.ov_std, self.b_std)

    # --- infinite width ---------------------------------------------------------------------------

    @abstractmethod
    def query_table(self, example: Any, basis: Basis | None) -> Array:
        """Variances (no basis) or feature rows of the queries."""

    def make_memo(self, example: Any, context: Example, query_mask: Array | None) -> _QueriedMemo:
        """Per-example quantities; `context` makes keys and values."""
        channels = self.positions.channels(context.outline)
        if self._closed():
            keys, queries = self.positions.variance(context), self.query_table(example, None)
            return _QueriedMemo(
                query_mask, context.mask, queries.astype(keys.dtype), keys, channels
            )
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
        qk_variance = cast(self.qk_std, context.nngp) ** 2
        if self._closed():
            assert isinstance(self.score_map, ElementwiseMap)
            nngp, ntk = closed_kernels(
                self.score_map.dual,
                sides,
                (memo1.queries, memo1.keys),
                (memo2.queries, memo2.keys),
                None,
                None,
                qk_variance,
            )
        else:
            with_ntk = context.ntk is not None
            draws = required_field(self.field).weights.astype(context.nngp.dtype)
            nngp, ntk = mean_over_heads(
                lambda w: (
                    self._head(memo1, w, ntk=with_ntk),
                    self._head(memo2, w, ntk=with_ntk),
                ),
                draws,
                sides,
                qk_variance,
            )
        shape = queries.nngp.shape
        plain = queries.to(nngp.reshape(shape), None if ntk is None else ntk.reshape(shape))
        scale = cast(self.ov_std, context.nngp) ** 2
        bias = cast(self.b_std, context.nngp) ** 2 if self.biased else None
        moved = plain.affine(scale=scale, lift=jnp.zeros_like(scale), bias=bias)
        return moved.masked(memo1.query_mask, memo2.query_mask)

    def _head(self, memo: _QueriedMemo, weights: Float[Array, "wave q k"], *, ntk: bool) -> Head:
        rows, keys = memo.queries, memo.keys
        scores = rows @ weights[0] @ keys.T
        scores = cast(self.qk_std, scores) * scores
        allowed = None if memo.key_mask is None else _keys_allowed(memo.key_mask, rows.shape[0])
        return make_head(self.score_map, scores, allowed, None, ntk=ntk)

    @property
    def keeps_zeros(self) -> bool:
        return True

    @property
    def cuttable(self) -> bool:
        return True

    @property
    def label(self) -> Label:
        return attention_label(self, "1/√d")

    def resized(self, new: Callable[[int, bool], int], *, last: bool) -> tuple[Layer, bool]:
        return resized_attention(self, new, last)

    def with_heads(self, heads: float) -> Layer:
        return self.changed(heads=checked_heads(heads))

    def mean(self, example: Example, memo: Memo) -> None:
        return None


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
