"""The same network with other heads, and which of its layers have random scores."""

from typing import Any

import jax

from widelimit.heads import INFINITE
from widelimit.layers.attention import Attention, checked_heads
from widelimit.layers.base import Layer
from widelimit.layers.scores import Scaling


def is_random(node: Any) -> bool:
    """Whether a node of a network is a layer that draws its scores (and keeps them in `field`)."""
    return isinstance(node, Layer) and hasattr(node, "field") and node.sampled()


def random_layers(net: Layer) -> list[Any]:
    """The layers whose scores are drawn, in the order of the network's leaves."""
    return [node for node in jax.tree.leaves(net, is_leaf=is_random) if is_random(node)]


def finite_layers(net: Layer) -> list[Any]:
    """The layers whose scores stay random in the limit: finitely many heads at 1/√d."""
    return [layer for layer in random_layers(net) if layer.heads != INFINITE]


def with_heads(net: Layer, heads: float) -> Layer:
    """The network with `heads` heads in every attention layer at 1/√d; nothing else changes.

    At 1/d the limit does not depend on the heads, and those layers are left alone unless they have
    to become finite.
    """
    count = checked_heads(heads)

    def changed(node: Any) -> Any:
        if not isinstance(node, Attention):
            return node
        if node.scaling is Scaling.LINEAR and (count == INFINITE or node.heads != INFINITE):
            return node
        return Attention(
            node.width,
            count,
            node.scaling,
            node.score_map,
            qk_std=node.qk_std,
            ov_std=node.ov_std,
            b_std=node.b_std if node.biased else 0.0,
            positions=node.positions,
            pattern=node.pattern,
            key_width=node.key_width,
            value_width=node.value_width,
            kv_heads=None if count == INFINITE else node.kv_heads,
        )

    return jax.tree.map(changed, net, is_leaf=lambda node: isinstance(node, Attention))
