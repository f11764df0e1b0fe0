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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from ..errors import NetworkError
from ..layers.attention.heads import INFINITE, pivoted_cholesky, required_field
from ..layers.attention.layer import Attention
from ..layers.attention.multihead import MultiHead
from ..layers.attention.scores import Scaling
from ..layers.base import Layer, Memo
from ..state import Example, Need, Outline, Pair


class HeadWidths(enum.Enum):
    """How wide heads are in a law; layers are infinitely wide."""

    INFINITE = "infinite"
    """Keys and values of infinitely many channels: scores are Gaussian."""

    GIVEN = "given"
    """As many as a layer states by `key_width=` and `value_width=`; infinite where it does not."""


# --- normals into Wishart factors ---

_NODES = np.linspace(-9.5, 9.5, 1025)


def _chi_table(dof: int) -> tuple[np.ndarray, np.ndarray]:
    """`χ_dof` as a function of a normal number (equal probabilities), and its slope."""
    lower = special.gammaincinv(dof / 2, special.ndtr(_NODES))
    upper = special.gammainccinv(dof / 2, special.ndtr(-_NODES))
    chi = np.sqrt(2 * np.where(_NODES < 0, lower, upper))
    # log φ(z) − log f(χ), the constants together.
    constant = (dof / 2 - 1) * math.log(2) + special.gammaln(dof / 2) - 0.5 * math.log(2 * math.pi)
    logs = constant - _NODES**2 / 2 - special.xlogy(dof - 1, chi) + chi**2 / 2
    return chi, np.exp(logs)


def chi_from_normal(z: Float[Array, "*batch r"], dofs: tuple[int, ...]) -> Float[Array, "*batch r"]:
    """Independent `χ` of given degrees of freedom, by cubic interpolation (error below 1e-8)."""
    tables = [_chi_table(dof) for dof in dofs]
    values, slopes = (jnp.asarray(np.stack(part), z.dtype) for part in zip(*tables, strict=True))
    step = float(_NODES[1] - _NODES[0])
    place = (jnp.clip(z, _NODES[0], _NODES[-1]) - _NODES[0]) / step
    left = jnp.clip(place.astype(jnp.int32), 0, len(_NODES) - 2)
    t, column = place - left, jnp.arange(len(dofs))
    y0, y1 = values[column, left], values[column, left + 1]
    m0, m1 = step * slopes[column, left], step * slopes[column, left + 1]
    bend = 2 * (y0 - y1) + m0 + m1
    return y0 + t * (m0 + t * (3 * (y1 - y0) - 2 * m0 - m1 + t * bend))


def factor_size(rows: int, dof: int) -> int:
    """How many normals a Bartlett factor is made of."""
    return sum(rows - j for j in range(min(rows, dof)))


def bartlett_factor(
    normals: Float[Array, "*batch size"], rows: int, dof: int
) -> Float[Array, "*batch rows rank"]:
    """T with `T Tᵀ = Z Zᵀ` in law, Z of `rows×dof` normals; `rank = min(rows, dof)` columns.

    `T_jj = χ_{dof−j}` (j from 0), and below the diagonal the normals themselves.
    """
    rank = min(rows, dof)
    diagonal = chi_from_normal(normals[..., :rank], tuple(dof - j for j in range(rank)))
    zero = jnp.zeros((*normals.shape[:-1], 1), normals.dtype)
    entries = jnp.concatenate([diagonal, normals[..., rank:], zero], axis=-1)
    place = np.full((rows, rank), entries.shape[-1] - 1)
    place[np.arange(rank), np.arange(rank)] = np.arange(rank)
    below = np.tril_indices(rows, -1, rank)
    place[below] = rank + np.arange(len(below[0]))
    return entries[..., place]


# --- layers ---


class _InPlaceOfAttention(Layer):
    """What stands in for an attention layer has its shapes and needs."""

    inner: Attention

    def outline(self, before: Outline) -> Outline:
        return self.inner.outline(before)

    def need(self, out: Need) -> Need:
        return Need.FULL

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        return self.inner.encode_need(out, noisy=noisy)

    def sampled(self) -> bool:
        return True


class NarrowAttention(_InPlaceOfAttention):
    """Attention in an infinitely wide layer, its heads of the widths it states.

    `inner` divides scores by √d: a layer at 1/d has its `qk_std` divided by another √d_k.
    """

    tied: bool = eqx.field(static=True)
    size: int = eqx.field(static=True, default=0)
    """Positions of all examples together; known once these are."""

    @property
    def heads(self) -> float:
        """The number of heads."""
        return self.inner.heads

    def draw(self, examples: Example, need: Need, key: Key[Array, ""], scheme: Any):
        """Draw heads of infinite width, whose shapes say which normals those of finite width take.

        `NarrowRecipe.given` puts the heads of finite width in place of this layer.
        """
        drawn, memos, after = self.inner.draw(examples, need, key, scheme)
        assert isinstance(drawn, Attention)
        assert examples.landmarks is not None
        size = len(examples.landmarks.nngp) * examples.size
        return NarrowAttention(drawn, self.tied, size), memos, after


