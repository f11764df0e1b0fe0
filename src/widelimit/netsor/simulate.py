"""A program at a finite width: explicit random weights, many draws at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NetworkError, NumericalError
from ..gaussians import psd_root
from ..options import RandomKey, seed_words, whole
from ..programs.table import TABLE
from .nodes import Dot, Matrix, Node, Vector

if TYPE_CHECKING:
    from .program import InputGroup, Program

DTYPE = np.float32
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
    chosen = program.chosen(vectors)
    needed = program.needed([*chosen, *program.dots])
    lines = [node for node in program.nodes if node in needed]
    matrices = {part for line in lines for part in line.parts if isinstance(part, Matrix)}
    per_run = len(matrices) * width**2 + (len(lines) + len(chosen) + 4) * width
    # The batches, and with them the random numbers, must not depend on the machine.
    batch = max(1, min(memory // _WORKERS // (per_run * np.dtype(DTYPE).itemsize), _BATCH))
    sizes = [min(batch, draws - start) for start in range(0, draws, batch)]
    seeds = np.random.SeedSequence(seed_words(key)).spawn(len(sizes))

    def run(size: int, seed: np.random.SeedSequence) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        one = Batch(np.random.Generator(np.random.SFC64(seed)), size, width)
        for line in lines:
            one.arrays[line] = one.line(line)
        return one.recorded(chosen, program.dots, coordinates)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _WORKERS)) as pool:
        parts = list(pool.map(run, sizes, seeds))
    values, gram, scalars = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Simulation(program, width, chosen, values, gram, scalars)


class Batch:
    """The arrays of one batch of draws."""

    def __init__(self, rng: np.random.Generator, draws: int, width: int):
        self.rng, self.draws, self.width = rng, draws, width
        self.arrays: dict[Any, np.ndarray] = {}

    def recorded(
        self, vectors: tuple[Vector, ...], dots: tuple[Dot, ...], coordinates: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first coordinates of vectors, their Gram matrices, and dot products."""
        # Squares of small or large coordinates leave the range of single precision.
        stacked = np.stack([self.arrays[v] for v in vectors], axis=1).astype(float)
        gram = stacked @ np.swapaxes(stacked, -1, -2) / self.width
        values = np.array(np.swapaxes(stacked[..., :coordinates], -1, -2))
        columns = [np.zeros(self.draws), *(self.arrays[dot] for dot in dots)]
        scalars = np.stack(columns, axis=-1)[:, 1:]
        if not (np.all(np.isfinite(gram)) and np.all(np.isfinite(scalars))):
            raise NumericalError(
                "A simulated program must stay finite.",
                got=f"NaN or infinity at width {self.width}",
                remedy="check the functions' domain and growth, and the standard deviations",
            )
        return values, gram, scalars

    def line(self, node: Node) -> np.ndarray:
        """A line's array: `(draws, n)` for vectors, `(draws,)` for scalars."""
        params = node.params
        if node.name == "initial":
            return self.inputs(params["group"])[..., params["position"]]
        if node.name == "dot_general":
            weights, (operand,) = self.matrix(node.parts[0]), node.operands
            return (weights @ self.arrays[operand][..., None])[..., 0]
        arrays = [
            self.arrays[p] if isinstance(p, Node) else np.asarray(p, DTYPE) for p in node.parts
        ]
        if node.name == "dot":
            return np.einsum("ri,ri->r", *arrays) / np.sqrt(DTYPE(self.width))
        if "component" in params:
            return params["function"].evaluate(np.stack(arrays, axis=-1))[..., params["component"]]
        if isinstance(node, Vector):
            arrays = [a[:, None] if a.ndim == 1 else a for a in arrays]
        if node.name == "map":
            return params["function"].evaluate(*np.broadcast_arrays(*arrays)).astype(DTYPE)
        rule: Any = TABLE[node.name].arrays
        return rule(*arrays)

    def inputs(self, group: InputGroup) -> np.ndarray:
        """The vectors of a group, `(draws, n, vectors)`."""
        if group not in self.arrays:
            factor = psd_root(group.covariance).astype(DTYPE)
            noise = self._normal(self.width, len(factor))
            self.arrays[group] = noise @ factor.T + group.mean.astype(DTYPE)
        return self.arrays[group]

    def matrix(self, matrix: Any) -> np.ndarray:
        """The entries, `(draws, n, n)`."""
        if matrix not in self.arrays:
            self.arrays[matrix] = self._normal(self.width, self.width)
            self.arrays[matrix] *= DTYPE(matrix.std / np.sqrt(self.width))
        return self.arrays[matrix]

    def _normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal((self.draws, *shape), dtype=DTYPE)
