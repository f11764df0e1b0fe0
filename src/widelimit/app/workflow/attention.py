"""Where a network looks: its attention weights in the limit of infinite width."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...engine.inputs import as_inputs
from ...engine.phases import Realisation, encode_block, precision
from ...engine.sampling import realisations
from ...engine.walk import memo_at
from ...inference import NetworkKernels
from ...layers.attention.layer import Attention
from ...layers.compose import layers_of


def mean_attention(
    data: NetworkKernels, x: np.ndarray, mask: np.ndarray | None
) -> np.ndarray | None:
    """Sizes of attention weights, `E|A(x)|`, of the first attention layer, (N, queries, keys).

    None for networks without self-attention, or whose layers below it have changed the positions.
    """
    inputs = as_inputs(x, mask, dtype=data.engine.dtype)
    results = []
    with precision(data.engine.dtype):
        for real in realisations(data.net, data.sampler, data.engine.dtype):
            encoding = encode_block(real, *inputs.on_device(), inputs.outline)
            # Networks of the average alone have memos without any array.
            look = jax.vmap(lambda memos, real=real: _first_weights(real, memos), axis_size=len(x))
            weights = look(encoding.memos)
            if weights is None or weights.shape[-1] != math.prod(inputs.outline.positions):
                return None
            results.append(np.asarray(weights))
    return np.mean(results, axis=0)


def _first_weights(real: Realisation, memos: Any) -> Array | None:
    """`E|A|` of the first self-attention layer of a network, from all memos of one example."""
    for path, layer in layers_of(real.net):
        if isinstance(layer, Attention):
            memo = memo_at(real.net, memos, path).memo.on_side(0)
            return layer.mean_over_weights(memo, real.scores.get(path), jnp.abs)
    return None


def received(weights: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The share of all attention of real queries that each position receives; sums to one."""
    if mask is not None:
        weights = weights * mask.reshape(len(mask), -1, 1)
    total = weights.sum(axis=1)
    return total / np.maximum(total.sum(axis=1, keepdims=True), np.finfo(total.dtype).tiny)
