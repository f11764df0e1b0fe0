"""The pairs of a kernel to be computed, cut as its store is: what every process of a run has."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..engine.kernel import Problem, make_pairs
from ..engine.phases import mirror, precision, symmetrise
from ..engine.precision import narrow
from ..engine.tiles import Pairs
from ..state import Kernels
from .manifest import NAMES, Strip

if TYPE_CHECKING:
    from .store import KernelStore, Tile


class Walk:
    """The pairs of a problem, cut as its store is; a process has one for all its tiles."""

    def __init__(self, problem: Problem, store: "KernelStore"):
        """Nothing is drawn or encoded before it is needed; and so it is sent to other processes."""
        self.problem, self.store = problem, store

    def __getstate__(self) -> dict[str, Any]:
        return {"problem": self.problem, "store": self.store}

    @cached_property
    def pairs(self) -> Pairs:
        """With heads where the network needs them; examples are encoded when they are needed."""
        sides = self.store.manifest.sides
        return make_pairs(
            self.problem, [[p for strip in side for p in strip.parts] for side in sides]
        )

    @cached_property
    def _blocks(self) -> list[list[list[tuple[int, int]]]]:
        """Of both sides, for every strip its blocks, each with the place where it begins there."""
        sides = self.store.manifest.sides
        both = zip((sides[0], sides[-1]), (self.pairs.left, self.pairs.right), strict=True)
        return [_in_strips(side, blocks.blocks) for side, blocks in both]

    def kind(self, tile: "Tile") -> Any:
        """Tiles of one kind share their compilations."""
        sides = zip(self._blocks, (self.pairs.left, self.pairs.right), tile, strict=True)
        return tuple(
            frozenset(blocks[i].kind for i, _ in strips[strip]) for strips, blocks, strip in sides
        )

    def tile(self, tile: "Tile") -> Kernels:
        """A stored tile, computed in this thread alone."""
        whole = self.store.blank()
        symmetric = self.store.manifest.symmetric and tile[0] == tile[1]
        ones, twos = (strips[strip] for strips, strip in zip(self._blocks, tile, strict=True))
        places = [
            (i, j, begin1, begin2)
            for i, begin1 in ones
            for j, begin2 in twos
            if not symmetric or i <= j
        ]
        for i, j, begin1, begin2 in places:
            with precision(self.pairs.dtype):
                # Tiles are kept in the precision asked for, whatever the work is done in.
                found = narrow(self.pairs.computed((i, j)).kernels, self.problem.dtype)
            for name in NAMES:
                part, into = getattr(found, name), getattr(whole, name)
                if into is None:
                    continue
                rows = slice(begin1, begin1 + len(part))
                columns = slice(begin2, begin2 + part.shape[1])
                if symmetric and i == j:
                    symmetrise(part)
                into[rows, columns] = part
                if symmetric and i != j:
                    into[columns, rows] = mirror(part)
        return whole


def _in_strips(strips: Sequence[Strip], blocks: Sequence[Any]) -> list[list[tuple[int, int]]]:
    """Blocks come in the order of the groups they were cut from, and so do strips."""
    result: list[list[tuple[int, int]]] = []
    index = 0
    for strip in strips:
        found, begin = [], 0
        while begin < len(strip.members):
            found.append((index, begin))
            begin += len(blocks[index].members)
            index += 1
        result.append(found)
    return result
