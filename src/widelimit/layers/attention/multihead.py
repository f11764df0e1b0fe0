"""What all attention layers have: heads, widths, a score map, positions, and their kernels."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ...errors import NetworkError
from ...flat_draws import normals
from ...options import Range, whole
from ...state import Example, Need, Outline, Pair
from ..base import Layer, Memo, Params, cast, leaf
from ..dense import checked_bias
from ..labels import Family, Label
from .closed import closed_kernels
from .heads import (
    INFINITE,
    FeatureSide,
    Scheme,
    ScoreField,
    checked_heads,
    draw_field,
    required_field,
    with_field,
)
from .placement import Positions
from .rules import ElementwiseScores, Head, Sides, mean_over_heads
from .scores import ElementwiseMap, ScoreMap, checked_score_map

Patterns = tuple[Array | None, Array | None]


class MultiHead(Layer):
    """Attention from queries to keys and values, with weights A of every head.

    κ ← ov² E[A κ A'ᵀ] + b²; what makes the queries, and how scores are scaled, is the subclass's.
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

    def _set_shared(
        self,
        width: int | None,
        heads: float,
        score_map: ScoreMap | None,
        positions: Positions,
        stds: tuple[Any, Any, Any],
        widths: tuple[int | None, int | None],
    ) -> None:
        """The fields of this class, checked; `stds` and `widths` in the order of the fields."""
        self.width = None if width is None else whole("width", width)
        self.heads = checked_heads(heads)
        self.score_map = checked_score_map(score_map)
        self.positions = positions
        key_width, value_width = widths
        self.key_width = None if key_width is None else whole("key_width", key_width)
        self.value_width = None if value_width is None else whole("value_width", value_width)
        self.qk_std, self.ov_std = stds[:2]
        self.biased, self.b_std = checked_bias(stds[2])
        self.field = None

    # --- facts ------------------------------------------------------------------------------------

    @abstractmethod
    def closed(self) -> bool:
        """Whether the limit of infinitely many heads has a closed form."""

    def sampled(self) -> bool:
        return not self.closed()

    def need(self, out: Need) -> Need:
        return Need.FULL

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        need = super().encode_need(out, noisy=noisy)
        return Need.FULL if noisy and self.sampled() else need

    @property
    def keeps_zeros(self) -> bool:
        return True

    @property
    def scale_word(self) -> str:
        """How scores are scaled, in a word."""
        return "1/√d"

    @property
    def label(self) -> Label:
        count = "∞" if self.heads == INFINITE else str(int(self.heads))
        parts = [f"{count} head{'' if self.heads == 1 else 's'}", self.scale_word]
        parts.append(type(self.score_map).__name__.lower())
        if self.positions.encoding is not None:
            parts.append(type(self.positions.encoding).__name__.lower())
        if self.positions.rotary is not None:
            parts.append("rotary")
        if self.positions.projections.qk_norm:
            parts.append("qk norm")
        return Label(type(self).__name__, ", ".join(parts), Family.ATTENTION)

    def resized(self, new: Callable[[int, bool], int], *, last: bool) -> tuple[Layer, bool]:
        """Widths that are None follow the input's."""
        names = ("width", "key_width", "value_width")
        given = {name: getattr(self, name) for name in names}
        widths = {n: new(w, last and n == "width") for n, w in given.items() if w is not None}
        return self.changed(**widths), last and self.width is None

    def with_heads(self, heads: float) -> Layer:
        return self.changed(heads=checked_heads(heads))

    def mean(self, example: Example, memo: Memo) -> None:
        return None

    # --- finite width -----------------------------------------------------------------------------

    @property
    def finite_heads(self) -> int:
        """The number of heads of a finite network."""
        if self.heads == INFINITE:
            raise NetworkError(
                "A finite network has finitely many heads.",
                got="heads=INFINITE",
                remedy="draw weights of the same network with heads=8, or use with_heads(net, 8)",
            )
        return int(self.heads)

    def weight_shapes(
        self, context: Outline, *, queries: int | None = None, groups: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, for `queries` channels (None: those of the keys).

        `groups` heads have keys and values of their own (None: all).
        """
        heads, width, channels = self.finite_heads, self.width or context.channels, context.channels
        key_width, value_width = self.key_width or width, self.value_width or width
        encoding = self.positions.encoding
        score_in = channels + (0 if encoding is None else key_width)
        value_in = score_in if encoding is not None and encoding.on_values else channels
        shapes: dict[str, tuple[int, ...]] = {
            "query": (heads, score_in if queries is None else queries, key_width),
            "key": (groups or heads, score_in, key_width),
            "value": (groups or heads, value_in, value_width),
            "out": (heads, value_width, width),
        }
        if encoding is not None:
            shapes["place"] = (*context.positions, key_width)
        if self.biased:
            shapes["bias"] = (width,)
        return shapes

    def encoded(self, params: Params, x: Array) -> tuple[Array, Array]:
        """What makes keys, and what makes values: inputs with their positional encoding."""
        encoding = self.positions.encoding
        if encoding is None:
            return x, x
        scored = encoding.encoded(params["place"], x)
        return scored, scored if encoding.on_values else x

    def joined(
        self,
        params: Params,
        weights: Float[Array, "head query key"],
        values: Float[Array, "head key d"],
    ) -> Float[Array, "query width"]:
        """`σ_OV (Hd)^{-1/2} Σ_h A_h V_h O_h + σ_b b`, the bias if there is one."""
        out = params["out"]
        y = jnp.einsum("hak,hkd,hde->ae", weights, values, out)
        y = y * cast(self.ov_std, y) / jnp.sqrt(jnp.asarray(out.shape[0] * out.shape[1], y.dtype))
        return y + (params["bias"] * cast(self.b_std, y))[None, :] if self.biased else y

    # --- infinite width ---------------------------------------------------------------------------

    @abstractmethod
    def score_sides(self, examples: Any) -> tuple[FeatureSide, FeatureSide | None]:
        """What stacked examples offer as features of keys, and of queries (None: the same)."""

    @property
    def waves(self) -> int:
        """Rotary encodings have scores that are sums of waves."""
        return 1

    def drawn(self, examples: Any, key: Key[Array, ""], scheme: Scheme) -> Layer:
        if not self.sampled():
            return self
        sides, count, waves = self.score_sides(examples), self.heads, self.waves
        field = draw_field(key, *sides, heads=count, waves=waves, scheme=scheme, chosen=self.field)
        return with_field(self, field)

    @abstractmethod
    def scorer(self, memo: Any, *, ntk: bool) -> Callable[[Array], Head]:
        """The function from one drawn W to a head on the input of this memo."""

    @abstractmethod
    def moved(self, pair: Any, memo1: Any, memo2: Any) -> Pair:
        """The kernels of two passes after this layer."""

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Pair:
        return self.moved(pair, memo1.on_side(0), memo2.on_side(1))

    def own(self, pair: Any, memo: Memo) -> Pair:
        one_pass = memo.on_side(0)
        return self.moved(pair, one_pass, one_pass)

    def mixed(
        self, like: Pair, sides: Sides, memo1: Any, memo2: Any, patterns: Patterns = (None, None)
    ) -> Pair:
        """Values mixed by random weights, and multiplied by the output's: kernels like `like`'s."""
        dtype = sides.value.dtype
        qk_variance = cast(self.qk_std, sides.value) ** 2
        if self.closed():
            assert isinstance(self.score_map, ElementwiseMap)
            variances = (memo1.variances, memo2.variances)
            scores = ElementwiseScores(sides, variances, patterns, qk_variance)
            nngp, ntk = closed_kernels(self.score_map.dual, scores)
        else:
            heads = [self.scorer(memo, ntk=sides.ntk is not None) for memo in (memo1, memo2)]
            draws = required_field(self.field).weights.astype(dtype)
            nngp, ntk = mean_over_heads(
                lambda w: (heads[0](w), heads[1](w)), draws, sides, qk_variance
            )
        shape = like.nngp.shape
        plain = like.to(nngp.reshape(shape), None if ntk is None else ntk.reshape(shape))
        scale, bias = self.output_scales(sides.value)
        return plain.affine(scale=scale, lift=jnp.zeros_like(scale), bias=bias)

    def output_scales(self, like: Array) -> tuple[Array, Array | None]:
        """`ov²`, and `b²` where there is a bias."""
        return cast(self.ov_std, like) ** 2, cast(self.b_std, like) ** 2 if self.biased else None


def standard_normals(key: Key[Array, ""], shapes: dict[str, tuple[int, ...]]) -> Params:
    """Parameters of these shapes, i.i.d. N(0, 1)."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: normals(subkey, shape)
        for (name, shape), subkey in zip(sorted(shapes.items()), keys, strict=True)
    }


def project(x: Float[Array, "position n"], weights: Float[Array, "head n d"]) -> Array:
    """`x W_h / √n` for every head."""
    return jnp.einsum("pn,hnd->hpd", x, weights) / jnp.sqrt(jnp.asarray(x.shape[1], x.dtype))
