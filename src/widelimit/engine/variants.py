"""Which layers of a network have random scores."""

from typing import Any

import jax

from ..layers.attention.heads import INFINITE
from ..layers.base import Layer


def is_random(node: Any) -> bool:
    """Whether a node of a network is a layer that draws its scores (and keeps them in `field`)."""
    return isinstance(node, Layer) and hasattr(node, "field") and node.sampled()


def random_layers(net: Layer) -> list[Any]:
    """The layers whose scores are drawn, in the order of the network's leaves."""
    return [node for node in jax.tree.leaves(net, is_leaf=is_random) if is_random(node)]


def finite_layers(net: Layer) -> list[Any]:
    """The layers whose scores stay random in the limit: finitely many heads at 1/√d."""
    return [layer for layer in random_layers(net) if layer.heads != INFINITE]
