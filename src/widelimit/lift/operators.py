"""What makes parts, in whatever library: weights, tables, normalisations, pools, tokens, sums."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layers import Padding
from .attention import attention
from .parts import (
    Add,
    Affine,
    Convolution,
    DrawnPart,
    DrawnWeights,
    Drop,
    FirstToken,
    Lookup,
    Multiply,
    Normalise,
    PartNode,
    Places,
    Pool,
    made,
)
from .probes import normalisation, softmaxes_of
from .values import (
    Aligner,
    Computed,
    Function,
    Held,
    Known,
    Layout,
    Library,
    LiftWarning,
    Rows,
    alike,
    refusal,
)


class Builder:
    """Builds the graph of parts; readers of libraries say which operator is on which arrays."""

    def __init__(self, layout: Layout, library: Library):
        self.layout, self.library = layout, library
        self.aligner = Aligner(layout, library)

    def placed(self, part: Any, held: Held, where: str) -> Held:
        """A part that keeps positions and channels, on an array whose axes are known."""
        node = made(part, held.node, where=where)
        return Held(node, self.aligner.canonical(held))

    # ---- weights ---------------------------------------------------------------------------------

    def linear(self, value: Any, weights: np.ndarray, bias: Any, where: str) -> Held:
        """Weights (inputs, outputs) on the last axis; attention ends in such weights."""
        drawn = DrawnWeights(weights, bias, where)
        channels = weights.shape[1]
        if isinstance(value, Computed):
            if not softmaxes_of(value):
                raise refusal(
                    "What weights act on is no known part of a network",
                    f"{first_place(value)}, before {where}",
                    "write this part in layers: wl.Serial(…) of wl.Dense, wl.Elementwise, …",
                )
            heads = attention(value, self.aligner, self.library, where)
            node = made(heads.part(drawn), heads.below, where=where, channels=channels)
            return Rows(heads.below, heads.rows).to(node)
        rows = self.aligner.rows(value, where)
        node = made(DrawnPart.linear(drawn), rows.node, where=where, channels=channels)
        return rows.to(node)

    def conv(
        self,
        held: Held,
        weight: np.ndarray,
        bias: Any,
        where: str,
        *,
        stride: tuple[int, ...],
        pads: Any,
        groups: int = 1,
        dilation: Sequence[int] = (),
    ) -> Held:
        """Weights (outputs, inputs, windows…) on an array (batch, channels, positions…)."""
        if groups != 1 or any(d != 1 for d in dilation):
            raise refusal(
                f"A convolution has groups={groups} and dilation {tuple(dilation)}",
                where,
                "use plain convolutions",
            )
        valid = pads == "VALID" or not np.any(pads)
        held, circle = _unwrapped(held, weight.shape[2:]) if valid else (held, None)
        node, positions = self.windowed(held, where)
        windows = Windows(weight.shape[2:], stride, circle or pads)
        padding, outs = windows.padding(positions, where, circular=circle is not None)
        outputs = weight.shape[0]

        def make(laws: Sequence[Affine]) -> Convolution:
            return Convolution(laws[0], outputs, windows.window, stride, padding)

        drawn = DrawnWeights(weight.reshape(outputs, -1).T, bias, where)
        part = DrawnPart((drawn,), make, biased=True)
        return self.spread(made(part, node, where=where, positions=outs, channels=outputs))

    def windowed(self, held: Held, where: str) -> tuple[PartNode, tuple[int, ...]]:
        """The node of an array (batch, channels, positions…) in the order of its positions."""
        if held.index.ndim < 3:
            raise refusal(f"Windows are on an array of shape {held.shape}", where, "pass a batch")
        rows, positions = self.aligner.rows(held, where, 1), held.shape[2:]
        if rows.node is self.layout.source:
            rows.node.positions = positions
        grid = np.arange(rows.rows.size).reshape(self.layout.batch, *positions)
        # A batch of examples lies in front, not one of positions.
        if rows.node.positions != positions or not np.array_equal(rows.rows, grid):
            raise refusal(
                f"Windows are on {positions} positions in another order, or of a sequence",
                where,
                "keep the axes of positions as they are in x",
            )
        return rows.node, positions

    def spread(self, node: PartNode) -> Held:
        """What a node gives, as (batch, channels, positions…)."""
        batch, count, channels = self.aligner.size(node)
        index = np.arange(batch * count * channels).reshape(batch, *node.positions, channels)
        return Held(node, np.moveaxis(index, -1, 1))

    def windows(
        self,
        held: Held,
        window: tuple[int, ...],
        stride: tuple[int, ...],
        factor: float,
        where: str,
    ) -> Held:
        """`factor` times sums over windows of an array (batch, channels, positions…)."""
        node, positions = self.windowed(held, where)
        _, outs = Windows(window, stride, "VALID").padding(positions, where)
        return self.spread(made(Pool(factor, window, stride), node, where=where, positions=outs))

    def embedding(
        self, table: np.ndarray, tokens: Any, where: str, padding: int | None = None
    ) -> Held:
        """Rows of a table for tokens."""
        source = self.layout.source
        if not isinstance(tokens, Held) or tokens.node is not source or not self.layout.tokens:
            raise refusal(
                "A table is looked up by indices that are computed from the input",
                where,
                "pass them as constants, such as position_ids=torch.arange(1, n + 1)[None], and "
                "leave padding to the mask: net.kernel(x, mask=…)",
            )
        if tokens.function is not None:
            every = np.arange(len(table))
            if not np.array_equal(self.library.on_numpy(tokens.function)(every), every):
                raise refusal(
                    "Tokens are changed before they are looked up", where, "change x before lifting"
                )
        rows = table
        if padding is not None and 0 <= padding < len(table) and not table[padding].any():
            warnings.warn(
                LiftWarning(
                    f"Row {padding} of the table at {where} is zero, as padding; in the lifted "
                    "network it is a row like others. Padding belongs to the mask: "
                    "net.kernel(x, mask=…)."
                ),
                stacklevel=2,
            )
            rows = np.delete(table, padding, axis=0)

        def make(laws: Sequence[Affine]) -> Lookup:
            law = laws[0].weights
            return Lookup(law.variance, law.gaussian, *map(int, table.shape))

        part = DrawnPart((DrawnWeights(rows.T, None, where),), make)
        node = made(part, source, where=where, channels=table.shape[1])
        return Rows(node, tokens.index).to(node)

    # ---- constants that are added ----------------------------------------------------------------

    def add_constant(self, held: Held, array: np.ndarray, where: str) -> Held:
        """A constant that differs from entry to entry: a bias, or vectors of positions."""
        shape = np.broadcast_shapes(held.shape, array.shape)
        if shape != held.shape:
            raise refusal(
                f"An array of shape {held.shape} is repeated to {shape} by what is added",
                where,
                "add a constant of the shape of the array",
            )
        held = self.aligner.ready(held, where)
        node, size = held.node, self.aligner.size(held.node)
        table = np.full(size, np.nan)
        table[self.aligner.coordinates(held)] = np.broadcast_to(array, shape)
        if np.isnan(table).any() or not (table == table[:1]).all():
            raise refusal(
                "A constant is added to a part of the array, or examples have others",
                where,
                "add constants to all positions and channels",
            )
        rows = table[0]
        common = bool((rows == rows[:1]).all())
        if common and isinstance(node.part, DrawnPart) and node.part.accepts_bias:
            part = node.part.with_bias(rows[0])
            new = made(part, *node.inputs, where=node.where, channels=node.channels)
            new.positions = node.positions
            return Held(new, self.aligner.canonical(held))
        if common and isinstance(node.part, Normalise):
            raise _trained("shift", "0", where)
        if not common and len(np.unique(rows, axis=0)) < len(rows):
            raise refusal(
                "Positions have a row of their own, or all the same one; here some share theirs",
                where,
                "use one table for all positions",
            )
        numbers = rows[:1].T if common else rows.T
        drawn = DrawnWeights(numbers, None, where, "vectors of positions")

        def make(laws: Sequence[Affine]) -> Places:
            variance = laws[0].weights.variance
            return Places(0.0, variance) if common else Places(variance, 0.0)

        return self.placed(DrawnPart((drawn,), make), held, where)

    def joined(self, parts: Sequence[Any], axis: int, where: str) -> Held | None:
        """Parts of one array side by side; None where they are of several."""
        parts = [p for p in parts if not isinstance(p, Known) or p.numbers.size]
        if any(isinstance(p, Known) for p in parts):
            first, *rest = parts
            one = isinstance(first, Known) and first.shape[axis] == 1
            if not one or len(rest) != 1 or not isinstance(rest[0], Held):
                raise refusal(
                    "Constants are joined to an array in another way than as one token in front",
                    where,
                    "put one token in front",
                )
            return self.token(first.numbers, rest[0], axis, where)
        if not alike(parts):
            return None
        return parts[0].moved(lambda _: np.concatenate([p.index for p in parts], axis=axis))

    def token(self, array: np.ndarray, held: Held, axis: int, where: str) -> Held:
        """A constant row in front of all positions."""
        held = self.aligner.ready(held, where)
        node, size = held.node, self.aligner.size(held.node)
        batch, position, channel = (np.moveaxis(c, axis, 0) for c in self.aligner.coordinates(held))
        places = np.arange(size[1]).reshape(-1, *[1] * (position.ndim - 1))
        if position.shape[0] != size[1] or not (position == places).all():
            raise refusal(
                "A token does not stand in front of all positions in order",
                where,
                "put one token in front",
            )
        row = np.full((size[0], size[2]), np.nan)
        row[batch[0], channel[0]] = np.broadcast_to(np.moveaxis(array, axis, 0)[0], batch[0].shape)
        if not (row == row[:1]).all():
            raise refusal(
                "A token has not all channels, or examples have others",
                where,
                "give all examples one token of all channels",
            )
        drawn = DrawnWeights(row[0].reshape(-1, 1), None, where, "tokens in front")

        def make(laws: Sequence[Affine]) -> FirstToken:
            return FirstToken(laws[0].weights.variance)

        new = made(DrawnPart((drawn,), make), node, where=where, positions=(1 + size[1],))
        joined = [np.concatenate([c[:1], c]) for c in (batch, channel)]
        position = np.concatenate([0 * position[:1], 1 + position])
        index = np.ravel_multi_index((joined[0], position, joined[1]), self.aligner.size(new))
        return Held(new, np.moveaxis(index, 0, axis))

    # ---- normalisations, dropout, pools ----------------------------------------------------------

    def normalise(
        self, held: Held, *, centred: bool, eps: float, gain: Any, shift: Any, where: str
    ) -> Held:
        """Normalisation over the last axis, with gains and shifts as at initialisation."""
        for name, array, expected in (("gain", gain, 1.0), ("shift", shift, 0.0)):
            if array is not None and np.abs(array.numbers - expected).max() > 1e-6:
                raise _trained(name, f"{expected:g}", where)
        rows = self.aligner.rows(held, where, flatten=False)
        return rows.to(made(Normalise(centred, eps), rows.node, where=where))

    def drop(self, held: Held, rate: float, where: str) -> Held:
        """Dropout in training."""
        return self.placed(Drop(float(rate)), self.aligner.ready(held, where), where)

    def pooled(
        self, held: Held, axes: Sequence[int], *, keep: bool, mean: bool, where: str
    ) -> Held | None:
        """The sum or mean over all positions; None where the axes are others."""
        last = held.index.ndim - 1
        first = len(self.layout.lead)  # channels, where the last of several axes are pooled
        held = self.aligner.known(held, where, first if last in axes and len(axes) > 1 else -1)
        rest = [a for a in range(last + 1) if a not in axes]
        batch, position, channel = (
            c.transpose(*rest, *axes).reshape(*(c.shape[a] for a in rest), -1)
            for c in self.aligner.coordinates(held)
        )
        if not (batch == batch[..., :1]).all():
            raise refusal("A mean or sum is over examples", where, "pool over positions")
        size, found = position.shape[-1], np.sort(position, axis=-1)
        if not (channel == channel[..., :1]).all():
            return None
        if size > 1 and (position == position[..., :1]).all():
            raise refusal(
                "A mean or sum is over entries that were repeated", where, "do not repeat them"
            )
        if size != held.node.count or not (found == np.arange(size)).all():
            return None
        held = self.aligner.activated(held, where)
        part = Pool(1 / size if mean else 1.0, None, None)
        node = made(part, held.node, where=where, positions=())
        index = batch[..., 0] * max(node.channels, 1) + channel[..., 0]
        return Held(node, np.expand_dims(index, tuple(sorted(axes))) if keep else index)

    # ---- entry by entry --------------------------------------------------------------------------

    def entrywise(
        self,
        name: str,
        operands: Sequence[Any],
        compose: Callable[[list[Function]], Function],
        where: str,
    ) -> Held | None:
        """A function of every entry, a sum or product of two arrays, or a constant that is added.

        `compose` makes a function of an entry out of those that the held operands are of it. None
        where the operator has no reading by itself.
        """
        held = [o for o in operands if isinstance(o, Held)]
        arrays = [o for o in operands if isinstance(o, Known) and _differs(name, o, held[0])]
        if arrays:
            return self.with_array(name, operands, held, arrays[0], where)
        first = held[0]
        if all(
            h.node is first.node and h.shape == first.shape and (h.index == first.index).all()
            for h in held
        ):
            known = [o.shape for o in operands if isinstance(o, Known)]
            index = np.broadcast_to(first.index, np.broadcast_shapes(first.shape, *known))
            number = getattr(operands[-1], "number", None)
            if len(operands) == 2 and number is not None and number == _NEUTRAL.get(name):
                return Held(first.node, index, first.function)
            return Held(first.node, index, compose([h.function or _identity for h in held]))
        if len(held) != 2 or len(operands) != 2 or name not in ("add", "sub", "mul"):
            return None
        one, two = held
        fits = one.shape == two.shape != ()
        if not fits:
            return None
        two = two.then(lambda x: x * -1.0) if name == "sub" else two
        one, two = self.aligner.same_place(one, two, where)
        part = Multiply() if name == "mul" else Add()
        return Held(made(part, one.node, two.node, where=where), self.aligner.canonical(one))

    def with_array(
        self, name: str, operands: Sequence[Any], held: list[Held], array: Known, where: str
    ) -> Held | None:
        """An array and a constant that differs from entry to entry."""
        if len(held) != 1 or len(operands) != 2 or name not in ("add", "sub", "mul", "div"):
            return None
        (only,) = held
        if name in ("add", "sub"):
            turned = name == "sub" and operands[0] is array
            only = only.then(lambda x: x * -1.0) if turned else only
            return self.add_constant(only, array.numbers, where)
        lead = int(np.prod(array.shape[:-1]))
        if isinstance(only.node.part, Normalise) and only.function is None and lead == 1:
            raise _trained("gain", "1", where)
        return None

    # ---- what is read together -------------------------------------------------------------------

    def computed(
        self,
        name: str,
        call: Callable[..., Any],
        inputs: Sequence[Held | Computed],
        shape: Sequence[int],
        where: str,
    ) -> Held | Computed:
        """An operator without a reading of its own: part of a normalisation, or of attention."""
        for value in inputs:
            if isinstance(value, Held):
                self.aligner.known(value, where)
        found = Computed(call, tuple(inputs), tuple(shape), where, name)
        norm = normalisation(found, self.aligner, self.library) if name in ("div", "mul") else None
        if norm is None:
            return found
        source, part = norm
        rows = self.aligner.rows(source, where, flatten=False)
        return rows.to(made(part, rows.node, where=where))

    def output(self, values: Sequence[Any]) -> PartNode:
        """The part whose output is the model's first one."""
        where = "the model's output"
        value = next((v for v in values if isinstance(v, Held | Computed)), None)
        if value is None:
            raise refusal(
                "The output does not depend on the input", where, "return what is made of x"
            )
        if isinstance(value, Computed):
            raise refusal(
                "The output is no known part of a network",
                first_place(value),
                "return what the last weights give, such as logits instead of probabilities",
            )
        held = self.aligner.ready(value, where)
        channels = np.arange(max(held.node.channels, 1))
        if len(channels) == 1 and held.node.count in (1, held.index.size // self.layout.batch):
            held = held.moved(lambda index: index[..., None])
        _, _, channel = self.aligner.coordinates(held)
        # Channels stand last, or elsewhere as in images.
        for axis in range(held.index.ndim - 1, len(self.layout.lead) - 1, -1):
            along = np.moveaxis(channel, axis, -1)
            if along.shape[-1] == len(channels) and (along == channels).all():
                return self.in_order(self.aligner.rows(held, where, axis))
        return self.in_order(self.aligner.rows(held, where))

    def in_order(self, rows: Rows) -> PartNode:
        """The node of an output whose positions are in order."""
        order = rows.rows[rows.rows < rows.node.count]
        if (np.diff(order) < 0).any():
            raise refusal(
                "Outputs do not keep positions in order",
                "the model's output",
                "return positions as they are in x",
            )
        return rows.node


def first_place(value: Computed) -> str:
    """The first operator that has no reading by itself."""
    while True:
        inner = next((v for v in value.inputs if isinstance(v, Computed)), None)
        if inner is None:
            return value.where
        value = inner


def _trained(what: str, expected: str, where: str) -> Exception:
    return refusal(
        f"The {what} of a normalisation is not {expected}, as at initialisation",
        where,
        "lift a freshly initialised model",
    )


def _differs(name: str, array: Known, held: Held) -> bool:
    """Whether a constant is more than one number, or the bias of one channel."""
    part = held.node.part
    single = isinstance(part, DrawnPart) and part.accepts_bias and held.node.channels == 1
    parameter = not array.literal and array.shape != () and array.number != 0
    bias = single and parameter and held.function is None and name in ("add", "sub")
    return array.number is None or bias


def _identity(x: Any) -> Any:
    return x


_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
"""Numbers on the right that change nothing: biases and gains as they are initialised."""


# ---- windows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows over positions as libraries lay them out."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    pads: Any
    """`SAME`, `VALID`, or pairs (before, after)."""

    def pairs(self, positions: tuple[int, ...]) -> list[tuple[int, int]]:
        """What is put before and after every axis."""
        if not isinstance(self.pads, str):
            return [(int(low), int(high)) for low, high in self.pads]
        if self.pads.upper() == "VALID":
            return [(0, 0)] * len(self.window)
        totals = [
            max((-(-length // stride) - 1) * stride + window - length, 0)
            for length, window, stride in zip(positions, self.window, self.stride, strict=True)
        ]
        return [(total // 2, total - total // 2) for total in totals]

    def padding(
        self, positions: tuple[int, ...], where: str, *, circular: bool = False
    ) -> tuple[Padding, tuple[int, ...]]:
        """The same padding in this library's words, refused where there is none; and the outputs'
        positions."""
        pairs = self.pairs(positions)
        axes = list(zip(positions, pairs, self.window, self.stride, strict=True))
        outs = tuple((n + low + high - w) // step + 1 for n, (low, high), w, step in axes)
        if all(pair == (0, 0) for pair in pairs):
            return Padding.VALID, outs
        ours = all(
            low == (w - 1) // 2 and out == -(-n // step)
            for (n, (low, _), w, step), out in zip(axes, outs, strict=True)
        )
        if not ours:
            raise refusal(
                f"Windows {self.window} with strides {self.stride} on positions {positions} have "
                f"padding {pairs}, neither none nor (window − 1)//2 in front with "
                "⌈length/stride⌉ windows",
                where,
                "pad by (window − 1)//2",
            )
        return Padding.CIRCULAR if circular else Padding.SAME, outs


def _unwrapped(held: Held, window: Sequence[int]) -> tuple[Held, list[tuple[int, int]] | None]:
    """An array (batch, channels, positions…) without what was repeated in a circle at its ends."""
    index = held.index
    if len(np.unique(index)) == index.size:
        return held, None
    for extra in range(max(window)):
        pads = [((w - 1) // 2, min(extra, w // 2)) for w in window]
        inner = [slice(low, n - high) for (low, high), n in zip(pads, index.shape[2:], strict=True)]
        core = index[(slice(None), slice(None), *inner)]
        if core.size and np.array_equal(np.pad(core, [(0, 0), (0, 0), *pads], mode="wrap"), index):
            return Held(held.node, core, held.function), pads
    return held, None
