"""A program on the engine: its lines as values in the limit, given draws of the scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NumericalError
from ..programs.extents import Wide
from ..programs.integration import Method, Rule
from ..programs.integrator import Cloud
from ..programs.interpreter import Machine
from ..programs.refusals import Place
from ..programs.scalars import WideScalar
from ..programs.steps import FlatProgram, Slot, Step
from ..programs.table import record_of
from ..programs.vectors import WideVector
from .nodes import (
    Dot,
    Initial,
    Map,
    MatMul,
    Matrix,
    Node,
    Operation,
    Scalar,
    ScalarArithmetic,
    ScalarMap,
    Vector,
    VectorArithmetic,
)

if TYPE_CHECKING:
    from .program import Program

_WIDE = Wide(Fraction(1))
_STEPS = {Operation.SUM: "add", Operation.PRODUCT: "mul"}
_CONTRACT = {"dimension_numbers": (((1,), (0,)), ((), ()))}


class Run:
    """The lines that were asked for so far; scalars are `given`, or drawn `draws` times."""

    def __init__(
        self,
        program: Program,
        rule: Rule,
        *,
        draws: int = 1,
        given: Mapping[Dot, np.ndarray] | None = None,
    ):
        self.program = program
        self.machine = Machine(FlatProgram((1, 2, 3), (), (), ()), draws=draws, rule=rule)
        self._values: dict[Any, Any] = {
            dot: WideScalar((), numbers) for dot, numbers in (given or {}).items()
        }
        self._seconds: dict[tuple[int, int], tuple[np.ndarray, Method]] = {}

    # ---- readings -------------------------------------------------------------------------

    def second_moment(self, left: Vector, right: Vector) -> tuple[np.ndarray, Method]:
        """`E[Z^left Z^right | scalars]`, of shape () or `(draws,)`."""
        key = (min(left.index, right.index), max(left.index, right.index))
        if key not in self._seconds:
            u, v = self.vector(left), self.vector(right)
            one = np.zeros((1, 1), int)
            label = f"{left.label}·{right.label}"
            found = self._read(label, lambda i: i.second(u, v, one, one)[:, 0, 0, 0])
            self._seconds[key] = found
        return self._seconds[key]

    def mean(self, vector: Vector) -> tuple[np.ndarray, Method]:
        """`E[Z^vector | scalars]`."""
        value = self.vector(vector)
        return self._read(vector.label, lambda i: i.mean(value)[:, 0])

    def gram(self, vectors: Iterable[Vector]) -> tuple[np.ndarray, Method]:
        """`E[Z^u Z^v | scalars]` for all pairs, `(..., m, m)`."""
        chosen = list(vectors)
        found = [self.second_moment(u, v) for u in chosen for v in chosen]
        table = np.stack(np.broadcast_arrays(*[value for value, _ in found]), axis=-1)
        shape = (*table.shape[:-1], len(chosen), len(chosen))
        return table.reshape(shape), max(method for _, method in found)

    def scalar_covariance(self, dots: tuple[Dot, ...]) -> tuple[np.ndarray, Method]:
        """`Cov(p_k, p_l) = E[Z^{k,1} Z^{k,2} Z^{l,1} Z^{l,2}]` of dot products."""
        products, each = self._products(dots), np.arange(len(dots))[None]
        label = "dot products"
        return self._read(label, lambda i: i.second(products, products, each, each)[:, 0])

    def sample(self, vectors: Iterable[Vector], rng: np.random.Generator, shape: tuple[int, int]):
        """`shape` (draws, coordinates) i.i.d. coordinates of vectors, (draws, coordinates, m)."""
        values = [self.vector(vector) for vector in vectors]

        def normals(dimension: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
            return rng.standard_normal((*shape, dimension)), np.ones(shape[1])

        cloud = Cloud([form for v in values for form in v.forms()], normals, shape[0])
        columns = [np.broadcast_to(v.evaluate(cloud), (*shape, 1)) for v in values]
        return np.concatenate(columns, axis=-1)

    def _read(self, label: str, reading: Callable[[Any], np.ndarray]) -> tuple[np.ndarray, Method]:
        integrator = self.machine.integrator
        integrator.used = Method.CLOSED_FORM
        with np.errstate(all="ignore"):
            value = reading(integrator)
        if not np.all(np.isfinite(value)):
            raise NumericalError(
                "Moments of the limit must be finite.",
                got=f"an overflow, or no number, in E[{label}]",
                remedy="lower the standard deviations, or check the functions' domain and growth",
            )
        return (value if len(value) > 1 else value[0]), integrator.used

    # ---- lines ----------------------------------------------------------------------------

    def vector(self, node: Vector) -> WideVector:
        """A line's value."""
        return self.value(node)

    def scalars(self, dots: Iterable[Dot], draws: int) -> np.ndarray:
        """The values of dot products, `(draws, dots)`."""
        columns = [np.broadcast_to(self.value(dot).value(), (draws,)) for dot in dots]
        return np.stack(columns, axis=-1) if columns else np.zeros((draws, 0))

    def value(self, node: Node) -> Any:
        """A line's value, after those that it reads; all dot products of a stage come at once."""
        if node not in self._values:
            for line in self._missing(node):
                if line in self._values:
                    continue
                if isinstance(line, Dot):
                    self._draw(line.stage)
                else:
                    self._values[line] = self._compute(line)
        return self._values[node]

    def _missing(self, node: Node) -> list[Node]:
        """The lines that a line rests on, in an order in which they can be computed."""
        found: set[Node] = set()
        stack = [node]
        while stack:
            line = stack.pop()
            if line in found or line in self._values:
                continue
            found.add(line)
            together = self._stage(line.stage) if isinstance(line, Dot) else ()
            stack += [*line.operands, *together]
        return sorted(found, key=lambda n: (n.stage, not isinstance(n, Dot), n.index))

    def _stage(self, stage: int) -> tuple[Dot, ...]:
        return tuple(d for d in self.program.dots if d.stage == stage and d not in self._values)

    def _apply(self, node: Node, name: str, operands: list[Any], **params: Any) -> Any:
        shape = (_WIDE,) if isinstance(node, Vector) else ()
        place = Place("", node.index + 1, self.program.name, self.program.described(node))
        slot = Slot(node.index, shape, np.dtype(float))
        step = Step(name, None, (params,) * 3, (), (slot,), place, record_of(name))
        return self.machine.apply(step, operands)[0]

    def _compute(self, node: Node) -> Any:
        match node:
            case Initial():
                group = self.program.groups[node.group]
                initial = {"key": (id(self.program), node.group), "position": node.position}
                law = {"mean": group.mean, "covariance": group.covariance}
                return self._apply(node, "initial", [], **initial, **law)
            case MatMul():
                operands = [self._matrix(node.matrix, node), self._values[node.operand]]
                return self._apply(node, "dot_general", operands, **_CONTRACT)
            case Map():
                operands = [self._values[operand] for operand in node.operands]
                alone = len(operands) == 1
                closed = node.function.closed_form if alone else None
                return self._apply(
                    node, "map", operands, function=node.function.evaluate, closed=closed
                )
            case VectorArithmetic() | ScalarArithmetic():
                first, *rest = (self._part(part) for part in node.parts)
                for other in rest:
                    first = self._apply(node, _STEPS[node.operation], [first, other])
                return first
            case ScalarMap():
                return self._component(node)
            case _:
                raise TypeError(f"no such line: {type(node).__name__}")

    def _part(self, part: Vector | Scalar | float) -> Any:
        return self._values[part] if isinstance(part, Node) else WideScalar.constant(float(part))

    def _matrix(self, matrix: Matrix, node: Node) -> Any:
        if matrix not in self._values:
            self._values[matrix] = self._apply(node, "weights", [], matrix=matrix, std=matrix.std)
        return self._values[matrix]

    def _component(self, node: ScalarMap) -> WideScalar:
        """One component of a function of scalars, which is computed once for all of them."""
        key = (node.function, node.arguments)
        if key not in self._values:
            arguments = [self._values[argument] for argument in node.arguments]

            def compute() -> np.ndarray:
                rows = np.broadcast_arrays(*(np.asarray(a.value()) for a in arguments))
                return node.function.evaluate(np.stack(rows, axis=-1))

            self._values[key] = cache(compute)
        rows = self._values[key]
        return WideScalar((), lambda: rows()[..., node.component])

    def _products(self, dots: tuple[Dot, ...]) -> WideVector:
        """The products of the sides of dot products, coordinate by coordinate, as one family."""
        for dot in dots:
            for side in dot.sides:
                self.value(side)
        sides = [
            self._apply(dots[0], "stack", [self._values[dot.sides[k]] for dot in dots], axis=0)
            for k in (0, 1)
        ]
        return self._apply(dots[0], "mul", sides)

    def _draw(self, stage: int) -> None:
        """The dot products `n^{-1/2} leftᵀ right` of a stage, given the earlier ones."""
        dots = self._stage(stage)
        total = self._apply(dots[0], "reduce_sum", [self._products(dots)], axes=(1,))
        total = self._apply(dots[0], "mul", [total, WideScalar.constant(1.0, Fraction(-1, 2))])
        if total.power != 0 and not total.is_zero:
            raise NumericalError(
                "A dot product grows with the width.",
                got=f"{dots[0].label} or another of its stage",
                remedy="multiply both sides by fresh matrices first",
            )
        for k, dot in enumerate(dots):
            self._values[dot] = WideScalar((), lambda k=k: total.value()[:, k])
