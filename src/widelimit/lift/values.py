"""Arrays of a model on their way through its code: which axis is what, and what made them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from ..errors import NetworkError
from ..layers import Rearrange
from .activations import factor
from .initialisers import DrawnArrays
from .parts import (
    Activate,
    Add,
    FirstToken,
    Flat,
    ModelPart,
    Multiply,
    PartNode,
    Pick,
    Places,
    Pool,
    Scale,
    Source,
    made,
)


class ValueKind(Enum):
    """Axes that are not positions."""

    CHANNEL = "channel"
    BATCH = "batch"


@dataclass(frozen=True)
class Raw:
    """An axis of the input whose meaning the first part will tell."""

    number: int


Label = ValueKind | Raw | tuple[int, ...]
"""An axis: channels, the batch, or positions (several that were merged; none: of length 1)."""


@dataclass(frozen=True)
class Value:
    """`function` of what a node gives, with the meaning of every axis.

    Axes of length 1 may be missing among the labels.
    """

    node: PartNode
    axes: tuple[Label, ...]
    function: Callable[[Any], Any] | None = None
    """An elementwise function that is not a part yet; None is the identity."""

    def to(self, node: PartNode, axes: tuple[Label, ...] | None = None) -> Value:
        """Another node's output with the same axes."""
        return Value(node, self.axes if axes is None else axes)

    def then(self, function: Callable[[Any], Any]) -> Value:
        """A function of every entry."""
        inner = self.function
        outer = function if inner is None else lambda x: function(inner(x))
        return replace(self, function=outer)


class UnreadStep(Exception):
    """A step between known parts that lifting has no reading for; said with its line further up."""


class LiftWarning(UserWarning):
    """A lifted network differs from the model's limit; the message says in what."""


def refusal(rule: str, *, got: str, remedy: str = "") -> NetworkError:
    """Why a JAX model is not lifted; a way that is always open is tracing."""
    return NetworkError(rule, got=got, remedy=f"{remedy}, or {TRACING}" if remedy else TRACING)


TRACING = "use wl.trace(make, x), which reads any code"


