"""Which layers of a network have random scores."""

from collections.abc import Callable
from typing import Any

from ..layers.attention.heads import INFINITE
from ..layers.base import Layer


def random_layers(net: Layer) -> list[Any]:
    """The layers whose scores are drawn (and kept in `field`), from the input on."""
    if net.parts:
        return [layer for part in net.parts for layer in random_layers(part)]
    return [net] if net.sampled() else []


def with_random_layers(net: Layer, function: Callable[[Any], Layer]) -> Layer:
    """The same network with a function applied to the layers whose scores are drawn."""
    return net.mapped(lambda layer: function(layer) if layer.sampled() else layer)


def finite_layers(net: Layer) -> list[Any]:
    """The layers whose scores stay random in the limit: finitely many heads at 1/√d."""
    return [layer for layer in random_layers(net) if layer.heads != INFINITE]
