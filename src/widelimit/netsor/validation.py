"""Checks on arguments that several entry points share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import NetworkError, NumericalError
from .nodes import Vector

if TYPE_CHECKING:
    from .program import Program


def require_std(name: str, std: object) -> None:
    """Raise unless `std` is a finite number, at least 0."""
    if not (isinstance(std, (int, float, np.number)) and math.isfinite(std) and std >= 0):
        raise NetworkError(
            "A standard deviation is a finite number, at least 0.",
            got=f"std={std!r} for '{name}'",
            remedy="pass the standard deviation σ, not a variance or an array",
        )


def real_numbers(name: str, values: object) -> np.ndarray:
    """`values` as an array of finite real numbers; raise where they are something else."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "OcSU":
            got = f"an array of dtype {array.dtype}"
        elif np.isfinite(array).all():
            return array.astype(float)
        else:
            got = "NaN or infinity"
    except ValueError:
        got = "rows of different lengths"
    raise NumericalError(
        f"{name} must be finite real numbers.", got=got, remedy="pass an array of finite numbers"
    )


def chosen_vectors(program: Program, vectors: Sequence[Vector] | None) -> tuple[Vector, ...]:
    """The vectors asked for, by default the program's outputs; at least one, all its own."""
    chosen = program.outputs if vectors is None else tuple(vectors)
    for vector in chosen:
        if not isinstance(vector, Vector) or vector.program is not program:
            raise NetworkError(
                "Vectors are read in the program they were built in.",
                got=f"{vector!r}",
                remedy="pass vectors of this program",
            )
    if not chosen:
        raise NetworkError(
            "At least one vector must be asked for.", got="none", remedy="pass vectors=[...]"
        )
    return chosen
