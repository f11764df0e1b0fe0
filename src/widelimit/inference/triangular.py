"""Cholesky factors in blocks, in memory and on disk alike.

    L_jj L_jjᵀ = A_jj − Σ_{k<j} L_jk L_jkᵀ,   L_ij = (A_ij − Σ_{k<j} L_ik L_jkᵀ) L_jj^-T

Almost all of the work is products of NumPy's. It is done in place, where NumPy's own `cholesky`
takes a second matrix, and without holding the interpreter's lock, which SciPy's `cholesky` does
until it is done: meanwhile progress is shown and Ctrl-C heard. That costs some speed (at N = 4,000
on one thread .70 s against SciPy's .50 s); blocks of 512 cost two threads twice as much again.
"""

import abc
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import get_lapack_funcs, solve_triangular

from ..errors import ShapeError
from .checks import Values

BLOCK = 1024
"""Examples on the side of a block in memory."""

(_potrf,) = get_lapack_funcs(("potrf",), dtype=np.float64)


def edges(size: int, block: int) -> list[slice]:
    """The examples of every block."""
    return [slice(begin, min(begin + block, size)) for begin in range(0, size, block)]


def unit_columns(size: int, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "n rows"]:
    """Columns of the identity."""
    unit = np.zeros((size, len(rows)))
    unit[rows, np.arange(len(rows))] = 1.0
    return unit


def cholesky_in_place(storage: Float[np.ndarray, "n n"]) -> bool:
    """`A = L Lᵀ` in the lower triangle; whether A is positive definite.

    What is above the diagonal is neither read nor changed.
    """
    for span in edges(len(storage), BLOCK):
        begin, end = span.start, span.stop
        above = np.triu(storage[span, span], 1)
        storage[begin:, span] -= storage[begin:, :begin] @ storage[span, :begin].T
        corner, failed = _potrf(storage[span, span], lower=1, clean=1)
        storage[span, span] = np.tril(corner) + above
        if failed:
            return False
        storage[end:, span] = _back(corner, storage[end:, span].T).T
    return True


def _back(corner: np.ndarray, right: np.ndarray, trans: int = 0) -> np.ndarray:
    return solve_triangular(corner, right, lower=True, trans=trans, check_finite=False)


class Triangular(abc.ABC):
    """What follows from the triangular factor `L` of `A = L Lᵀ`, read in blocks."""

    places: Any = slice(None)
    """Numbers of the examples as they stand in the factor."""

    @property
    @abc.abstractmethod
    def spans(self) -> Sequence[slice]:
        """The rows of every block, as they stand in the factor."""

    @abc.abstractmethod
    def corner(self, i: int) -> np.ndarray:
        """A block on the diagonal; what is above its diagonal has no meaning."""

    @abc.abstractmethod
    def left(self, i: int, first: int) -> Iterator[tuple[slice, np.ndarray]]:
        """What stands left of it from block `first` on, in parts with their columns."""

    @abc.abstractmethod
    def below(self, i: int) -> Iterator[tuple[slice, np.ndarray]]:
        """What stands below it, in parts with their rows."""

    def __len__(self) -> int:
        return self.spans[-1].stop

    def half_solve(self, right: Values) -> Float[np.ndarray, "n *columns"]:
        """`L⁻¹ right`, whose columns have inner products `rightᵀ A⁻¹ right`."""
        right = self._columns(right)
        return self._half(right.reshape(len(right), -1)[self.places], 0).reshape(right.shape)

    def _half(self, right: np.ndarray, first: int) -> np.ndarray:
        """The same in the factor's order, for columns that begin with zeros up to a block."""
        found = np.array(right, np.float64, order="F")
        for i, rows in enumerate(self.spans):
            if i < first:
                continue
            for span, block in self.left(i, first):
                found[rows] -= block @ found[span]
            found[rows] = _back(self.corner(i), found[rows])
        return found

    def solve(self, right: Values) -> Float[np.ndarray, "n *columns"]:
        """`A⁻¹ right`."""
        right = self._columns(right)
        found = self._half(right.reshape(len(right), -1)[self.places], 0)
        for i, rows in reversed(list(enumerate(self.spans))):
            for span, block in self.below(i):
                found[rows] -= block.T @ found[span]
            found[rows] = _back(self.corner(i), found[rows], trans=1)
        back = np.empty_like(found)
        back[self.places] = found
        return back.reshape(right.shape)

    def explained(self, right: Values) -> Float[np.ndarray, " columns"]:
        """The diagonal of `rightᵀ A⁻¹ right`."""
        half = self.half_solve(right)
        return np.einsum("nm,nm->m", half, half)

    def gram(self, right: Values) -> Float[np.ndarray, "columns columns"]:
        """`rightᵀ A⁻¹ right`."""
        half = self.half_solve(right)
        return half.T @ half

    def inverse_block(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "rows rows"]:
        """The block of `A⁻¹` at some rows and columns."""
        return self.gram(unit_columns(len(self), rows))

    @cached_property
    def log_determinant(self) -> float:
        """`log det A = 2 Σ log L_ii`."""
        diagonals = [np.diagonal(self.corner(i)) for i in range(len(self.spans))]
        return float(2.0 * np.log(np.concatenate(diagonals)).sum())

    @cached_property
    def inverse_diagonal(self) -> Float[np.ndarray, " n"]:
        """`diag(A⁻¹)`, the squared column norms of `L⁻¹`: as much work as the factor."""
        total = np.empty(len(self))
        for i, rows in enumerate(self.spans):
            half = self._half(unit_columns(len(self), np.arange(rows.start, rows.stop)), i)
            total[rows] = np.einsum("nm,nm->m", half, half)
        found = np.empty_like(total)
        found[self.places] = total
        return found

    def inverse_diagonal_at(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """Some entries of `diag(A⁻¹)`."""
        if 3 * len(rows) < len(self):
            return self.explained(unit_columns(len(self), rows))
        return self.inverse_diagonal[rows]

    @property
    def calibration_rows(self) -> Int[np.ndarray, " n"]:
        """All training examples serve for calibration."""
        return np.arange(len(self))

    def _columns(self, right: Values) -> np.ndarray:
        array = np.asarray(right, dtype=np.float64)
        if array.ndim not in (1, 2) or array.shape[0] != len(self):
            raise ShapeError(
                f"A right-hand side of shape {array.shape} does not fit {len(self)} examples.",
                got=f"{array.shape[0] if array.ndim else 0} rows",
                remedy="pass (rows,) or (rows, columns)",
            )
        return array
