"""What attention layers share: finite parameters, widths and sums over heads, and a label."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ...errors import NetworkError
from ..base import Layer, Params, cast
from ..labels import Family, Label
from .heads import INFINITE


def finite_heads(heads: float) -> int:
    """The number of heads of a finite network."""
    if heads == INFINITE:
        raise NetworkError(
            "A finite network has finitely many heads.",
            got="heads=INFINITE",
            remedy="draw weights of the same network with heads=8, or use with_heads(net, 8)",
        )
    return int(heads)


def standard_normals(key: Key[Array, ""], shapes: dict[str, tuple[int, ...]]) -> Params:
    """Parameters of these shapes, i.i.d. N(0, 1)."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(subkey, shape)
        for (name, shape), subkey in zip(sorted(shapes.items()), keys, strict=True)
    }


def joined_heads(
    weights: Float[Array, "head query key"],
    values: Float[Array, "head key d"],
    params: Params,
    ov_std: Any,
    b_std: Any,
) -> Float[Array, "query width"]:
    """`σ_OV (Hd)^{-1/2} Σ_h A_h V_h O_h + σ_b b`, the bias if there is one."""
    out = params["out"]
    y = jnp.einsum("hak,hkd,hde->ae", weights, values, out)
    y = y * cast(ov_std, y) / jnp.sqrt(jnp.asarray(out.shape[0] * out.shape[1], y.dtype))
    return y + (params["bias"] * cast(b_std, y))[None, :] if "bias" in params else y


def project(x: Float[Array, "position n"], weights: Float[Array, "head n d"]) -> Array:
    """`x W_h / √n` for every head."""
    return jnp.einsum("pn,hnd->hpd", x, weights) / jnp.sqrt(jnp.asarray(x.shape[1], x.dtype))


def resized_attention(
    layer: Any, new: Callable[[int, bool], int], last: bool
) -> tuple[Layer, bool]:
    """Attention with other widths; those that are None follow the input's."""
    names = ("width", "key_width", "value_width")
    given = {name: getattr(layer, name) for name in names}
    widths = {n: new(w, last and n == "width") for n, w in given.items() if w is not None}
    return layer.changed(**widths), last and layer.width is None


def attention_label(layer: Any, scale: str) -> Label:
    """A name, and what tells this layer from others of its kind."""
    count = "∞" if layer.heads == INFINITE else str(int(layer.heads))
    parts = [f"{count} head{'' if layer.heads == 1 else 's'}", scale]
    parts.append(type(layer.score_map).__name__.lower())
    if layer.positions.encoding is not None:
        parts.append(type(layer.positions.encoding).__name__.lower())
    if layer.positions.rotary is not None:
        parts.append("rotary")
    if layer.positions.projections.qk_norm:
        parts.append("qk norm")
    return Label(type(layer).__name__, ", ".join(parts), Family.ATTENTION)
