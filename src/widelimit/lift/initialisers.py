"""The law of weights: by the library's initialiser, or measured on the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from jax.core import Tracer

from ..errors import NetworkError
from .parts import BiasLaw, WeightLaw

_SHARED = (
    "draw each part from its own key, or use wl.trace(make, x), which follows weights that are "
    "shared"
)
# Drawn weights are this many standard errors from their law's variance at most.
_MOST = 6.0


class Deviations(Enum):
    """Where standard deviations come from."""

    INITIALISER = "initialiser"
    """From the rule by which the library draws such a part; the drawn weights must agree."""
    MEASURED = "measured"
    """From the weights themselves, with a relative error of 1/√(2·number of entries)."""


@dataclass(frozen=True)
class InitialRule:
    """How a library draws entries."""

    name: str
    variance: float
    gaussian: bool


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

    def read(
        self, array: np.ndarray, where: str, fans: tuple[int, int] | None = None
    ) -> EntriesLaw:
        """The law of an array (inputs, outputs), whose entries must look independent.

        `fans`: how many inputs and outputs there are, where the array has another shape.
        """
        if not array.any():
            return EntriesLaw("zeros", 0.0, gaussian=True)
        require_independent(array, where)
        measured = float(np.mean(array**2))
        peak = float(np.mean(array**4)) / measured**2
        # Two standard errors beyond what uniform entries have: they are at most √3 σ.
        gaussian = peak > 2.7 - 2 * np.sqrt(24 / array.size) and peak > 2.1
        error = np.sqrt(max(peak - 1, 0.1) / array.size)
        found = self.candidates(measured, fans or array.shape)
        apart = {name: abs(np.log(measured / found[name])) / error for name in found}
        # A dozen entries agree with much; not with what is much farther than another scale.
        most = min(3.5, 2.0 + min(apart.values())) + 1e-6 / error
        agreeing = {name: found[name] for name in found if apart[name] <= most}
        name = next((n for n in (*self.shown, *agreeing) if n in agreeing), None)
        if name is None:
            name = f"{measured:.6g}, measured"
            agreeing[name] = self.measured[name] = measured
        if name not in self.shown:
            self.shown.append(name)
        return EntriesLaw(name, agreeing[name], gaussian)

    def candidates(self, measured: float, fans: tuple[int, ...]) -> dict[str, float]:
        """Variances that libraries draw with, by name."""
        inputs, outputs = fans
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
        }
        for parts in {1, 2 * self.depth} - {0}:
            digits = float(f"{np.sqrt(measured * parts):.0e}")
            words = f"{digits:g}²" if parts == 1 else f"{digits:g}²/{parts}"
            found[words] = digits**2 / parts
        return found


def require_independent(array: np.ndarray, where: str) -> None:
    """Raise where entries are not as one law draws them, each for itself.

    Their mean, the sizes of rows and columns, and products of rows are compared with those of
    independent entries. Trained, orthogonal and repeated weights differ.
    """
    rows = array if array.shape[0] <= array.shape[1] else array.T
    rows = rows[:512, :4096]
    variance = float(np.mean(rows**2))
    # Numbers of half precision repeat, but not a few ones of them.
    fixed = array.size > 1 and len(np.unique(array)) <= min(array.size, 64) // 2
    if variance and fixed:
        raise _not_drawn(where)
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
        raise _not_drawn(where)


def _not_drawn(where: str) -> NetworkError:
    return NetworkError(
        "Weights do not look freshly drawn: entries that are independent, centred and of one size.",
        got=where,
        remedy="lift a freshly initialised model; lift(model, x, deviations='measured') takes "
        "arrays for random numbers of the size that they have, which fixed tables (sines of "
        "positions) are not",
    )


class DrawnArrays:
    """Arrays that parts were made of: each is drawn for itself, and used once."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, bytes]] = set()

    def require_new(self, array: np.ndarray, where: str, remedy: str = _SHARED) -> None:
        """Raise for numbers that another part has too: tied weights, or keys used twice."""
        if array.size < 2 or (array == array.flat[0]).all():
            return
        # Sorted, so that a matrix and its transpose are the same numbers.
        numbers = array.size, np.sort(array, axis=None).tobytes()
        if numbers in self._seen:
            raise NetworkError(
                "Every part has weights of its own.",
                got=f"an array with the same numbers as another part's, a second time at {where}",
                remedy=remedy,
            )
        self._seen.add(numbers)


