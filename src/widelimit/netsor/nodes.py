"""The lines of a tensor program: vectors and scalars that combine by Python's operators."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Self

from ..errors import NetworkError
from .functions import CoordinateFunction, ScalarFunction, relu

if TYPE_CHECKING:
    from .program import Program


class Operation(Enum):
    """The two arithmetic operations; everything else is built from them."""

    SUM = "sum"
    PRODUCT = "product"


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
class Node(ABC):
    """One line of a program. Two nodes are equal only if they are the same line."""

    # numpy scalars on the left must defer to the node's reflected operators.
    __array_ufunc__ = None

    program: Program
    index: int

    @property
    @abstractmethod
    def operands(self) -> tuple[Node, ...]:
        """The lines this line reads."""

    @property
    def label(self) -> str:
        """The name given by `named`, or an automatic one."""
        return self.program.label_of(self)

    def named(self, name: str) -> Self:
        """Give this line a name, unique in its program, and return it."""
        self.program.rename(self, name)
        return self

    @cached_property
    def stage(self) -> int:
        """How many rounds of scalars must be known before this line has a law to draw from.

        0 for lines without scalars; a dot product comes one stage after its two vectors.
        """
        return max((node.stage for node in self.operands), default=0)

    @cached_property
    def bounded(self) -> bool:
        """Whether the coordinates (or the value) have a bound that holds for every draw."""
        return False

    def __repr__(self) -> str:
        return self.program.described(self)


def _constant(value: object) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise NetworkError(
            "Vectors and scalars combine with each other and with finite real numbers.",
            got=f"{type(value).__name__} {value!r}",
            remedy="use +, -, * with vectors, scalars and numbers; `p.map` for other functions",
        )
    return float(value)


class Vector(Node):
    """A vector of n coordinates. `+ - *` act coordinatewise; `abs` and integer powers too."""

    def __add__(self, other: Vector | Scalar | float) -> Vector:
        if isinstance(other, (int, float)) and other == 0:
            return self  # so that Python's sum(), which starts from 0, works
        return self.program.vector_arithmetic(Operation.SUM, (self, _operand(other)))

    def __mul__(self, other: Vector | Scalar | float) -> Vector:
        other = _operand(other)
        if other == 1.0:
            return self
        # Numbers and scalars come first, as one writes them.
        pair = (self, other) if isinstance(other, Vector) else (other, self)
        return self.program.vector_arithmetic(Operation.PRODUCT, pair)

    def __sub__(self, other: Vector | Scalar | float) -> Vector:
        return self + (-1.0) * other

    def __rsub__(self, other: Scalar | float) -> Vector:
        return self.program.vector_arithmetic(Operation.SUM, (_operand(other), -self))

    def __neg__(self) -> Vector:
        return self * -1.0

    def __truediv__(self, other: float) -> Vector:
        return self * (1.0 / _divisor(other))

    def __pow__(self, power: int) -> Vector:
        if not isinstance(power, int) or power < 1:
            raise NetworkError(
                "A vector may be raised to a positive integer power.",
                got=f"power {power!r}",
                remedy="write other powers as a function, with `p.map`",
            )
        result = self
        for _ in range(power - 1):
            result = result * self
        return result

    def __abs__(self) -> Vector:
        return relu(self) + relu(-self)

    __radd__ = __add__
    __rmul__ = __mul__


class Scalar(Node):
    """A random number of the program: a dot product, or a function of dot products."""

    def __add__(self, other: Scalar | float) -> Scalar:
        if isinstance(other, Vector):
            return NotImplemented
        if isinstance(other, (int, float)) and other == 0:
            return self
        return self.program.scalar_arithmetic(Operation.SUM, (self, _scalar(other)))

    def __mul__(self, other: Scalar | float) -> Scalar:
        if isinstance(other, Vector):
            return NotImplemented
        other = _scalar(other)
        pair = (self, other) if isinstance(other, Scalar) else (other, self)
        return self.program.scalar_arithmetic(Operation.PRODUCT, pair)

    def __sub__(self, other: Scalar | float) -> Scalar:
        if isinstance(other, Vector):
            return NotImplemented
        return self + (-1.0) * other

    def __rsub__(self, other: float) -> Scalar:
        return self.program.scalar_arithmetic(Operation.SUM, (_scalar(other), -self))

    def __neg__(self) -> Scalar:
        return self * -1.0

    def __truediv__(self, other: float) -> Scalar:
        return self * (1.0 / _divisor(other))

    __radd__ = __add__
    __rmul__ = __mul__


def _operand(value: object) -> Vector | Scalar | float:
    return value if isinstance(value, (Vector, Scalar)) else _constant(value)


def _scalar(value: object) -> Scalar | float:
    return value if isinstance(value, Scalar) else _constant(value)


def _divisor(value: object) -> float:
    divisor = _constant(value)
    if divisor == 0:
        raise NetworkError(
            "A program may be divided by non-zero numbers only.",
            got="division by 0",
            remedy="divide by a non-zero number",
        )
    return divisor


@dataclass(frozen=True, eq=False, repr=False)
class Initial(Vector):
    """A given vector; coordinates are i.i.d., jointly Gaussian with the others of its group."""

    group: int
    position: int

    @property
    def operands(self) -> tuple[Node, ...]:
        """None: this is where a program begins."""
        return ()

    @cached_property
    def bounded(self) -> bool:
        """Only a constant vector is bounded."""
        return self.program.groups[self.group].covariance[self.position, self.position] == 0


@dataclass(frozen=True, eq=False, repr=False)
class MatMul(Vector):
    """`g = W h`: coordinates become Gaussian with `Cov = σ² E[Z^h Z^h']` for the same W."""

    matrix: Matrix
    operand: Vector

    @property
    def operands(self) -> tuple[Node, ...]:
        """The vector that is multiplied."""
        return (self.operand,)


@dataclass(frozen=True, eq=False, repr=False)
class Map(Vector):
    """`h = φ(g¹, …, gᵐ; p₁, …, pᵣ)`, coordinate by coordinate."""

    function: CoordinateFunction
    vectors: tuple[Vector, ...]
    scalars: tuple[Scalar, ...]

    @property
    def operands(self) -> tuple[Node, ...]:
        """The vectors, then the scalars."""
        return (*self.vectors, *self.scalars)

    @cached_property
    def bounded(self) -> bool:
        """φ is bounded, or (being finite on bounded sets) all its arguments are."""
        return self.function.bounded or all(node.bounded for node in self.operands)


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(Node):
    """A sum or product of lines and numbers."""

    operation: Operation
    parts: tuple[Vector | Scalar | float, ...]

    @property
    def operands(self) -> tuple[Node, ...]:
        """The parts that are lines, not numbers."""
        return tuple(part for part in self.parts if isinstance(part, Node))

    @cached_property
    def bounded(self) -> bool:
        """Sums and products of bounded parts are bounded."""
        return all(node.bounded for node in self.operands)


@dataclass(frozen=True, eq=False, repr=False)
class VectorArithmetic(Arithmetic, Vector):
    """A coordinatewise sum or product of vectors, scalars and numbers."""


@dataclass(frozen=True, eq=False, repr=False)
class Dot(Scalar):
    """`p = n^{-1/2} leftᵀ right`: Gaussian in the limit, independent of all the `Z`."""

    left: Vector
    right: Vector

    @property
    def sides(self) -> tuple[Vector, Vector]:
        """The two vectors, as vectors."""
        return (self.left, self.right)

    @property
    def operands(self) -> tuple[Node, ...]:
        """The two vectors."""
        return self.sides

    @cached_property
    def stage(self) -> int:
        """One stage after the two vectors."""
        return 1 + max(self.left.stage, self.right.stage)


@dataclass(frozen=True, eq=False, repr=False)
class ScalarMap(Scalar):
    """Component `component` of a function of scalars, such as one softmax weight."""

    function: ScalarFunction
    arguments: tuple[Scalar, ...]
    component: int

    @property
    def operands(self) -> tuple[Node, ...]:
        """The function's arguments."""
        return self.arguments

    @cached_property
    def bounded(self) -> bool:
        """The function is bounded, or all its arguments are."""
        return self.function.bounded or all(node.bounded for node in self.operands)


@dataclass(frozen=True, eq=False, repr=False)
class ScalarArithmetic(Arithmetic, Scalar):
    """A sum or product of scalars and numbers."""

    parts: tuple[Scalar | float, ...]
