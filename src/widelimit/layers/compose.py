"""Networks from layers: one after another, one for each stream; and the one walk through them."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import NetworkError
from ..options import whole
from ..state import Need
from .base import Facts, Layer, require_streams

# Every level takes some ten calls inside each other, of which Python allows a thousand; JAX does
# not recover from too many.
_MOST_NESTED = 40


def _depth(layer: Layer) -> int:
    """How deep layers stand inside this one."""
    return 1 + max(map(_depth, layer.parts), default=0) if isinstance(layer, Composite) else 0


Path = tuple[int, ...]
"""Where a layer stands: the number of the part, then of the part inside it, and so on."""


class Composite(Layer):
    """A layer made of others, its `parts`, through which `walk` leads.

    Its own `facts` are about the way in which parts are put together.
    """

    def __check_init__(self) -> None:
        if _depth(self) > _MOST_NESTED:
            raise NetworkError(
                f"Layers stand inside each other more than {_MOST_NESTED} deep.",
                got=f"{type(self).__name__} around {_MOST_NESTED} others, one inside the other",
                remedy="put layers one after another, Serial(*layers), or use Repeat(layer, times)",
            )

    def outline(self, before: Any) -> Any:
        return walk(_Outlines(), self, before, ())[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"


class Serial(Composite):
    """Layers one after another. Without layers: the identity."""

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer):
        """The first layer receives the input."""
        require_layers(layers, "Serial", least=0)
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


def require_layers(parts: tuple[Any, ...], name: str, least: int = 1) -> None:
    """Raise unless there are so many, and all are layers."""
    others = [part for part in parts if not isinstance(part, Layer)]
    if others or len(parts) < least:
        raise NetworkError(
            f"{name} did not get {'one or more ' if least else ''}layers as separate arguments.",
            got=", ".join(map(repr, others)) or "no arguments",
            remedy=f"write {name}(Dense(64), …); unpack a list with *; Serial() is the identity",
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
    return jax.tree.map(
        lambda node: function(node) if isinstance(node, Layer) else node,
        net,
        is_leaf=lambda node: isinstance(node, Layer) and not node.parts,
    )


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


# --- the walk -------------------------------------------------------------------------------------


class Task:
    """What a walk does at a layer without parts, and where branches meet."""

    folds = False

    def inside(self, layer: Layer, given: Any) -> Sequence[Any]:
        """What each part gets of what the layer was given."""
        return [None] * len(layer.parts)

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, Any]:
        """The state after a layer without parts, and what is kept of it."""
        raise NotImplementedError

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        """The state after branches that ended in `ends`, and what is kept of all of them."""
        raise NotImplementedError

    def enter(self, layer: Any, state: Any) -> Any:
        """The state as branches get it."""
        return state

    def needs(self, layer: Serial, state: Any, need: Need) -> list[Need]:
        """What is looked at after each part."""
        return [need] * len(layer.parts)

    def trim(self, state: Any, need: Need) -> Any:
        """The state without what nobody looks at."""
        return state

    def gather(self, kept: Sequence[Any]) -> Any:
        """What is kept of parts, as that of the whole."""
        return tuple(kept)

    def split(self, layer: Parallel, state: Any) -> Sequence[Any]:
        """The states of the streams."""
        return state

    def join(self, states: Sequence[Any]) -> Any:
        """The state of several streams."""
        return tuple(states)


def walk(task: Task, layer: Layer, state: Any, given: Any, need: Need = Need.FULL) -> Any:
    """The state after a layer, and what is kept of it."""
    if isinstance(layer, Serial):

        def step(state: Any, tree: Any, need: Need) -> tuple[Any, Any]:
            return walk(task, tree[0], state, tree[1], need)

        trees = zip(layer.parts, task.inside(layer, given), strict=True)
        links = map(Link, trees, task.needs(layer, state, need))
        state, kept = fold(step, state, list(links), loops=task.folds)
        return task.trim(state, need), task.gather(kept)
    if not layer.parts:
        return task.visit(layer, state, given, need)
    if isinstance(layer, Parallel):
        states = task.split(layer, state)
    else:  # branches
        states = [task.enter(layer, state)] * len(layer.parts)
    parts = zip(layer.parts, states, task.inside(layer, given), strict=True)
    found = [walk(task, part, one, inner, need) for part, one, inner in parts]
    ends, kept = [end for end, _ in found], [keep for _, keep in found]
    if isinstance(layer, Parallel):
        return task.join(ends), task.gather(kept)
    return task.merge(layer, state, ends, kept, given)


class _Outlines(Task):
    """From outlines to outlines; kept of every layer is what it meets, by path."""

    def inside(self, layer: Layer, given: Path) -> list[Path]:
        return [(*given, number) for number in range(len(layer.parts))]

    def visit(self, layer: Layer, state: Any, given: Path, need: Need) -> tuple[Any, Any]:
        return layer.outline(state), {given: state}

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Path) -> tuple[Any, Any]:
        return layer.merge_ends(state, ends), self.gather(kept)

    def gather(self, kept: Sequence[Any]) -> dict[Path, Any]:
        return {path: outline for found in kept for path, outline in found.items()}

    def split(self, layer: Parallel, state: Any) -> Any:
        require_streams(state, len(layer.parts), "Parallel", "one for each of its networks")
        return state


def outlines_of(net: Layer, before: Any) -> dict[Path, Any]:
    """What is known of the inputs of every layer without parts."""
    return walk(_Outlines(), net, before, ())[1]


# --- layers in a row: equal ones are compiled once ------------------------------------------------

# A run is looped over if at least this many layers are left after its first.
_LEAST = 6
# Every other layer is compiled by itself, which takes some tenths of a second.
_MOST_APART = 1000

State = Any


class Link(NamedTuple):
    """One layer of a chain: arrays and layers it works with, and what is needed after it."""

    tree: Any
    need: Need


Step = Callable[[State, Any, Need], tuple[State, Any]]
"""From the state before a layer and the layer's tree: the state after it, and what to keep."""


