"""The pairs of a kernel to be computed, cut as its store is: what every process of a run has."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..engine.kernel import Problem, make_pairs
from ..engine.phases import mirror, precision, symmetrise
from ..engine.precision import narrow
from ..state import Kernels
from .layout import Side
from .store import NAMES, KernelStore, Tile


class Walk:
    """The pairs of a problem, cut as its store is; a process has one for all its tiles."""

    def __init__(self, problem: Problem, store: KernelStore):
        """Draws heads where the network needs them; examples are encoded when they are needed."""
        self.problem, self.store = problem, store
        cuts = [[part for strip in side.groups for part in strip] for side in store.manifest.sides]
        # Tiles are kept in the precision asked for, whatever the work is done in.
        self.pairs = make_pairs(problem, cuts)

    @cached_property
    def _blocks(self) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
        """For every strip its blocks, each with the place where it begins in the strip."""
        sides = zip(self.store.manifest.sides, (self.pairs.left, self.pairs.right), strict=False)
        found = [_in_strips(side, blocks.blocks) for side, blocks in sides]
        return found[0], found[-1]

    def jobs(self, tile: Tile) -> list[tuple[Tile, Tile, Tile]]:
        """What a stored tile is made of: tile, place of the engine, and where it begins."""
        ones, twos = self._blocks[0][tile[0]], self._blocks[1][tile[1]]
        half = self.store.manifest.symmetric and tile[0] == tile[1]
        return [
            (tile, (i, j), (begin1, begin2))
            for i, begin1 in ones
            for j, begin2 in twos
            if not half or i <= j
        ]

    def computed(self, job: tuple[Tile, Tile, Tile]) -> tuple[Any, Kernels]:
        """One of these parts."""
        return job, narrow(self.pairs.computed(job[1]).kernels, self.problem.dtype)

    def put(self, job: tuple[Tile, Tile, Tile], found: Kernels, into: Kernels) -> None:
        """A part to its place in the tile, and its mirror image where the tile is symmetric."""
        tile, (i, j), (begin1, begin2) = job
        for name in NAMES:
            part, whole = getattr(found, name), getattr(into, name)
            if whole is None:
                continue
            rows = slice(begin1, begin1 + len(part))
            columns = slice(begin2, begin2 + part.shape[1])
            diagonal = self.store.manifest.symmetric and tile[0] == tile[1]
            if diagonal and i == j:
                symmetrise(part)
            whole[rows, columns] = part
            if diagonal and i != j:
                whole[columns, rows] = mirror(part)

    def tile(self, tile: Tile) -> Kernels:
        """A whole tile, computed in this thread alone."""
        whole = self.store.blank()
        with precision(self.pairs.dtype):
            for job in self.jobs(tile):
                self.put(*self.computed(job), whole)
        return whole


def _in_strips(side: Side, blocks: Sequence[Any]) -> list[list[tuple[int, int]]]:
    """Blocks come in the order of the groups they were cut from, and so do strips."""
    result: list[list[tuple[int, int]]] = []
    index = 0
    for members in side.members:
        strip, begin = [], 0
        while begin < len(members):
            strip.append((index, begin))
            begin += len(blocks[index].members)
            index += 1
        result.append(strip)
    return result
