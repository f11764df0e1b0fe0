"""Attention whose queries come from elsewhere: another stream, or a learned read-out token."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ...errors import ShapeError
from ...flat_draws import normals
from ...state import Example, Need, Outline, Pair
from ..base import MaskedMemo, Memo, Params, require_positions
from .heads import Basis, FeatureSide
from .multihead import standard_normals
from .placement import Positions
from .queried import QueriedAttention


class AttentionPool(QueriedAttention):
    """One learned query (a read-out token) attends to all positions: a learned pooling.

    The query is a trained vector of N(0, 1) entries, as wide as a head's keys: κ^q = Θ^q = 1.
    """

    __init__ = QueriedAttention.__init__  # type checkers take inherited fields for arguments

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "AttentionPool")
        self.positions.require(before.positions)
        width = self.width or before.channels
        return before.with_weights(positions=(), channels=width)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        token_key, key = jax.random.split(key)
        width = self.key_width or self.width or before.channels
        token = normals(token_key, (width,))
        weights = standard_normals(key, self.weight_shapes(before, queries=width))
        return {"token": token, **weights}

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        return self.attend(params, params["token"][None, :], x, mask)[0]

    def mask(self, mask: Array) -> Array | None:
        return None

    def query_table(self, example: Example, basis: Basis | None) -> Array:
        return jnp.ones((1,) if basis is None else (1, 1))

    def query_noise(self, example: Example, rows: Array, slots: int) -> None:
        return None

    def memo(self, example: Example) -> Memo:
        return self.make_memo(example, example, None)

    def score_sides(self, examples: Example) -> tuple[FeatureSide, FeatureSide]:
        return self.positions.side(examples), FeatureSide(jnp.ones((1, 1, 1)), lambda: None)

    def moved(self, pair: Pair, memo1: Any, memo2: Any) -> Pair:
        return self.kernels(_token(pair), pair, memo1, memo2)


def _token(pair: Pair) -> Pair:
    """κ^q = Θ^q = 1."""
    one = jnp.ones((), pair.nngp.dtype)
    return Pair(one, None if pair.ntk is None else one, 0, True)


class CrossAttention(QueriedAttention):
    """Queries from the first of two streams, keys and values from the second.

    Inputs are tuples `(queries, context)`; `Parallel` runs a network on each stream first. At 1/d
    queries and keys would share their weights, and the limit would need the covariance between the
    two streams: put both into one sequence and use `Attention(pattern=Allowed(…))` for that.
    """

    __init__ = QueriedAttention.__init__  # type checkers take inherited fields for arguments

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
        shapes = self.weight_shapes(before[1], queries=before[0].channels)
        return standard_normals(key, shapes)

    def forward(self, params: Params, x: Any, mask: Any, key: Any):
        queries, context = x
        key_mask = None if mask is None else mask[1]
        rows = queries.reshape(-1, queries.shape[-1])
        y = self.attend(params, rows, context, key_mask)
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

    def score_sides(self, examples: Any) -> tuple[FeatureSide, FeatureSide]:
        return self.positions.side(examples[1]), Positions.make(None).side(examples[0])

    def moved(self, pair: Any, memo1: Any, memo2: Any) -> Pair:
        return self.kernels(pair[0], pair[1], memo1, memo2)

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
