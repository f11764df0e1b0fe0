"""Attention whose queries come from elsewhere: another stream, or a learned read-out token."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ...errors import ShapeError
from ...state import Example, Need, Outline, Pair
from ..base import MaskedMemo, Memo, Params
from .heads import INFINITE, Basis, FeatureSide, Scheme, draw_field, with_field
from .placement import Positions
from .queried import QueriedAttention
from .scores import ScoreMap


class AttentionPool(QueriedAttention):
    """One learned query (a read-out token) attends to all positions: a learned pooling.

    The query is a trained vector of N(0, 1) entries, as many as a head's keys have channels:
    κ^q = Θ^q = 1.
    """

    # Spelled out for type checkers, which take inherited fields for arguments.
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
        """Options as for `Attention`: `qk_std`, `ov_std`, `b_std`, widths, `positions` (Decay)."""
        super().__init__(
            width,
            heads=heads,
            score_map=score_map,
            qk_std=qk_std,
            ov_std=ov_std,
            b_std=b_std,
            positions=positions,
            key_width=key_width,
            value_width=value_width,
        )

    def outline(self, before: Outline) -> Outline:
        if not before.positions:
            raise ShapeError(
                "AttentionPool works over positions.",
                got="an input without position axes, shape (N, channels)",
                remedy="give inputs of shape (N, positions…, channels)",
            )
        self.positions.require(before.positions)
        width = self.width or before.channels
        return before.with_weights(positions=(), channels=width)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        token_key, key = jax.random.split(key)
        width = self.key_width or self.width or before.channels
        token = jax.random.normal(token_key, (width,))
        return {"token": token, **self.init_weights(key, width, before)}

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        flat = x.reshape(-1, x.shape[-1])
        y = self.attend(params, params["token"][None, :], flat, mask, x.shape[:-1])
        return y[0]

    def mask(self, mask: Array) -> Array | None:
        return None

    def query_table(self, example: Example, basis: Basis | None) -> Array:
        return jnp.ones((1,) if basis is None else (1, 1))

    def query_noise(self, example: Example, rows: Array, slots: int) -> None:
        return None

    def memo(self, example: Example) -> Memo:
        return self.make_memo(example, example, None)

    def drawn(self, crowd: Example, key: Key[Array, ""], scheme: Scheme) -> "AttentionPool":
        if not self.sampled():
            return self
        one = FeatureSide(jnp.ones((1, 1, 1)), lambda: None)
        side = self.positions.side(crowd)
        count, chosen = self.heads, self.field
        field = draw_field(key, side, one, heads=count, scheme=scheme, chosen=chosen)
        return with_field(self, field)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return self.kernels(_token(pair), pair, memo1.on_side(0), memo2.on_side(1))

    def own(self, pair: Pair, memo: Memo) -> Pair:
        one_pass = memo.on_side(0)
        return self.kernels(_token(pair), pair, one_pass, one_pass)


def _token(pair: Pair) -> Pair:
    """κ^q = Θ^q = 1."""
    one = jnp.ones((), pair.nngp.dtype)
    return Pair(one, None if pair.ntk is None else one, 0, True)


class CrossAttention(QueriedAttention):
    """Queries from the first of two streams, keys and values from the second.

    Inputs are tuples `(queries, context)`; `Parallel` runs a network on either stream first. At 1/d
    queries and keys would share their weights, and the limit would need the covariance between the
    two streams: put both into one sequence and use `Attention(pattern=Allowed(…))` for that.
    """

    # Spelled out for type checkers, which take inherited fields for arguments.
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
        """Options as for `Attention`; `positions` (Decay) encodes the context."""
        super().__init__(
            width,
            heads=heads,
            score_map=score_map,
            qk_std=qk_std,
            ov_std=ov_std,
            b_std=b_std,
            positions=positions,
            key_width=key_width,
            value_width=value_width,
        )

    def streams(self) -> int:
        return 2

    def outline(self, before: Any) -> Outline:
        if not isinstance(before, tuple) or len(before) != 2 or not before[1].positions:
            raise ShapeError(
                "CrossAttention takes two streams (queries, context), the second with positions.",
                got=repr(before),
                remedy="pass x as a tuple of two arrays, and start with Parallel or CrossAttention",
            )
        queries, context = before
        self.positions.require(context.positions)
        width = self.width or context.channels
        noisy = queries.noisy or context.noisy
        return queries.with_weights(channels=width, noisy=noisy)

    def init_params(self, key: Key[Array, ""], before: Any) -> Params:
        return self.init_weights(key, before[0].channels, before[1])

    def forward(self, params: Params, x: Any, mask: Any, key: Any):
        queries, context = x
        key_mask = None if mask is None else mask[1]
        flat = context.reshape(-1, context.shape[-1])
        rows = queries.reshape(-1, queries.shape[-1])
        y = self.attend(params, rows, flat, key_mask, context.shape[:-1])
        return y.reshape(*queries.shape[:-1], -1)

    def mask(self, mask: Any) -> Array | None:
        return mask[0]

    def query_table(self, example: Any, basis: Basis | None) -> Array:
        plain, queries = Positions.make(None), example[0]
        return plain.variance(queries) if basis is None else plain.features(queries, basis)

    def query_noise(self, example: Any, rows: Array, slots: int) -> Array | None:
        return Positions.make(None).noise(example[0], rows, slots)

    def memo(self, example: Any) -> Memo:
        return self.make_memo(example, example[1], example[0].mask)

    def drawn(self, crowd: Any, key: Key[Array, ""], scheme: Scheme) -> "CrossAttention":
        if not self.sampled():
            return self
        queries = Positions.make(None).side(crowd[0])
        keys = self.positions.side(crowd[1])
        count, chosen = self.heads, self.field
        field = draw_field(key, keys, queries, heads=count, scheme=scheme, chosen=chosen)
        return with_field(self, field)

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Pair:
        return self.kernels(pair[0], pair[1], memo1.on_side(0), memo2.on_side(1))

    def own(self, pair: Any, memo: Memo) -> Pair:
        one_pass = memo.on_side(0)
        return self.kernels(pair[0], pair[1], one_pass, one_pass)

    def encode(self, example: Any, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        after = self.outline((example[0].outline, example[1].outline))
        memo = self.masked_memo(example)
        nngp, full = None, False
        if need is not Need.NONE:
            pair = self.own(tuple(stream.pair() for stream in example), memo.own)
            pair = pair.diagonal() if need is Need.DIAGONAL else pair
            nngp, full = pair.nngp, pair.full
        landmarks = None
        if example[0].landmarks is not None:
            both = tuple(stream.landmarks for stream in example)
            landmarks = jax.vmap(lambda pairs, m: self.cross(pairs, memo.own, m.own))(both, anchors)
        return memo, Example(nngp, None, example[0].mask, None, landmarks, full, after)

    def step(self, pair: Any, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        crossed = self.cross(pair, memo1.own, memo2.own)
        return crossed.diagonal() if need is Need.DIAGONAL and crossed.full else crossed

    def masked_memo(self, example: Any) -> MaskedMemo:
        return MaskedMemo(self.memo(example), None)
