"""Networks from layers: one after another, one for each stream; and what stands in a network."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ..errors import NetworkError, ShapeError
from ..options import whole
from ..state import Outline
from .base import Facts, Layer

# Every level takes some ten calls inside each other, of which Python allows a thousand; JAX does
# not recover from too many.
_MOST_NESTED = 40


def _depth(layer: Layer) -> int:
    """How deep layers stand inside this one."""
    return 1 + max(map(_depth, layer.parts), default=0) if isinstance(layer, Composite) else 0


Path = tuple[int, ...]
"""Where a layer stands: the number of the part, then of the part inside it, and so on."""


class Composite(Layer):
    """A layer made of others, its `parts`, through which `engine.walk` leads.

    Its own `facts` are about the way in which parts are put together.
    """

    def __check_init__(self) -> None:
        if _depth(self) > _MOST_NESTED:
            raise NetworkError(
                f"Layers stand inside each other more than {_MOST_NESTED} deep.",
                got=f"{type(self).__name__} around {_MOST_NESTED} others, one inside the other",
                remedy="put layers one after another, Serial(*layers), or use Repeat(layer, times)",
            )

    @property
    @abstractmethod
    def parts(self) -> tuple[Layer, ...]:
        """The layers inside this one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"


class Serial(Composite):
    """Layers one after another. Without layers: the identity."""

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer):
        """The first layer receives the input."""
        for layer in layers:
            if not isinstance(layer, Layer):
                raise NetworkError(
                    "Serial got something that is no layer; it takes layers as separate arguments.",
                    got=repr(layer),
                    remedy="write Serial(Dense(64), Relu(), …); unpack a list with *",
                )
        self.layers = layers

    @property
    def parts(self) -> tuple[Layer, ...]:
        return self.layers

    @property
    def facts(self) -> Facts:
        return Facts(linear=True)

    def __repr__(self) -> str:
        # Equal layers in a row were repeated.
        runs = [(text, len(list(same))) for text, same in itertools.groupby(map(repr, self.parts))]
        words = [text if count == 1 else f"Repeat({text}, {count})" for text, count in runs]
        alone = len(words) == 1 and len(self.parts) > 1
        return words[0] if alone else f"Serial({', '.join(words)})"

    def outline(self, before: Outline) -> Outline:
        for layer in self.layers:
            before = layer.outline(before)
        return before


def Repeat(layer: Layer, times: int) -> Serial:
    """The layer `times` times, each with its own weights."""
    return Serial(*(layer,) * whole("times", times, least=0))


class Parallel(Composite):
    """One network for each stream of an input that is a tuple of arrays."""

    networks: tuple[Layer, ...]

    def __init__(self, *networks: Layer):
        """As many networks as there are streams; `Serial()` leaves a stream as it is."""
        require_layers(networks, "Parallel")
        self.networks = networks

    @property
    def parts(self) -> tuple[Layer, ...]:
        return self.networks

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, streams=len(self.networks))

    def outline(self, before: Any) -> Any:
        if not isinstance(before, tuple) or len(before) != len(self.networks):
            raise ShapeError(
                "Parallel met another number of streams than it has networks.",
                got=f"{len(before) if isinstance(before, tuple) else 1} streams",
                remedy=f"pass x as a tuple of {len(self.networks)} arrays",
            )
        return tuple(net.outline(o) for net, o in zip(self.networks, before, strict=True))


def require_layers(branches: tuple[Any, ...], name: str) -> None:
    """Raise unless there is at least one, and all are layers."""
    if not branches or not all(isinstance(branch, Layer) for branch in branches):
        raise NetworkError(
            f"{name} did not get one or more layers as separate arguments.",
            got=repr(branches),
            remedy=f"write {name}(first, second); Serial() is the identity",
        )


# --- what stands in a network ---------------------------------------------------------------------


def layers_of(net: Layer, path: Path = ()) -> Iterator[tuple[Path, Layer]]:
    """All layers without parts, from the input on, and where they stand."""
    if not net.parts and not isinstance(net, Serial):
        yield path, net
    for number, part in enumerate(net.parts):
        yield from layers_of(part, (*path, number))


def map_layers(function: Callable[[Layer], Layer], net: Layer) -> Any:
    """The same network with a function applied to every layer without parts."""

    def is_single(node: Any) -> bool:
        return isinstance(node, Layer) and not node.parts

    def new(node: Any) -> Any:
        return function(node) if isinstance(node, Layer) else node

    return jax.tree.map(new, net, is_leaf=is_single)


def first_layers(net: Layer) -> tuple[Layer, ...]:
    """The layers that inputs meet first; of `Parallel`, itself."""
    if isinstance(net, Serial):
        return first_layers(net.parts[0]) if net.parts else ()
    if isinstance(net, Parallel) or not net.parts:
        return (net,)
    return tuple(first for part in net.parts for first in first_layers(part))


def streams_of(net: Layer) -> int:
    """How many streams an input has: 1 is an array, more are a tuple of arrays."""
    return max((layer.facts.streams for layer in first_layers(net)), default=1)


def vocabulary_of(net: Layer) -> int | None:
    """Inputs are token ids below this number; None where inputs are arrays."""
    sizes = [layer.facts.vocabulary for layer in first_layers(net)]
    return min((size for size in sizes if size is not None), default=None)


def takes_tokens(net: Layer) -> bool:
    """Whether inputs are integer token ids, without a channel axis."""
    return vocabulary_of(net) is not None


def is_noisy(net: Layer) -> bool:
    """Whether passes of the finite network are random, as with dropout."""
    return any(layer.facts.noisy for _, layer in layers_of(net))


def is_sampled(net: Layer) -> bool:
    """Whether the limit is random, or an average over random scores."""
    return any(layer.facts.random_scores for _, layer in layers_of(net))


def outlines_of(net: Layer, before: Any) -> dict[Path, Any]:
    """What is known of the inputs of every layer without parts."""
    if isinstance(net, Serial):
        found = {}
        for number, part in enumerate(net.parts):
            found |= {(number, *p): o for p, o in outlines_of(part, before).items()}
            before = part.outline(before)
        return found
    if not net.parts:
        return {(): before}
    entering = before if isinstance(net, Parallel) else (before,) * len(net.parts)
    parts = enumerate(zip(net.parts, entering, strict=True))
    return {
        (number, *path): outline
        for number, (part, own) in parts
        for path, outline in outlines_of(part, own).items()
    }
