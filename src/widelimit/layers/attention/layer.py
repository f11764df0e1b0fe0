"""Multi-head attention: the finite network and its limits, side by side."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from ...errors import WidelimitError
from ...options import choice, whole
from ...printing import brief, written
from ...state import Example, Need, Outline, Pair
from ..activations import Reach
from ..base import Layer, MaskedMemo, Memo, Params, cast, require_positions
from ..noise import checked_rate, dropped, with_diagonal
from .closed import reach_of_scores
from .heads import INFINITE, FeatureSide, checked_heads, noisy_rows, required_field
from .multihead import MultiHead, project, standard_normals
from .placement import Positions
from .projections import Projections, of_one_length
from .rules import Head, Sides, make_head
from .scores import ElementwiseMap, Pattern, Scaling, ScoreMap, Softmax


class AttentionMemo(eqx.Module):
    """What pairs need of one input: LINEAR, its weights; SQRT, variances or feature rows."""

    grid: tuple[int, ...] = eqx.field(static=True)
    mask: Array | None
    channels: Array | None
    table: Array
    allowed: Array | None
    # Feature rows of this pass alone, where entries were dropped.
    noise: Array | None = None
    # Of queries and keys that are brought to one length.
    inverse_lengths: Array | None = None
    # Of the scores' variances, where the score map's dual has limits.
    reach: Reach | None = None

    def on_side(self, side: int) -> "AttentionMemo":
        """The memo of the first or the second of two passes."""
        table = noisy_rows(self.table, self.noise, side)
        return dataclasses.replace(self, table=table, noise=None)

    @property
    def variances(self) -> tuple[Array, Array]:
        """Of queries and of keys."""
        return self.table, self.table


class Attention(MultiHead):
    """`y = ov_std/√(H d_v) Σ_h A_h (x W_V,h/√n) W_O,h + b`, `A_h = ζ(qk_std·scores_h)`.

    Scores are `Q_h K_hᵀ/√d_k` with independent queries and keys (SQRT), `Q_h Q_hᵀ/d_k` (LINEAR), or
    `Q_h K_hᵀ/d_k` (UNTIED). With κ̃ the covariance after positional encoding:

    - LINEAR: `A(x) = ζ(qk_std κ̃(x,x))` is deterministic; κ ← ov² AκA'ᵀ, Θ ← ov²(AΘA'ᵀ + 2AκA'ᵀ).
    - UNTIED: the same with `A = ζ(0)`, or ζ of the biases that are added to the scores.
    - SQRT, infinitely many heads: κ ← ov² E[A κ A'ᵀ] over Gaussian scores with covariance
      `qk² κ̃_ab κ̃_ij`; exact for elementwise maps, sampled heads for softmax.
    - SQRT, H heads: the limit is Gaussian only given the scores; kernels are averages over them,
      and `law` gives the whole distribution.
    """

    scaling: Scaling = eqx.field(static=True, kw_only=True)
    kv_heads: int | None = eqx.field(static=True, kw_only=True)
    pattern: Pattern | None = eqx.field(kw_only=True)
    dropout: float = eqx.field(static=True, kw_only=True)

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
        """Self-attention onto `width` channels (by default as many as come in).

        `heads`: a positive integer, or INFINITE. `scaling`: see `Scaling`. `score_map` is ζ, by
        default `Softmax()`. `qk_std` multiplies the scores, `ov_std` the output; `b_std` is that of
        a bias. `positions`: Decay, Rotary, Alibi, or a tuple of them. `pattern`: which keys a query
        may see, Causal, Local, Allowed. `projections`: biases of queries, keys and
        values, and normalised queries and keys. `dropout`: the share of attention weights dropped
        in every pass. Finite network only: `key_width` and `value_width` per head (default:
        `width`), `kv_heads` < heads for grouped keys and values.
        """
        placed = Positions.make(positions, projections)
        stds, widths = (qk_std, ov_std, b_std), (key_width, value_width)
        self._set_shared(width, heads, score_map, placed, stds, widths)
        self.scaling = choice(Scaling, scaling, "scaling")
        if pattern is not None and not isinstance(pattern, Pattern):
            raise WidelimitError(
                "pattern= takes Causal(), Local(radius) or Allowed(matrix).",
                got=repr(pattern),
                remedy="e.g. pattern=Causal(), or pattern=Allowed(matrix) for a boolean matrix",
            )
        self.pattern = pattern
        self.dropout = checked_rate(dropout, "dropout")
        self.kv_heads = None if kv_heads is None else whole("kv_heads", kv_heads)
        # In the limit queries tell heads apart: groups of infinitely many change nothing.
        finite = self.heads != INFINITE
        if self.kv_heads is not None and finite and self.heads % self.kv_heads:
            raise WidelimitError(
                "Grouped heads share keys and values in equal groups.",
                got=f"heads={heads!r}, kv_heads={kv_heads!r}",
                remedy="let kv_heads divide heads",
            )

    # --- shapes ---------------------------------------------------------------------------------

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "Attention")
        self.positions.require(before.positions)
        width = self.width or before.channels
        return before.with_weights(channels=width, noisy=before.noisy or self.noisy)

    @property
    def noisy(self) -> bool:
        return self.dropout > 0

    @property
    def need_own(self) -> Need:
        """The whole covariance where it makes the weights, the variances where duals need them."""
        if self.scaling is Scaling.LINEAR:
            return Need.FULL
        sampled = self.sampled() and not self.positions.projections.qk_norm
        return Need.NONE if sampled else Need.DIAGONAL

    def closed(self) -> bool:
        return (
            self.scaling is Scaling.SQRT
            and isinstance(self.score_map, ElementwiseMap)
            and self.heads == INFINITE
            and not self.positions.biases
            and self.positions.rotary is None
        )

    def sampled(self) -> bool:
        return self.scaling is Scaling.SQRT and not self.closed()

    # --- finite width ---------------------------------------------------------------------------

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        shapes = self.weight_shapes(before, groups=self.kv_heads)
        key_width = shapes["key"][-1]
        if self.positions.rotary is not None and key_width % 2:
            raise WidelimitError(
                "Rotary encodings turn pairs of key channels.",
                got=f"a key width of {key_width}",
                remedy="give an even key_width=",
            )
        if self.scaling is Scaling.LINEAR:
            del shapes["key"]
        return standard_normals(key, shapes | self.positions.projections.shapes(shapes))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        scored, valued = self.encoded(params, x)
        weights = self.attention_weights(params, scored, mask)
        if self.noisy and key is not None:
            weights = dropped(key, weights, self.dropout)
        flat = valued.reshape(-1, valued.shape[-1])
        projections = self.positions.projections
        values = projections.value_side(params, project(flat, params["value"]))
        values = jnp.repeat(values, weights.shape[0] // values.shape[0], axis=0)
        y = self.joined(params, weights, values)
        return y.reshape(*x.shape[:-1], -1)

    def attention_weights(
        self, params: Params, scored: Array, mask: Array | None
    ) -> Float[Array, "head query key"]:
        """A_h of the finite network; `scored` already has its positional encoding."""
        positions = scored.shape[:-1]
        flat = scored.reshape(-1, scored.shape[-1])
        made = self.positions.projections.score_side
        queries = keys = made(params, "query", project(flat, params["query"]))
        if self.scaling is not Scaling.LINEAR:
            keys = made(params, "key", project(flat, params["key"]))
        if self.positions.rotary is not None:
            turn = jax.vmap(self.positions.rotary.rotated)
            queries, keys = turn(queries), turn(keys)
        keys = jnp.repeat(keys, queries.shape[0] // keys.shape[0], axis=0)
        depth = jnp.asarray(queries.shape[-1], flat.dtype)
        scale = jnp.sqrt(depth) if self.scaling is Scaling.SQRT else depth
        scores = cast(self.qk_std, flat) * (queries @ jnp.swapaxes(keys, 1, 2)) / scale
        bias = self.positions.bias(positions, flat)
        scores = scores if bias is None else scores + bias[None]
        allowed = self._allowed(positions, mask)
        return jax.vmap(lambda g: self.score_map(g, allowed))(scores)

    def _allowed(
        self, positions: tuple[int, ...], mask: Array | None
    ) -> Bool[Array, "query key"] | None:
        """Which keys count for which query: the pattern, and no padding on either side."""
        allowed = None if self.pattern is None else jnp.asarray(self.pattern.allowed(positions))
        if mask is not None:
            real = mask.reshape(-1)
            both = real[:, None] & real[None, :]
            allowed = both if allowed is None else allowed & both
        return allowed

    # --- infinite width: per example --------------------------------------------------------------

    def memo(self, example: Example) -> Memo:
        grid, mask = example.outline.positions, example.mask
        allowed = self._allowed(grid, mask)
        channels = self.positions.channels(example.outline)
        if self.scaling is not Scaling.SQRT:
            return AttentionMemo(grid, mask, channels, self._weights(example, allowed), None)
        lengths = self.positions.inverse_lengths(example)
        if self.closed():
            variance = self.positions.variance(example)
            variance = variance if lengths is None else variance * lengths**2
            assert isinstance(self.score_map, ElementwiseMap)
            reach = reach_of_scores(
                self.score_map.dual, variance, variance, cast(self.qk_std, variance)
            )
            return AttentionMemo(grid, mask, channels, variance, allowed, None, lengths, reach)
        field = required_field(self.field)
        rows = self.positions.features(example, field.key)
        noise = self.positions.noise(example, rows, field.slots[1])
        if lengths is not None:
            rows = lengths[:, None] * rows
            noise = None if noise is None else lengths[:, None] * noise
        return AttentionMemo(grid, mask, channels, rows, allowed, noise, lengths)

    def _weights(self, example: Example, allowed: Array | None) -> Float[Array, "query key"]:
        """A(x) = ζ(qk_std κ̃(x,x)) at 1/d, and of scores 0 where queries and keys are untied."""
        grid, size, rotary = example.outline.positions, example.size, self.positions.rotary
        if self.scaling is Scaling.UNTIED:
            scores = jnp.zeros((size, size), example.variance().dtype)
        else:
            scored = self.positions.scored(example.pair(), self.positions.channels(example.outline))
            lengths = self.positions.inverse_lengths(example)
            covariance = of_one_length(scored, lengths, lengths).forced().nngp
            scores = cast(self.qk_std, covariance) * covariance.reshape(size, size)
            if rotary is not None:
                cosines = rotary.waves(grid, scores)[: rotary.pairs]
                scores = scores * jnp.sum(cosines, axis=0) / math.sqrt(rotary.pairs)
        bias = self.positions.bias(grid, scores)
        return self.score_map(scores if bias is None else scores + bias, allowed)

    # --- infinite width: random scores ------------------------------------------------------------

    def score_sides(self, examples: Example) -> tuple[FeatureSide, None]:
        return self.positions.side(examples), None

    @property
    def waves(self) -> int:
        rotary = self.positions.rotary
        return 1 if rotary is None else 2 * rotary.pairs

    # --- infinite width: per pair -----------------------------------------------------------------

    def moved(self, pair: Pair, memo1: AttentionMemo, memo2: AttentionMemo) -> Pair:
        masks = (memo1.mask, memo2.mask)
        if self.scaling is not Scaling.SQRT:
            scale, bias = self.output_scales(pair.nngp)
            valued = self.positions.valued(pair, memo1.channels)
            mixed = valued.lazily_mixed(memo1.table, memo2.table)
            return mixed.affine(scale=scale, lift=2 * scale, bias=bias, masks=masks)
        pair = pair.forced()
        valued = self.positions.valued(pair, memo1.channels)
        scored = self.positions.scored(pair, memo1.channels)
        scored = of_one_length(scored, memo1.inverse_lengths, memo2.inverse_lengths)
        sides = Sides.of(scored, scored, valued.masked(*masks))
        # Padding is masked on the value side already: only a pattern needs the matrices.
        tables = (None, None) if self.pattern is None else (memo1.allowed, memo2.allowed)
        one, two = (None if table is None else table.astype(pair.nngp.dtype) for table in tables)
        return self.mixed(pair, sides, memo1, memo2, (one, two)).masked(*masks)

    def own(self, pair: Pair, memo: Memo) -> Pair:
        """Dropped weights are independent between passes, queries and keys.

        Within a pass κ_aa(x, x) has `ov² rate/(1 − rate) Σ_i E[A_ai²] κ_ii` more.
        """
        moved = super().own(pair, memo)
        if not self.noisy:
            return moved
        one_pass = memo.on_side(0)
        valued = self.positions.valued(pair, one_pass.channels).masked(memo.mask, memo.mask)
        squares = mean_over_weights(self, one_pass, jnp.square)
        more = squares @ valued.diagonal().nngp.reshape(-1) * self.dropout / (1 - self.dropout)
        scale, _ = self.output_scales(more)
        return with_diagonal(moved, moved.diagonal().nngp.reshape(-1) + scale * more)

    def scorer(self, memo: AttentionMemo, *, ntk: bool) -> Callable[[Array], Head]:
        grid, rows, rotary = memo.grid, memo.table, self.positions.rotary
        waves = None if rotary is None else rotary.waves(grid, rows)
        bias = self.positions.bias(grid, rows)
        qk_std = cast(self.qk_std, rows)

        def head(weights: Float[Array, "wave rank rank"]) -> Head:
            if waves is None:
                scores = rows @ weights[0] @ rows.T
            else:
                scores = jnp.sum(waves * (rows[None] @ weights @ rows.T[None]), axis=0)
            scores = qk_std * scores
            scores = scores if bias is None else scores + bias
            return make_head(self.score_map, scores, memo.allowed, waves, ntk=ntk)

        return head

    # --- facts ------------------------------------------------------------------------------------

    @property
    def cuttable(self) -> bool:
        free = self.pattern is None or self.pattern.any_length
        return free and not self.positions.biases

    def __repr__(self) -> str:
        words = [] if self.width is None else [brief(self.width)]
        words += [f"heads={brief(self.heads)}", self.scale_word, _map_word(self.score_map)]
        words += [brief(part) for part in self.positions.parts]
        shown = ("width", "heads", "scaling", "score_map", "positions")
        shown += ("projections",) if self.positions.projections.plain else ()
        rest = written(self, hidden=shown).removeprefix("Attention(")[:-1]
        return f"Attention({', '.join([*words, rest] if rest else words)})"

    @property
    def scale_word(self) -> str:
        words = {Scaling.SQRT: "1/√d", Scaling.LINEAR: "1/d", Scaling.UNTIED: "1/d untied"}
        return words[self.scaling]

    def with_heads(self, heads: float) -> Layer:
        return self.changed(heads=checked_heads(heads), kv_heads=None)

    def attention_map(self, memo: MaskedMemo) -> Float[Array, "query key"]:
        return mean_over_weights(self, memo.own.on_side(0), jnp.abs)


# An even grid of standard normals is exact to 1e-6 for smooth functions, to 1e-4 with a kink.
_POINTS = np.linspace(-8, 8, 641)
_MASSES = np.exp(-(_POINTS**2) / 2) / np.sum(np.exp(-(_POINTS**2) / 2))


def mean_over_weights(
    layer: Attention, memo: AttentionMemo, function: Callable[[Array], Array]
) -> Float[Array, "query key"]:
    """`E f(A_ai(x))` over heads, of one input's memo; f(0) = 0.

    At 1/d the weights are deterministic. At 1/√d they are averaged over the drawn heads or, where
    nothing is drawn, over scores `G_ai ~ N(0, qk² κ̃_aa κ̃_ii)`.
    """
    if layer.scaling is not Scaling.SQRT:
        return function(memo.table)
    if layer.sampled():
        head = layer.scorer(memo, ntk=False)
        draws = required_field(layer.field).weights.astype(memo.table.dtype)
        return jnp.mean(jax.lax.map(lambda w: function(head(w).weights), draws), axis=0)
    assert isinstance(layer.score_map, ElementwiseMap)
    deviation = cast(layer.qk_std, memo.table) * jnp.sqrt(jnp.outer(memo.table, memo.table))
    points, masses = (jnp.asarray(array, memo.table.dtype) for array in (_POINTS, _MASSES))
    values = function(layer.score_map.dual.fn(deviation[..., None] * points[None, None, :]))
    weights = values @ masses
    return weights if memo.allowed is None else jnp.where(memo.allowed, weights, 0)


def _map_word(score_map: ScoreMap) -> str:
    """`softmax`, `relu`: a score map in the print of its layer."""
    if isinstance(score_map, ElementwiseMap):
        return repr(score_map.dual).removesuffix("()").lower()
    return "softmax" if isinstance(score_map, Softmax) else repr(score_map)
