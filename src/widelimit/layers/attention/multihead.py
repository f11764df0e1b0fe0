"""Attention from queries to a context, once: the finite layer and its limits, side by side.

Self-attention is attention whose queries are its context, a read-out token is a query without
positions. What a layer knows of either is a state – an outline, an example, a pair – and `sides`
takes the two apart. Everything else is written here for both.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from ...errors import NetworkError, WidelimitError
from ...flat_draws import normals
from ...options import Range, choice, whole
from ...state import Example, Need, Outline, Pair
from ..base import Facts, Layer, Memo, Params, cast, leaf, require_positions
from ..dense import check_bias
from ..norm import check_rate, drop, with_diagonal
from .closed import closed_kernels, reach_of_scores
from .heads import (
    INFINITE,
    AttentionMemo,
    FeatureSide,
    HeldScores,
    ScoreField,
    check_heads,
)
from .placement import Positions, Projections, normalise
from .rules import ElementwiseScores, Head, Sides, make_head, mean_over_heads, mix_values
from .scores import ElementwiseMap, Pattern, Scaling, ScoreMap, check_score_map

PLAIN = Positions(None, (), None, Projections())
"""Of queries from elsewhere: no encoding, no biases."""


class MultiHead(Layer):
    """`y = ov_std/√(H d_v) Σ_h A_h (x W_V,h/√n) W_O,h + b`, `A_h = ζ(qk_std·scores_h)`.

    Scores are products of queries and keys. With κ^q and κ̃ the covariances of what makes them and
    κ that of what makes values, `Cov(G_ai, G_bj) = qk² κ^q_ab κ̃_ij` at 1/√d and
    κ ← ov² E[A κ A'ᵀ] + b². A score map may take several independent scores in each head.
    """

    width: int | None = eqx.field(static=True)
    heads: float = eqx.field(static=True)
    scaling: Scaling = eqx.field(static=True)
    key_width: int | None = eqx.field(static=True)
    value_width: int | None = eqx.field(static=True)
    kv_heads: int | None = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    biased: bool = eqx.field(static=True)
    score_map: ScoreMap
    positions: Positions
    pattern: Pattern | None
    qk_std: Any = leaf("qk_std", where=Range.POSITIVE)
    ov_std: Any = leaf("ov_std", where=Range.POSITIVE)
    b_std: Any = leaf("b_std", where=Range.POSITIVE)

    def __init__(
        self,
        width: int | None = None,
        *,
        heads: float = INFINITE,
        scaling: Scaling | str = Scaling.SQRT,
        score_map: ScoreMap | None = None,
        qk_std: Any = 1.0,
        ov_std: Any = 1.0,
        b_std: Any = 0.0,
        positions: Any = None,
        pattern: Pattern | None = None,
        projections: Projections | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        kv_heads: int | None = None,
        dropout: float = 0.0,
    ):
        """Attention onto `width` channels (by default as many as come in).

        `heads`: a positive integer, or INFINITE. `scaling`: see `Scaling`. `score_map` is ζ, by
        default `Softmax()`. `qk_std` multiplies the scores, `ov_std` the output; `b_std` is that of
        a bias. `positions`: Decay, Rotary, Alibi, or a tuple of them. `pattern`: which keys a query
        may see, Causal, Local, Allowed. `projections`: biases of queries, keys and
        values, and normalised queries and keys. `dropout`: the share of attention weights dropped
        in every pass. Finite network only: `key_width` and `value_width` per head (default:
        `width`), `kv_heads` < heads for grouped keys and values.
        """
        if pattern is not None and not isinstance(pattern, Pattern):
            raise WidelimitError(
                "pattern= is none of Causal(), Local(radius) and Allowed(matrix).",
                got=repr(pattern),
                remedy="e.g. pattern=Causal(), or pattern=Allowed(matrix) for a boolean matrix",
            )
        self.width = None if width is None else whole("width", width)
        self.heads = check_heads(heads)
        self.scaling = choice(Scaling, scaling, "scaling")
        self.key_width = None if key_width is None else whole("key_width", key_width)
        self.value_width = None if value_width is None else whole("value_width", value_width)
        self.kv_heads = None if kv_heads is None else whole("kv_heads", kv_heads)
        self.dropout = check_rate(dropout, "dropout")
        self.score_map = check_score_map(score_map)
        self.positions = Positions.make(positions, projections)
        self.pattern = pattern
        self.qk_std, self.ov_std = qk_std, ov_std
        self.biased, self.b_std = check_bias(b_std)
        # In the limit queries tell heads apart: groups of infinitely many change nothing.
        finite = self.heads != INFINITE
        if self.kv_heads is not None and finite and self.heads % self.kv_heads:
            raise WidelimitError(
                "kv_heads= does not divide the heads into equal groups.",
                got=f"heads={heads!r}, kv_heads={kv_heads!r}",
                remedy="let kv_heads divide heads",
            )

    # --- facts ------------------------------------------------------------------------------------

    reads_itself: ClassVar[bool] = False
    """Whether queries are the context."""

    @abstractmethod
    def sides(self, state: Any) -> tuple[Any, Any]:
        """Queries and context of an outline, an example or a pair; the same object for both."""

    @property
    def closed(self) -> bool:
        """Whether the limit of infinitely many heads has a closed form."""
        return (
            self.scaling is Scaling.SQRT
            and isinstance(self.score_map, ElementwiseMap)
            and self.heads == INFINITE
            and not self.positions.biases
            and self.positions.rotary is None
        )

    @property
    def facts(self) -> Facts:
        """The whole covariance where it makes the weights, variances where duals need them."""
        random = self.scaling is Scaling.SQRT and not self.closed
        needs_none = random and not self.positions.projections.qk_norm
        own = Need.FULL if self.scaling is Scaling.LINEAR else Need.DIAGONAL
        free = self.pattern is None or self.pattern.any_length
        return Facts(
            need=Need.FULL,
            need_own=Need.NONE if needs_none else own,
            random_scores=random,
            noisy=self.dropout > 0,
            keeps_zeros=True,
            cuttable=free and not self.positions.biases,
        )

    @property
    def matrices(self) -> int:
        """How many normal matrices W a head's scores are made of: one for each score and wave."""
        rotary = self.positions.rotary
        return self.score_map.fields * (1 if rotary is None else 2 * rotary.pairs)

    def outline(self, before: Any) -> Outline:
        queries, context = self.sides(before)
        require_positions(context, type(self).__name__)
        self.positions.require(context.positions)
        noisy = queries.noisy or context.noisy or self.dropout > 0
        return queries.with_weights(channels=self.width or context.channels, noisy=noisy)

    # --- finite width -----------------------------------------------------------------------------

    def init_params(self, key: Key[Array, ""], before: Any) -> Params:
        if self.heads == INFINITE:
            raise NetworkError(
                "A layer with infinitely many heads cannot be drawn as a finite network.",
                got="heads=INFINITE",
                remedy="draw weights of the same network with heads=8, or use with_heads(net, 8)",
            )
        queries, context = self.sides(before)
        heads, width, channels = int(self.heads), self.width or context.channels, context.channels
        key_width, value_width = self.key_width or width, self.value_width or width
        if self.positions.rotary is not None and key_width % 2:
            raise WidelimitError(
                "key_width= is odd: rotary encodings turn pairs of key channels.",
                got=f"a key width of {key_width}",
                remedy="give an even key_width=",
            )
        groups, fields = self.kv_heads or heads, self.score_map.fields
        encoding = self.positions.encoding
        score_in = channels + (0 if encoding is None else key_width)
        value_in = score_in if encoding is not None and encoding.on_values else channels
        query_in = score_in if queries is context else queries.channels
        shapes: dict[str, tuple[int, ...]] = {
            "query": (heads * fields, query_in, key_width),
            "key": (groups * fields, score_in, key_width),
            "value": (groups, value_in, value_width),
            "out": (heads, value_width, width),
        }
        if encoding is not None:
            shapes["place"] = (*context.positions, key_width)
        if self.biased:
            shapes["bias"] = (width,)
        if self.scaling is Scaling.LINEAR:
            del shapes["key"]
        shapes |= self.positions.projections.shapes(shapes)
        keys = jax.random.split(key, len(shapes))
        return {
            name: normals(subkey, shapes[name])
            for name, subkey in zip(sorted(shapes), keys, strict=True)
        }

    def forward(self, params: Params, x: Any, mask: Any, key: Any) -> Array:
        queries, context = self.sides(x)
        masks = (None, None) if mask is None else self.sides(mask)
        y = self.attend(params, None if queries is context else queries, context, masks, key)
        return y.reshape(*queries.shape[:-1], -1)

    def attend(
        self,
        params: Params,
        queries: Float[Array, "*query n"] | None,
        context: Float[Array, "*key m"],
        masks: tuple[Array | None, Array | None],
        key: Any,
    ) -> Float[Array, "query width"]:
        """The finite layer; without `queries` these are the context with its encoding."""
        encoding = self.positions.encoding
        scored = context if encoding is None else encoding.join_input(params["place"], context)
        valued = scored if encoding is not None and encoding.on_values else context
        weights = self.attention_weights(params, scored, masks, queries)
        if self.dropout > 0 and key is not None:
            weights = drop(key, weights, self.dropout)
        values = project(valued.reshape(-1, valued.shape[-1]), params["value"])
        values = self.positions.projections.add_bias(params, "value", values)
        values = jnp.repeat(values, weights.shape[0] // values.shape[0], axis=0)
        out = params["out"]
        y = jnp.einsum("hak,hkd,hde->ae", weights, values, out)
        y = y * cast(self.ov_std, y) / jnp.sqrt(jnp.asarray(out.shape[0] * out.shape[1], y.dtype))
        return y + (params["bias"] * cast(self.b_std, y))[None, :] if self.biased else y

    def attention_weights(
        self,
        params: Params,
        scored: Float[Array, "*key m"],
        masks: tuple[Array | None, Array | None] = (None, None),
        queries: Float[Array, "*query n"] | None = None,
    ) -> Float[Array, "head query key"]:
        """A_h of the finite network; `scored` already has its positional encoding."""
        made, rotary = self.positions.projections.score_side, self.positions.rotary
        keys = scored.reshape(-1, scored.shape[-1])
        rows = keys if queries is None else queries.reshape(-1, queries.shape[-1])
        q = k = made(params, "query", project(rows, params["query"]))
        if self.scaling is not Scaling.LINEAR:
            k = made(params, "key", project(keys, params["key"]))
        if rotary is not None:
            q, k = jax.vmap(rotary.rotate)(q), jax.vmap(rotary.rotate)(k)
        fields = self.score_map.fields
        q, k = (side.reshape(-1, fields, *side.shape[1:]) for side in (q, k))
        k = jnp.repeat(k, q.shape[0] // k.shape[0], axis=0)
        depth = jnp.asarray(q.shape[-1], keys.dtype)
        scale = jnp.sqrt(depth) if self.scaling is Scaling.SQRT else depth
        scores = cast(self.qk_std, keys) * (q @ jnp.swapaxes(k, -1, -2)) / scale
        bias = self.positions.bias(scored.shape[:-1], keys)
        scores = scores if bias is None else scores + bias[None, None]
        allowed = self._allowed(scored.shape[:-1], masks, scores.shape[-2:])
        return jax.vmap(lambda g: self.score_map.weigh(g, allowed))(scores)

    def _allowed(
        self,
        grid: tuple[int, ...],
        masks: tuple[Array | None, Array | None],
        shape: tuple[int, ...],
    ) -> Bool[Array, "query key"] | None:
        """Which keys count for which query: the pattern, and no padding on either side."""
        allowed = None if self.pattern is None else jnp.asarray(self.pattern.allowed(grid))
        for axis, mask in enumerate(masks):
            if mask is not None:
                real = jnp.broadcast_to(jnp.expand_dims(mask.reshape(-1), 1 - axis), shape)
                allowed = real if allowed is None else allowed & real
        return allowed

    # --- infinite width: random scores ------------------------------------------------------------

    def score_sides(self, examples: Any) -> tuple[FeatureSide, FeatureSide | None]:
        """What stacked examples offer as features of keys, and of queries (None: the same)."""
        queries, context = self.sides(examples)
        keys = self.positions.side(context)
        return keys, None if queries is context else PLAIN.side(queries)

    def scorer(
        self, memo: AttentionMemo
    ) -> Callable[[Float[Array, "matrix q k"]], Float[Array, "field query key"]]:
        """The function from the normal matrices of a head to its scores on one input."""
        queries, keys = memo.tables
        rotary, fields = self.positions.rotary, self.score_map.fields
        waves = None if rotary is None else rotary.waves(memo.grid, keys)
        bias = self.positions.bias(memo.grid, keys)
        qk_std = cast(self.qk_std, keys)

        def scores(weights: Array) -> Array:
            if self.matrices == 1:
                found = (queries @ weights[0] @ keys.T)[None]
            else:
                found = queries[None] @ weights @ keys.T[None]
            if waves is not None:
                found = found.reshape(fields, -1, *found.shape[1:])
                found = jnp.sum(waves[None] * found, axis=1)
            found = qk_std * found
            return found if bias is None else found + bias[None]

        return scores

    def head(self, memo: AttentionMemo, *, ntk: bool) -> Callable[[Array], Head]:
        """The function from the normal matrices of a head to its weights on one input."""
        rotary, scores = self.positions.rotary, self.scorer(memo)
        waves = None if rotary is None else rotary.waves(memo.grid, memo.tables[1])
        return lambda w: make_head(self.score_map, scores(w), memo.allowed, waves, ntk=ntk)

    # --- infinite width: per example --------------------------------------------------------------

    def memo(self, example: Any, field: ScoreField | HeldScores | None = None) -> AttentionMemo:
        queries, context = self.sides(example)
        positions, same = self.positions, queries is context
        grid, masks = context.outline.positions, (queries.mask, context.mask)
        allowed = self._allowed(grid, masks, (queries.size, context.size))
        memo = AttentionMemo(grid, *masks, positions.channels(context.outline), allowed)
        if isinstance(field, HeldScores):
            weights = jax.vmap(lambda g: self.score_map.weigh(g, allowed))(field.scores)
            return dataclasses.replace(memo, weights=weights)
        if not self.facts.random_scores and not self.closed:
            return dataclasses.replace(memo, weights=self._fixed_weights(context, allowed))
        lengths = positions.inverse_lengths(context)
        if self.closed:
            assert isinstance(self.score_map, ElementwiseMap)
            keys = positions.variance(context)
            keys = keys if lengths is None else keys * lengths**2
            rows = keys if same else PLAIN.variance(queries).astype(keys.dtype)
            reach = reach_of_scores(self.score_map.dual, rows, keys, cast(self.qk_std, keys))
            table = {"keys": keys, "queries": None if same else rows, "reach": reach}
            return dataclasses.replace(memo, inverse_lengths=lengths, **table)
        if field is None:
            raise NetworkError(
                "No heads were drawn for attention at 1/√d, whose scores are random.",
                got="an attention layer without drawn heads",
                remedy="call kernel, sampler or law on the whole network",
            )
        keys = positions.features(context, field.key)
        noise = positions.noise(context, keys, field.slots[1])
        if lengths is not None:
            keys = lengths[:, None] * keys
            noise = None if noise is None else lengths[:, None] * noise
        memo = dataclasses.replace(memo, keys=keys, key_noise=noise, inverse_lengths=lengths)
        if not same:
            rows = PLAIN.features(queries, field.query).astype(keys.dtype)
            noise = PLAIN.noise(queries, rows, field.slots[0])
            memo = dataclasses.replace(memo, queries=rows, query_noise=noise)
        if field.values is None:
            return memo
        outputs = self._output_features(memo, context, field)
        return dataclasses.replace(memo, outputs=outputs)

    def _fixed_weights(self, example: Example, allowed: Array | None) -> Float[Array, "query key"]:
        """A(x) = ζ(qk_std κ̃(x,x)) at 1/d, and of scores 0 where queries and keys are untied."""
        grid, size, rotary = example.outline.positions, example.size, self.positions.rotary
        if self.scaling is Scaling.UNTIED:
            scores = jnp.zeros((size, size), example.variance().dtype)
        else:
            scored = self.positions.scored(example.pair(), self.positions.channels(example.outline))
            lengths = self.positions.inverse_lengths(example)
            covariance = normalise(scored, lengths, lengths).compute().nngp
            scores = cast(self.qk_std, covariance) * covariance.reshape(size, size)
            if rotary is not None:
                cosines = rotary.waves(grid, scores)[: rotary.pairs]
                scores = scores * jnp.sum(cosines, axis=0) / math.sqrt(rotary.pairs)
        bias = self.positions.bias(grid, scores)
        scores = scores if bias is None else scores + bias
        fields = jnp.broadcast_to(scores, (self.score_map.fields, *scores.shape))
        return self.score_map.weigh(fields, allowed)

    def _output_features(
        self, memo: AttentionMemo, context: Example, field: ScoreField
    ) -> Float[Array, "query feature"]:
        """`F = H^{-1/2} (A_1 Φ_v T_1, …, A_H Φ_v T_H)`, T = 1 for values of infinite width."""
        assert field.values is not None
        head = self.head(memo, ntk=False)
        rows = self.positions.features(context, field.values.basis, of_values=True)
        mixed = jax.vmap(lambda w: head(w).weights)(field.weights) @ rows
        factor = field.values.factor
        mixed = mixed if factor is None else mixed @ factor
        features = jnp.moveaxis(mixed, 0, 1).reshape(mixed.shape[1], -1)
        return features / math.sqrt(mixed.shape[0])

    # --- infinite width: per pair -----------------------------------------------------------------

    def cross(
        self, pair: Any, memo1: Memo, memo2: Memo, field: ScoreField | HeldScores | None = None
    ) -> Pair:
        share = field.share if isinstance(field, HeldScores) else 1.0
        return self._kernels(pair, memo1.on_side(0), memo2.on_side(1), field, share)

    def own(self, pair: Any, memo: Memo, field: ScoreField | HeldScores | None = None) -> Pair:
        """Within one pass; dropped weights are independent between passes, queries and keys.

        κ_aa(x, x) has `ov² rate/(1 − rate) Σ_i E[A_ai²] κ_ii` more.
        """
        one_pass = memo.on_side(0)
        moved = self._kernels(pair, one_pass, one_pass, field, 1.0)
        if self.dropout == 0:
            return moved
        _, context = self.sides(pair)
        valued = self.positions.valued(context, one_pass.channels)
        valued = valued.hide_padding(memo.key_mask, memo.key_mask)
        squares = self.mean_over_weights(one_pass, field, jnp.square)
        more = squares @ valued.diagonal().nngp.reshape(-1) * self.dropout / (1 - self.dropout)
        scale, _ = self._output_scales(more)
        return with_diagonal(moved, moved.diagonal().nngp.reshape(-1) + scale * more)

    def _kernels(
        self,
        pair: Any,
        memo1: AttentionMemo,
        memo2: AttentionMemo,
        field: ScoreField | HeldScores | None,
        share: float,
    ) -> Pair:
        """κ ← ov² E[A κ A'ᵀ] + b²; `share` of what is between the two inputs."""
        queries, context = self.sides(pair)
        positions, masks = self.positions, (memo1.query_mask, memo2.query_mask)
        if memo1.weights is not None and memo2.weights is not None:
            valued = positions.valued(context, memo1.channels)
            mixed = mix_values(queries, valued, memo1.weights, memo2.weights)
            scale, bias = self._output_scales(mixed.nngp)
            scale = scale * share if share != 1 else scale
            return mixed.affine(scale=scale, lift=2 * scale, bias=bias, masks=masks)
        same = queries is context
        queries = queries.compute()
        context = queries if same else context.compute()
        if memo1.outputs is not None and memo2.outputs is not None:
            nngp, ntk = memo1.outputs @ memo2.outputs.T, None
        else:
            valued = positions.valued(context, memo1.channels)
            scored = positions.scored(context, memo1.channels)
            scored = normalise(scored, memo1.inverse_lengths, memo2.inverse_lengths)
            query = scored if same else queries
            valued = valued.hide_padding(memo1.key_mask, memo2.key_mask)
            nngp, ntk = self._averages(Sides.of(query, scored, valued), memo1, memo2, field)
        shape = queries.nngp.shape
        plain = queries.to(nngp.reshape(shape), None if ntk is None else ntk.reshape(shape))
        scale, bias = self._output_scales(nngp)
        return plain.affine(scale=scale, lift=jnp.zeros_like(scale), bias=bias).hide_padding(*masks)

    def _averages(
        self, sides: Sides, memo1: AttentionMemo, memo2: AttentionMemo, field: Any
    ) -> tuple[Array, Array | None]:
        """Values mixed by random weights, on average over heads."""
        dtype = sides.value.dtype
        qk_variance = cast(self.qk_std, sides.value) ** 2
        if self.closed:
            assert isinstance(self.score_map, ElementwiseMap)
            # Padding is masked on the value side already: only a pattern needs the matrices.
            tables = (None, None) if self.pattern is None else (memo1.allowed, memo2.allowed)
            one, two = (None if table is None else table.astype(dtype) for table in tables)
            scores = ElementwiseScores(sides, (memo1.tables, memo2.tables), (one, two), qk_variance)
            return closed_kernels(self.score_map.dual, scores)
        heads = [self.head(memo, ntk=sides.ntk is not None) for memo in (memo1, memo2)]
        draws = field.weights.astype(dtype)
        slope = qk_variance if field.trained else None
        return mean_over_heads(lambda w: (heads[0](w), heads[1](w)), draws, sides, slope)

    def _output_scales(self, like: Array) -> tuple[Array, Array | None]:
        """`ov²`, and `b²` where there is a bias."""
        return cast(self.ov_std, like) ** 2, cast(self.b_std, like) ** 2 if self.biased else None

    def mean_over_weights(
        self, memo: AttentionMemo, field: Any, function: Callable[[Array], Array]
    ) -> Float[Array, "query key"]:
        """`E f(A_ai(x))` over heads, of one input's memo; f(0) = 0.

        At 1/d the weights are deterministic. At 1/√d they are averaged over the drawn heads or,
        where nothing is drawn, over scores `G_ai ~ N(0, qk² κ^q_aa κ̃_ii)`.
        """
        if memo.weights is not None:
            weights = function(memo.weights)
            return weights if weights.ndim == 2 else jnp.mean(weights, axis=0)
        queries, keys = memo.tables
        if field is not None:
            head, draws = self.head(memo, ntk=False), field.weights.astype(keys.dtype)
            return jnp.mean(jax.lax.map(lambda w: function(head(w).weights), draws), axis=0)
        assert isinstance(self.score_map, ElementwiseMap)
        deviation = cast(self.qk_std, keys) * jnp.sqrt(jnp.outer(queries, keys))
        points, masses = (jnp.asarray(array, keys.dtype) for array in (_POINTS, _MASSES))
        values = function(self.score_map.dual.fn(deviation[..., None] * points[None, None, :]))
        weights = values @ masses
        return weights if memo.allowed is None else jnp.where(memo.allowed, weights, 0)


# An even grid of standard normals is exact to 1e-6 for smooth functions, to 1e-4 with a kink.
_POINTS = np.linspace(-8, 8, 641)
_MASSES = np.exp(-(_POINTS**2) / 2) / np.sum(np.exp(-(_POINTS**2) / 2))


def project(x: Float[Array, "position n"], weights: Float[Array, "head n d"]) -> Array:
    """`x W_h / √n` for every head."""
    return jnp.einsum("pn,hnd->hpd", x, weights) / jnp.sqrt(jnp.asarray(x.shape[1], x.dtype))
