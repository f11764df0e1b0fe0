"""Heads of finite width in infinitely wide layers.

The input of a layer has infinitely many channels, and a head projects it onto few: queries and keys
`Q = Φ Z_Q`, `K = Φ Z_K` are exactly Gaussian, with feature rows Φ of κ̃ and standard normal matrices
Z of `d_k` columns. The scores are `Φ W Φᵀ` as at infinite width, with `W = Z_Q Z_Kᵀ/√d_k` in place
of a normal matrix; values are `V = Φ_v Z_V` with `d_v` columns. Given all of them outputs are
Gaussian, with the kernel

    K_p = ov² (1/H) Σ_h A_h Φ_v (Z_V Z_Vᵀ/d_v) Φ_vᵀ A'_hᵀ.

Only products over the short side are drawn: with Bartlett's triangular factor T of a Wishart
matrix, `Z_Q Z_Kᵀ = N Tᵀ` (tied: `T Tᵀ`) and `Z_V Z_Vᵀ = T Tᵀ`, N normal. At 1/d the same holds with
another `1/√d_k`: there scores are random at finite width and a number at infinite width.
"""

import enum
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import NetworkError
from ..layers.attention.heads import INFINITE, Scheme, ScoreField, ValueField, draw_basis
from ..layers.attention.multihead import MultiHead
from ..layers.attention.scores import Scaling
from ..layers.base import Layer, with_fields
from ..layers.compose import Path, layers_of, map_layers
from .wishart import bartlett_factor, factor_size


class HeadWidths(enum.Enum):
    """How wide heads are in a law; layers are infinitely wide."""

    INFINITE = "infinite"
    """Keys and values of infinitely many channels: scores are Gaussian."""

    GIVEN = "given"
    """As many as a layer states by `key_width=` and `value_width=`; infinite where it does not."""


