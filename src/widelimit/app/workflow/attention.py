"""Where a network looks: its attention weights in the limit of infinite width."""

from typing import Any

import jax
import numpy as np

from ...engine.inputs import as_inputs
from ...engine.phases import encode_block, precision
from ...engine.sampling import realisations
from ...inference import NetworkKernels
from ...layers.attention.layer import Attention, AttentionMemo
from ...layers.attention.weights import mean_weights


def _nodes(tree: Any, kind: type) -> list[Any]:
    """The nodes of this kind, from the input on."""
    found = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in found if isinstance(node, kind)]


def mean_attention(
    data: NetworkKernels, x: np.ndarray, mask: np.ndarray | None
) -> np.ndarray | None:
    """Sizes of attention weights, `E|A(x)|`, of the first attention layer, (N, queries, keys).

    None for networks without self-attention, or whose layers below it have changed the positions.
    """
    if not _nodes(data.net, Attention):
        return None
    inputs = as_inputs(x, mask, dtype=data.engine.dtype)
    with precision(data.engine.dtype):
        results = []
        for real in realisations(data.net, data.sampler, data.engine.dtype):
            layer = _nodes(real.net, Attention)[0]
            encoding = encode_block(real, *inputs.on_device(), inputs.outline)
            memo = _nodes(encoding.memos, AttentionMemo)[0]
            if memo.grid != inputs.outline.positions:
                return None
            weights = jax.vmap(lambda one, layer=layer: mean_weights(layer, one))(memo)
            results.append(np.asarray(weights))
    return np.mean(results, axis=0)


def received(weights: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The share of all attention of real queries that each position receives; sums to one."""
    if mask is not None:
        weights = weights * mask.reshape(len(mask), -1, 1)
    total = weights.sum(axis=1)
    return total / np.maximum(total.sum(axis=1, keepdims=True), np.finfo(total.dtype).tiny)
