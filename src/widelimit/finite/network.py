"""The finite network: draw its parameters, run it on a batch."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ..compilation import compiled, require_own_jax
from ..engine import walk
from ..engine.inputs import outline_of, read_inputs
from ..engine.walk import check_masks
from ..errors import ShapeError, WidelimitError
from ..layers.base import Layer, Params
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
    inputs = read_inputs(net, x, mask)
    if not inputs.traced:
        check_masks(net, inputs.mask, "x")
    before = inputs.outline
    net.outline(before)
    x, mask = jax.tree.map(jnp.asarray, (inputs.x, inputs.mask))
    keys = None if key is None else jax.random.split(as_key(key), inputs.size)
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
