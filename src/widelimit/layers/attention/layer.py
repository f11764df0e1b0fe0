"""Multi-head self-attention: queries, keys and values come from one input."""

from typing import Any

from jaxtyping import Array, Key

from ...errors import WidelimitError
from ...options import choice
from ...printing import brief, written
from ...state import Outline
from ..base import Params, require_positions
from ..norm import checked_rate
from .heads import INFINITE
from .multihead import MultiHead, standard_normals
from .placement import Positions, Projections
from .scores import ElementwiseMap, Pattern, Scaling, ScoreMap, Softmax


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
        if pattern is not None and not isinstance(pattern, Pattern):
            raise WidelimitError(
                "pattern= takes Causal(), Local(radius) or Allowed(matrix).",
                got=repr(pattern),
                remedy="e.g. pattern=Causal(), or pattern=Allowed(matrix) for a boolean matrix",
            )
        self._set(
            width=width,
            heads=heads,
            score_map=score_map,
            positions=Positions.make(positions, projections),
            qk_std=qk_std,
            ov_std=ov_std,
            b_std=b_std,
            key_width=key_width,
            value_width=value_width,
            scaling=choice(Scaling, scaling, "scaling"),
            kv_heads=kv_heads,
            pattern=pattern,
            dropout=checked_rate(dropout, "dropout"),
        )
        # In the limit queries tell heads apart: groups of infinitely many change nothing.
        finite = self.heads != INFINITE
        if self.kv_heads is not None and finite and self.heads % self.kv_heads:
            raise WidelimitError(
                "kv_heads= does not divide the heads into equal groups.",
                got=f"heads={heads!r}, kv_heads={kv_heads!r}",
                remedy="let kv_heads divide heads",
            )

    def __repr__(self) -> str:
        words = [] if self.width is None else [brief(self.width)]
        scales = {Scaling.SQRT: "1/√d", Scaling.LINEAR: "1/d", Scaling.UNTIED: "1/d untied"}
        words += [f"heads={brief(self.heads)}", scales[self.scaling], _map_word(self.score_map)]
        words += [brief(part) for part in self.positions.parts]
        shown = ("width", "heads", "scaling", "score_map", "positions")
        shown += ("projections",) if self.positions.projections.plain else ()
        rest = written(self, hidden=shown).removeprefix("Attention(")[:-1]
        return f"Attention({', '.join([*words, rest] if rest else words)})"

    @property
    def reads_itself(self) -> bool:
        return True

    def sides(self, state: Any) -> tuple[Any, Any]:
        return state, state

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "Attention")
        self.positions.require(before.positions)
        noisy = before.noisy or self.dropout > 0
        return before.with_weights(channels=self.width or before.channels, noisy=noisy)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        shapes = self.weight_shapes(before)
        key_width = shapes["key"][-1]
        if self.positions.rotary is not None and key_width % 2:
            raise WidelimitError(
                "key_width= is odd: rotary encodings turn pairs of key channels.",
                got=f"a key width of {key_width}",
                remedy="give an even key_width=",
            )
        if self.scaling is Scaling.LINEAR:
            del shapes["key"]
        return standard_normals(key, shapes | self.positions.projections.shapes(shapes))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        y = self.attend(params, None, x, (mask, mask), key)
        return y.reshape(*x.shape[:-1], -1)


def _map_word(score_map: ScoreMap) -> str:
    """`softmax`, `relu`: a score map in the print of its layer."""
    if isinstance(score_map, ElementwiseMap):
        return repr(score_map.dual).removesuffix("()").lower()
    return "softmax" if isinstance(score_map, Softmax) else repr(score_map)