@dataclass(frozen=True)
class HeadRecipe:
    """How the heads of one layer follow from standard normals: by default these are the W's."""

    shape: tuple[int, ...]
    """Of the W's: heads, matrices in each (scores and waves), features of queries, of keys."""
    fields: int = 1
    """Scores in each head."""
    groups: int = 1
    """Heads with keys and values of their own."""
    value_rank: int | None = None
    """Positions whose values are followed; None where heads are infinitely wide."""
    key_width: int | None = None
    value_width: int | None = None
    tied: bool = False

    @classmethod
    def narrow(cls, layer: MultiHead, shape: tuple[int, ...], positions: int) -> "HeadRecipe":
        """For a layer of narrow heads that meets so many positions, of all examples together."""
        return cls(
            shape=shape,
            fields=layer.score_map.fields,
            groups=layer.kv_heads or int(layer.heads),
            value_rank=positions,
            key_width=layer.key_width,
            value_width=layer.value_width,
            tied=layer.scaling is Scaling.LINEAR,
        )

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.shape[0]

    @property
    def waves(self) -> int:
        """Parts of each score that turn with positions."""
        return self.shape[1] // self.fields

    @cached_property
    def _parts(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the normals behind queries, keys and values."""
        (heads, _, queries, keys), width = self.shape, self.key_width
        each, group = (heads, self.fields), (self.groups, self.fields)
        if width is None:
            parts: dict[str, tuple[int, ...]] = {"weights": self.shape}
        elif self.waves > 1:
            parts = {"queries": (*each, queries, width)}
            parts |= {} if self.tied else {"keys": (*group, keys, width)}
        elif self.tied:
            parts = {"queries": (*each, factor_size(queries, width))}
        else:
            parts = {
                "queries": (*each, queries, min(keys, width)),
                "keys": (*group, factor_size(keys, width)),
            }
        if self.value_width is not None and self.value_rank is not None:
            parts["values"] = (self.groups, factor_size(self.value_rank, self.value_width))
        return parts

    @property
    def size(self) -> int:
        """How many normals there are."""
        return sum(math.prod(shape) for shape in self._parts.values())

    def fill(
        self, field: ScoreField, layer: Any, examples: Any, normals: Float[Array, " size"]
    ) -> ScoreField:
        """The field of a layer, its heads made of these normals."""
        parts, begin = {}, 0
        for name, shape in self._parts.items():
            end = begin + math.prod(shape)
            parts[name], begin = normals[begin:end].reshape(shape), end
        field = replace(field, weights=self._weights(parts).reshape(self.shape))
        if self.value_rank is None:
            return field
        factor = None
        if self.value_width is not None:
            factor = bartlett_factor(parts["values"], self.value_rank, self.value_width)
            factor = self._each_head(factor / math.sqrt(self.value_width))
        side = layer.positions.side(layer.sides(examples)[1], of_values=True)
        basis, _, _ = draw_basis(side, Scheme(1, self.value_rank, 0.0))
        return replace(field, values=ValueField(basis, factor))

    def _weights(self, parts: dict[str, Array]) -> Float[Array, "head field *wave query key"]:
        """`Z_Q Z_Kᵀ/√d_k`, and with rotary positions its parts by waves."""
        width, rank = self.key_width, self.shape[-1]
        if width is None:
            return parts["weights"]
        if self.waves > 1:
            keys = parts["queries"] if self.tied else self._each_head(parts["keys"])
            return _waved_products(parts["queries"], keys, self.waves // 2)
        if self.tied:
            factor = queries = bartlett_factor(parts["queries"], rank, width)
        else:
            factor = self._each_head(bartlett_factor(parts["keys"], rank, width))
            queries = parts["queries"]
        return queries @ jnp.swapaxes(factor, -1, -2) / math.sqrt(width)

    def _each_head(self, groups: Float[Array, "group *rest"]) -> Float[Array, "head *rest"]:
        return jnp.repeat(groups, self.heads // groups.shape[0], axis=0)


def _waved_products(
    queries: Float[Array, "head field rank d"], keys: Float[Array, "head field rank d"], pairs: int
) -> Float[Array, "head field wave rank rank"]:
    """Parts of `QKᵀ` that turn with `cos θ_k(i−a)`, then those with `sin θ_k(i−a)`.

    Channels c and c + d/2 turn together, by the frequency `c mod pairs`. The waves are divided by
    √pairs: these are multiplied by it.
    """
    half = queries.shape[-1] // 2
    q1, q2, k1, k2 = queries[..., :half], queries[..., half:], keys[..., :half], keys[..., half:]
    turning = jnp.asarray(np.arange(half)[:, None] % pairs == np.arange(pairs), queries.dtype)

    def products(q: Array, k: Array) -> Array:
        return jnp.einsum("hfac,hfbc,cw->hfwab", q, k, turning)

    waves = [products(q1, k1) + products(q2, k2), products(q2, k1) - products(q1, k2)]
    return jnp.concatenate(waves, axis=2) * math.sqrt(pairs / queries.shape[-1])


# --- whole networks ---


def narrow_layers(net: Layer) -> dict[Path, MultiHead]:
    """The layers that state widths of heads; raises where there are none, or what is not known."""
    found = {path: layer for path, layer in layers_of(net) if _states_widths(layer)}
    if not found:
        raise NetworkError(
            "No layer states the width of its heads, which head_widths='given' asks for.",
            got="head_widths='given' for a network without key_width= or value_width=",
            remedy="give Attention(…, heads=4, key_width=64, value_width=64), or leave "
            "head_widths= out",
        )
    for layer in found.values():
        _require_narrow(layer)
    return found


def with_random_scores(net: Layer) -> Layer:
    """The network, its layers at 1/d that state widths of heads at 1/√d: scores are random there.

    They divide scores by another √d_k.
    """

    def change(layer: Layer) -> Layer:
        if not _states_widths(layer) or layer.scaling is Scaling.SQRT:
            return layer
        qk_std = layer.qk_std / math.sqrt(layer.key_width or 1)
        return with_fields(layer, scaling=Scaling.SQRT, qk_std=qk_std)

    return map_layers(change, net)


def _states_widths(layer: Layer) -> TypeGuard[MultiHead]:
    return isinstance(layer, MultiHead) and (layer.key_width or layer.value_width) is not None


def _require_narrow(layer: MultiHead) -> None:
    refused = {
        f"a layer {type(layer).__name__}": not layer.reads_itself,
        "heads=INFINITE": layer.heads == INFINITE,
        "an encoding of positions, itself of finite width": layer.positions.encoding is not None,
        "dropout=": layer.dropout > 0,
        "qk_norm=True": layer.positions.projections.qk_norm,
        "scores at 1/d without key_width=": layer.scaling is not Scaling.SQRT
        and layer.key_width is None,
        "Rotary with an odd key_width=": layer.positions.rotary is not None
        and (layer.key_width or 0) % 2 == 1,
    }
    named = [name for name, found in refused.items() if found]
    if named:
        raise NetworkError(
            "The law of this layer with heads of finite width is not known: it is for "
            "self-attention with finitely many heads, whose queries and keys are Gaussian given "
            "the layer's input.",
            got=", ".join(named),
            remedy="leave key_width= and value_width= of that layer out, or take the law with "
            "head_widths='infinite'",
        )