@dataclass(frozen=True)
class InitialReading:
    """Reads laws off drawn arrays, by a rule that they must agree with or by measuring."""

    deviations: Deviations
    arrays: DrawnArrays | None = None
    """Where given, arrays must all be different."""

    def weights(self, drawn: Any, fan_in: int, rule: InitialRule, where: str) -> WeightLaw:
        """The law of a weight matrix: the library's, or another that its entries show."""
        array = concrete(drawn, where)
        rows = array.reshape(-1, array.shape[-1])
        if self.deviations is Deviations.MEASURED or _agrees(array, rule.variance):
            return WeightLaw(self.variance(drawn, rule, where), fan_in, rule.gaussian)
        if self.arrays is not None:
            self.arrays.require_new(array, where)
        law = LawReader().read(rows, where, (fan_in, array.size // fan_in))
        return WeightLaw(law.variance, fan_in, law.gaussian)

    def bias(self, drawn: Any, rule: InitialRule, where: str, *, vanishing: bool) -> BiasLaw | None:
        """The law of a bias; None where there is none, or where it is zero."""
        if drawn is None:
            return None
        variance = self.variance(drawn, rule, f"the bias of {where}")
        return BiasLaw(variance, vanishing) if variance else None

    def variance(self, drawn: Any, rule: InitialRule, where: str) -> float:
        """The variance of an entry."""
        array = concrete(drawn, where)
        if self.arrays is not None:
            self.arrays.require_new(array, where)
        measured = float(np.mean(array**2))
        if self.deviations is Deviations.MEASURED:
            return measured
        expected = rule.variance
        if not _agrees(array, expected):
            raise NetworkError(
                "Weights are as the library's initialiser draws them.",
                got=f"{where}, whose entries have a root mean square of {measured**0.5:.4g} where "
                f"{rule.name} gives {expected**0.5:.4g}",
                remedy="lift a freshly initialised model, or take the standard deviations from "
                "its weights: lift(model, x, deviations='measured')",
            )
        return expected


def _agrees(array: np.ndarray, variance: float) -> bool:
    """Whether entries are centred and of this variance, as far as their number tells."""
    error = variance * np.sqrt(2 / array.size)
    centre = abs(float(np.mean(array))) * np.sqrt(array.size)
    close = abs(float(np.mean(array**2)) - variance) <= _MOST * error
    return bool(close and centre <= _MOST * np.sqrt(variance) and (variance == 0 or array.any()))


def concrete(drawn: Any, where: str) -> np.ndarray:
    """The numbers of a parameter."""
    if isinstance(drawn, Tracer):
        raise NetworkError(
            "Parameters are arrays that the model holds.",
            got=f"{where}, whose weights are computed inside the call (a scan over stacked "
            "layers, or a transformed function)",
            remedy="write layers one after another, or use wl.trace(make, x)",
        )
    return np.asarray(drawn, np.float64)


def require_constant(drawn: Any, value: float, what: str, where: str) -> None:
    """Raise unless every entry is `value`: gains that are 1, shifts that are 0."""
    if drawn is None:
        return
    array = concrete(drawn, where)
    if np.abs(array - value).max(initial=0.0) > 1e-6:
        raise NetworkError(
            f"The {what} of a normalisation is {value:g} when it is initialised.",
            got=f"{where}, whose {what} differs by up to {np.abs(array - value).max():.3g}",
            remedy="lift a freshly initialised model",
        )


def independent_variance(rows: np.ndarray, where: str) -> float:
    """The variance of a table's entries, which must look independent and centred.

    Such arrays have no initialiser on record: their standard deviation is measured.
    """
    variance = float(np.mean(rows**2))
    width = rows.shape[1]
    products = rows @ rows.T / (variance * width) if variance else np.eye(len(rows))
    others = products[np.triu_indices(len(rows), 1)] * np.sqrt(width)
    apart = np.abs(others).max(initial=0.0)
    # Rows that share a part, as in a table for lines plus one for columns, are too weakly alike to
    # be seen in any one pair at small widths, but not in all pairs together. Squares of a few
    # pairs have a long tail: they are counted in √2 of their standard errors.
    together = (np.mean(others**2) - 1) * np.sqrt(len(others)) / 2 if len(others) else 0.0
    centre = np.abs(rows.mean(axis=1)).max() * np.sqrt(width / (variance or 1.0))
    spread = np.abs(np.diag(products) - 1).max() * np.sqrt(width / 2)
    if max(apart, together, centre, spread) > _MOST:
        raise NetworkError(
            "Vectors of positions and tokens are drawn with independent, centred entries.",
            got=f"an array at {where} whose rows are alike, or have different lengths (sines and "
            "cosines, or trained)",
            remedy="draw encodings at random, or use wl.trace(make, x)",
        )
    return variance
