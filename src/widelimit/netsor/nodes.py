"""The lines of a tensor program: vectors and scalars that combine by Python's operators.

A line is a primitive of the engine's table (`programs.table`) with operands and parameters. The
table has its value in the limit, `simulate` its arrays at a finite width, `listing` its formula.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..errors import NetworkError, NumericalError
from .functions import relu

if TYPE_CHECKING:
    from .program import Program


@dataclass(frozen=True, eq=False, repr=False)
class Matrix:
    """A random matrix with i.i.d. entries `N(0, std²/n)`; `W @ h` adds a MatMul line."""

    __array_ufunc__ = None

    program: Program
    label: str
    std: float

    def __matmul__(self, operand: Vector) -> MatMul:
        return self.program.matmul(self, operand)

    @property
    def T(self) -> Matrix:
        """Refused: NETSOR has no transposes."""
        raise NetworkError(
            "A NETSOR program uses each matrix without its transpose; the limit of programs with "
            "both has additional terms.",
            got=f"{self.label}.T",
            remedy="use a fresh matrix, or write the forward pass only",
        )

    def __repr__(self) -> str:
        return f"{self.label} with entries N(0, {self.std:g}²/n)"


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One line of a program. Two nodes are equal only if they are the same line."""

    # numpy scalars on the left must defer to the node's reflected operators.
    __array_ufunc__ = None
    kind: ClassVar[str] = "Scalar"

    program: Program
    index: int
    name: str
    """Of the primitive; `dot` for dot products, which are drawn stage by stage."""
    parts: tuple[Node | Matrix | float, ...]
    params: dict[str, Any]

    @cached_property
    def operands(self) -> tuple[Node, ...]:
        """The lines this line reads."""
        return tuple(part for part in self.parts if isinstance(part, Node))

    @property
    def label(self) -> str:
        """The name given by `named`, or an automatic one."""
        return self.program.labels[self.index]

    def named(self, name: str) -> Self:
        """Give this line a name, unique in its program, and return it."""
        self.program.rename(self, name)
        return self

    @cached_property
    def stage(self) -> int:
        """How many rounds of scalars must be known before this line has a law to draw from.

        0 for lines without scalars; a dot product comes one stage after its two vectors.
        """
        return max((node.stage for node in self.operands), default=0) + (self.name == "dot")

    @cached_property
    def bounded(self) -> bool:
        """Whether the coordinates (or the value) have a bound that holds for every draw.

        The function has one or, being finite on bounded sets, all that it is applied to.
        """
        match self.name:
            case "initial":  # only a constant vector is bounded
                k = self.params["position"]
                return self.params["group"].covariance[k, k] == 0
            case "dot_general" | "dot":
                return False
        function = self.params.get("function")
        return getattr(function, "bounded", False) or all(node.bounded for node in self.operands)

    def __repr__(self) -> str:
        return self.program.described(self)

    # Sums begin with the vector, products with the number, as one writes them.

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other == 0:
            return self  # so that Python's sum(), which starts from 0, works
        pair = sorted((self, _operand(other)), key=_breadth, reverse=True)
        return self.program.arithmetic("add", tuple(pair))

    def __mul__(self, other: Any) -> Any:
        other = _operand(other)
        if other == 1.0:
            return self
        return self.program.arithmetic("mul", tuple(sorted((self, other), key=_breadth)))

    def __sub__(self, other: Any) -> Any:
        return self + (-1.0) * other

    def __rsub__(self, other: Any) -> Any:
        return self.program.arithmetic("add", (_operand(other), -self))

    def __neg__(self) -> Any:
        return self * -1.0

    def __truediv__(self, other: float) -> Any:
        divisor = _constant(other)
        if divisor == 0:
            raise NetworkError(
                "A program may be divided by non-zero numbers only.",
                got="division by 0",
                remedy="divide by a non-zero number",
            )
        return self * (1.0 / divisor)

    __radd__ = __add__
    __rmul__ = __mul__


class Vector(Node):
    """A vector of n coordinates. `+ - *` act coordinatewise; `abs` and integer powers too."""

    kind = "Nonlin"

    def __pow__(self, power: int) -> Vector:
        if not isinstance(power, int) or power < 1:
            raise NetworkError(
                "A vector may be raised to a positive integer power.",
                got=f"power {power!r}",
                remedy="write other powers as a function, with `p.map`",
            )
        return math.prod([self] * (power - 1), start=self)

    def __abs__(self) -> Vector:
        return relu(self) + relu(-self)


class Scalar(Node):
    """A random number of the program: a dot product, or a function of dot products."""


class MatMul(Vector):
    """`g = W h`: coordinates become Gaussian with `Cov = σ² E[Z^h Z^h']` for the same W."""

    kind = "MatMul"


class Dot(Scalar):
    """`p = n^{-1/2} leftᵀ right`: Gaussian in the limit, independent of all the `Z`."""

    kind = "Dot"


def _constant(value: object) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise NetworkError(
            "Vectors and scalars combine with each other and with finite real numbers.",
            got=f"{type(value).__name__} {value!r}",
            remedy="use +, -, * with vectors, scalars and numbers; `p.map` for other functions",
        )
    return float(value)


def _operand(value: object) -> Node | float:
    return value if isinstance(value, Node) else _constant(value)


def _breadth(part: Node | float) -> int:
    return 2 if isinstance(part, Vector) else int(isinstance(part, Node))


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
