"""Tensors of an exported program: of which part's output every entry is which.

A tensor that was moved, cut, joined or repeated is described by numbers alone: entry by entry, the
place in the output (batch, positions, channels) of the part that made it. torch itself rearranges
these numbers, whatever the operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from .parts import Activate, Flat, ModelPart, PartNode, Scale, Source, made, picked
from .torch_export import refusal
from .torch_functions import factor_of, jax_function
from .torch_laws import DrawnPart

BATCH = 2
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Known:
    """A tensor that does not depend on the model's input."""

    tensor: Any

    @property
    def number(self) -> float | None:
        """The one number in it, or None."""
        tensor = torch.as_tensor(self.tensor)
        if not tensor.numel() or not (tensor == tensor.reshape(-1)[0]).all():
            return None
        return float(tensor.reshape(-1)[0])


@dataclass(frozen=True)
class Held:
    """`function` of entries of what a node gives; `index` counts them, batch first."""

    node: PartNode
    index: Any
    """A tensor of integers, of the shape of the tensor that it describes."""
    function: Function | None = None
    """A function of every entry that is no part yet; None is the identity."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.index.shape)

    def then(self, function: Function) -> Held:
        """A function of every entry."""
        inner = self.function
        return replace(self, function=function if inner is None else lambda x: function(inner(x)))


@dataclass(frozen=True)
class Rows:
    """A tensor whose one axis is all channels of a node's output, and the rest its positions."""

    node: PartNode
    rows: Any
    """Batch times positions, for every entry of the other axes."""

    def to(self, node: PartNode, channels: int, axis: int = -1) -> Held:
        """The tensor of another node's output at the same positions; `axis` is the channels'."""
        index = self.rows.unsqueeze(-1) * channels + torch.arange(channels)
        return Held(node, index.movedim(-1, axis))


class Layout:
    """What places in the input mean: positions and channels, once the first part has told."""

    def __init__(self, shape: tuple[int, ...], *, tokens: bool):
        self.shape, self.tokens = shape[1:], tokens
        self.source = PartNode(Source(), (), (), 0, "the input")
        self.order: np.ndarray | None = None
        if tokens:
            self.source.positions, self.source.channels = self.shape, 1
            self.order = np.arange(math.prod(self.shape)).reshape(-1, 1)

    def input(self) -> Held:
        """The model's input."""
        count = math.prod(self.shape)
        return Held(self.source, torch.arange(BATCH * count).reshape(BATCH, *self.shape))

    def settle(self, held: Held, axis: int, where: str) -> None:
        """The input's channels are what this axis runs over, its positions the other axes."""
        index = held.index.movedim(axis, -1)
        count = math.prod(self.shape)
        batch = index[..., 0] // count
        rows = index.reshape(-1, index.shape[-1])[torch.argsort(batch.reshape(-1), stable=True)]
        table = (rows.reshape(BATCH, -1, rows.shape[-1]) % count).numpy()
        if len(np.unique(table[0])) != count or table[0].size != count:
            raise refusal(
                "The first weights act on a part of the input, or on repeated parts of it",
                where,
                "cut the inputs before the model",
            )
        self.order = table[0]
        outer = tuple(index.shape[:-1])
        # Where the batch has an axis of its own, the other axes are those of positions.
        own = [a for a, n in enumerate(outer) if n == BATCH and (batch.select(a, 0) == 0).all()]
        rest = tuple(n for a, n in enumerate(outer) if a not in own[:1])
        self.source.positions = rest if own else (len(table[0]),)
        self.source.channels = index.shape[-1]


