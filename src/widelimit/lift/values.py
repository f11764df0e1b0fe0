"""Arrays of a model on their way through its code: of which part's output every entry is which.

An array that was moved, cut, joined or repeated is described by numbers alone: entry by entry, the
place in the output (batch, positions, channels) of the part that made it. The model's own library
rearranges these numbers, whatever the operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ..errors import NetworkError
from .activations import factor
from .parts import Activate, DrawnPart, Flat, ModelPart, PartNode, Scale, Source, made, picked

Function = Callable[[Any], Any]


class LiftWarning(UserWarning):
    """A lifted network differs from the model's limit; the message says in what."""


class RefusedModel(NetworkError):
    """What stands in the way of lifting; of JAX models `lift` adds that tracing reads any code."""


def refusal(failed: str, where: str, remedy: str) -> RefusedModel:
    """What failed, at which part and line, and a way on."""
    return RefusedModel(f"{failed}.", got=where, remedy=remedy)


class Library(Protocol):
    """What reading asks of the library that a model is written in."""

    def array(self, numbers: np.ndarray) -> Any:
        """Numbers as an array of the library, in single precision."""
        ...

    def numbers(self, array: Any) -> np.ndarray:
        """An array's numbers, in double precision."""
        ...

    def slopes(self, function: Function, arrays: list[Any]) -> list[list[np.ndarray]]:
        """Derivatives of every number in `function(arrays)` by every array."""
        ...

    def on_numpy(self, function: Function) -> Function:
        """A function of every entry, on NumPy's arrays."""
        ...

    def in_jax(self, function: Function, where: str) -> Function:
        """A function of every entry, on JAX's arrays."""
        ...