@dataclass(frozen=True)
class NarrowRecipe:
    """How the heads of one layer follow from standard normals."""

    shape: tuple[int, int, int, int]
    """Of the W's: heads, waves, features of queries, of keys."""
    groups: int
    """Heads with keys and values of their own."""
    value_rank: int
    key_width: int | None
    value_width: int | None
    tied: bool

    @classmethod
    def of(cls, layer: NarrowAttention) -> "NarrowRecipe":
        """For a layer whose examples are known."""
        inner = layer.inner
        heads, waves, queries, keys = required_field(inner.field).weights.shape
        return cls(
            shape=(heads, waves, queries, keys),
            groups=inner.kv_heads or int(inner.heads),
            value_rank=layer.size,
            key_width=inner.key_width,
            value_width=inner.value_width,
            tied=layer.tied,
        )

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.shape[0]

    @cached_property
    def _parts(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the normals behind queries, keys and values."""
        (heads, waves, queries, keys), width = self.shape, self.key_width
        if width is None:
            parts: dict[str, tuple[int, ...]] = {"weights": self.shape}
        elif waves > 1:
            parts = {"queries": (heads, queries, width)}
            parts |= {} if self.tied else {"keys": (self.groups, keys, width)}
        elif self.tied:
            parts = {"queries": (heads, factor_size(queries, width))}
        else:
            parts = {
                "queries": (heads, queries, min(keys, width)),
                "keys": (self.groups, factor_size(keys, width)),
            }
        if self.value_width is not None:
            parts["values"] = (self.groups, factor_size(self.value_rank, self.value_width))
        return parts

    @property
    def size(self) -> int:
        """How many normals there are."""
        return sum(math.prod(shape) for shape in self._parts.values())

    def given(self, layer: NarrowAttention, normals: Float[Array, " size"]) -> Layer:
        """The layer, its heads made of these normals."""
        parts, begin = {}, 0
        for name, shape in self._parts.items():
            end = begin + math.prod(shape)
            parts[name], begin = normals[begin:end].reshape(shape), end
        factor = None
        if self.value_width is not None:
            factor = bartlett_factor(parts["values"], self.value_rank, self.value_width)
            factor = self._each_head(factor / math.sqrt(self.value_width))
        return NarrowHeads(layer.inner, self._weights(parts), factor)

    def _weights(self, parts: dict[str, Array]) -> Float[Array, "head wave query key"]:
        """`Z_Q Z_Kᵀ/√d_k`, and with rotary positions its parts by waves."""
        width, (_, waves, _, rank) = self.key_width, self.shape
        if width is None:
            return parts["weights"]
        if waves > 1:
            keys = parts["queries"] if self.tied else self._each_head(parts["keys"])
            return _waved_products(parts["queries"], keys, waves // 2)
        if self.tied:
            factor = queries = bartlett_factor(parts["queries"], rank, width)
        else:
            factor = self._each_head(bartlett_factor(parts["keys"], rank, width))
            queries = parts["queries"]
        return (queries @ jnp.swapaxes(factor, 1, 2))[:, None] / math.sqrt(width)

    def _each_head(self, groups: Float[Array, "group *rest"]) -> Float[Array, "head *rest"]:
        return jnp.repeat(groups, self.heads // groups.shape[0], axis=0)


def _waved_products(
    queries: Float[Array, "head rank d"], keys: Float[Array, "head rank d"], pairs: int
) -> Float[Array, "head wave rank rank"]:
    """Parts of `QKᵀ` that turn with `cos θ_k(i−a)`, then those with `sin θ_k(i−a)`.

    Channels c and c + d/2 turn together, by the frequency `c mod pairs`. The waves are divided by
    √pairs: these are multiplied by it.
    """
    half = queries.shape[-1] // 2
    q1, q2, k1, k2 = queries[..., :half], queries[..., half:], keys[..., :half], keys[..., half:]
    turning = jnp.asarray(np.arange(half)[:, None] % pairs == np.arange(pairs), queries.dtype)

    def products(q: Array, k: Array) -> Array:
        return jnp.einsum("hac,hbc,cw->hwab", q, k, turning)

    waves = [products(q1, k1) + products(q2, k2), products(q2, k1) - products(q1, k2)]
    return jnp.concatenate(waves, axis=1) * math.sqrt(pairs / queries.shape[-1])


class _NarrowMemo(eqx.Module):
    mask: Array | None
    features: Float[Array, "query feature"]


class NarrowHeads(_InPlaceOfAttention):
    """Attention with given heads: `κ ← ov² F F'ᵀ + b²`, F the features of one input's outputs.

    `F = H^{-1/2} (A_1 Φ_v T_1, …, A_H Φ_v T_H)`, with `T_h = 1` for values of infinite width.
    """

    weights: Float[Array, "head wave query key"]
    factor: Float[Array, "head rank short"] | None
    rows: Float[Array, "position rank"] | None = None
    """Feature rows of one example's values; known once examples are."""

    def draw(self, examples: Example, need: Need, key: Key[Array, ""], scheme: Any):
        drawn = self.inner.drawn(examples, key, scheme)
        inner = eqx.tree_at(lambda node: node.field.weights, drawn, self.weights)
        rows = _value_rows(inner, examples)

        def of(own: Array) -> NarrowHeads:
            return NarrowHeads(inner, self.weights, self.factor, own)

        memos = jax.vmap(lambda own, one: of(own).masked_memo(one))(rows, examples)
        after = jax.vmap(lambda own, one: of(own).encode(one, need, memos)[1])(rows, examples)
        return inner, memos, after

    def memo(self, example: Example) -> Memo:
        assert self.rows is not None
        head = self.inner.scorer(self.inner.memo(example), ntk=False)
        mixed = jax.vmap(lambda w: head(w).weights)(self.weights) @ self.rows
        mixed = mixed if self.factor is None else mixed @ self.factor
        features = jnp.moveaxis(mixed, 0, 1).reshape(mixed.shape[1], -1)
        return _NarrowMemo(example.mask, features / math.sqrt(mixed.shape[0]))

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        nngp = (memo1.features @ memo2.features.T).reshape(pair.forced().nngp.shape)
        scale, bias = self.inner.output_scales(nngp)
        plain = pair.forced().to(nngp, None)
        moved = plain.affine(scale=scale, lift=jnp.zeros_like(scale), bias=bias)
        return moved.masked(memo1.mask, memo2.mask)

    def mean(self, example: Example, memo: Memo) -> None:
        return None


def _value_rows(layer: Attention, examples: Example) -> Float[Array, "example position rank"]:
    """Φ_v: a root of the values' covariance over all positions of all examples."""
    marks, size = examples.landmarks, examples.size
    assert marks is not None
    channels = layer.positions.channels(examples.outline)
    real = jnp.ones((len(marks.nngp), size)) if examples.mask is None else examples.mask
    real = real.reshape(-1).astype(marks.nngp.dtype)

    def valued(pair: Pair) -> Array:
        return layer.positions.valued(pair, channels).forced().nngp.reshape(size, size)

    blocks = jax.vmap(jax.vmap(valued))(marks)
    joint = jnp.moveaxis(blocks, 2, 1).reshape(len(real), -1) * real[:, None] * real[None, :]
    factor = pivoted_cholesky(joint, len(real)).factor
    return factor.reshape(-1, size, len(real))


# --- whole networks ---


def narrowed(net: Layer) -> Layer:
    """The network, its layers that state widths of heads with heads of these widths."""
    found = []

    def narrow(layer: Layer) -> Layer:
        if not _states_widths(layer):
            return layer
        assert isinstance(layer, MultiHead)
        _require_narrow(layer)
        found.append(layer)
        assert isinstance(layer, Attention)
        inner = layer
        if layer.scaling is not Scaling.SQRT:
            assert layer.key_width is not None
            qk_std = layer.qk_std / math.sqrt(layer.key_width)
            inner = layer.changed(scaling=Scaling.SQRT, qk_std=qk_std)
        return NarrowAttention(inner, tied=layer.scaling is Scaling.LINEAR)

    made = net.mapped(narrow)
    if not found:
        raise NetworkError(
            "head_widths='given' needs a layer that states the width of its heads.",
            got="head_widths='given' for a network without key_width= or value_width=",
            remedy="give Attention(…, heads=4, key_width=64, value_width=64), or leave "
            "head_widths= out",
        )
    return made


def _states_widths(layer: Layer) -> bool:
    widths = (getattr(layer, name, None) for name in ("key_width", "value_width"))
    return isinstance(layer, MultiHead) and any(width is not None for width in widths)


def _require_narrow(layer: MultiHead) -> None:
    linear = getattr(layer, "scaling", Scaling.SQRT) is not Scaling.SQRT
    refused = {
        f"a layer {type(layer).__name__}": not isinstance(layer, Attention),
        "heads=INFINITE": layer.heads == INFINITE,
        "an encoding of positions, itself of finite width": layer.positions.encoding is not None,
        "dropout=": layer.noisy,
        "qk_norm=True": layer.positions.projections.qk_norm,
        "scores at 1/d without key_width=": linear and layer.key_width is None,
        "Rotary with an odd key_width=": layer.positions.rotary is not None
        and (layer.key_width or 0) % 2 == 1,
    }
    named = [name for name, found in refused.items() if found]
    if named:
        raise NetworkError(
            "Heads of finite width are known for self-attention with finitely many heads, whose "
            "queries and keys are Gaussian given the layer's input.",
            got=", ".join(named),
            remedy="leave key_width= and value_width= of that layer out, or take the law with "
            "head_widths='infinite'",
        )
