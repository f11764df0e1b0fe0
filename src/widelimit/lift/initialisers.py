"""The law of weights: by the library's initialiser, or measured on the weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import numpy as np

from .parts import Affine, BiasLaw, DrawnPart, DrawnWeights, PartNode, WeightLaw
from .values import refusal

# Drawn weights are this many standard errors from their law's variance at most.
_MOST = 6.0
_CUT = 0.7737413035499232
"""The variance of a standard normal number between −2 and 2."""


class Deviations(Enum):
    """Where standard deviations come from."""

    INITIALISER = "initialiser"
    """From the rule by which the library draws such a part; the drawn weights must agree."""
    MEASURED = "measured"
    """From the weights themselves, with a relative error of 1/√(2·number of entries)."""


@dataclass(frozen=True)
class EntriesLaw:
    """The law that the entries of an array follow, as far as numbers show."""

    TORCH: ClassVar[str] = "1/(3·fan_in)"

    name: str
    variance: float
    gaussian: bool


class LawReader:
    """Reads laws off arrays of independent entries: scales that libraries draw with, or measured.

    Scales are `c·n^γ` of the fans, such as 1/fan_in, or only nearly: Glorot's 2/(fan_in + fan_out);
    or plain numbers (0.02), which some divide by the root of the number of branches in a network of
    `depth` blocks. What fits none of them is measured.
    """

    def __init__(self, depth: int = 0):
        self.depth = depth
        self.shown: list[str] = []
        self.measured: dict[str, float] = {}

    def read(self, drawn: DrawnWeights) -> EntriesLaw:
        """The law of an array (inputs, outputs), whose entries must look independent."""
        array = drawn.weights
        if not array.any():
            return EntriesLaw("zeros", 0.0, gaussian=True)
        require_independent(drawn)
        measured = float(np.mean(array**2))
        peak = float(np.mean(array**4)) / measured**2
        # Two standard errors beyond what uniform entries have: they are at most √3 σ.
        gaussian = peak > 2.7 - 2 * np.sqrt(24 / array.size) and peak > 2.1
        error = np.sqrt(max(peak - 1, 0.1) / array.size)
        found = self.candidates(measured, *array.shape)
        if np.abs(array).max() > len(array) ** -0.5 * (1 + 1e-6):
            del found[EntriesLaw.TORCH]  # uniform entries are bounded
        apart = {name: abs(np.log(measured / found[name])) / error for name in found}
        # A dozen entries agree with much; not with what is much farther than another scale.
        most = min(3.5, 3.0 + min(apart.values())) + 1e-6 / error
        agreeing = {name: found[name] for name in found if apart[name] <= most}
        shown = [name for name in self.shown if name in agreeing]
        name = min(shown, key=apart.__getitem__) if shown else next(iter(agreeing), None)
        if name is None:
            name = f"{measured:.6g}, measured"
            agreeing[name] = self.measured[name] = measured
        if name not in self.shown:
            self.shown.append(name)
        return EntriesLaw(name, agreeing[name], gaussian)

    def candidates(self, measured: float, inputs: int, outputs: int) -> dict[str, float]:
        """Variances that libraries draw with, by name."""
        found = {
            "1": 1.0,
            **self.measured,
            EntriesLaw.TORCH: 1 / (3 * inputs),
            "1/fan_in": 1 / inputs,
            "2/fan_in": 2 / inputs,
            "2/(fan_in + fan_out)": 2 / (inputs + outputs),
            # Three square matrices in one, as torch's attention holds them.
            "2/(fan_in + 3·fan_out)": 2 / (inputs + 3 * outputs),
            "1/fan_out": 1 / outputs,
            # Haiku cuts normal numbers at two deviations, and leaves them as small as they become.
            "0.774/fan_in": _CUT / inputs,
        }
        for parts in {1, 2 * self.depth} - {0}:
            digits = float(f"{np.sqrt(measured * parts):.0e}")
            words = f"{digits:g}²" if parts == 1 else f"{digits:g}²/{parts}"
            found[words] = digits**2 / parts
        return found


def require_independent(drawn: DrawnWeights) -> None:
    """Raise where entries are not as one law draws them, each for itself.

    Their mean, the sizes of rows and columns, and products of rows are compared with those of
    independent entries. Trained, orthogonal and repeated weights differ.
    """
    array = drawn.weights
    rows = array if array.shape[0] <= array.shape[1] else array.T
    rows = rows[:512, :4096]
    variance = float(np.mean(rows**2))
    # Numbers of half precision repeat, but not a few ones of them.
    fixed = array.size > 1 and len(np.unique(array)) <= min(array.size, 64) // 2
    if variance and fixed:
        raise _not_drawn(drawn)
    if not variance or rows.size < 8:
        return
    peak = float(np.mean(rows**4)) / variance**2
    spreads = [
        (np.var(np.mean(side**2, axis=1)) * side.shape[1] / (variance**2 * max(peak - 1, 0.1)) - 1)
        * np.sqrt(len(side) / (2 + 12 / side.shape[1]))
        for side in (rows, rows.T)
        if len(side) > 3 and side.shape[1] > 3
    ]
    products = rows @ rows.T / (variance * np.sqrt(rows.shape[1]))
    others = products[np.triu_indices(len(rows), 1)]
    together = (np.mean(others**2) - 1) * np.sqrt(len(others)) / 2 if len(others) else 0.0
    centre = np.mean(rows) * np.sqrt(rows.size / variance)
    long = (peak - 3) / np.sqrt(24 / rows.size)
    if max(abs(centre), abs(together), long, *map(abs, spreads), 0.0) > _MOST:
        raise _not_drawn(drawn)


def _not_drawn(drawn: DrawnWeights) -> Exception:
    remedy = "lift a freshly initialised model, or take arrays for random numbers of the size that "
    remedy += "they have: lift(model, x, deviations='measured')"
    if drawn.what != "weights":
        remedy = "draw a table at random in the place of sines, such as nn.Parameter("
        remedy += "torch.randn(positions, channels)) or jax.random.normal"
    return refusal(
        f"{drawn.what.capitalize()} do not look freshly drawn: entries that are independent, "
        "centred and of one size",
        drawn.where,
        remedy,
    )


def decide(nodes: Sequence[PartNode], deviations: Deviations, untie: str) -> None:
    """Put parts with laws in the place of parts with numbers.

    Large arrays come first: small ones are taken to follow a law that a large one has shown, where
    they agree with it. `untie`: how weights that two parts share are given to each.
    """
    drawn = [(node, node.part) for node in nodes if isinstance(node.part, DrawnPart)]
    arrays = [each for _, part in drawn for each in part.arrays]
    depth = sum(len(part.arrays) == 4 for _, part in drawn)
    seen: set[tuple[int, bytes]] = set()
    laws, found = LawReader(depth), {}
    for each in sorted(arrays, key=lambda one: -one.weights.size):
        require_new(seen, each, untie)
        found[id(each)] = _affine(each, deviations, laws)
    for node, part in drawn:
        node.part = part.make([found[id(each)] for each in part.arrays])


def require_new(seen: set[tuple[int, bytes]], drawn: DrawnWeights, untie: str) -> None:
    """Raise for numbers that another part has too: tied weights, or keys used twice."""
    array = drawn.weights
    if array.size < 2 or (array == array.flat[0]).all():
        return
    # Sorted, so that a matrix and its transpose are the same numbers.
    numbers = array.size, np.sort(array, axis=None).tobytes()
    if numbers in seen:
        raise refusal(
            "Parts share their weights: one module, one key or one array is used a second time",
            drawn.where,
            untie,
        )
    seen.add(numbers)


def _affine(each: DrawnWeights, deviations: Deviations, laws: LawReader) -> Affine:
    if deviations is Deviations.MEASURED:
        law = EntriesLaw("measured", float(np.mean(each.weights**2)), gaussian=True)
    else:
        law = laws.read(each)
    fan_in, bias = each.weights.shape[0], each.bias
    weights = WeightLaw(law.variance, fan_in, law.gaussian)
    if bias is None or not bias.any():
        return Affine(weights, None)
    # torch and Equinox draw biases from U(−1/√fan_in, 1/√fan_in), often with weights of that law.
    own, rule = float(np.mean(bias**2)), 1 / (3 * fan_in)
    bounded = np.abs(bias).max() <= fan_in**-0.5 * (1 + 1e-6)
    close = abs(own / rule - 1) <= 3.5 * np.sqrt(0.8 / bias.size)
    vanishing = bool(bounded and (close or law.name == EntriesLaw.TORCH))
    if vanishing and deviations is Deviations.INITIALISER:
        own = rule
    return Affine(weights, BiasLaw(own, vanishing))
