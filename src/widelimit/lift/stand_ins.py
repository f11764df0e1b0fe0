"""Known parts as they stand in the program of a JAX model, whatever library they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..layers import Padding
from .glue import Known, Rows
from .initialisers import InitialReading
from .parts import Attend, Convolution, Drop, Linear, Lookup, Normalise, made
from .values import Graph, Value, ValueKind, refusal


@dataclass(frozen=True, eq=False)
class Described:
    """A module, and what part it is once a reading of its laws is chosen."""

    name: str
    module: Any
    describe: Callable[[InitialReading], Any]

    def part(self, graph: Graph, reading: InitialReading, where: str) -> Any:
        """The part, whose weights were not used before."""
        graph.use(self.module, where)
        return self.describe(reading)


class LinearStandIn(Described):
    """Weights on the last axis; `scalar` inputs and outputs have none."""

    @property
    def width(self) -> int | None:
        """Channels of the output; None for a scalar."""
        found = self.module.out_features
        return None if found == "scalar" else int(found)

    def shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        (shape,) = shapes
        lead = shape if getattr(self.module, "in_features", None) == "scalar" else shape[:-1]
        return lead if self.width is None else (*lead, self.width)

    def read(self, graph: Graph, reading: InitialReading, *inputs: Any, where: str) -> Value:
        value = graph.channel_last(graph.settled_value(only(inputs, where), where), where)
        part: Linear = self.part(graph, reading, where)
        node = made(part, value.node, where=where, channels=part.width)
        return value.to(node, value.axes[:-1] if self.width is None else None)


class ConvStandIn(Described):
    """A convolution; `channel` is the axis of channels."""

    @property
    def channel(self) -> int:
        """0 in Equinox, the last in Flax."""
        return 0 if hasattr(self.module, "num_spatial_dims") else -1

    def shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        (shape,) = shapes
        geometry = windows_of(self.module)
        positions = shape[1:] if self.channel == 0 else shape[:-1]
        lead, positions = positions[: -geometry.rank], positions[-geometry.rank :]
        outs = geometry.outs(positions)
        width = int(getattr(self.module, "out_channels", 0) or self.module.out_features)
        return (width, *outs) if self.channel == 0 else (*lead, *outs, width)

    def read(self, graph: Graph, reading: InitialReading, *inputs: Any, where: str) -> Value:
        value = graph.settled_value(graph.known(only(inputs, where), self.channel), where)
        geometry = windows_of(self.module)
        laid = [label for label in value.axes if label is not ValueKind.CHANNEL]
        long = [label for label in laid if graph.extent(value.node, label) > 1 or label]
        expected = [(p,) for p in range(len(value.node.positions))]
        if value.axes[self.channel] is not ValueKind.CHANNEL or long != expected:
            raise refusal(
                "A convolution is over all positions, in order.",
                got=f"an array of shape {graph.shape_of(value)} at {where}",
            )
        laws: Linear = self.part(graph, reading, where)
        padding = geometry.padding(value.node.positions, where)
        part = Convolution(laws.law, laws.width, geometry.window, geometry.stride, padding)
        positions = geometry.outs(value.node.positions)
        node = made(part, value.node, where=where, positions=positions, channels=part.width)
        return value.to(node)


@dataclass(frozen=True)
class Windows:
    """Windows over positions as libraries lay them out."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    pads: Any
    """`SAME`, `VALID`, `CIRCULAR`, or pairs (before, after)."""
    circular: bool

    @property
    def rank(self) -> int:
        """How many axes of positions there are."""
        return len(self.window)

    def pairs(self, positions: tuple[int, ...]) -> list[tuple[int, int]]:
        """What is put before and after every axis."""
        if not isinstance(self.pads, str):
            return [(int(low), int(high)) for low, high in self.pads]
        if self.pads.upper() == "VALID":
            return [(0, 0)] * self.rank
        totals = [
            max((-(-length // stride) - 1) * stride + window - length, 0)
            for length, window, stride in zip(positions, self.window, self.stride, strict=True)
        ]
        return [(total // 2, total - total // 2) for total in totals]

    def outs(self, positions: tuple[int, ...]) -> tuple[int, ...]:
        """Positions of the output."""
        return tuple(
            (length + low + high - window) // stride + 1
            for length, (low, high), window, stride in zip(
                positions, self.pairs(positions), self.window, self.stride, strict=True
            )
        )

    def padding(self, positions: tuple[int, ...], where: str) -> Padding:
        """The same padding in this library's words; refused where there is none."""
        pairs = self.pairs(positions)
        if all(pair == (0, 0) for pair in pairs):
            return Padding.VALID
        ours = all(
            low == (window - 1) // 2 and out == -(-length // stride)
            for (low, _), window, stride, length, out in zip(
                pairs, self.window, self.stride, positions, self.outs(positions), strict=True
            )
        )
        if not ours:
            raise refusal(
                "Padding is none, or (window − 1)//2 in front with ⌈length/stride⌉ windows.",
                got=f"padding {pairs} of windows {self.window} with strides {self.stride} on "
                f"positions {positions} at {where}",
                remedy="pad by (window − 1)//2",
            )
        return Padding.CIRCULAR if self.circular else Padding.SAME


def windows_of(module: Any) -> Windows:
    """The windows of a convolution of Equinox or Flax."""
    window = tuple(int(w) for w in np.atleast_1d(module.kernel_size))
    given = getattr(module, "stride", None) or getattr(module, "strides", None) or 1
    stride = _each(given, len(window))
    pads, mode = module.padding, str(getattr(module, "padding_mode", "ZEROS")).upper()
    circular = mode == "CIRCULAR"
    if isinstance(pads, str) and pads.upper() == "CIRCULAR":
        pads, circular = "SAME", True
    if isinstance(pads, int):
        pads = [(pads, pads)] * len(window)
    elif not isinstance(pads, str):
        pads = [(p, p) if isinstance(p, int) else tuple(p) for p in pads]
    dilations = [
        getattr(module, name, None) or 1
        for name in ("dilation", "kernel_dilation", "input_dilation")
    ]
    plain = all(d == 1 for each in dilations for d in _each(each, len(window)))
    groups = getattr(module, "groups", None) or getattr(module, "feature_group_count", 1)
    masked = getattr(module, "mask", None) is not None
    known = isinstance(pads, str) and pads.upper() not in ("SAME", "VALID")
    if not plain or groups != 1 or masked or known or mode not in ("ZEROS", "CIRCULAR"):
        raise refusal(
            "Convolutions are plain: no groups, no dilation, zeros or a circle beyond the edge.",
            got=f"{type(module).__name__} with groups={groups}, dilations {dilations}, padding "
            f"{pads!r} ({mode.lower()})",
        )
    return Windows(window, stride, pads, circular)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return (int(value),) * rank if np.ndim(value) == 0 else tuple(int(v) for v in value)


class PointStandIn(Described):
    """A part that keeps the shape: normalisation over the last axis, dropout."""

    def shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        return shapes[0]

    def read(self, graph: Graph, reading: InitialReading, *inputs: Any, where: str) -> Value:
        value = graph.settled_value(only(inputs, where), where)
        part: Normalise | Drop | None = self.describe(reading)
        if part is None:
            return value
        if isinstance(part, Normalise):
            value = graph.channel_last(value, where)
        return graph.applied(part, value, where)


class TableStandIn(Described):
    """A row of a table for every token, or for every position where indices are constants."""

    def shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        return (*shapes[0], self.describe_width())

    def describe_width(self) -> int:
        """Columns of the table."""
        table = getattr(self.module, "weight", None)
        return int((self.module.embedding if table is None else table).shape[-1])

    def read(self, graph: Graph, reading: InitialReading, *inputs: Any, where: str) -> Any:
        part: Lookup = self.part(graph, reading, where)
        (given,) = inputs
        if isinstance(given, Known):
            return Rows.of(part.variance, np.asarray(given.array), where)
        value = graph.known(given)
        if not graph.tokens or value.node is not graph.source or value.function is not None:
            raise refusal(
                "Tables are looked up by the tokens of the input, or by constant indices.",
                got=f"indices that are computed at {where}",
            )
        node = made(part, value.node, where=where, channels=part.width)
        return value.to(node, (*value.axes, ValueKind.CHANNEL))


class AttentionStandIn(Described):
    """Self-attention: queries, keys and values are made of the same array."""

    def shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        return (*shapes[0][:-1], self.output_width())

    def output_width(self) -> int:
        """Channels of the output."""
        size = getattr(self.module, "output_size", None)
        return int(self.module.out_features if size is None else size)

    def read(self, graph: Graph, reading: InitialReading, *inputs: Any, where: str) -> Value:
        values = [graph.in_sequence(only((x,), where), where) for x in inputs[:3]]
        first = values[0]
        if any(v.node is not first.node or v.axes != first.axes for v in values):
            raise refusal(
                "Queries, keys and values are made of one array (self-attention).",
                got=f"different arrays at {where}",
                remedy="describe cross-attention with widelimit.CrossAttention",
            )
        allowed = None
        if len(inputs) > 3:
            allowed = _pattern(inputs[3], first.node.count, where)
        part: Attend = replace(self.part(graph, reading, where), allowed=allowed)
        node = made(part, first.node, where=where, channels=part.width)
        return first.to(node)


def _pattern(mask: Any, size: int, where: str) -> np.ndarray:
    """A constant mask (query, key), the same for all heads."""
    if not isinstance(mask, Known):
        raise refusal(
            "Which keys a query sees does not depend on the input.",
            got=f"a mask that is computed from the input at {where}",
            remedy="leave the mask to the kernel: net.kernel(x, mask=…)",
        )
    array = np.asarray(mask.array, bool)
    array = array.reshape(-1, *array.shape[-2:])
    if array.shape[1:] != (size, size) or not (array == array[:1]).all():
        raise refusal(
            "A mask has one row and one column for each position, the same for all heads.",
            got=f"a mask of shape {np.shape(mask.array)} for {size} positions at {where}",
        )
    return array[0]


def only(inputs: tuple[Any, ...], where: str) -> Value:
    """The one input of a part, which depends on the model's."""
    (value,) = inputs
    if not isinstance(value, Value):
        raise refusal(
            "Parts act on what depends on the input.",
            got=f"a part on constants at {where}",
        )
    return value
