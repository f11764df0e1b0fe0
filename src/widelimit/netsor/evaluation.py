"""Running a program's lines on limit variables, for many draws of the scalars at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import NumericalError
from .functions import ScalarFunction
from .nodes import (
    Dot,
    Map,
    Node,
    Scalar,
    ScalarArithmetic,
    ScalarMap,
    VectorArithmetic,
)
from .polynomials import combine


class Evaluator:
    """Scalars and coordinates, given the values of the dot products, `(draws,)` each."""

    def __init__(self, dots: Mapping[Dot, np.ndarray]):
        self.dots = dict(dots)
        self._rows: dict[tuple[ScalarFunction, tuple[Scalar, ...]], np.ndarray] = {}

    @property
    def draws(self) -> int | None:
        """How many draws there are; None without scalars."""
        return len(next(iter(self.dots.values()))) if self.dots else None

    def scalar(self, part: Scalar | float) -> np.ndarray:
        """The value of a scalar in every draw, or a number as it is."""
        match part:
            case Dot():
                return self.dots[part]
            case ScalarMap():
                key = (part.function, part.arguments)
                if key not in self._rows:
                    arguments = np.stack([self.scalar(a) for a in part.arguments], axis=-1)
                    self._rows[key] = part.function.evaluate(arguments)
                return self._rows[key][..., part.component]
            case ScalarArithmetic():
                return combine(part.operation, [self.scalar(p) for p in part.parts])
            case _:
                return np.asarray(part)

    def coordinates(
        self, node: Node, known: dict[int, np.ndarray], draws: slice = slice(None)
    ) -> np.ndarray:
        """A line's coordinates `(R, P)` from those in `known`, which it adds to."""
        if node.index in known:
            return known[node.index]
        match node:
            case Scalar():
                return self.scalar(node)[draws, None]
            case Map():
                arguments = [self.coordinates(o, known, draws) for o in node.operands]
                values = node.function.evaluate(*np.broadcast_arrays(*arguments))
                if not np.all(np.isfinite(values)):
                    raise NumericalError(
                        f"The function '{node.function.name}' must be finite on its arguments.",
                        got=f"NaN or infinity in {node.label}",
                        remedy="check the function's domain and growth",
                    )
            case VectorArithmetic():
                values = combine(
                    node.operation,
                    [
                        self.coordinates(part, known, draws) if isinstance(part, Node) else part
                        for part in node.parts
                    ],
                )
            case _:
                raise TypeError(f"{node.label} must be known before it is used")
        known[node.index] = values
        return values
