"""The manifest of a store: what its kernels are kernels of, and how they are cut into tiles.

Examples stand in strips, as many in each as a tile has rows. Those that come together, with the
first call or with an extension, are sorted into a few groups of like length, so that the pairs of a
tile are cut to the lengths of its strips. They begin a new strip, so that extending a store never
touches a tile that is there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from ..engine.inputs import Inputs
from ..engine.kernel import Problem
from ..engine.tiles import LengthGroup, groups
from ..engine.walk import need_before
from ..layers.base import Layer
from ..state import Need
from .description import OtherKernelError, describe, differences, digest

FORMAT, VERSION = "widelimit kernels", 3
NAMES = ("nngp", "ntk", "nngp_error", "ntk_error")

# A tile is some seconds of work on a processor, which is what an interruption costs.
_SECONDS, _POSITION_PAIR = 10.0, 1e-8
_SMALLEST, _LARGEST = 64, 1024
# Small matrices still have tiles for several workers, and no tile is a burden to read.
_STRIPS, _MOST_BYTES = 8, 2**26


_KERNELS = (["nngp"], ["nngp", "ntk"], ["nngp", "nngp_error"], list(NAMES))


class Strip(NamedTuple):
    """Examples along one side of a tile: in parts of one length, and who they are."""

    parts: tuple[LengthGroup, ...]
    digest: str

    @property
    def members(self) -> np.ndarray:
        """The numbers of its examples, as they stand."""
        return np.concatenate([part.members for part in self.parts])

    def as_json(self) -> dict[str, Any]:
        """Examples that follow each other are known by the first of them."""
        members = self.members
        follow = np.array_equal(members, members[0] + np.arange(len(members)))
        return {
            "cuts": [[len(part.members), part.length] for part in self.parts],
            "members": int(members[0]) if follow else members.tolist(),
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, node: dict[str, Any]) -> "Strip":
        """The inverse of `as_json`; raises what nonsense raises."""
        ends = np.cumsum([int(count) for count, _ in node["cuts"]])
        known = node["members"]
        members = np.array(known if isinstance(known, list) else known + np.arange(ends[-1]), int)
        if len(members) != ends[-1] or min(np.diff(ends, prepend=0)) < 1:
            raise ValueError("examples that are none")
        cuts = zip(np.split(members, ends[:-1]), node["cuts"], strict=True)
        parts = tuple(LengthGroup(part, length) for part, (_, length) in cuts)
        return cls(parts, str(node["digest"]))


def make_strips(net: Layer, inputs: Inputs, first: int, height: int) -> tuple[Strip, ...]:
    """The examples from number `first` on, `height` at a time."""
    if first == inputs.size:
        return ()
    found = groups(net, inputs[slice(first, None)])
    order = first + np.concatenate([group.members for group in found])
    ends = np.cumsum([len(group.members) for group in found])
    strips = []
    for begin in range(0, len(order), height):
        stop = begin + height
        cuts = [
            LengthGroup(order[max(begin, end - len(g.members)) : min(stop, end)], g.length)
            for g, end in zip(found, ends, strict=True)
        ]
        parts = tuple(cut for cut in cuts if len(cut.members))
        strips.append(Strip(parts, digest(inputs, order[begin:stop])))
    return tuple(strips)


def size_of(strips: Sequence[Strip]) -> int:
    """How many examples stand there."""
    return sum(len(strip.members) for strip in strips)


@dataclass(frozen=True, eq=False)
class Manifest:
    """Everything that a stored kernel depends on; `store` is a name that no other store has."""

    store: str
    facts: dict[str, Any]
    """What the numbers follow from, beside the examples: see `facts_of`."""
    tile: int
    """Examples on a side of a tile."""
    rows: tuple[Strip, ...]
    columns: tuple[Strip, ...] | None
    """None: a kernel of the rows with themselves, of which half is stored."""

    @classmethod
    def make(cls, problem: Problem, tile: int | None = None) -> "Manifest":
        """For a store that is begun with a kernel to be computed."""
        facts, net = facts_of(problem), problem.net
        height = tile or tile_height(problem, math.prod(facts["positions"]))
        rows, *others = (make_strips(net, side, 0, height) for side in problem.inputs)
        return cls(uuid4().hex, facts, height, rows, others[0] if others else None)

    @property
    def names(self) -> list[str]:
        """The kernels that are stored."""
        return self.facts["names"]

    @property
    def dtype(self) -> np.dtype:
        """The precision of their entries."""
        return np.dtype(self.facts["dtype"])

    @property
    def symmetric(self) -> bool:
        """Whether one half stands for both."""
        return self.columns is None

    @property
    def sides(self) -> tuple[tuple[Strip, ...], ...]:
        """Rows and, where they are others, columns."""
        return (self.rows,) if self.columns is None else (self.rows, self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the kernel, in the examples' own order."""
        return size_of(self.rows), size_of(self.sides[-1]), *self.facts["positions"]

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Strips of rows and columns that meet in a stored tile."""
        counts = [len(side) for side in self.sides]
        return [
            (i, j) for i in range(counts[0]) for j in range(i if self.symmetric else 0, counts[-1])
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        rows, *columns = ([strip.as_json() for strip in side] for side in self.sides)
        known = {"format": FORMAT, "version": VERSION, "store": self.store, "facts": self.facts}
        return known | {"tile": self.tile, "rows": rows, "columns": columns[0] if columns else None}

    @classmethod
    def from_json(cls, node: dict[str, Any]) -> "Manifest":
        """The inverse of `as_json`; raises what nonsense raises."""
        tile, facts = int(node["tile"]), node["facts"]
        positions = [int(length) for length in facts["positions"]]
        known = facts["names"] in _KERNELS and facts["dtype"] in ("float32", "float64")
        if not known or min([tile, *positions]) < 1:
            raise ValueError("tiles or kernels that are none")

        def strips(nodes: list[Any]) -> tuple[Strip, ...]:
            found = tuple(map(Strip.from_json, nodes))
            order = np.concatenate([strip.members for strip in found])
            fits = max(len(strip.members) for strip in found) <= tile
            if not fits or not np.array_equal(np.sort(order), np.arange(len(order))):
                raise ValueError("an order of examples that is none")
            return found

        columns = None if node["columns"] is None else strips(node["columns"])
        return cls(str(node["store"]), facts, tile, strips(node["rows"]), columns)

    def require_same(self, problem: Problem, place: str) -> None:
        """Refuse another kernel than the stored one, and say what differs.

        Examples after those that are stored are no difference: they extend it.
        """
        asked = facts_of(problem) | {"symmetric": problem.columns is None}
        found = differences(asked, self.facts | {"symmetric": self.symmetric})
        if found:
            heads = (
                asked["network"] == self.facts["network"]
                and asked["sampler"] != self.facts["sampler"]
            )
            drawn = "draw the heads of the first call, sampler=net.sampler(x) of its x, or "
            raise OtherKernelError(
                f"'{place}' holds another kernel: {found}.",
                got="a call for a kernel that is not the stored one",
                remedy=f"{drawn if heads else ''}give another path, or remove the store to begin "
                "anew",
            )
        for name, side, mine in zip(("x1", "x2"), self.sides, problem.inputs, strict=False):
            if mine.size < size_of(side):
                raise OtherKernelError(
                    f"'{place}' holds more examples than '{name}'.",
                    got=f"{mine.size} examples in '{name}', and {size_of(side)} in the store",
                    remedy="pass all its examples and then new ones, or read a part of the store",
                )
            for strip in side:
                members = strip.members
                if digest(mine, members) != strip.digest:
                    raise OtherKernelError(
                        f"'{place}' holds the kernel of other examples: among {members.min()} to "
                        f"{members.max()} of '{name}' at least one differs.",
                        got="examples that are not those the store was begun with, in their order",
                        remedy="give another path, or remove the store to begin anew",
                    )

    def extended(self, net: Layer, inputs: tuple[Inputs, ...]) -> "Manifest":
        """With the examples that come after the stored ones."""
        rows, *others = (
            side + make_strips(net, mine, size_of(side), self.tile)
            for side, mine in zip(self.sides, inputs, strict=True)
        )
        return replace(self, rows=rows, columns=others[0] if others else None)


def facts_of(problem: Problem) -> dict[str, Any]:
    """What the numbers of a kernel follow from, beside the examples, as JSON.

    `positions` are the axes of a kernel entry, where the network keeps positions.
    """
    net, sampler = problem.net, problem.sampler
    ends = [net.outline(side.outline).positions for side in problem.inputs]
    parts = ["nngp", "ntk"] if problem.ntk else ["nngp"]
    errors = [f"{part}_error" for part in parts]
    return {
        "library": version("widelimit"),
        "dtype": np.dtype(problem.dtype).name,
        "names": parts if sampler is None or sampler.replicates == 1 else parts + errors,
        "positions": [*ends[0], *ends[-1]],
        "network": describe(net),
        "sampler": describe(sampler, "sampler"),
    }


def tile_height(problem: Problem, entries: int) -> int:
    """Examples on a side of a tile: some seconds of work, a power of two."""
    net, sides = problem.net, problem.inputs
    area = max(side.area(net) for side in sides)
    work = area * (area if need_before(net, Need.FULL) is Need.FULL else 1) * _POSITION_PAIR
    largest = math.sqrt(_MOST_BYTES / (entries * np.dtype(problem.dtype).itemsize))
    side = min(math.sqrt(_SECONDS / work), _LARGEST, largest)
    several = max(1.0, max(side.size for side in sides) / _STRIPS)
    wanted = max(min(side, several), min(_SMALLEST, largest))
    return 1 << max(0, round(math.log2(wanted)))
