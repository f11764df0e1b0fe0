"""A stored kernel as an array: indexed in the examples' own order, read tile by tile."""

import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..data.files import writing
from ..engine.phases import mirror
from ..errors import ShapeError

if TYPE_CHECKING:
    from .store import KernelStore


class Part(NamedTuple):
    """A tile with the numbers of its examples."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    mirror: bool  # whether its mirror image is part of the matrix too, and not stored


class StoredMatrix:
    """One kernel of a store, with the shape and the indexing of an array.

    `matrix[rows, columns]` reads all pairs of these examples (as `np.ix_` would), each given as an
    integer, a slice, integers or booleans; `np.asarray(matrix)` reads everything. A tile that is
    missing or damaged is an error.
    """

    ndim: int

    def __init__(self, store: "KernelStore", name: str):
        """A kernel of a store by its name."""
        self.store, self.name = store, name
        self.shape, self.dtype = store.shape, store.manifest.dtype
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"StoredMatrix({self.name} of '{self.store}', {self.shape}, {self.dtype})"

    def tile(self, place: tuple[int, int]) -> np.ndarray:
        """The kernel of two strips; below the diagonal the mirror image of what is stored."""
        i, j = place
        below = self.store.manifest.symmetric and i > j
        stored = (j, i) if below else (i, j)
        rows, columns = (
            side[strip] for side, strip in zip(self.store.members, stored, strict=True)
        )
        values = self.store.read(self.name, stored)[: len(rows), : len(columns)]
        return mirror(values) if below else values

    def parts(self) -> Iterator[Part]:
        """Every stored tile once."""
        ones, twos = self.store.members
        for i, j in self.store.manifest.tiles:
            half = self.store.manifest.symmetric and i != j
            yield Part(ones[i], twos[j], self.tile((i, j)), half)

    @cached_property
    def _where(self) -> list[np.ndarray]:
        """Of both sides: for every example, the strip it stands in and its place there."""
        found = []
        for side in self.store.members:
            where = np.empty((2, sum(map(len, side))), int)
            for index, members in enumerate(side):
                where[0, members], where[1, members] = index, np.arange(len(members))
            found.append(where)
        return found

    def __getitem__(self, index: Any) -> np.ndarray:
        pair = index if isinstance(index, tuple) else (index, slice(None))
        if len(pair) != 2 or any(part is None or part is Ellipsis for part in pair):
            raise ShapeError(
                "A stored kernel is indexed by rows and columns.",
                got=f"{index!r}",
                remedy="read the block matrix[rows, columns] and index the result",
            )
        rows, columns = (
            np.arange(size)[part] for size, part in zip(self.shape, pair, strict=False)
        )
        shape = (*rows.shape, *columns.shape, *self.shape[2:])
        rows, columns = rows.reshape(-1), columns.reshape(-1)
        result = np.empty((len(rows), len(columns), *self.shape[2:]), self.dtype)
        (strips1, places1), (strips2, places2) = self._where
        for i in np.unique(strips1[rows]):
            mine = np.flatnonzero(strips1[rows] == i)
            for j in np.unique(strips2[columns]):
                theirs = np.flatnonzero(strips2[columns] == j)
                tile = self.tile((int(i), int(j)))
                chosen = tile[np.ix_(places1[rows[mine]], places2[columns[theirs]])]
                result[np.ix_(mine, theirs)] = chosen
        return result.reshape(shape)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a stored kernel is read into a new array")
        result = np.empty(self.shape, self.dtype if dtype is None else dtype)
        for part in self.parts():
            result[np.ix_(part.rows, part.columns)] = part.values
            if part.mirror:
                result[np.ix_(part.columns, part.rows)] = mirror(part.values)
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole matrix to a .npy file, some rows in memory at a time."""
        height = self.store.manifest.tile
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        with writing(os.fspath(path)) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for begin in range(0, len(self), height):
                file.write(np.ascontiguousarray(self[begin : begin + height]).data)

    def diagonal(self) -> np.ndarray:
        """The kernel of every example with itself, of a symmetric kernel."""
        self._require_matrix("a diagonal", square=True)
        result = np.empty(self.shape[0], self.dtype)
        for i, members in enumerate(self.store.members[0]):
            result[members] = np.diagonal(self.tile((i, i)))
        return result

    def __matmul__(self, right: Any) -> Float[np.ndarray, " rows *columns"]:
        """The product with a vector or a matrix, in float64, with one tile in memory at a time."""
        self._require_matrix("a product")
        right = np.asarray(right, np.float64)
        if right.ndim not in (1, 2) or len(right) != self.shape[1]:
            raise ShapeError(
                "A product has as many rows on its right as columns on its left.",
                got=f"{self.shape} and {right.shape}",
                remedy="pass (columns,) or (columns, several)",
            )
        result = np.zeros((self.shape[0], *right.shape[1:]))
        for part in self.parts():
            values = part.values.astype(np.float64)
            result[part.rows] += values @ right[part.columns]
            if part.mirror:
                result[part.columns] += values.T @ right[part.rows]
        return result

    def _require_matrix(self, what: str, *, square: bool = False) -> None:
        if self.ndim != 2 or (square and not self.store.manifest.symmetric):
            raise ShapeError(
                f"{what.capitalize()} is that of a matrix of {'one batch' if square else 'pairs'}.",
                got=f"a kernel of shape {self.shape}",
                remedy="read the block you need and work with it in memory",
            )
