"""The finite network: draw its parameters, run it on a batch."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Key

from ..compilation import compiled, require_own_jax
from ..engine import walk
from ..engine.inputs import outline_of, read_inputs, reorder
from ..engine.walk import check_masks
from ..errors import ShapeError, WidelimitError
from ..layers.base import Layer, Params
from ..layers.compose import streams_of, takes_tokens
from ..options import RandomKey, as_key


def draw_params(net: Layer, key: RandomKey, shape: Any) -> Params:
    """Draw the parameters of the finite network for examples of this shape."""
    require_own_jax()
    before = outline_of(net, shape)
    net.outline(before)
    return _draw(net, as_key(key), before)


def run(net: Layer, params: Params, x: Any, mask: Any, key: RandomKey | None) -> Array:
    """Run the finite network on a batch (N, positions…, channels)."""
    require_own_jax()
    leaves = jax.tree.leaves((x, mask))
    if isinstance(x, list) or not any(isinstance(leaf, Tracer) for leaf in leaves):
        inputs = read_inputs(net, x, mask)
        x, mask = inputs.x, inputs.mask
        check_masks(net, mask, "x")
    else:
        x = reorder(net, x)
    if streams_of(net) > 1:
        masks = (None,) * len(x) if mask is None else mask
        x = tuple(_entering(a, m, tokens=False) for a, m in zip(x, masks, strict=True))
    else:
        x = _entering(x, mask, tokens=takes_tokens(net))
    mask = jax.tree.map(jnp.asarray, mask)
    shapes = jax.tree.map(lambda a: a.shape[1:], x)
    before = outline_of(net, shapes, entered=True)
    net.outline(before)
    size = jax.tree.leaves(x)[0].shape[0]
    keys = None if key is None else jax.random.split(as_key(key), size)
    try:
        return _run(net, params, x, mask, keys)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, WidelimitError) or _describe(params) == _describe_own(net, before):
            raise
        raise ShapeError(
            "The parameters are those of another network.",
            got=f"{_describe(params)[:200]}, where it has {_describe_own(net, before)[:200]}",
            remedy="draw them with this network: net.init(key, x.shape[1:])",
        ) from error


def _describe_own(net: Layer, before: Any) -> str:
    """The parameters that this network draws, in words."""
    return _describe(jax.eval_shape(lambda: walk.init(net, as_key(0), before)))


def _describe(params: Any) -> str:
    return str(jax.tree.map(lambda leaf: getattr(leaf, "shape", type(leaf).__name__), params))


# Step by step, a first call would compile every step by itself.
@compiled
def _draw(net: Layer, key: Key[Array, ""], before: Any) -> Params:
    return walk.init(net, key, before)


@compiled
def _run(net: Layer, params: Params, x: Any, mask: Any, keys: Any) -> Array:
    return jax.vmap(lambda a, m, k: walk.run(net, params, a, m, k))(x, mask, keys)


def _entering(x: Any, mask: Any, *, tokens: bool) -> Array:
    """An array ready for the first layer: numbers, zero at padding."""
    x = jnp.asarray(x)
    x = x if tokens or jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
    if mask is None:
        return x
    mask = jnp.asarray(mask)
    return jnp.where(mask if tokens else mask[..., None], x, jnp.zeros((), x.dtype))
