"""A program on the engine: its lines as values in the limit, given draws of the scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NumericalError
from ..programs.extents import Wide
from ..programs.integration import Method, Rule
from ..programs.integrator import Cloud, Integrator
from ..programs.interpreter import Machine, Made
from ..programs.refusals import Place
from ..programs.scalars import WideScalar
from ..programs.steps import FlatProgram, Slot, Step
from ..programs.table import record_of
from ..programs.vectors import WideVector
from .nodes import Dot, Matrix, Node, Vector

if TYPE_CHECKING:
    from .program import Program

_WIDE = Wide(Fraction(1))
Found = tuple[np.ndarray, Method]


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
        self.program, self.draws = program, draws
        self.machine = Machine(FlatProgram((1, 2, 3), (), (), ()), draws=draws, rule=rule)
        self.values: dict[Any, Any] = {
            dot: WideScalar((), numbers) for dot, numbers in (given or {}).items()
        }
        self._seconds: dict[tuple[int, int], Found] = {}

    # ---- readings -------------------------------------------------------------------------

    def second_moment(self, left: Vector, right: Vector) -> Found:
        """`E[Z^left Z^right | scalars]`, of shape () or `(draws,)`."""
        key = (min(left.index, right.index), max(left.index, right.index))
        if key not in self._seconds:
            sides, one = (self.value(left), self.value(right)), np.zeros((1, 1), int)
            label = f"{left.label}·{right.label}"
            found = self._read(label, lambda i: i.second(*sides, one, one)[:, 0, 0, 0])
            self._seconds[key] = found
        return self._seconds[key]

    def mean(self, vector: Vector) -> Found:
        """`E[Z^vector | scalars]`."""
        value = self.value(vector)
        return self._read(vector.label, lambda i: i.mean(value)[:, 0])

    def gram(self, vectors: Sequence[Vector]) -> Found:
        """`E[Z^u Z^v | scalars]` for all pairs, `(..., m, m)`."""
        found = [self.second_moment(u, v) for u in vectors for v in vectors]
        table = np.stack(np.broadcast_arrays(*[value for value, _ in found]), axis=-1)
        shape = (*table.shape[:-1], len(vectors), len(vectors))
        return table.reshape(shape), max(method for _, method in found)

    def scalar_covariance(self, dots: tuple[Dot, ...]) -> Found:
        """`Cov(p_k, p_l) = E[Z^{k,1} Z^{k,2} Z^{l,1} Z^{l,2}]` of dot products."""
        products, each = self._products(dots), np.arange(len(dots))[None]
        return self._read("dot products", lambda i: i.second(products, products, each, each)[:, 0])

    def sample(
        self, vectors: Sequence[Vector], rng: np.random.Generator, coordinates: int
    ) -> np.ndarray:
        """I.i.d. coordinates of vectors, (draws, coordinates, m)."""
        values, shape = [self.value(vector) for vector in vectors], (self.draws, coordinates)

        def normals(dimension: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
            return rng.standard_normal((*shape, dimension)), np.ones(shape[1])

        cloud = Cloud([form for v in values for form in v.forms()], normals, shape[0])
        columns = [np.broadcast_to(v.evaluate(cloud), (*shape, 1)) for v in values]
        return np.concatenate(columns, axis=-1)

    def scalars(self) -> np.ndarray:
        """The values of all dot products, `(draws, dots)`."""
        columns = [np.broadcast_to(self.value(d).value(), (self.draws,)) for d in self.program.dots]
        return np.stack([np.zeros(self.draws), *columns], axis=-1)[:, 1:]

    def _read(self, label: str, reading: Callable[[Integrator], np.ndarray]) -> Found:
        integrator = self.machine.integrator
        with np.errstate(all="ignore"):
            value, method = integrator.measured(lambda: reading(integrator))
        if not np.all(np.isfinite(value)):
            raise NumericalError(
                "Moments of the limit must be finite.",
                got=f"an overflow, or no number, in E[{label}]",
                remedy="lower the standard deviations, or check the functions' domain and growth",
            )
        return (value if len(value) > 1 else value[0]), method

    # ---- lines ----------------------------------------------------------------------------

    def value(self, node: Node) -> Any:
        """A line's value, after those that it reads; all dot products of a stage come at once."""
        if node not in self.values:
            missing = self.program.needed([node], self.values)
            for line in sorted(missing, key=lambda n: (n.stage, not isinstance(n, Dot), n.index)):
                if isinstance(line, Dot):
                    self._draw(line.stage)
                elif line not in self.values:
                    operands = [self._operand(line, part) for part in line.parts]
                    self.values[line] = self._apply(line, line.name, operands, **line.params)
        return self.values[node]

    def _operand(self, node: Node, part: Node | Matrix | float) -> Any:
        if isinstance(part, Matrix) and part not in self.values:
            self.values[part] = self._apply(node, "weights", [], matrix=part, std=part.std)
        known = isinstance(part, Node | Matrix)
        return self.values[part] if known else WideScalar.constant(part)

    def _apply(self, node: Node, name: str, operands: list[Any], **params: Any) -> Any:
        """What the engine's rule of a primitive makes of the operands of a line."""
        shape = (_WIDE,) if isinstance(node, Vector) else ()
        place = Place("", node.index + 1, self.program.name, self.program.described(node))
        slot = Slot(node.index, shape, np.dtype(float))
        step = Step(name, None, (params,) * 3, (), (slot,), place, record_of(name))
        value = self.machine.apply(step, operands)[0]
        self.machine.records.append(Made(step, value))
        return value

    def _products(self, dots: tuple[Dot, ...]) -> WideVector:
        """The products of the sides of dot products, coordinate by coordinate, as one family."""
        columns = zip(*([self.value(side) for side in dot.operands] for dot in dots), strict=True)
        sides = [self._apply(dots[0], "stack", list(column), axis=0) for column in columns]
        return self._apply(dots[0], "mul", sides)

    def _draw(self, stage: int) -> None:
        """Dot products `n^{-1/2} leftᵀ right`, all of a stage, given the earlier ones."""
        dots = tuple(d for d in self.program.dots if d.stage == stage and d not in self.values)
        if not dots:  # drawn with the first of their stage
            return
        total = self._apply(dots[0], "reduce_sum", [self._products(dots)], axes=(1,))
        total = self._apply(dots[0], "mul", [total, WideScalar.constant(1.0, Fraction(-1, 2))])
        if total.power != 0 and not total.is_zero:
            raise NumericalError(
                "A dot product grows with the width.",
                got=f"{dots[0].label} or another of its stage",
                remedy="multiply both sides by fresh matrices first",
            )
        for k, each in enumerate(dots):
            self.values[each] = WideScalar((), lambda k=k: total.value()[:, k])
