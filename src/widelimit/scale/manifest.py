"""The manifest of a store: what its kernels are kernels of, and how they are cut into tiles."""

import math
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import numpy as np

from ..engine.inputs import Inputs
from ..engine.kernel import Problem
from ..engine.walk import need_before
from ..layers.base import Layer
from ..state import Need
from .description import Description, describe, differences
from .errors import OtherKernelError
from .layout import Side

FORMAT, VERSION = "widelimit kernels", 2
NAMES = ("nngp", "ntk", "nngp_error", "ntk_error")

# A tile is some seconds of work on a processor, which is what an interruption costs.
_SECONDS, _POSITION_PAIR = 10.0, 1e-8
_SMALLEST, _LARGEST = 64, 1024
# Small matrices still have tiles for several workers, and no tile is a burden to read.
_STRIPS, _MOST_BYTES = 8, 2**26


_KERNELS = (("nngp",), ("nngp", "ntk"), ("nngp", "nngp_error"), NAMES)


@dataclass(frozen=True, eq=False)
class Manifest:
    """Everything that a stored kernel depends on; `store` is a name that no other store has."""

    store: str
    network: Description
    sampler: Description
    dtype: str
    names: tuple[str, ...]
    rows: Side
    columns: Side | None  # None: a kernel of the rows with themselves, of which half is stored
    positions: tuple[int, ...]  # axes of a kernel entry, where the network keeps positions
    library: str

    @classmethod
    def make(cls, problem: Problem, tile: int | None = None) -> "Manifest":
        """For a store that is begun with a kernel to be computed."""
        net, rows, columns = problem.net, problem.rows, problem.columns
        sampler, dtype = problem.sampler, problem.dtype
        other = rows if columns is None else columns
        ends = [net.outline(side.outline).positions for side in (rows, other)]
        positions = (*ends[0], *ends[1])
        height = tile or tile_height(net, rows, other, math.prod(positions), dtype)
        parts = ("nngp", "ntk") if problem.ntk else ("nngp",)
        errors = tuple(f"{part}_error" for part in parts)
        return cls(
            uuid4().hex,
            describe(net),
            describe(sampler, "sampler"),
            np.dtype(dtype).name,
            parts if sampler is None or sampler.replicates == 1 else parts + errors,
            Side.make(net, rows, height),
            None if columns is None else Side.make(net, columns, height),
            positions,
            version("widelimit"),
        )

    @property
    def tile(self) -> int:
        """Examples on a side of a tile."""
        return self.rows.height

    @property
    def symmetric(self) -> bool:
        """Whether one half stands for both."""
        return self.columns is None

    @property
    def sides(self) -> tuple[Side, ...]:
        """Rows and, where they are others, columns."""
        return (self.rows,) if self.columns is None else (self.rows, self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the kernel, in the examples' own order."""
        return self.rows.size, self.sides[-1].size, *self.positions

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Strips of rows and columns that meet in a stored tile."""
        counts = [len(side.groups) for side in self.sides]
        return [
            (i, j) for i in range(counts[0]) for j in range(i if self.symmetric else 0, counts[-1])
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        rows, columns = self.rows, self.columns
        return {
            "format": FORMAT,
            "version": VERSION,
            "library": self.library,
            "store": self.store,
            "network": self.network,
            "sampler": self.sampler,
            "dtype": self.dtype,
            "kernels": list(self.names),
            "tile": self.tile,
            "positions": list(self.positions),
            "rows": [segment.as_json() for segment in rows.segments],
            "columns": None if columns is None else [s.as_json() for s in columns.segments],
        }

    @classmethod
    def from_json(cls, node: dict[str, Any]) -> "Manifest":
        """The inverse of `as_json`; raises what nonsense raises."""
        tile, names = int(node["tile"]), tuple(node["kernels"])
        positions = tuple(map(int, node["positions"]))
        if tile < 1 or min(positions, default=1) < 1 or names not in _KERNELS:
            raise ValueError("tiles or kernels that are none")
        columns = node["columns"]
        return cls(
            str(node["store"]),
            node["network"],
            node["sampler"],
            {"float32": "float32", "float64": "float64"}[node["dtype"]],
            names,
            Side.from_json(node["rows"], tile),
            None if columns is None else Side.from_json(columns, tile),
            positions,
            str(node["library"]),
        )

    def require_same(self, asked: "Manifest", inputs: tuple[Inputs, ...], place: str) -> None:
        """Refuse another kernel than the stored one, and say what differs.

        Examples after those that are stored are no difference: they extend it.
        """
        facts = ("library", "dtype", "names", "positions", "symmetric")
        one, two = (
            {name: getattr(m, name) for name in facts}
            | {"network": m.network, "sampler": m.sampler}
            for m in (asked, self)
        )
        found = differences(one, two)
        if found:
            heads = one["network"] == two["network"] and one["sampler"] != two["sampler"]
            drawn = "draw the heads of the first call, sampler=net.sampler(x) of its x, or "
            raise OtherKernelError(
                f"'{place}' holds another kernel: {found}.",
                got="a call for a kernel that is not the stored one",
                remedy=f"{drawn if heads else ''}give another path, or remove the store to begin "
                "anew",
            )
        for name, side, mine in zip(("x1", "x2"), self.sides, inputs, strict=False):
            if mine.size < side.size:
                raise OtherKernelError(
                    f"'{place}' holds more examples than '{name}'.",
                    got=f"{mine.size} examples in '{name}', and {side.size} in the store",
                    remedy="pass all its examples and then new ones, or read a part of the store",
                )
            changed = side.changed(mine)
            if changed is not None:
                raise OtherKernelError(
                    f"'{place}' holds the kernel of other examples: among {changed[0]} to "
                    f"{changed[1] - 1} of '{name}' at least one differs.",
                    got="examples that are not those the store was begun with, in their order",
                    remedy="give another path, or remove the store to begin anew",
                )

    def extended(self, net: Layer, inputs: tuple[Inputs, ...]) -> "Manifest":
        """With the examples that come after the stored ones; itself where there are none."""
        sides = [s.extended(net, mine) for s, mine in zip(self.sides, inputs, strict=True)]
        return replace(self, rows=sides[0], columns=None if self.symmetric else sides[1])


def tile_height(net: Layer, rows: Inputs, columns: Inputs, entries: int, dtype: Any) -> int:
    """Examples on a side of a tile: some seconds of work, a power of two."""
    area = max(rows.area(net), columns.area(net))
    work = area * (area if need_before(net, Need.FULL) is Need.FULL else 1) * _POSITION_PAIR
    largest = math.sqrt(_MOST_BYTES / (entries * np.dtype(dtype).itemsize))
    side = min(math.sqrt(_SECONDS / work), _LARGEST, largest)
    several = max(1.0, max(rows.size, columns.size) / _STRIPS)
    wanted = max(min(side, several), min(_SMALLEST, largest))
    return 1 << max(0, round(math.log2(wanted)))
