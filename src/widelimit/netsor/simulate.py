"""A program at a finite width: explicit random weights, many draws at once."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import NetworkError, NumericalError
from ..gaussians import psd_root
from ..options import RandomKey, seed_words, whole
from .nodes import (
    Dot,
    Initial,
    Map,
    MatMul,
    Matrix,
    Node,
    Operation,
    ScalarArithmetic,
    ScalarMap,
    Vector,
    VectorArithmetic,
)
from .validation import chosen_vectors

if TYPE_CHECKING:
    from .program import Program

_DTYPE = np.float32
_WORKERS = 4
_BATCH = 256


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """What independent draws of a program at one width gave."""

    program: Program
    width: int
    vectors: tuple[Vector, ...]
    values: np.ndarray
    """The first coordinates of every vector, `(draws, coordinates, m)`."""
    gram: np.ndarray
    """`(1/n) uᵀv` for all pairs of vectors, `(draws, m, m)`."""
    scalars: np.ndarray
    """Every dot product, `(draws, dots)` in the order of `program.dots`."""

    def __repr__(self) -> str:
        names = ", ".join(vector.label for vector in self.vectors)
        where = f"{self.program.name!r} at width {self.width}"
        return f"Simulation({where}, {self.draws} draws of {names})"

    @property
    def draws(self) -> int:
        """The number of independent draws."""
        return len(self.gram)

    def coordinates(self, vector: Vector) -> np.ndarray:
        """The recorded coordinates of one vector, `(draws, coordinates)`."""
        return self.values[..., self._position(vector)]

    def second_moment(self, left: Vector, right: Vector) -> np.ndarray:
        """`(1/n) leftᵀ right` in every draw, `(draws,)`."""
        return self.gram[:, self._position(left), self._position(right)]

    def _position(self, vector: Vector) -> int:
        if vector not in self.vectors:
            raise NetworkError(
                "A simulation holds the vectors it was asked to record.",
                got=f"{vector!r}",
                remedy="pass it in simulate(..., vectors=[...])",
            )
        return self.vectors.index(vector)


def simulate(
    program: Program,
    width: int,
    draws: int,
    key: RandomKey,
    *,
    vectors: Sequence[Vector] | None,
    coordinates: int,
    memory: int,
) -> Simulation:
    """Run a program; see `Program.simulate`."""
    for name, value in (("width", width), ("draws", draws), ("memory", memory)):
        whole(name, value)
    if not isinstance(coordinates, (int, np.integer)) or not 1 <= coordinates <= width:
        raise NetworkError(
            "The number of recorded coordinates lies between 1 and the width.",
            got=f"coordinates={coordinates!r} at width {width}",
            remedy="record fewer coordinates, or simulate a wider network",
        )
    chosen = chosen_vectors(program, vectors)
    # The batches, and with them the random numbers, must not depend on the machine.
    plan = _ProgramPlan(program, chosen, width, coordinates)
    batch = max(1, min(memory // _WORKERS // plan.bytes_per_run, _BATCH))
    sizes = [min(batch, draws - start) for start in range(0, draws, batch)]
    seeds = np.random.SeedSequence(seed_words(key)).spawn(len(sizes))
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _WORKERS)) as pool:
        parts = list(pool.map(plan.run, sizes, seeds))
    values, gram, scalars = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Simulation(program, width, chosen, values, gram, scalars)


class _ProgramPlan:
    """The lines that must run, and when their arrays and matrices can be dropped."""

    def __init__(self, program: Program, vectors: tuple[Vector, ...], width: int, coordinates: int):
        self.program, self.vectors = program, vectors
        self.width, self.coordinates = width, coordinates
        wanted: set[Node] = set()
        stack: list[Node] = [*vectors, *program.dots]
        while stack:
            node = stack.pop()
            if node not in wanted:
                wanted.add(node)
                stack.extend(node.operands)
        self.lines = [node for node in program.nodes if node in wanted]
        self.last_use: dict[Node | Matrix, int] = {}
        for line in self.lines:
            for used in (*line.operands, *((line.matrix,) if isinstance(line, MatMul) else ())):
                self.last_use[used] = line.index
        matrices = {line.matrix for line in self.lines if isinstance(line, MatMul)}
        per_run = len(matrices) * width**2 + (len(self.lines) + len(vectors) + 4) * width
        self.bytes_per_run = per_run * np.dtype(_DTYPE).itemsize

    def run(
        self, draws: int, seed: np.random.SeedSequence
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One batch: recorded coordinates, Gram matrices, dot products."""
        rng = np.random.Generator(np.random.SFC64(seed))
        state = _State(self.program, rng, draws, self.width)
        dots: list[np.ndarray] = []
        for line in self.lines:
            state.arrays[line] = value = state.compute(line)
            if isinstance(line, Dot):
                dots.append(value)
            for used in (*line.operands, *((line.matrix,) if isinstance(line, MatMul) else ())):
                if self.last_use[used] == line.index and used not in self.vectors:
                    state.drop(used)
        # Squares of small or large coordinates leave the range of single precision.
        stacked = np.stack([state.arrays[v] for v in self.vectors], axis=1).astype(float)
        gram = stacked @ np.swapaxes(stacked, -1, -2) / self.width
        values = np.array(np.swapaxes(stacked[..., : self.coordinates], -1, -2))
        scalars = np.stack(dots, axis=-1) if dots else np.zeros((draws, 0))
        if not (np.all(np.isfinite(gram)) and np.all(np.isfinite(scalars))):
            raise NumericalError(
                "A simulated program must stay finite.",
                got=f"NaN or infinity at width {self.width}",
                remedy="check the functions' domain and growth, and the standard deviations",
            )
        return values, gram, scalars.astype(float)


