"""The finite network: draw its parameters, run it on a batch."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Key

from ..compilation import compiled
from ..engine.door import outline_of, read_inputs
from ..layers.base import Layer, Params
from ..layers.readings import reading
from ..options import RandomKey, as_key


@reading
def init(net: Layer, key: RandomKey, shape: Any) -> Params:
    """Draw the parameters of the finite network for examples of this shape."""
    before = outline_of(net, shape)
    net.outline(before)
    return _draw(net, as_key(key), before)


@reading
def apply(
    net: Layer, params: Params, x: Any, mask: Any = None, *, key: RandomKey | None = None
) -> Array:
    """Run the finite network on a batch (N, positions…, channels)."""
    leaves = jax.tree.leaves((x, mask))
    if isinstance(x, list) or not any(isinstance(leaf, Tracer) for leaf in leaves):
        inputs = read_inputs(net, x, mask)
        x, mask = inputs.x, inputs.mask
        net.checked_mask(mask, "x")
    if net.streams() > 1:
        masks = (None,) * len(x) if mask is None else mask
        x = tuple(_entering(a, m, tokens=False) for a, m in zip(x, masks, strict=True))
    else:
        x = _entering(x, mask, tokens=net.takes_tokens())
    mask = jax.tree.map(jnp.asarray, mask)
    shapes = jax.tree.map(lambda a: a.shape[1:], x)
    net.outline(outline_of(net, shapes))
    size = jax.tree.leaves(x)[0].shape[0]
    keys = None if key is None else jax.random.split(as_key(key), size)
    return _run(net, params, x, mask, keys)


# Step by step, a first call would compile every step by itself.
@compiled
def _draw(net: Layer, key: Key[Array, ""], before: Any) -> Params:
    return net.init_params(key, before)


@compiled
def _run(net: Layer, params: Params, x: Any, mask: Any, keys: Any) -> Array:
    return jax.vmap(lambda a, m, k: net.run(params, a, m, k)[0])(x, mask, keys)


def _entering(x: Any, mask: Any, *, tokens: bool) -> Array:
    """An array ready for the first layer: numbers, zero at padding."""
    x = jnp.asarray(x)
    x = x if tokens or jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
    if mask is None:
        return x
    mask = jnp.asarray(mask)
    return jnp.where(mask if tokens else mask[..., None], x, jnp.zeros((), x.dtype))
