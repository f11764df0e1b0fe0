"""How inputs become queries, keys and values: biases, and queries and keys of one length."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...duals.geometry import safe_inverse, safe_sqrt
from ...options import Range
from ...printing import written
from ...state import Pair
from ..base import Params, cast, leaf
from ..dense import checked_bias


class Projections(eqx.Module):
    """`q = N(x W_Q/√n + σ_qk b_Q)`, keys likewise, `v = x W_V/√n + σ_v b_V`.

    With `qk_norm`, N(q) = √d q/‖q‖ for every head and position. The norms of wide heads
    concentrate at their means: `κ̃ ← κ̃ + σ_qk²`, then `κ̃_ab ← κ̃_ab/√(κ̃_aa κ̃'_bb)` and Θ̃ by the same
    factor; values have `κ ← κ + σ_v²`. Biases are trained; the layer's own terms account for
    that, and Θ̃ and Θ are those of the input.
    """

    qk_norm: bool = eqx.field(static=True)
    qk_biased: bool = eqx.field(static=True)
    v_biased: bool = eqx.field(static=True)
    qk_b_std: Any = leaf("qk_b_std", where=Range.POSITIVE)
    v_b_std: Any = leaf("v_b_std", where=Range.POSITIVE)

    def __init__(self, *, qk_norm: bool = False, qk_b_std: Any = 0.0, v_b_std: Any = 0.0):
        """`qk_b_std` (σ_qk) and `v_b_std` (σ_v) are hyperparameters."""
        self.qk_norm = bool(qk_norm)
        self.qk_biased, self.qk_b_std = checked_bias(qk_b_std)
        self.v_biased, self.v_b_std = checked_bias(v_b_std)

    def __repr__(self) -> str:
        return written(self)

    @property
    def plain(self) -> bool:
        """Whether there is nothing but weights."""
        return not (self.qk_norm or self.qk_biased or self.v_biased)

    # --- finite width -----------------------------------------------------------------------------

    def shapes(self, heads: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Biases for these weights (head, n, width): one for each head and channel."""
        biased = {"query": self.qk_biased, "key": self.qk_biased, "value": self.v_biased}
        return {
            f"{name}_bias": (shape[0], shape[-1])
            for name, shape in heads.items()
            if biased.get(name)
        }

    def score_side(
        self, params: Params, name: str, x: Float[Array, "head position d"]
    ) -> Float[Array, "head position d"]:
        """Queries or keys from what their weights give."""
        if self.qk_biased:
            x = x + cast(self.qk_b_std, x) * params[f"{name}_bias"][:, None, :]
        if not self.qk_norm:
            return x
        length = safe_sqrt(jnp.mean(x**2, axis=-1, keepdims=True))
        return x * safe_inverse(length)

    def value_side(
        self, params: Params, x: Float[Array, "head position d"]
    ) -> Float[Array, "head position d"]:
        """Values from what their weights give."""
        if not self.v_biased:
            return x
        return x + cast(self.v_b_std, x) * params["value_bias"][:, None, :]

    # --- infinite width ---------------------------------------------------------------------------

    def scored(self, pair: Pair) -> Pair:
        """κ̃ + σ_qk²."""
        return _lifted(pair, self.qk_b_std) if self.qk_biased else pair

    def valued(self, pair: Pair) -> Pair:
        """κ + σ_v²."""
        return _lifted(pair, self.v_b_std) if self.v_biased else pair

    def variance(self, variance: Float[Array, "position"]) -> Float[Array, "position"]:
        """κ̃_aa + σ_qk²."""
        return variance + cast(self.qk_b_std, variance) ** 2 if self.qk_biased else variance

    def rows(self, rows: Float[Array, "position rank"]) -> Float[Array, "position rank2"]:
        """Feature rows with the bias as one more."""
        if not self.qk_biased:
            return rows
        constant = jnp.full((rows.shape[0], 1), cast(self.qk_b_std, rows))
        return jnp.concatenate([rows, constant], axis=-1)


def _lifted(pair: Pair, b_std: Any) -> Pair:
    pair = pair.forced()
    return pair.to(pair.nngp + cast(b_std, pair.nngp) ** 2, pair.ntk)


def inverse_lengths(variance: Float[Array, "position"]) -> Float[Array, "position"]:
    """1/√κ̃_aa, and 0 where the variance is."""
    return safe_inverse(safe_sqrt(variance))


def normalise(pair: Pair, one: Array | None, two: Array | None) -> Pair:
    """κ̃ and Θ̃ times the inverse lengths of either input; as they are without lengths."""
    if one is None or two is None:
        return pair
    pair = pair.forced()
    shape = pair.nngp.shape
    factor = jnp.outer(one, two).reshape(shape)
    return pair.to(pair.nngp * factor, None if pair.ntk is None else pair.ntk * factor)
