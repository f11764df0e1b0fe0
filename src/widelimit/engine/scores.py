"""Drawn scores: which layers have random ones, and one function that draws them.

What is drawn is data beside the network: `Scores`, from the path of a layer to its `ScoreField`.
Infinitely many heads are estimated by many, few heads are drawn as they are, and heads of finite
width (`laws.narrow`) replace the numbers of a field; encode and cross take them all alike.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Key

from ..errors import NetworkError
from ..layers.attention.heads import INFINITE, Scheme, ScoreField, draw_field
from ..layers.base import Layer
from ..layers.compose import Path, Serial, layers_of
from .walk import Maker


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


def refuse_finite_heads(net: Layer, what: str) -> None:
    """Raise if the network has finitely many heads at 1/√d; `what` needs a constant kernel.

    Training moves the scores, and with them the tangent kernel: by tens of per cent with one head
    at every width, by a per cent only at about a hundred heads.
    """
    found = finite_layers(net)
    if found:
        heads = ", ".join(f"{layer.heads:.0f}" for layer in found.values())
        raise NetworkError(
            f"{what} needs a tangent kernel that is deterministic and stays where it is. With "
            "finitely many heads at 1/√d it is random at initialisation and moves during training "
            "at every width (by tens of per cent with one head).",
            got=f"attention layers with {heads} heads",
            remedy="use heads=INFINITE (with_heads(net, INFINITE)) or scaling=Scaling.LINEAR; "
            "net.law(x).sample_ntk(...) draws the tangent kernel at initialisation",
        )


def refuse_factorised_ntk(net: Layer) -> None:
    """Raise if score gradients of finitely many heads meet a nonlinearity.

    Below linear layers the mean tangent kernel is the average over heads. Under a nonlinearity φ
    the gradient through the scores is correlated with the output it multiplies,
    `E[φ'(y_a)φ'(y'_b) (uTu'ᵀ)_ab] ≠ E[φ'(y_a)φ'(y'_b)] E[(uTu'ᵀ)_ab]`, and layer-by-layer
    kernels, which multiply the averages, would be wrong.
    """
    _walk(net, seen=False)


def _walk(layer: Layer, *, seen: bool) -> bool:
    """Whether score gradients leave this layer; raises where they meet a nonlinearity."""
    if isinstance(layer, Serial):
        for part in layer.parts:
            seen = _walk(part, seen=seen)
        return seen
    leaving = [_walk(part, seen=seen) for part in layer.parts]
    # Gradients that arise inside the parts meet the way they are merged.
    after = seen or any(leaving) or bool(finite_layers(layer))
    seen = after if layer.parts else seen
    if seen and not layer.facts.linear:
        raise NetworkError(
            "With finitely many heads, the tangent kernel under a nonlinearity is an average over "
            "outputs and score gradients jointly; it does not factorise layer by layer.",
            got=f"{type(layer).__name__} above attention with finitely many heads at 1/√d",
            remedy="take net.law(x).ntk() for its mean, net.law(x).sample_ntk(...) for its law; "
            "kernel(..., ntk=False) for the NNGP kernel alone; or heads=INFINITE",
        )
    return after
