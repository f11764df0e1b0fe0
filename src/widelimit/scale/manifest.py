"""The manifest of a store: what its kernels are kernels of, and how they are cut into tiles."""

import math
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from ..engine.inputs import Inputs
from ..engine.sampling import Sampler
from ..layers.base import Layer
from ..state import Need
from . import layout
from .descriptions import Description, described
from .errors import OtherKernelError
from .fingerprints import differences, listed
from .layout import Side

FORMAT, VERSION = "widelimit kernels", 1

# A tile is some seconds of work on a processor, which is what an interruption costs.
_SECONDS, _POSITION_PAIR = 10.0, 1e-8
_SMALLEST, _LARGEST = 64, 1024
# Small matrices still have tiles for several workers, and no tile is a burden to read.
_STRIPS, _MOST_BYTES = 8, 2**26


@dataclass(frozen=True, eq=False)
class Manifest:
    """Everything that a stored kernel depends on."""

    network: Description
    sampler: Description
    dtype: str
    names: tuple[str, ...]
    rows: Side
    columns: Side | None  # None: a kernel of the rows with themselves, of which half is stored
    positions: tuple[int, ...]  # axes of a kernel entry, where the network keeps positions
    library: str

    @classmethod
    def make(
        cls,
        net: Layer,
        rows: Inputs,
        columns: Inputs | None,
        *,
        sampler: Sampler | None,
        ntk: bool,
        dtype: Any,
        tile: int | None = None,
    ) -> "Manifest":
        """For a store that is begun."""
        other = rows if columns is None else columns
        ends = [net.outline(side.outline).positions for side in (rows, other)]
        positions = (*ends[0], *ends[1])
        height = tile or tile_height(net, rows, other, math.prod(positions), dtype)
        parts = ("nngp", "ntk") if ntk else ("nngp",)
        errors = tuple(f"{part}_error" for part in parts)
        return cls(
            described(net),
            described(sampler),
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
        """Without the orders of the examples, which are arrays of the store."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "library": self.library,
            "network": self.network,
            "sampler": self.sampler,
            "dtype": self.dtype,
            "kernels": list(self.names),
            "tile": self.tile,
            "positions": list(self.positions),
            "rows": layout.as_json(self.rows),
            "columns": None if self.columns is None else layout.as_json(self.columns),
        }

    @classmethod
    def from_json(cls, node: dict[str, Any], orders: list[list[np.ndarray]]) -> "Manifest":
        """The inverse of `as_json`; raises `KeyError`, `TypeError` or `ValueError` on nonsense."""
        names = [name for name in ("rows", "columns") if node[name] is not None]
        sides = [
            layout.from_json(node[name], order, int(node["tile"]))
            for name, order in zip(names, orders, strict=True)
        ]
        return cls(
            node["network"],
            node["sampler"],
            str(np.dtype(node["dtype"]).name),
            tuple(node["kernels"]),
            sides[0],
            sides[1] if len(sides) > 1 else None,
            tuple(node["positions"]),
            node["library"],
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
        found = listed(differences(one, two))
        if found:
            heads = one["network"] == two["network"] and one["sampler"] != two["sampler"]
            drawn = "draw the heads of the first call, sampler=net.sampler(x) of its x, or "
            raise OtherKernelError(
                "A store holds one kernel, and goes on with that kernel only.",
                got=f"another one for '{place}': {found}",
                remedy=f"{drawn if heads else ''}give another path, or remove the store to begin "
                "anew",
            )
        for name, side, mine in zip(("x1", "x2"), self.sides, inputs, strict=False):
            if mine.size < side.size:
                raise OtherKernelError(
                    "A store is extended with examples after those it has.",
                    got=f"{mine.size} examples in '{name}', and {side.size} in '{place}'",
                    remedy="pass all its examples and then new ones, or read a part of the store",
                )
            changed = side.changed(mine)
            if changed is not None:
                raise OtherKernelError(
                    "A store holds the kernel of the examples it was begun with, in their order.",
                    got=f"other examples for '{place}': among {changed[0]} to {changed[1] - 1} of "
                    f"'{name}' at least one differs",
                    remedy="give another path, or remove the store to begin anew",
                )

    def extended(self, net: Layer, inputs: tuple[Inputs, ...]) -> "Manifest":
        """With the examples that come after the stored ones; itself where there are none."""
        sides = [
            side.extended(net, mine) if mine.size > side.size else side
            for side, mine in zip(self.sides, inputs, strict=True)
        ]
        return replace(self, rows=sides[0], columns=None if self.symmetric else sides[1])


def tile_height(net: Layer, rows: Inputs, columns: Inputs, entries: int, dtype: Any) -> int:
    """Examples on a side of a tile: some seconds of work, a power of two."""
    area = max(rows.area, columns.area)
    work = area * (area if net.need(Need.FULL) is Need.FULL else 1) * _POSITION_PAIR
    largest = math.sqrt(_MOST_BYTES / (entries * np.dtype(dtype).itemsize))
    side = min(math.sqrt(_SECONDS / work), _LARGEST, largest)
    several = max(1.0, max(rows.size, columns.size) / _STRIPS)
    wanted = max(min(side, several), min(_SMALLEST, largest))
    return 1 << max(0, round(math.log2(wanted)))
