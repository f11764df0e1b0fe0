"""The layers of attention: from a sequence to itself, from another stream, from a learned token."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ...errors import WidelimitError
from ...flat_draws import normals
from ...printing import brief, written
from ...state import Example, Outline, Pair
from ..base import Facts, Params, require_streams
from .heads import FeatureSide
from .multihead import MultiHead
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

    reads_itself: ClassVar[bool] = True

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

    def sides(self, state: Any) -> tuple[Any, Any]:
        return state, state


def _map_word(score_map: ScoreMap) -> str:
    """`softmax`, `relu`: a score map in the print of its layer."""
    if isinstance(score_map, ElementwiseMap):
        return repr(score_map.dual).removesuffix("()").lower()
    return "softmax" if isinstance(score_map, Softmax) else repr(score_map)


class QueriedAttention(MultiHead):
    """Attention at 1/√d from queries with covariance κ^q to keys and values with covariance κ.

    Scores have `Cov(G_ai, G_bj) = qk² κ^q_ab κ̃_ij`; κ ← ov² E[A κ A'ᵀ], and the tangent kernel has
    the terms of self-attention with κ^q, Θ^q in place of the query side. Options are those of
    `Attention` but scaling, pattern, projections and dropout; `positions` encodes the keys (Decay).
    """

    __init__ = MultiHead.__init__  # type checkers take inherited fields for arguments

    def __check_init__(self) -> None:
        compared = self.positions.rotary is not None or self.positions.biases
        refused = {
            "positions=, which compares keys with positions of queries": compared,
            "projections=": not self.positions.projections.plain,
            "pattern=": self.pattern is not None,
            "scaling=": self.scaling is not Scaling.SQRT,
            "dropout=": self.dropout > 0,
        }
        found = [name for name, used in refused.items() if used]
        if found:
            raise WidelimitError(
                f"{type(self).__name__} is not at 1/√d with plain queries from elsewhere, or its "
                "positions= does not encode its keys alone.",
                got=", ".join(found),
                remedy="use Decay, which encodes the keys alone, and leave the others out",
            )

    def __repr__(self) -> str:
        plain = ("score_map",) if isinstance(self.score_map, Softmax) else ()
        return written(self, hidden=("projections", *plain))


class AttentionPool(QueriedAttention):
    """One learned query (a read-out token) attends to all positions: a learned pooling.

    The query is a trained vector of N(0, 1) entries, as wide as a head's keys: κ^q = Θ^q = 1.
    """

    __init__ = QueriedAttention.__init__  # type checkers take inherited fields for arguments

    def sides(self, state: Any) -> tuple[Any, Any]:
        if isinstance(state, Outline):
            return self._token(state), state
        one = jnp.ones(())
        if isinstance(state, Pair):  # κ^q = Θ^q = 1
            one = one.astype(state.nngp.dtype)
            return Pair(one, None if state.ntk is None else one, 0, True), state
        token = self._token(state.outline)
        return Example(one, None, None, jnp.ones((1,)), None, False, token), state

    def _token(self, context: Outline) -> Outline:
        """A query without positions."""
        return Outline((), self.key_width or self.width or context.channels, raw=False)

    def score_sides(self, examples: Any) -> tuple[FeatureSide, FeatureSide]:
        return self.positions.side(examples), FeatureSide(jnp.ones((1, 1, 1)), lambda: None)

    def mask(self, mask: Array) -> Array | None:
        return None

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        token_key, key = jax.random.split(key)
        token = normals(token_key, (self._token(before).channels,))
        return {"token": token, **super().init_params(key, before)}

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        return self.attend(params, params["token"], x, (None, mask), key)[0]


class CrossAttention(QueriedAttention):
    """Queries from the first of two streams, keys and values from the second.

    Inputs are tuples `(queries, context)`; `Parallel` runs a network on each stream first. At 1/d
    queries and keys would share their weights, and the limit would need the covariance between the
    two streams: put both into one sequence and use `Attention(pattern=Allowed(…))` for that.
    """

    __init__ = QueriedAttention.__init__  # type checkers take inherited fields for arguments

    @property
    def facts(self) -> Facts:
        return dataclasses.replace(super().facts, streams=2)

    def sides(self, state: Any) -> tuple[Any, Any]:
        return state[0], state[1]

    def outline(self, before: Any) -> Outline:
        require_streams(before, 2, "CrossAttention", "(queries, context)")
        return super().outline(before)

    def mask(self, mask: Any) -> Array | None:
        return mask[0]