@dataclass(frozen=True, eq=False)
class Known:
    """An array that does not depend on the model's input."""

    array: Any
    literal: bool = False
    """Whether the code has it as a number, so that it is no parameter."""

    @cached_property
    def numbers(self) -> np.ndarray:
        """The array of NumPy."""
        array = self.array
        return np.asarray(array.detach().cpu().double() if hasattr(array, "detach") else array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return tuple(np.shape(self.array))

    @property
    def number(self) -> Any:
        """The one number in it, or None."""
        flat = self.numbers.reshape(-1)
        return flat[0] if flat.size and (flat == flat[0]).all() else None


@dataclass(frozen=True, eq=False)
class Held:
    """`function` of entries of what a node gives; `index` counts them, batch first."""

    node: PartNode
    index: np.ndarray
    """Whole numbers, of the shape of the array that they describe."""
    function: Function | None = None
    """A function of every entry that is no part yet; None is the identity."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.index.shape

    def then(self, function: Function) -> Held:
        """A function of every entry."""
        inner = self.function
        return replace(self, function=function if inner is None else lambda x: function(inner(x)))

    def moved(self, move: Callable[[np.ndarray], Any]) -> Held:
        """The same entries at other places."""
        return replace(self, index=np.asarray(move(self.index)))


def alike(held: Sequence[Held]) -> bool:
    """Whether arrays are entries of one array, which may be put together."""
    return all(h.node is held[0].node and h.function is held[0].function for h in held)


@dataclass(frozen=True, eq=False)
class Computed:
    """What an operator without a reading of its own makes: `call(*inputs)`.

    It is read later, with those that come after it, by what they do to random numbers.
    """

    call: Callable[..., Any]
    inputs: tuple[Held | Computed, ...]
    shape: tuple[int, ...]
    where: str
    name: str
    """The operator; `softmax` is over the last axis, of the one input."""

    def moved(self, move: Callable[[Any], Any], shape: Sequence[int]) -> Computed:
        """The same entries at other places."""
        return Computed(move, (self,), tuple(shape), self.where, "moved")


@dataclass(frozen=True)
class Rows:
    """An array whose one axis is all channels of a node's output, and the rest its positions."""

    node: PartNode
    rows: np.ndarray
    """Batch times positions, for every entry of the other axes."""

    def to(self, node: PartNode, axis: int = -1) -> Held:
        """The array of another node's output at the same positions; `axis` is the channels'."""
        channels = max(node.channels, 1)
        index = self.rows[..., None] * channels + np.arange(channels)
        return Held(node, np.moveaxis(index, -1, axis))


class Layout:
    """What places in the input mean: positions and channels, once the first part has told."""

    def __init__(self, shape: tuple[int, ...], *, tokens: bool, batch: int | None = None):
        """`shape` of one example; `batch` examples are on an axis in front, None: there is one."""
        self.shape, self.tokens, self.lead = shape, tokens, () if batch is None else (batch,)
        self.batch = batch or 1
        self.source = PartNode(Source(), (), (), 0, "the input")
        self.order: np.ndarray | None = None
        if tokens:
            self.source.positions, self.source.channels = self.shape, 1
            self.order = np.arange(math.prod(self.shape)).reshape(-1, 1)

    def input(self) -> Held:
        """The model's input."""
        count = math.prod((*self.lead, *self.shape))
        return Held(self.source, np.arange(count).reshape(*self.lead, *self.shape))

    def settle(self, held: Held, axis: int, where: str) -> None:
        """The input's channels are what this axis runs over, its positions the other axes."""
        index = np.moveaxis(held.index, axis, -1)
        count = math.prod(self.shape)
        batch = index[..., 0] // count
        order = np.argsort(batch.reshape(-1), kind="stable")
        table = index.reshape(-1, index.shape[-1])[order]
        table = table.reshape(self.batch, -1, table.shape[-1])[0] % count
        if len(np.unique(table)) != count or index.size != count * self.batch:
            raise refusal(
                "The first weights act on a part of the input, or on repeated parts of it",
                where,
                "cut the inputs before the model; attention of a part to all of them is "
                "wl.CrossAttention",
            )
        self.order = table
        outer = index.shape[:-1]
        # Where the batch has an axis of its own, the other axes are those of positions.
        own = [
            a for a, n in enumerate(outer) if (n,) == self.lead and not batch.take(0, axis=a).any()
        ]
        rest = [n for a, n in enumerate(outer) if a not in own[:1]]
        while len(rest) >= len(self.shape) and 1 in rest:
            rest.remove(1)  # axes that the code added
        apart = len(own) > 0 or not self.lead
        self.source.positions = tuple(rest) if apart else (len(table),)
        self.source.channels = index.shape[-1]


class Aligner:
    """Reads arrays as rows of channels, with the parts that this takes."""

    def __init__(self, layout: Layout, library: Library):
        self.layout, self.library = layout, library
        self.functions: dict[tuple[int, int], tuple[Any, PartNode]] = {}
        self.pieces: dict[tuple[int, tuple[int, ...]], PartNode] = {}

    def size(self, node: PartNode) -> tuple[int, int, int]:
        """The shape of what a node gives: batch, positions, channels."""
        return self.layout.batch, node.count, max(node.channels, 1)

    def coordinates(self, held: Held) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Batch, position and channel of every entry."""
        node, index = held.node, held.index
        if node is self.layout.source:
            count = math.prod(self.layout.shape)
            assert self.layout.order is not None
            inverse = np.argsort(self.layout.order.reshape(-1))
            index = index // count * count + inverse[index % count]
        batch, position, channel = np.unravel_index(index, self.size(node))
        return batch, position, channel

    def divided(self, held: Held, where: str) -> Held:
        """Some channels of one linear map, as a map of their own: gates beside values."""
        node = held.node
        if not isinstance(node.part, DrawnPart) or not node.part.divisible:
            return held
        batch, position, channel = self.coordinates(held)
        numbers = np.unique(channel)
        if len(numbers) == node.channels:
            return held
        key = id(node), tuple(numbers.tolist())
        if key not in self.pieces:
            part = node.part.divided(numbers)
            piece = made(part, *node.inputs, where=where, channels=len(numbers))
            piece.positions = node.positions
            self.pieces[key] = piece
        rows = batch * node.count + position
        index = rows * len(numbers) + np.searchsorted(numbers, channel)
        return Held(self.pieces[key], index, held.function)

    def activated(self, held: Held, where: str) -> Held:
        """The array with its function as a part."""
        if held.node is self.layout.source and self.layout.tokens:
            raise refusal(
                "The model reckons with whole numbers as if they measured something",
                where,
                "look tokens up in a table, leave padding to the mask: net.kernel(x, mask=…), or "
                "pass x.astype(np.float32)",
            )
        held = self.divided(held, where)
        if held.function is None:
            return held
        known = self.functions.get((id(held.node), id(held.function)))
        if known is None:
            slope = factor(self.library.on_numpy(held.function))
            node = held.node
            if slope is None:
                part: ModelPart = Activate(self.library.in_jax(held.function, where))
                node = made(part, node, where=f"the function before {where}")
            elif slope != 1:
                node = made(Scale(slope), node, where=f"the function before {where}")
            known = held.function, node
            self.functions[id(held.node), id(held.function)] = known
        found = replace(held, node=known[1], function=None)
        if held.node is self.layout.source and known[1] is not held.node:
            return replace(found, index=self.canonical(held))
        return found

    def canonical(self, held: Held) -> np.ndarray:
        """The index in (batch, positions, channels), also for the input."""
        return np.ravel_multi_index(self.coordinates(held), self.size(held.node))

    def known(self, held: Held, where: str, axis: int = -1) -> Held:
        """The array once the input's axes are known."""
        if held.node is self.layout.source and self.layout.order is None:
            self.layout.settle(held, axis, where)
        return held

    def ready(self, held: Held, where: str, axis: int = -1) -> Held:
        """The array of a part, whose axes are known."""
        return self.activated(self.known(held, where, axis), where)

    def rows(self, held: Held, where: str, axis: int = -1, *, flatten: bool = True) -> Rows:
        """The array as channels along an axis, at positions along the others."""
        held = self.ready(held, where, axis)
        batch, position, channel = (np.moveaxis(c, axis, -1) for c in self.coordinates(held))
        node = held.node
        _, count, channels = self.size(node)
        if not (batch == batch[..., :1]).all():
            raise refusal("Examples of a batch are mixed", where, "keep examples apart")
        whole = batch.shape[-1] == channels and (position == position[..., :1]).all()
        if whole and (np.sort(channel, axis=-1) == np.arange(channels)).all():
            return self._positions(node, batch[..., 0], position[..., 0], where)
        both = np.sort(position * channels + channel, axis=-1)
        if both.shape[-1] == channels * count and (both == np.arange(channels * count)).all():
            if not flatten and count > 1:
                raise refusal(
                    "A normalisation is over positions as well as channels",
                    where,
                    "normalise the channels of every position",
                )
            flat = made(Flat(), node, where=where, positions=(), channels=channels * count)
            return Rows(flat, batch[..., 0])
        across = (channel == channel[..., :1]).all()
        raise refusal(
            f"Weights act on {batch.shape[-1]} numbers that are not the {channels} channels of "
            f"one of {count} positions" + (", but go across positions" if across else ""),
            where,
            "mix positions by attention, a convolution or a mean"
            if across
            else "rearrange the inputs before the model",
        )

    def _positions(
        self, node: PartNode, batch: np.ndarray, position: np.ndarray, where: str
    ) -> Rows:
        places = np.unique(position)
        if len(places) == 1 and batch.size == self.layout.batch:
            if node.count > 1:
                return Rows(picked(node, int(places[0]), where), batch)
            gone = node.positions and batch.ndim == len(self.layout.lead)
            return Rows(made(Flat(), node, where=where, positions=()) if gone else node, batch)
        rows = batch * node.count + position
        if rows.size != self.layout.batch * node.count or len(np.unique(rows)) != rows.size:
            raise refusal(
                f"{len(places)} of {node.count} positions go on, or some more than once",
                where,
                "keep all positions, read one position, or take their mean",
            )
        return Rows(node, rows)

    def same_place(self, one: Held, two: Held, where: str) -> tuple[Held, Held]:
        """Two arrays entry by entry at the same positions and channels."""
        one, two = (self.ready(h, where) for h in (one, two))
        if one.shape == two.shape and one.node.positions != two.node.positions:
            one, two = (self._picked(h, where) for h in (one, two))
        alike = one.node.positions == two.node.positions and one.node.channels == two.node.channels
        if not alike or one.shape != two.shape:
            raise refusal(
                f"Arrays of shapes {one.shape} and {two.shape} are combined, of which one is "
                "repeated, or has other positions or channels",
                where,
                "combine arrays of the same positions and channels",
            )
        if not (self.canonical(one) == self.canonical(two)).all():
            raise refusal(
                "Arrays are combined whose entries are in another order",
                where,
                "combine entries of the same positions and channels",
            )
        return one, two

    def _picked(self, held: Held, where: str) -> Held:
        """One position that is left of several, as a part."""
        batch, position, channel = self.coordinates(held)
        if held.node.count == 1 or len(np.unique(position)) != 1:
            return held
        node = picked(held.node, int(position.flat[0]), where)
        return Held(node, batch * node.channels + channel)
