"""Multi-head attention: the finite network and its limits, side by side."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ...errors import ShapeError, WidelimitError
from ...options import Range, choice, whole
from ...printing import brief, written
from ...state import Example, Need, Outline, Pair
from ..activations import Reach
from ..base import Layer, Memo, Params, cast, leaf
from ..dense import checked_bias
from ..labels import Label
from .closed import closed_kernels, reach_of_scores
from .finite import (
    attention_label,
    finite_heads,
    joined_heads,
    project,
    resized_attention,
    standard_normals,
)
from .heads import (
    INFINITE,
    Scheme,
    ScoreField,
    checked_heads,
    draw_field,
    noisy_rows,
    required_field,
    with_field,
)
from .placement import Positions
from .projections import Projections, of_one_length
from .rules import Head, Sides, make_head, mean_over_heads
from .scores import ElementwiseMap, Pattern, Scaling, ScoreMap, checked_score_map


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
        rows = noisy_rows(self.table, self.noise, side)
        return AttentionMemo(
            self.grid,
            self.mask,
            self.channels,
            rows,
            self.allowed,
            inverse_lengths=self.inverse_lengths,
        )


class Attention(Layer):
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

    width: int | None = eqx.field(static=True)
    heads: float = eqx.field(static=True)
    scaling: Scaling = eqx.field(static=True)
    key_width: int | None = eqx.field(static=True)
    value_width: int | None = eqx.field(static=True)
    kv_heads: int | None = eqx.field(static=True)
    biased: bool = eqx.field(static=True)
    score_map: ScoreMap
    positions: Positions
    pattern: Pattern | None
    field: ScoreField | None
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
    ):
        """Self-attention onto `width` channels (by default as many as come in).

        `qk_std` multiplies the scores, `ov_std` the output. `positions`: Decay, Rotary, Alibi, or a
        tuple of them. `pattern`: Causal, Local, Allowed. `projections`: biases of queries, keys and
        values, and queries and keys of one length. Finite network only: `key_width` and
        `value_width` per head (default: `width`), `kv_heads` < heads for grouped keys and values.
        """
        self.width = None if width is None else whole("width", width)
        self.heads = checked_heads(heads)
        self.scaling = choice(Scaling, scaling, "scaling")
        self.score_map = checked_score_map(score_map)
        self.positions = Positions.make(positions, projections)
        if pattern is not None and not isinstance(pattern, Pattern):
            raise WidelimitError(
                "pattern= takes Causal(), Local(radius) or Allowed(matrix).",
                got=repr(pattern),
                remedy="e.g. pattern=Causal(), or pattern=Allowed(matrix) for a boolean matrix",
            )
        self.pattern = pattern
        self.key_width = None if key_width is None else whole("key_width", key_width)
        self.value_width = None if value_width is None else whole("value_width", value_width)
        self.kv_heads = None if kv_heads is None else whole("kv_heads", kv_heads)
        # In the limit queries tell heads apart: groups of infinitely many change nothing.
        finite = self.heads != INFINITE
        if self.kv_heads is not None and finite and self.heads % self.kv_heads:
            raise WidelimitError(
                "Grouped heads share keys and values in equal groups.",
                got=f"heads={heads!r}, kv_heads={kv_heads!r}",
                remedy="let kv_heads divide heads",
            )
        self.biased, self.b_std = checked_bias(b_std)
        self.qk_std, self.ov_std = qk_std, ov_std
        self.field = None

    # --- shapes ---------------------------------------------------------------------------------

    def outline(self, before: Outline) -> Outline:
        if not before.positions:
            raise ShapeError(
                "Attention works over positions.",
                got="an input without position axes, shape (N, channels)",
                remedy="give inputs of shape (N, positions…, channels)",
            )
        self.positions.require(before.positions)
        width = self.width or before.channels
        return before.with_weights(channels=width)

    def need(self, out: Need) -> Need:
        return Need.FULL

    @property
    def need_own(self) -> Need:
        """The whole covariance where it makes the weights, the variances where duals need them."""
        if self.scaling is Scaling.LINEAR:
            return Need.FULL
        sampled = self.sampled() and not self.positions.projections.qk_norm
        return Need.NONE if sampled else Need.DIAGONAL

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        need = super().encode_need(out, noisy=noisy)
        return Need.FULL if noisy and self.sampled() else need

    def _closed(self) -> bool:
        """Whether the infinite-head limit at 1/√d has a closed form."""
        return (
            self.scaling is Scaling.SQRT
            and isinstance(self.score_map, ElementwiseMap)
            and self.heads == INFINITE
            and not self.positions.biases
            and self.positions.rotary is None
        )

    def sampled(self) -> bool:
        return self.scaling is Scaling.SQRT and not self._closed()

    # --- finite width ---------------------------------------------------------------------------

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        heads = finite_heads(self.heads)
        groups = self.kv_heads or heads
        width = self.width or before.channels
        key_width, value_width = self.key_width or width, self.value_width or width
        if self.positions.rotary is not None and key_width % 2:
            raise WidelimitError(
                "Rotary encodings turn pairs of key channels.",
                got=f"a key width of {key_width}",
                remedy="give an even key_width=",
            )
        encoding = self.positions.encoding
        score_in = before.channels + (0 if encoding is None else key_width)
        value_in = score_in if encoding is not None and encoding.on_values else before.channels
        shapes: dict[str, tuple[int, ...]] = {
            "query": (heads, score_in, key_width),
            "value": (groups, value_in, value_width),
            "out": (heads, value_width, width),
        }
        if self.scaling is not Scaling.LINEAR:
            shapes["key"] = (groups, score_in, key_width)
        shapes |= self.positions.projections.shapes(shapes)
        if encoding is not None:
            shapes["place"] = (*before.positions, key_width)
        if self.biased:
            shapes["bias"] = (width,)
        return standard_normals(key, shapes)

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        scored, valued = x, x
        if self.positions.encoding is not None:
            scored = self.positions.encoding.encoded(params["place"], x)
            valued = scored if self.positions.encoding.on_values else x
        weights = self.attention_weights(params, scored, mask)
        flat = valued.reshape(-1, valued.shape[-1])
        projections = self.positions.projections
        values = projections.value_side(params, project(flat, params["value"]))
        values = jnp.repeat(values, weights.shape[0] // values.shape[0], axis=0)
        y = joined_heads(weights, values, params, self.ov_std, self.b_std)
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
        if self._closed():
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

    def drawn(self, crowd: Example, key: Key[Array, ""], scheme: Scheme) -> "Attention":
        if not self.sampled():
            return self
        rotary = self.positions.rotary
        waves = 1 if rotary is None else 2 * rotary.pairs
        side, count = self.positions.side(crowd), self.heads
        field = draw_field(key, side, heads=count, waves=waves, scheme=scheme, chosen=self.field)
        return with_field(self, field)

    # --- infinite width: per pair -----------------------------------------------------------------

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return self._moved(pair, memo1.on_side(0), memo2.on_side(1))

    def own(self, pair: Pair, memo: Memo) -> Pair:
        one_pass = memo.on_side(0)
        return self._moved(pair, one_pass, one_pass)

    def _moved(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        scale = cast(self.ov_std, pair.nngp) ** 2
        bias = cast(self.b_std, pair.nngp) ** 2 if self.biased else None
        masks = (memo1.mask, memo2.mask)
        if self.scaling is not Scaling.SQRT:
            valued = self.positions.valued(pair, memo1.channels)
            mixed = valued.lazily_mixed(memo1.table, memo2.table)
            return mixed.affine(scale=scale, lift=2 * scale, bias=bias, masks=masks)
        pair = pair.forced()
        valued = self.positions.valued(pair, memo1.channels)
        scored = self.positions.scored(pair, memo1.channels)
        scored = of_one_length(scored, memo1.inverse_lengths, memo2.inverse_lengths)
        sides = Sides.of(scored, scored, valued.masked(*masks))
        qk_variance = cast(self.qk_std, pair.nngp) ** 2
        if self._closed():
            assert isinstance(self.score_map, ElementwiseMap)
            # Padding is masked on the value side already: only a pattern needs the matrices.
            allowed1, allowed2 = (
                None if self.pattern is None else memo.allowed.astype(pair.nngp.dtype)
                for memo in (memo1, memo2)
            )
            nngp, ntk = closed_kernels(
                self.score_map.dual,
                sides,
                (memo1.table, memo1.table),
                (memo2.table, memo2.table),
                allowed1,
                allowed2,
                qk_variance,
            )
        else:
            nngp, ntk = self._sampled_kernels(pair, sides, memo1, memo2, qk_variance)
        shape = pair.nngp.shape
        plain = pair.to(nngp.reshape(shape), None if ntk is None else ntk.reshape(shape))
        zero = jnp.zeros_like(scale)
        return plain.affine(scale=scale, lift=zero, bias=bias).masked(*masks)

    def _sampled_kernels(
        self, pair: Pair, sides: Sides, memo1: Memo, memo2: Memo, qk_variance: Array
    ) -> tuple[Array, Array | None]:
        parts = [self.scorer(memo, ntk=pair.ntk is not None) for memo in (memo1, memo2)]
        draws = required_field(self.field).weights.astype(pair.nngp.dtype)
        return mean_over_heads(lambda w: (parts[0](w), parts[1](w)), draws, sides, qk_variance)

    def scorer(self, memo: AttentionMemo, *, ntk: bool) -> Callable[[Array], Head]:
        """The function from one drawn W to a head on this input."""
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
    def keeps_zeros(self) -> bool:
        return True

    @property
    def cuttable(self) -> bool:
        free = self.pattern is None or self.pattern.any_length
        return free and not self.positions.biases

    def __repr__(self) -> str:
        scale = "1/d" if self.scaling is Scaling.LINEAR else "1/√d"
        words = [] if self.width is None else [brief(self.width)]
        words += [f"heads={brief(self.heads)}", scale, _map_word(self.score_map)]
        words += [brief(part) for part in self.positions.parts]
        shown = ("width", "heads", "scaling", "score_map", "positions")
        shown += ("projections",) if self.positions.projections.plain else ()
        rest = written(self, hidden=shown).removeprefix("Attention(")[:-1]
        return f"Attention({', '.join([*words, rest] if rest else words)})"

    @property
    def label(self) -> Label:
        return attention_label(self, "1/√d" if self.scaling is Scaling.SQRT else "1/d")

    def resized(self, new: Callable[[int, bool], int], *, last: bool) -> tuple[Layer, bool]:
        return resized_attention(self, new, last)

    def with_heads(self, heads: float) -> Layer:
        return self.changed(heads=checked_heads(heads), kv_heads=None)

    def mean(self, example: Example, memo: Memo) -> None:
        return None


def _map_word(score_map: ScoreMap) -> str:
    """`softmax`, `relu`: a score map in the print of its layer."""
    text = repr(score_map).removeprefix("ElementwiseMap(").removesuffix("Map()")
    return text.removesuffix(")").removesuffix("(").removesuffix("()").lower()