def fold(
    step: Step, state: State, chain: Sequence[Link], *, loops: bool
) -> tuple[State, list[Any]]:
    """`state, kept = step(state, tree, need)` along the chain: the last state, all that is kept.

    Where `loops` are asked for, runs of links that differ in numbers only become one, as soon as
    the state has the same shape after a layer as before it.
    """
    kept: list[Any] = []
    runs = [[link] for link in chain]
    if loops:
        same = itertools.groupby(chain, lambda link: (link.need, _kind(link.tree)))
        runs = [list(run) for _, run in same]
        _require_few(len(runs))
    for first, *rest in runs:
        state, out = step(state, first.tree, first.need)
        kept.append(out)
        if len(rest) >= _LEAST and _steady(step, state, rest[0]):
            state, outs = _loop(step, state, rest)
            kept += outs
            continue
        _require_few(len(rest))
        for link in rest:
            state, out = step(state, link.tree, link.need)
            kept.append(out)
    return state, kept


def _require_few(layers: int) -> None:
    if layers > _MOST_APART:
        raise NetworkError(
            f"{layers:,} layers in a row that differ from each other are too many to compile.",
            got=f"more than {_MOST_APART:,}",
            remedy="repeat one block, Repeat(block, times): equal blocks are compiled once",
        )


def _kind(tree: Any) -> tuple[Any, list[Any]]:
    """All of a tree but the numbers of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [(x.shape, x.dtype) if hasattr(x, "dtype") else object() for x in leaves]
    return structure, kinds


def _steady(step: Step, state: State, link: Link) -> bool:
    """Whether the state has the same shape after a layer as before it."""
    after = jax.eval_shape(lambda s, tree: step(s, tree, link.need)[0], state, link.tree)
    return _kind(jax.eval_shape(lambda s: s, state)) == _kind(after)


def _loop(step: Step, state: State, run: list[Link]) -> tuple[State, list[Any]]:
    trees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(link.tree for link in run))
    state, outs = jax.lax.scan(lambda s, tree: step(s, tree, run[0].need), state, trees)
    return state, [jax.tree.map(lambda leaf, i=i: leaf[i], outs) for i in range(len(run))]
