"""The lines of a tensor program: vectors and scalars that combine by Python's operators.

Every kind of line has three readings side by side: its formula as text, its value in the limit
(on the engine of `programs`), and its arrays at a finite width.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..errors import NetworkError
from ..programs.scalars import WideScalar
from .functions import CoordinateFunction, ScalarFunction, relu

if TYPE_CHECKING:
    from .program import InputGroup, Program
    from .run import Run
    from .simulate import Batch

DTYPE = np.float32  # of arrays at finite widths
Text = Callable[..., str]
"""`text(part, *wrapped)`: a part of a formula, in parentheses if it is one of these operations."""
_CONTRACT = {"dimension_numbers": (((1,), (0,)), ((), ()))}


class Operation(Enum):
    """The two arithmetic operations, by their primitives; everything else is built from them."""

    SUM = "add"
    PRODUCT = "mul"


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
    letter: ClassVar[str] = "s"
    kind: ClassVar[str] = "Scalar"

    program: Program
    index: int

    @abstractmethod
    def text(self, text: Text) -> str:
        """The right-hand side."""

    @abstractmethod
    def limit(self, run: Run) -> Any:
        """The value in the limit, of values of the operands."""

    @abstractmethod
    def simulate(self, batch: Batch) -> np.ndarray:
        """Arrays at a finite width: `(draws, n)` for vectors, `(draws,)` for scalars."""

    @cached_property
    def operands(self) -> tuple[Node, ...]:
        """The lines this line reads."""
        values = [getattr(self, field.name) for field in fields(self)]
        parts = (part for v in values for part in (v if isinstance(v, tuple) else (v,)))
        return tuple(part for part in parts if isinstance(part, Node))

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
        """Whether the coordinates (or the value) have a bound that holds for every draw.

        The function has one or, being finite on bounded sets, all that it is applied to.
        """
        bounded = getattr(getattr(self, "function", None), "bounded", False)
        gaussian = isinstance(self, MatMul | Dot)
        return bounded or (not gaussian and all(node.bounded for node in self.operands))

    def __repr__(self) -> str:
        return self.program.described(self)

    # Sums begin with the vector, products with the number, as one writes them.

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other == 0:
            return self  # so that Python's sum(), which starts from 0, works
        pair = sorted((self, _operand(other)), key=_breadth, reverse=True)
        return self.program.arithmetic(Operation.SUM, tuple(pair))

    def __mul__(self, other: Any) -> Any:
        other = _operand(other)
        if other == 1.0:
            return self
        pair = sorted((self, other), key=_breadth)
        return self.program.arithmetic(Operation.PRODUCT, tuple(pair))

    def __sub__(self, other: Any) -> Any:
        return self + (-1.0) * other

    def __rsub__(self, other: Any) -> Any:
        return self.program.arithmetic(Operation.SUM, (_operand(other), -self))

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


class Vector(Node):
    """A vector of n coordinates. `+ - *` act coordinatewise; `abs` and integer powers too."""

    letter = "e"
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


@dataclass(frozen=True, eq=False, repr=False)
class Initial(Vector):
    """A given vector; coordinates are i.i.d., jointly Gaussian with the others of its group."""

    letter = "x"

    group: InputGroup
    position: int

    @cached_property
    def bounded(self) -> bool:
        """Only a constant vector is bounded."""
        return self.group.covariance[self.position, self.position] == 0

    def text(self, text: Text) -> str:
        return self.group.text

    def limit(self, run: Run) -> Any:
        law = {"mean": self.group.mean, "covariance": self.group.covariance}
        return run.apply(self, "initial", [], key=id(self.group), position=self.position, **law)

    def simulate(self, batch: Batch) -> np.ndarray:
        return batch.inputs(self.group)[..., self.position]


@dataclass(frozen=True, eq=False, repr=False)
class MatMul(Vector):
    """`g = W h`: coordinates become Gaussian with `Cov = σ² E[Z^h Z^h']` for the same W."""

    letter = "g"
    kind = "MatMul"

    matrix: Matrix
    operand: Vector

    def text(self, text: Text) -> str:
        return f"{self.matrix.label} @ {text(self.operand, *Operation)}"

    def limit(self, run: Run) -> Any:
        operands = [run.matrix(self.matrix, self), run.values[self.operand]]
        return run.apply(self, "dot_general", operands, **_CONTRACT)

    def simulate(self, batch: Batch) -> np.ndarray:
        return (batch.matrix(self.matrix) @ batch.arrays[self.operand][..., None])[..., 0]


@dataclass(frozen=True, eq=False, repr=False)
class Map(Vector):
    """`h = φ(g¹, …, gᵐ; p₁, …, pᵣ)`, coordinate by coordinate."""

    letter = "h"

    function: CoordinateFunction
    vectors: tuple[Vector, ...]
    scalars: tuple[Scalar, ...]

    def text(self, text: Text) -> str:
        parts = [", ".join(map(text, nodes)) for nodes in (self.vectors, self.scalars) if nodes]
        return f"{self.function.name}({'; '.join(parts)})"

    def limit(self, run: Run) -> Any:
        operands = [run.values[operand] for operand in self.operands]
        closed = self.function.closed_form if len(operands) == 1 else None
        return run.apply(self, "map", operands, function=self.function.evaluate, closed=closed)

    def simulate(self, batch: Batch) -> np.ndarray:
        arguments = np.broadcast_arrays(*(batch.column(node) for node in self.operands))
        return self.function.evaluate(*arguments).astype(DTYPE)


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(Node):
    """A sum or product of lines and numbers; coordinatewise if a vector is among them."""

    operation: Operation
    parts: tuple[Node | float, ...]

    def text(self, text: Text) -> str:
        if self.operation is Operation.PRODUCT:
            texts = [text(part, Operation.SUM) for part in self.parts]
            return "-" + "·".join(texts[1:]) if self.parts[0] == -1.0 else "·".join(texts)
        first, *rest = map(text, self.parts)
        return first + "".join(f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in rest)

    def limit(self, run: Run) -> Any:
        parts = [
            run.values[part] if isinstance(part, Node) else WideScalar.constant(part)
            for part in self.parts
        ]
        return run.apply(self, self.operation.value, parts)

    def simulate(self, batch: Batch) -> np.ndarray:
        read = batch.column if isinstance(self, Vector) else batch.array
        one, two = map(read, self.parts)
        return one + two if self.operation is Operation.SUM else one * two


class VectorArithmetic(Arithmetic, Vector):
    """A coordinatewise sum or product of vectors, scalars and numbers."""


class ScalarArithmetic(Arithmetic, Scalar):
    """A sum or product of scalars and numbers."""


@dataclass(frozen=True, eq=False, repr=False)
class Dot(Scalar):
    """`p = n^{-1/2} leftᵀ right`: Gaussian in the limit, independent of all the `Z`."""

    kind = "Dot"

    left: Vector
    right: Vector

    @cached_property
    def stage(self) -> int:
        """One stage after the two vectors."""
        return 1 + max(self.left.stage, self.right.stage)

    def text(self, text: Text) -> str:
        return f"n^(-1/2) {text(self.left, *Operation)}ᵀ {text(self.right, *Operation)}"

    def limit(self, run: Run) -> Any:
        return run.draw(self)

    def simulate(self, batch: Batch) -> np.ndarray:
        product = np.einsum("ri,ri->r", batch.arrays[self.left], batch.arrays[self.right])
        return product / np.sqrt(DTYPE(batch.width))


@dataclass(frozen=True, eq=False, repr=False)
class ScalarMap(Scalar):
    """Component `component` of a function of scalars, such as one softmax weight."""

    function: ScalarFunction
    arguments: tuple[Scalar, ...]
    component: int

    def text(self, text: Text) -> str:
        return f"{self.function.name}({', '.join(map(text, self.arguments))})[{self.component}]"

    def limit(self, run: Run) -> Any:
        key = (self.function, self.arguments)
        if key not in run.values:  # computed once for all components
            arguments = [run.values[argument] for argument in self.arguments]

            def compute() -> np.ndarray:
                rows = np.broadcast_arrays(*(np.asarray(a.value()) for a in arguments))
                return self.function.evaluate(np.stack(rows, axis=-1))

            run.values[key] = cache(compute)
        rows = run.values[key]
        return WideScalar((), lambda: rows()[..., self.component])

    def simulate(self, batch: Batch) -> np.ndarray:
        arguments = np.stack([batch.arrays[a] for a in self.arguments], axis=-1)
        return self.function.evaluate(arguments)[..., self.component]