class Graph:
    """Builds the graph of parts from what readers of a library say, in terms of arrays' axes."""

    def __init__(self, shape: Sequence[int], *, tokens: bool, batch: bool):
        """`shape` of the model's input; `batch`: its first axis counts examples."""
        self.shape = tuple(shape)
        self.tokens = tokens
        self.source = PartNode(Source(), (), (), 0, "the input")
        self.meaning: dict[int, Label] = {0: ValueKind.BATCH} if batch else {}
        self.settled = False
        self.used: set[int] = set()
        self.arrays = DrawnArrays()
        # An elementwise function that is used twice is one node; functions are kept with it.
        self.functions: dict[tuple[int, int], tuple[Any, PartNode]] = {}
        if tokens:
            self._settle([Raw(i) for i in range(len(shape))], channel=None)

    def input(self) -> Value:
        """The model's input."""
        return Value(self.source, tuple(Raw(i) for i in range(len(self.shape))))

    # ---- the meaning of axes -------------------------------------------------------------------

    def _settle(self, axes: Sequence[Label], channel: int | None) -> None:
        positions = []
        for place, label in enumerate(axes):
            if not isinstance(label, Raw) or label.number in self.meaning:
                continue
            if place == channel:
                self.meaning[label.number] = ValueKind.CHANNEL
            else:
                self.meaning[label.number] = (len(positions),)
                positions.append(self.shape[label.number])
        self.source.positions = tuple(positions)
        if channel is not None:
            label = axes[channel]
            self.source.channels = self.shape[label.number] if isinstance(label, Raw) else 1
        self.settled = True

    def known(self, value: Value, channel: int = -1) -> Value:
        """The value with every axis known; `channel` is the default for channels."""
        if not self.settled:
            self._settle(value.axes, channel % len(value.axes))
        axes = tuple(
            self.meaning[label.number] if isinstance(label, Raw) else label for label in value.axes
        )
        return replace(value, axes=axes)

    def rearrangement(self) -> Rearrange | None:
        """How the input's axes come into the order of positions and channels; None: they are."""
        channel = [axis for axis, label in self.meaning.items() if label is ValueKind.CHANNEL]
        places = [(label, axis) for axis, label in self.meaning.items() if isinstance(label, tuple)]
        order = [*(axis for _, axis in sorted(places)), *channel]
        whole = len(channel) == 1 and sorted(order) == list(range(len(self.shape)))
        return Rearrange(order) if whole and order != sorted(order) else None

    def extent(self, node: PartNode, label: Label) -> int:
        """The length of an axis."""
        if isinstance(label, Raw):
            return self.shape[label.number]
        if isinstance(label, ValueKind):
            return node.channels if label is ValueKind.CHANNEL else self.shape[0]
        return math.prod(node.positions[p] for p in label)

    def shape_of(self, value: Value) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.extent(value.node, label) for label in value.axes)

    def channel_last(self, value: Value, where: str) -> Value:
        """A value whose last axis is the channels', as most parts take it."""
        value = self.known(value)
        if not value.axes or value.axes[-1] is not ValueKind.CHANNEL:
            raise refusal(
                "Weights and normalisations act on channels, the last axis.",
                got=f"another axis at {where}",
                remedy="move channels to the last axis",
            )
        return value

    # ---- nodes ---------------------------------------------------------------------------------

    def settled_value(self, value: Value, where: str) -> Value:
        """The value with its elementwise function as a part."""
        value = self.known(value)
        if value.function is None:
            return value
        known = self.functions.get((id(value.node), id(value.function)))
        if known is None:
            node, slope = value.node, factor(value.function)
            if slope != 1:
                part = Activate(value.function) if slope is None else Scale(slope)
                node = made(part, value.node, where=f"the function before {where}")
            known = value.function, node
            self.functions[id(value.node), id(value.function)] = known
        return value.to(known[1])

    def applied(self, part: ModelPart, value: Value, where: str, **shape: Any) -> Value:
        """A part on a value that keeps its axes."""
        value = self.settled_value(value, where)
        return value.to(made(part, value.node, where=where, **shape))

    def combined(self, one: Value, two: Value, part: Add | Multiply, where: str) -> Value:
        """The sum or the product of two values with the same axes."""
        one, two = (self.settled_value(each, where) for each in (one, two))
        self.require_alike(one, two, where)
        return one.to(made(part, one.node, two.node, where=where))

    def require_alike(self, one: Value, two: Value, where: str) -> None:
        """Raise unless two arrays have the same axes in the same order."""
        same = one.axes == two.axes and self.shape_of(one) == self.shape_of(two)
        if not same or one.node.positions != two.node.positions:
            raise refusal(
                "Branches that are combined have the same axes.",
                got=f"arrays of shapes {self.shape_of(one)} and {self.shape_of(two)}, or of "
                f"different meaning, at {where}",
            )

    def use(self, module: Any, where: str) -> None:
        """Raise where a module's weights were used before."""
        if id(module) in self.used:
            raise refusal(
                "Every part has weights of its own.",
                got=f"weights that are used a second time at {where}",
                remedy="give each place its own module",
            )
        self.used.add(id(module))

    def require_output(self, value: Value) -> None:
        """Raise unless the output's axes are positions in order and channels."""
        value = self.known(value)
        found = [p for label in value.axes if isinstance(label, tuple) for p in label]
        kept = [p for p in found if value.node.positions[p] > 1]
        missing = value.node.channels > 1 and ValueKind.CHANNEL not in value.axes
        if kept != sorted(kept) or missing:
            raise refusal(
                "Outputs keep positions in order, and their channels.",
                got=f"an output of shape {self.shape_of(value)}",
            )

    # ---- rearrangements ------------------------------------------------------------------------

    def reshaped(self, value: Value, shape: Sequence[int], where: str) -> Value:
        """Axes of length 1 come and go, positions are merged and parted, everything flattened."""
        long = [extent for extent in self.shape_of(value) if extent != 1]
        if long != [extent for extent in shape if extent != 1]:
            value = self.known(value)
        atoms = [atom for label in value.axes for atom in self._atoms(label)]
        axes: list[Label] = []
        flatten = False
        for extent in shape:
            group: list[Label] = []
            total = 1
            while atoms and (total < extent or (total == extent == 1 and not group)):
                if extent == 1 and self.extent(value.node, atoms[0]) != 1:
                    break
                group.append(atoms.pop(0))
                total *= self.extent(value.node, group[-1])
            if total != extent:
                raise self._rearranged(value, shape, where)
            if len(group) == 1:
                axes.append(group[0])
            elif all(isinstance(atom, tuple) for atom in group):
                axes.append(tuple(p for atom in group if isinstance(atom, tuple) for p in atom))
            elif ValueKind.BATCH in group:
                raise self._rearranged(value, shape, where)
            else:
                flatten = True
                axes.append(ValueKind.CHANNEL)
        if any(self.extent(value.node, atom) != 1 for atom in atoms):
            raise self._rearranged(value, shape, where)
        apart = [label for label in axes if isinstance(label, tuple)]
        if flatten and any(self.extent(value.node, label) > 1 for label in apart):
            raise self._rearranged(value, shape, where)
        # Axes of single positions that went away are gone for good.
        gone = self.settled and value.node.positions and not any(apart)
        if not flatten and not (gone and ValueKind.CHANNEL in axes):
            return replace(value, axes=tuple(axes))
        value = self.settled_value(value, where)
        flat = made(
            Flat(),
            value.node,
            where=where,
            positions=(),
            channels=value.node.channels * value.node.count,
        )
        return value.to(flat, tuple(() if isinstance(a, tuple) else a for a in axes))

    def _atoms(self, label: Label) -> list[Label]:
        return [(p,) for p in label] if isinstance(label, tuple) else [label]

    def _rearranged(self, value: Value, shape: Sequence[int], where: str) -> NetworkError:
        return refusal(
            "Positions are merged, or everything is flattened; channels stay together.",
            got=f"{self.shape_of(value)} reshaped to {tuple(shape)} at {where}",
            remedy="rearrange the inputs before the model",
        )

    def transposed(self, value: Value, order: Sequence[int]) -> Value:
        """Axes in another order."""
        return replace(value, axes=tuple(value.axes[i] for i in order))

    # ---- positions -----------------------------------------------------------------------------

    def summed(self, value: Value, axes: Sequence[int], where: str, *, keep: bool) -> Value:
        """The sum over all positions."""
        value = self.settled_value(value, where)
        chosen = {axis % len(value.axes) for axis in axes}
        labels = [value.axes[axis] for axis in sorted(chosen)]
        found = {p for label in labels if isinstance(label, tuple) for p in label}
        real = {p for p, extent in enumerate(value.node.positions) if extent > 1}
        if any(isinstance(label, ValueKind) for label in labels) or not real <= found:
            raise refusal(
                "Pooling is over all positions.",
                got=f"a sum over some axes of an array of shape {self.shape_of(value)} at {where}",
            )
        node = made(Pool(1.0, None, None), value.node, where=where, positions=())
        rest: list[Label] = [() if i in chosen else a for i, a in enumerate(value.axes)]
        left = rest if keep else [a for i, a in enumerate(rest) if i not in chosen]
        # Positions of length 1 that stay in the array are gone from the node.
        return value.to(node, tuple(() if isinstance(a, tuple) else a for a in left))

    def windowed(self, value: Value, pool: Pool, where: str) -> Value:
        """Sums over windows that lie inside the positions."""
        assert pool.window is not None
        assert pool.stride is not None
        positions = tuple(
            (extent - window) // stride + 1
            for extent, window, stride in zip(
                value.node.positions, pool.window, pool.stride, strict=True
            )
        )
        return value.to(made(pool, value.node, where=where, positions=positions))

    def picked(self, value: Value, axis: int, index: int, where: str) -> Value:
        """One position: the axis stays, with length 1."""
        value = self.settled_value(value, where)
        label = value.axes[axis]
        if label is ValueKind.CHANNEL and value.node.channels == 1:
            return value
        real = {p for p, extent in enumerate(value.node.positions) if extent > 1}
        if not isinstance(label, tuple) or not real <= set(label):
            raise refusal(
                "An index picks one position out of all.",
                got=f"an index along axis {axis} of an array of shape {self.shape_of(value)} at "
                f"{where}",
            )
        extents = [value.node.positions[p] for p in label]
        places = np.unravel_index(index, extents) if extents else ()
        found = dict(zip(label, (int(i) for i in places), strict=True))
        place = tuple(found.get(p, 0) for p in range(len(value.node.positions)))
        axes: tuple[Label, ...] = tuple(() if isinstance(a, tuple) else a for a in value.axes)
        if not place:
            return value.to(value.node, axes)
        node = made(Pick(place), value.node, where=where, positions=())
        return value.to(node, axes)

    def placed(self, value: Value, variance: float, common: float, where: str) -> Value:
        """A random vector at every position is added."""
        return self.applied(Places(variance, common), value, where)

    def preceded(self, value: Value, axis: int, variance: float, where: str) -> Value:
        """A random vector in front of all positions."""
        value = self.settled_value(value, where)
        label = value.axes[axis]
        real = {p for p, extent in enumerate(value.node.positions) if extent > 1}
        if not isinstance(label, tuple) or not real <= set(label) or label != tuple(sorted(label)):
            raise refusal(
                "A token stands in front of all positions.",
                got=f"a concatenation along axis {axis} at {where}",
            )
        length = 1 + value.node.count
        node = made(FirstToken(variance), value.node, where=where, positions=(length,))
        axes: list[Label] = [() if isinstance(a, tuple) else a for a in value.axes]
        axes[axis] = (0,)
        return value.to(node, tuple(axes))

    def in_sequence(self, value: Value, where: str) -> Value:
        """A value of (positions, channels), for attention; other axes have length 1."""
        value = self.channel_last(self.settled_value(value, where), where)
        label = value.axes[-2] if len(value.axes) > 1 else ValueKind.CHANNEL
        real = {p for p, extent in enumerate(value.node.positions) if extent > 1}
        if not isinstance(label, tuple) or not real <= set(label):
            raise refusal(
                "Attention is over all positions, the axis before the channels.",
                got=f"an array of shape {self.shape_of(value)} at {where}",
                remedy="merge positions into one axis, after the batch",
            )
        return value