class Aligner:
    """Reads tensors as rows of channels, with the parts that this takes."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.inverse: Any = None
        self.functions: dict[tuple[int, int], tuple[Any, PartNode]] = {}
        self.pieces: dict[tuple[int, tuple[int, ...]], PartNode] = {}

    def coordinates(self, held: Held) -> tuple[Any, Any, Any]:
        """Batch, position and channel of every entry."""
        node, index = held.node, held.index
        if node is self.layout.source:
            count = math.prod(self.layout.shape)
            assert self.layout.order is not None
            if self.inverse is None:
                self.inverse = torch.as_tensor(np.argsort(self.layout.order.reshape(-1)))
            index = index // count * count + self.inverse[index % count]
        channels = max(node.channels, 1)
        rows, channel = index // channels, index % channels
        return rows // node.count, rows % node.count, channel

    def divided(self, held: Held, where: str) -> Held:
        """Some channels of one linear map, as a map of their own: gates beside values."""
        node = held.node
        if not isinstance(node.part, DrawnPart) or not node.part.divisible:
            return held
        batch, position, channel = self.coordinates(held)
        numbers = torch.unique(channel)
        if len(numbers) == node.channels:
            return held
        key = id(node), tuple(numbers.tolist())
        if key not in self.pieces:
            part = node.part.divided(numbers.numpy())
            self.pieces[key] = made(part, *node.inputs, where=where, channels=len(numbers))
            self.pieces[key].positions = node.positions
        rows = batch * node.count + position
        index = rows * len(numbers) + torch.searchsorted(numbers, channel)
        return Held(self.pieces[key], index, held.function)

    def activated(self, held: Held, where: str) -> Held:
        """The tensor with its function as a part."""
        held = self.divided(held, where)
        if held.function is None:
            return held
        known = self.functions.get((id(held.node), id(held.function)))
        if known is None:
            slope = factor_of(held.function)
            node = held.node
            if slope is None:
                part: ModelPart = Activate(jax_function(held.function, where))
                node = made(part, node, where=where)
            elif slope != 1:
                node = made(Scale(slope), node, where=where)
            known = held.function, node
            self.functions[id(held.node), id(held.function)] = known
        found = replace(held, node=known[1], function=None)
        if held.node is self.layout.source and known[1] is not held.node:
            return replace(found, index=self.canonical(held))
        return found

    def canonical(self, held: Held) -> Any:
        """The index in (batch, positions, channels), also for the input."""
        batch, position, channel = self.coordinates(held)
        return (batch * held.node.count + position) * max(held.node.channels, 1) + channel

    def known(self, held: Held, axis: int, where: str) -> Held:
        """The tensor once the input's axes are known."""
        if held.node is self.layout.source and self.layout.order is None:
            self.layout.settle(held, axis, where)
        return held

    def rows(self, held: Held, where: str, axis: int = -1, *, flatten: bool = True) -> Rows:
        """The tensor as channels along an axis, at positions along the others."""
        if held.node is self.layout.source and self.layout.tokens:
            raise refusal(
                "Weights act on whole numbers as if they measured something",
                where,
                "look tokens up in a table, or pass x.astype(np.float32)",
            )
        held = self.activated(self.known(held, axis, where), where)
        batch, position, channel = (c.movedim(axis, -1) for c in self.coordinates(held))
        node = held.node
        channels, count = max(node.channels, 1), node.count
        if not (batch == batch[..., :1]).all():
            raise refusal("Examples of a batch are mixed", where, "keep examples apart")
        whole = batch.shape[-1] == channels and (position == position[..., :1]).all()
        if whole and (torch.sort(channel, dim=-1)[0] == torch.arange(channels)).all():
            return self._positions(node, batch[..., 0], position[..., 0], where)
        both = torch.sort(position * channels + channel, dim=-1)[0]
        if both.shape[-1] == channels * count and (both == torch.arange(channels * count)).all():
            if not flatten and count > 1:
                raise refusal("A normalisation is over positions as well as channels", where)
            flat = made(Flat(), node, where=where, positions=(), channels=channels * count)
            return Rows(flat, batch[..., 0])
        raise refusal(
            f"Weights act on {batch.shape[-1]} numbers that are not the {channels} channels of "
            "one position",
            where,
        )

    def _positions(self, node: PartNode, batch: Any, position: Any, where: str) -> Rows:
        if node.count == 1 and batch.numel() == BATCH:
            return Rows(node, batch * 1 + position)
        places = torch.unique(position)
        if len(places) == 1 and batch.numel() == BATCH:
            return Rows(picked(node, int(places[0]), where), batch)
        rows = batch * node.count + position
        if rows.numel() != BATCH * node.count or len(torch.unique(rows)) != rows.numel():
            raise refusal(
                f"{len(places)} of {node.count} positions go on, or some more than once",
                where,
                "keep all positions, read one, or take their mean",
            )
        return Rows(node, rows)

    def same_place(self, one: Held, two: Held, where: str) -> tuple[Held, Held]:
        """Two tensors entry by entry at the same positions and channels."""
        one, two = (self.activated(self.known(h, -1, where), where) for h in (one, two))
        shape = torch.broadcast_shapes(one.index.shape, two.index.shape)
        if shape == one.index.shape == two.index.shape and one.node.positions != two.node.positions:
            one, two = (self._picked(h, where) for h in (one, two))
        alike = one.node.positions == two.node.positions and one.node.channels == two.node.channels
        if not alike or one.index.shape != two.index.shape:
            raise refusal(
                f"Arrays of shapes {one.shape} and {two.shape} are combined, of which one is "
                "repeated, or has other positions or channels",
                where,
            )
        if not (self.canonical(one) == self.canonical(two)).all():
            raise refusal("Arrays are combined whose entries are in another order", where)
        return one, two

    def _picked(self, held: Held, where: str) -> Held:
        """One position that is left of several, as a part."""
        _, position, _ = self.coordinates(held)
        if held.node.count == 1 or len(torch.unique(position)) != 1:
            return held
        batch, _, channel = self.coordinates(held)
        node = picked(held.node, int(position.flatten()[0]), where)
        return Held(node, batch * node.channels + channel)
