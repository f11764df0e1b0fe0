"""What a model is made of: known parts, each with the law of its weights, and a graph of them.

Readers of libraries make this description, the writer turns it into layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..layers import Padding, Rotary


@dataclass(frozen=True)
class WeightLaw:
    """Entries of a weight matrix: independent, of mean zero and `variance`, on `fan_in` inputs."""

    variance: float
    fan_in: int
    gaussian: bool

    @property
    def std(self) -> float:
        """σ of the layer: entries have the variance σ²/fan_in."""
        return float(np.sqrt(self.variance * self.fan_in))


@dataclass(frozen=True)
class BiasLaw:
    """Entries of a bias; `vanishing` if the variance falls as the fan-in grows."""

    variance: float
    vanishing: bool


@dataclass(frozen=True)
class Affine:
    """Weights and a bias."""

    weights: WeightLaw
    bias: BiasLaw | None


class ModelPart:
    """One operation of a model."""


@dataclass(frozen=True)
class Source(ModelPart):
    """The input."""


@dataclass(frozen=True)
class Linear(ModelPart):
    """Weights at every position."""

    law: Affine
    width: int


@dataclass(frozen=True)
class Convolution(ModelPart):
    """Weights on a window of positions."""

    law: Affine
    width: int
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding


@dataclass(frozen=True)
class Lookup(ModelPart):
    """A row of a table for every token."""

    variance: float
    gaussian: bool
    vocabulary: int
    width: int


@dataclass(frozen=True)
class Places(ModelPart):
    """A random vector added at every position: its own (variance) and a common one."""

    variance: float
    common: float


@dataclass(frozen=True)
class FirstToken(ModelPart):
    """A random vector in front of all positions."""

    variance: float


@dataclass(frozen=True)
class Normalise(ModelPart):
    """Normalisation over channels; `centred` is LayerNorm, otherwise RMSNorm."""

    centred: bool
    eps: float


@dataclass(frozen=True)
class Drop(ModelPart):
    """Dropout as in training."""

    rate: float


@dataclass(frozen=True)
class Attend(ModelPart):
    """Self-attention, softmax of products divided by √d."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    width: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    allowed: np.ndarray | None = field(default=None, compare=False)
    sharpness: float = 1.0
    """Scores are products times this, divided by √d."""
    rotary: Rotary | None = None


@dataclass(frozen=True)
class Activate(ModelPart):
    """An elementwise function."""

    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Scale(ModelPart):
    """Multiplication by a number."""

    factor: float


@dataclass(frozen=True)
class Add(ModelPart):
    """The sum of two branches."""


@dataclass(frozen=True)
class Multiply(ModelPart):
    """The product of two branches, channel by channel."""


@dataclass(frozen=True)
class Pool(ModelPart):
    """`factor` times the sum over all positions, or over windows."""

    factor: float
    window: tuple[int, ...] | None
    stride: tuple[int, ...] | None


@dataclass(frozen=True)
class Pick(ModelPart):
    """One position."""

    index: tuple[int, ...]


@dataclass(frozen=True)
class Flat(ModelPart):
    """All positions and channels in one vector."""


@dataclass(frozen=True, eq=False)
class DrawnWeights:
    """Weights (inputs, outputs) and a bias as numbers, or a table's rows as outputs."""

    weights: np.ndarray
    bias: np.ndarray | None
    where: str
    what: str = "weights"

    def part(self, channels: Any) -> DrawnWeights:
        """The weights of some outputs."""
        bias = None if self.bias is None else self.bias[channels]
        return DrawnWeights(self.weights[:, channels], bias, self.where)


@dataclass(frozen=True, eq=False)
class DrawnPart(ModelPart):
    """A part whose weights are still numbers: it is made of the laws that these follow."""

    arrays: tuple[DrawnWeights, ...]
    make: Callable[[Sequence[Affine]], ModelPart]
    divisible: bool = False
    """Whether outputs have weights of their own, and may be parted."""
    biased: bool = False
    """Whether the last array has a bias, or may be given one."""

    @classmethod
    def linear(cls, drawn: DrawnWeights) -> DrawnPart:
        """Weights at every position."""

        def make(laws: Sequence[Affine]) -> Linear:
            return Linear(laws[0], drawn.weights.shape[1])

        return cls((drawn,), make, divisible=True, biased=True)

    def divided(self, channels: Any) -> DrawnPart:
        """The part that makes some of the channels."""
        return DrawnPart.linear(self.arrays[0].part(channels))

    @property
    def accepts_bias(self) -> bool:
        """Whether what is added may be the bias."""
        return self.biased and self.arrays[-1].bias is None

    def with_bias(self, bias: np.ndarray) -> DrawnPart:
        """The part with a bias."""
        return replace(self, arrays=(*self.arrays[:-1], replace(self.arrays[-1], bias=bias)))


@dataclass(eq=False)
class PartNode:
    """A part of the graph, what it is applied to, and the shape of what comes out."""

    part: ModelPart
    inputs: tuple[PartNode, ...]
    positions: tuple[int, ...]
    channels: int
    where: str
    """The module or line, for messages."""

    @property
    def count(self) -> int:
        """How many positions there are."""
        return int(np.prod(self.positions, dtype=int))


def in_order(last: PartNode) -> list[PartNode]:
    """All nodes below one, inputs first."""
    found: list[PartNode] = []
    seen: set[int] = set()
    stack = [(last, False)]
    while stack:
        node, done = stack.pop()
        if done:
            found.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((each, False) for each in node.inputs)
    return found


def made(
    part: ModelPart,
    *inputs: PartNode,
    where: str,
    positions: tuple[int, ...] | None = None,
    channels: int | None = None,
) -> PartNode:
    """A new node; shapes are those of the first input if nothing else is said."""
    first = inputs[0]
    return PartNode(
        part,
        inputs,
        first.positions if positions is None else positions,
        first.channels if channels is None else channels,
        where,
    )


def picked(node: PartNode, place: int, where: str) -> PartNode:
    """One position of a node; the last of a sequence is that of sequences of any length."""
    last = len(node.positions) == 1 and place == node.count - 1
    index = (-1,) if last else tuple(int(i) for i in np.unravel_index(place, node.positions))
    return made(Pick(index), node, where=where, positions=())
