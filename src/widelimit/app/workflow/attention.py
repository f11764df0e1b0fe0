"""Where a network looks: its attention weights in the limit of infinite width."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...engine.inputs import as_inputs
from ...engine.phases import encode_block, precision
from ...engine.sampling import realisations
from ...inference import NetworkKernels
from ...layers.attention.layer import Attention
from ...layers.base import cast


def attention_layers(net: Any) -> list[Attention]:
    """The self-attention layers of a network, from the input on."""
    found = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Attention))
    return [node for node in found if isinstance(node, Attention)]


def mean_attention(
    data: NetworkKernels, x: np.ndarray, mask: np.ndarray | None
) -> np.ndarray | None:
    """Attention weights `E[A(x)]` of the first attention layer, (N, queries, keys).

    At 1/d the weights are deterministic; at 1/√d they are the average over the sampled heads.
    None for networks without self-attention.
    """
    if not attention_layers(data.net):
        return None
    inputs = as_inputs(x, mask, dtype=data.engine.dtype)
    with precision(data.engine.dtype):
        drawn = realisations(data.net, data.sampler, data.engine.dtype)
        results = []
        for real in drawn:
            layer = attention_layers(real.net)[0]
            encoding = encode_block(real, *inputs.on_device(), inputs.outline)
            memo = _memos(encoding.memos)[0]
            if not layer.sampled():
                results.append(np.asarray(memo.table))
                continue
            results.append(np.asarray(jax.vmap(lambda m, f=layer: _averaged(f, m))(memo)))
    return np.mean(results, axis=0)


def _averaged(layer: Attention, memo: Any) -> jax.Array:
    """The average over sampled heads, whose scores are `qk Φ W Φᵀ`."""
    rows = memo.on_side(0).table
    assert layer.field is not None

    def weights(drawn: jax.Array) -> jax.Array:
        scores = cast(layer.qk_std, rows) * (rows @ drawn[0] @ rows.T)
        return layer.score_map(scores, memo.allowed)

    return jnp.mean(jax.lax.map(weights, layer.field.weights.astype(rows.dtype)), axis=0)


def _memos(memos: Any) -> list[Any]:
    """What attention layers remember of examples: the nodes with a table of weights."""

    def is_memo(node: Any) -> bool:
        return hasattr(node, "table") and hasattr(node, "allowed")

    return [node for node in jax.tree.leaves(memos, is_leaf=is_memo) if is_memo(node)]


def received(weights: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The attention every position receives, averaged over real queries and summing to one."""
    if mask is None:
        return weights.mean(axis=1)
    real = mask.reshape(len(mask), -1).astype(weights.dtype)
    total = np.einsum("nqk,nq->nk", weights, real)
    return total / real.sum(axis=1, keepdims=True)
