"""Multi-head self-attention: queries, keys and values come from one input."""

from typing import Any

from jaxtyping import Array, Key

from ...errors import WidelimitError
from ...printing import brief, written
from ...state import Outline
from ..base import Params, require_positions
from .multihead import MultiHead, standard_normals
from .scores import ElementwiseMap, Scaling, ScoreMap, Softmax


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

    __init__ = MultiHead.__init__  # type checkers take inherited fields for arguments

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