class _State:
    """The arrays of one batch of draws."""

    def __init__(self, program: Program, rng: np.random.Generator, draws: int, width: int):
        self.program, self.rng, self.draws, self.width = program, rng, draws, width
        self.arrays: dict[Node, np.ndarray] = {}
        self.matrices: dict[Matrix, np.ndarray] = {}
        self.inputs: dict[int, np.ndarray] = {}

    def drop(self, used: Node | Matrix) -> None:
        if isinstance(used, Matrix):
            self.matrices.pop(used, None)
        else:
            self.arrays.pop(used, None)

    def compute(self, node: Node) -> np.ndarray:
        """A line's value: `(draws, n)` for vectors, `(draws,)` for scalars."""
        match node:
            case Initial():
                return self._input(node.group)[..., node.position]
            case MatMul():
                operand = self.arrays[node.operand]
                return (self._matrix(node.matrix) @ operand[..., None])[..., 0]
            case Map():
                vectors = [self.arrays[v] for v in node.vectors]
                scalars = [self.arrays[s][:, None] for s in node.scalars]
                arguments = np.broadcast_arrays(*vectors, *scalars)
                return node.function.evaluate(*arguments).astype(_DTYPE)
            case Dot():
                product = np.einsum("ri,ri->r", self.arrays[node.left], self.arrays[node.right])
                return product / np.sqrt(_DTYPE(self.width))
            case ScalarMap():
                arguments = np.stack([self.arrays[a] for a in node.arguments], axis=-1)
                return node.function.evaluate(arguments)[..., node.component]
            case ScalarArithmetic():
                return combine(node.operation, [self._part(p) for p in node.parts])
            case VectorArithmetic():
                parts = [self._part(p) for p in node.parts]
                columns = [p[:, None] if p.ndim == 1 else p for p in parts]
                return combine(node.operation, columns)
            case _:
                raise TypeError(f"no such line: {type(node).__name__}")

    def _part(self, part: Node | float) -> np.ndarray:
        return self.arrays[part] if isinstance(part, Node) else np.asarray(part, dtype=_DTYPE)

    def _input(self, group: int) -> np.ndarray:
        if group not in self.inputs:
            law = self.program.groups[group]
            factor = psd_root(law.covariance).astype(_DTYPE)
            shape = (self.draws, self.width, len(factor))
            noise = self.rng.standard_normal(shape, dtype=_DTYPE)
            self.inputs[group] = noise @ factor.T + law.mean.astype(_DTYPE)
        return self.inputs[group]

    def _matrix(self, matrix: Matrix) -> np.ndarray:
        if matrix not in self.matrices:
            shape = (self.draws, self.width, self.width)
            entries = self.rng.standard_normal(shape, dtype=_DTYPE)
            entries *= _DTYPE(matrix.std / np.sqrt(self.width))
            self.matrices[matrix] = entries
        return self.matrices[matrix]


def combine(operation: Operation, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum or product of arrays."""
    return np.asarray(sum(parts) if operation is Operation.SUM else math.prod(parts))
