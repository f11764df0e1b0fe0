"""The law of weights: by the library's initialiser, or measured on the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from jax.core import Tracer

from ..errors import NetworkError
from .parts import BiasLaw, WeightLaw

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


class DrawnArrays:
    """Arrays that parts were made of: each is drawn for itself, and used once."""

    def __init__(self) -> None:
        self._seen: set[tuple[tuple[int, ...], bytes]] = set()

    def require_new(self, array: np.ndarray, where: str) -> None:
        """Raise for numbers that another part has too: tied weights, or keys used twice."""
        if array.size < 2 or (array == array.flat[0]).all():
            return
        numbers = array.shape, array.tobytes()
        if numbers in self._seen:
            raise NetworkError(
                "Every part has weights of its own.",
                got=f"an array with the same numbers as another part's, a second time at {where}",
                remedy="draw each part from its own key, or use wl.trace(make, x), which follows "
                "weights that are shared",
            )
        self._seen.add(numbers)


@dataclass(frozen=True)
class InitialReading:
    """Reads laws off drawn arrays, by a rule that they must agree with or by measuring."""

    deviations: Deviations
    arrays: DrawnArrays | None = None
    """Where given, arrays must all be different."""

    def weights(self, drawn: Any, fan_in: int, rule: InitialRule, where: str) -> WeightLaw:
        """The law of a weight matrix."""
        return WeightLaw(self.variance(drawn, rule, where), fan_in, rule.gaussian)

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
        error = expected * np.sqrt(2 / array.size)
        centre = abs(float(np.mean(array))) * np.sqrt(array.size)
        agrees = abs(measured - expected) <= _MOST * error and centre <= _MOST * np.sqrt(expected)
        if not agrees or (expected > 0 and not array.any()):
            raise NetworkError(
                "Weights are as the library's initialiser draws them.",
                got=f"{where}, whose entries have a root mean square of {measured**0.5:.4g} where "
                f"{rule.name} gives {expected**0.5:.4g}",
                remedy="lift a freshly initialised model, or take the standard deviations from "
                "its weights: lift(model, x, deviations='measured')",
            )
        return expected


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
