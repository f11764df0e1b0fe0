"""Parts whose weights are still numbers, and the laws that these numbers follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .initialisers import Deviations, DrawnArrays, EntriesLaw, InitialReading, LawReader
from .parts import Affine, BiasLaw, Linear, ModelPart, PartNode, WeightLaw

_UNTIE = (
    "give each place its own weights, e.g. model.lm_head.weight = "
    "nn.Parameter(torch.randn_like(w) * w.std()) with w = model.lm_head.weight"
)


@dataclass(frozen=True, eq=False)
class DrawnWeights:
    """Weights (inputs, outputs) and a bias as numbers, or a table's rows as outputs."""

    weights: np.ndarray
    bias: np.ndarray | None
    where: str

    @classmethod
    def of(cls, weights: Any, bias: Any, where: str) -> DrawnWeights:
        """From tensors."""
        numbers = weights.detach().cpu().double().numpy()
        added = None if bias is None else bias.detach().cpu().double().numpy()
        return cls(numbers, added, where)

    def part(self, channels: Any) -> DrawnWeights:
        """The weights of some outputs."""
        bias = None if self.bias is None else self.bias[channels]
        return DrawnWeights(self.weights[:, channels], bias, self.where)


@dataclass(frozen=True, eq=False)
class DrawnPart(ModelPart):
    """A part that is made of the laws of its arrays."""

    arrays: tuple[DrawnWeights, ...]
    make: Callable[[Sequence[Affine]], ModelPart]
    divisible: bool = False
    """Whether outputs have weights of their own, and may be parted."""

    @classmethod
    def linear(cls, drawn: DrawnWeights) -> DrawnPart:
        """Weights at every position."""
        return cls((drawn,), lambda laws: Linear(laws[0], drawn.weights.shape[1]), divisible=True)

    def divided(self, channels: Any) -> DrawnPart:
        """The part that makes some of the channels."""
        return DrawnPart.linear(self.arrays[0].part(channels))


def decide(nodes: list[PartNode], reading: InitialReading, depth: int) -> None:
    """Put parts with laws in the place of parts with numbers.

    Large arrays come first: small ones are taken to follow a law that a large one has shown, where
    they agree with it.
    """
    drawn = [node for node in nodes if isinstance(node.part, DrawnPart)]
    arrays = [(each, node.where) for node in drawn for each in node.part.arrays]  # pyright: ignore
    seen, laws = DrawnArrays(), LawReader(depth)
    found: dict[int, Affine] = {}
    for each, where in sorted(arrays, key=lambda pair: -pair[0].weights.size):
        seen.require_new(each.weights, where, _UNTIE)
        found[id(each)] = _affine(each, reading, laws)
    for node in drawn:
        part = node.part
        assert isinstance(part, DrawnPart)
        node.part = part.make([found[id(each)] for each in part.arrays])


def _affine(each: DrawnWeights, reading: InitialReading, laws: LawReader) -> Affine:
    if reading.deviations is Deviations.MEASURED:
        law = EntriesLaw("measured", float(np.mean(each.weights**2)), gaussian=True)
    else:
        law = laws.read(each.weights, each.where)
    fan_in = each.weights.shape[0]
    weights = WeightLaw(law.variance, fan_in, law.gaussian)
    bias = each.bias
    if bias is None or not bias.any():
        return Affine(weights, None)
    # torch draws biases and weights from one interval.
    alike = law.name == EntriesLaw.TORCH and np.abs(bias).max() <= fan_in**-0.5 * (1 + 1e-6)
    own = law.variance if alike else float(np.mean(bias**2))
    return Affine(weights, BiasLaw(own, vanishing=bool(alike)))
