"""Drawn scores: which layers have random ones, and one function that draws them.

What is drawn is data beside the network: `Scores`, from the path of a layer to its `ScoreField`.
Infinitely many heads are estimated by many, few heads are drawn as they are, and heads of finite
width (`laws.narrow`) replace the numbers of a field; encode and cross take them all alike.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Key

from ..layers.attention.heads import INFINITE, Scheme, ScoreField, draw_field
from ..layers.base import Layer
from .walk import Maker, Path, layers_of


def random_layers(net: Layer) -> dict[Path, Any]:
    """The layers whose scores are drawn, from the input on, and where they stand."""
    return {path: layer for path, layer in layers_of(net) if layer.facts.random_scores}


def finite_layers(net: Layer) -> dict[Path, Any]:
    """The layers whose scores stay random in the limit: finitely many heads at 1/√d."""
    return {path: layer for path, layer in random_layers(net).items() if layer.heads != INFINITE}


def maker(scheme: Scheme, chosen: Mapping[Path, ScoreField] | None = None) -> Maker:
    """How the scores of a layer are drawn for stacked examples before it.

    `chosen` are earlier fields whose pivots are kept: the same landmarks for every precision and
    every value of the hyperparameters, so that kernels depend smoothly on these.
    """

    def make(path: Path, layer: Any, examples: Any, key: Key[Array, ""]) -> ScoreField:
        sides = layer.score_sides(examples)
        counts = {"heads": layer.heads, "matrices": layer.matrices}
        earlier = None if chosen is None else chosen[path]
        return draw_field(key, *sides, **counts, scheme=scheme, chosen=earlier)

    return make
