"""A tensor program: built line by line, then checked, sent to its limit, or simulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ..errors import NetworkError, NumericalError, OptionError, ShapeError
from ..options import RandomKey
from ..printing import counted
from ..programs.front import TensorProgram
from ..programs.integration import Integration
from ..programs.preconditions import Facts
from .check import facts_of
from .functions import ArrayFunction, CoordinateFunction, Growth, ScalarFunction
from .limit import LimitLaw
from .listing import expression, listing, mermaid
from .nodes import Dot, MatMul, Matrix, Node, Scalar, Vector, real_numbers
from .simulate import Simulation, simulate

_NodeT = TypeVar("_NodeT", bound=Node)
_LETTERS = {"initial": "x", "dot_general": "g", "map": "h"}
_CONTRACT = {"dimension_numbers": (((1,), (0,)), ((), ()))}


@dataclass(frozen=True, eq=False)
class InputGroup:
    """Initial vectors given together: per coordinate `N(mean, covariance)`, i.i.d. over n."""

    labels: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def text(self) -> str:
        """The law, in short."""
        if len(self.labels) == 1:
            return f"N({self.mean[0]:g}, {self.covariance[0, 0]:g})"
        mean = "0" if not np.any(self.mean) else np.array2string(self.mean, precision=3)
        return f"N({mean}, K)"


def _require_std(name: str, std: object) -> None:
    """Raise unless `std` is a finite number, at least 0."""
    if not (isinstance(std, (int, float, np.number)) and math.isfinite(std) and std >= 0):
        raise NetworkError(
            "A standard deviation is a finite number, at least 0.",
            got=f"std={std!r} for '{name}'",
            remedy="pass the standard deviation σ, not a variance or an array",
        )


def _means(mean: ArrayLike, count: int) -> np.ndarray:
    """One mean per vector, from one number or as many as there are vectors."""
    given = real_numbers("The mean of initial vectors", mean)
    if given.shape not in ((), (1,), (count,)):
        raise ShapeError(
            "The mean of initial vectors is one number, or one per vector.",
            got=f"shape {given.shape} for {count} vectors",
            remedy=f"pass a number or {count} numbers",
        )
    return np.array(np.broadcast_to(given, (count,)))


class Program(TensorProgram):
    """A NETSOR program with scalar dot products.

    ```
    p = Program("one neuron layer")
    x, = p.inputs("x", covariance=[[1.0]])
    W = p.matrix("W", std=1.4)
    y = W @ relu(x)
    ```
    `print(p)` lists the lines, `p.check()` tests the theorem's preconditions, `p.limit()` gives
    the law at infinite width, `p.simulate(...)` runs the program at a finite one.
    """

    def __init__(self, name: str = "program"):
        self.name = name
        self.nodes: list[Node] = []
        self.matrices: list[Matrix] = []
        self.groups: list[InputGroup] = []
        self.labels: list[str] = []
        """Of the lines: given names, or a letter for the kind and a number."""
        self.named: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._outputs: tuple[Vector, ...] = ()

    # ---- building -------------------------------------------------------------------------

    def input(self, name: str, *, std: float = 1.0, mean: float = 0.0) -> Vector:
        """An initial vector with i.i.d. coordinates `N(mean, std²)`, independent of the others."""
        _require_std(name, std)
        return self._group((name,), np.full((1, 1), float(std) ** 2), _means(mean, 1))[0]

    def inputs(
        self, name: str, *, covariance: ArrayLike, mean: ArrayLike = 0.0
    ) -> tuple[Vector, ...]:
        """Initial vectors `name1, name2, …`, per coordinate jointly `N(mean, covariance)`."""
        matrix = real_numbers("The covariance of initial vectors", covariance)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise ShapeError(
                "The covariance of initial vectors is a square matrix, one row per vector.",
                got=f"shape {matrix.shape}",
                remedy="pass the S×S covariance between the S vectors",
            )
        scale = max(float(np.max(np.abs(matrix))), 1e-300)
        lowest = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
        if np.max(np.abs(matrix - matrix.T)) > 1e-8 * scale or lowest < -1e-8 * scale:
            raise NumericalError(
                "The covariance of initial vectors must be symmetric and positive semi-definite.",
                got=f"lowest eigenvalue {lowest:.3g}, largest entry {scale:.3g}",
                remedy="symmetrise it, or build it as a Gram matrix such as X Xᵀ/d",
            )
        count = len(matrix)
        labels = tuple(f"{name}{i + 1}" for i in range(count))
        return self._group(labels, (matrix + matrix.T) / 2, _means(mean, count))

    def _group(
        self, labels: tuple[str, ...], covariance: np.ndarray, mean: np.ndarray
    ) -> tuple[Vector, ...]:
        group = InputGroup(labels, mean, covariance)
        self.groups.append(group)
        return tuple(
            self._register(Vector, "initial", group=group, position=i).named(label)
            for i, label in enumerate(labels)
        )

    def matrix(self, name: str, *, std: float = 1.0) -> Matrix:
        """A random matrix with i.i.d. entries `N(0, std²/n)`."""
        _require_std(name, std)
        self._take(name)
        self.matrices.append(Matrix(self, name, float(std)))
        return self.matrices[-1]

    def matmul(self, matrix: Matrix, operand: Vector) -> MatMul:
        """`W @ h` as a line."""
        if not isinstance(matrix, Matrix) or matrix.program is not self:
            raise NetworkError(
                "A matrix multiplies vectors of the program it was made in.",
                got=f"{matrix!r} inside {self!r}",
                remedy="make the matrix with this program's matrix(...)",
            )
        self._require_kind(operand, Vector, f"{matrix.label} @ ...", "a vector")
        return self._register(MatMul, "dot_general", matrix, operand, **_CONTRACT)

    def map(
        self,
        function: CoordinateFunction | ArrayFunction,
        *vectors: Vector,
        scalars: Sequence[Scalar] = (),
        name: str | None = None,
        bounded: bool = False,
        growth: Growth | None = None,
    ) -> Vector:
        """The vector `φ(vectors; scalars)`, for a declared function or any Python callable.

        `name`, `bounded` and `growth` declare a plain callable, which takes one array per vector
        and then one per scalar. Left undeclared, it counts as unbounded and its growth is probed.
        """
        if not isinstance(function, CoordinateFunction):
            label = name or getattr(function, "__name__", "function")
            function = CoordinateFunction(label, function, bounded=bounded, growth=growth)
        for vector in vectors:
            self._require_kind(vector, Vector, function.name, "vectors before scalars=[...]")
        for scalar in scalars:
            self._require_kind(scalar, Scalar, function.name, "scalars inside scalars=[...]")
        if not vectors:
            raise NetworkError(
                "A coordinatewise function needs at least one vector.",
                got=f"{function.name} without vectors",
                remedy="pass the vectors it acts on; functions of scalars alone: ScalarFunction",
            )
        probes = [np.array([0.1, 0.9, 0.5])] * (len(vectors) + len(scalars))
        function.validate(probes, "coordinate")
        return self._register(Vector, "map", *vectors, *scalars, function=function)

    def dot(self, left: Vector, right: Vector) -> Dot:
        """The scalar `n^{-1/2} leftᵀ right`."""
        for side in (left, right):
            self._require_kind(side, Vector, "dot", "two vectors")
        return self._register(Dot, "dot", left, right)

    def scalar_map(
        self, function: ScalarFunction, arguments: tuple[Scalar, ...]
    ) -> tuple[Scalar, ...]:
        """One line per component of `function(arguments)`."""
        for scalar in arguments:
            self._require_kind(scalar, Scalar, function.name, "scalars")
        return tuple(
            self._register(Scalar, "map", *arguments, function=function, component=i)
            for i in range(len(arguments))
        )

    def arithmetic(self, operation: str, parts: tuple[Node | float, ...]) -> Node:
        """A sum (`add`) or product (`mul`), coordinatewise if a vector is among the parts."""
        for part in parts:
            if isinstance(part, Node):
                self._require_kind(part, Node, "arithmetic", "lines of one program")
        vectors = any(isinstance(part, Vector) for part in parts)
        return self._register(Vector if vectors else Scalar, operation, *parts)

    def output(self, *vectors: Vector) -> None:
        """Declare the vectors that `limit` and `simulate` report by default."""
        for vector in vectors:
            self._require_kind(vector, Vector, "output", "vectors")
        self._outputs = vectors

    # ---- reading --------------------------------------------------------------------------

    @property
    def outputs(self) -> tuple[Vector, ...]:
        """The declared outputs; without any, the vectors that no other line reads."""
        if self._outputs:
            return self._outputs
        read = {node for line in self.nodes for node in line.operands}
        return tuple(n for n in self.nodes if isinstance(n, Vector) and n not in read)

    def chosen(self, vectors: Sequence[Vector] | None) -> tuple[Vector, ...]:
        """The vectors asked for, by default the outputs; at least one, all of this program."""
        found = self.outputs if vectors is None else tuple(vectors)
        for vector in found:
            if not isinstance(vector, Vector) or vector.program is not self:
                raise NetworkError(
                    "Vectors are read in the program they were built in.",
                    got=f"{vector!r}",
                    remedy="pass vectors of this program",
                )
        if not found:
            raise NetworkError(
                "At least one vector must be asked for.", got="none", remedy="pass vectors=[...]"
            )
        return found

    def needed(self, nodes: Iterable[Node], known: Container[Node] = ()) -> set[Node]:
        """Lines and all that they rest on, but for those that are `known`."""
        found: set[Node] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node not in found and node not in known:
                found.add(node)
                stack += node.operands
        return found

    @property
    def dots(self) -> tuple[Dot, ...]:
        """The dot products, in program order: the columns of every array of scalars."""
        return tuple(node for node in self.nodes if isinstance(node, Dot))

    def __getitem__(self, name: str) -> Node:
        for node in self.nodes:
            if node.label == name:
                return node
        raise NetworkError(
            "A line is looked up by the name it was given.",
            got=f"no line named {name!r}",
            remedy="print(program) shows the names",
        )

    def facts(self) -> Facts:
        """What the limit theorem asks about."""
        return facts_of(self)

    def limit(self, *, integration: Integration | None = None, key: RandomKey = 0) -> LimitLaw:
        """The law of this program at infinite width.

        Raises `NetworkError` if a precondition is violated beyond repair and warns about the
        others. Expectations that have to be sampled follow from `key`.
        """
        if not isinstance(integration, Integration | None):
            raise OptionError(
                "integration= says how expectations are taken.",
                got=f"integration={integration!r}",
                remedy="pass netsor.Integration(points=2**14), or leave it out",
            )
        self.check().enforce()
        return LimitLaw(self, (integration or Integration()).seeded(key))

    def simulate(
        self,
        width: int,
        draws: int,
        key: RandomKey,
        *,
        vectors: Sequence[Vector] | None = None,
        coordinates: int = 1,
        memory: int = 2**28,
    ) -> Simulation:
        """Run the program `draws` times at a finite width, with explicit random weights.

        Records every dot product, the first `coordinates` coordinates of `vectors` (default: the
        outputs) and their Gram matrices `(1/n) hᵀh'`. `memory` bounds the working set in bytes.
        """
        return simulate(
            self, width, draws, key, vectors=vectors, coordinates=coordinates, memory=memory
        )

    def outputs_at(self, width: int, draws: int, key: Any) -> np.ndarray:
        """One coordinate of every output of random programs, (draws, outputs)."""
        return self.simulate(width, draws, key).values[:, 0]

    def __repr__(self) -> str:
        lines, dots = counted(len(self.nodes), "line"), counted(len(self.dots), "dot product")
        counts = f"{lines}, {counted(len(self.matrices), 'matrix', 'matrices')}, {dots}"
        return f"Program({self.name!r}: {counts})"

    def __str__(self) -> str:
        return listing(self)

    def mermaid(self) -> str:
        """The program as a graph, in the language of Mermaid; notebooks show it by themselves."""
        return mermaid(self)

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{mermaid(self)}\n```"

    def described(self, node: Node) -> str:
        """One line of the program, `name := expression`."""
        return f"{node.label} := {expression(node)}"

    # ---- names ----------------------------------------------------------------------------

    def rename(self, node: Node, name: str) -> None:
        """Name a line; names are unique within a program."""
        self._take(name)
        self.labels[node.index] = name

    def _take(self, name: str) -> None:
        if not isinstance(name, str) or not name or name in self.named:
            raise NetworkError(
                "Every line and matrix of a program has its own, non-empty name.",
                got=f"{name!r}, already used" if name in self.named else repr(name),
                remedy="choose another name",
            )
        self.named.add(name)

    # ---- registration ---------------------------------------------------------------------

    def _register(
        self, kind: type[_NodeT], name: str, *parts: Node | Matrix | float, **params: Any
    ) -> _NodeT:
        node = kind(self, len(self.nodes), name, parts, params)
        letter = _LETTERS.get(name, "e") if issubclass(kind, Vector) else "s"
        self._counts[letter] += 1
        self.labels.append(f"{letter}_{self._counts[letter]}")
        self.nodes.append(node)
        return node

    def _require_kind(self, value: object, kind: type[Node], where: str, wanted: str) -> None:
        if not isinstance(value, kind):
            raise NetworkError(
                f"'{where}' takes {wanted}.",
                got=f"{type(value).__name__} {value!r}",
                remedy="vectors come from inputs, W @ h and coordinatewise functions; "
                "scalars from dot products",
            )
        if value.program is not self:
            raise NetworkError(
                "All lines of an expression belong to one program.",
                got=f"'{value.label}' of {value.program!r} inside {self!r}",
                remedy="build both parts in the same Program",
            )
