"""What answers for `A⁻¹`, and Cholesky factors in blocks, in memory and on disk alike.

    L_jj L_jjᵀ = A_jj − Σ_{k<j} L_jk L_jkᵀ,   L_ij = (A_ij − Σ_{k<j} L_ik L_jkᵀ) L_jj^-T

Almost all of the work is products of NumPy's. It is done in place, where NumPy's own `cholesky`
takes a second matrix, and without holding the interpreter's lock, which SciPy's `cholesky` does
until it is done: meanwhile progress is shown and Ctrl-C heard. That costs some speed (at N = 4,000
on one thread .70 s against SciPy's .50 s); blocks of 512 cost two threads twice as much again.
"""

import abc
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ..errors import ShapeError
from .checks import Values
from .conventions import LEFT_OUT

BLOCK = 1024
"""Examples on the side of a block in memory."""


def edges(size: int, block: int) -> list[slice]:
    """The examples of every block."""
    return [slice(begin, min(begin + block, size)) for begin in range(0, size, block)]


def unit_columns(size: int, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "n rows"]:
    """Columns of the identity."""
    unit = np.zeros((size, len(rows)))
    unit[rows, np.arange(len(rows))] = 1.0
    return unit


def cholesky_in_place(storage: Float[np.ndarray, "n n"]) -> bool:
    """`A = L Lᵀ` in the lower triangle, all of A that is read; whether A is positive definite."""
    for span in edges(len(storage), BLOCK):
        begin, end = span.start, span.stop
        storage[begin:, span] -= storage[begin:, :begin] @ storage[span, :begin].T
        try:
            corner = cholesky(storage[span, span], lower=True, check_finite=False)
        except LinAlgError:
            return False
        storage[span, span] = corner
        storage[end:, span] = _back(corner, storage[end:, span].T).T
    return True


def _back(corner: np.ndarray, right: np.ndarray, trans: int = 0) -> np.ndarray:
    return solve_triangular(corner, right, lower=True, trans=trans, check_finite=False)


class Inverse(abc.ABC):
    """What a solver gives: answers for `A⁻¹`, with `A = K + noise + jitter`."""

    jitter: float
    """The largest amount that was added to a diagonal entry, 0.0 if none was needed."""
    scale: float
    """The mean diagonal of `K`, by which jitter is measured."""
    unit: float
    """Machine epsilon of the precision in which `K` was computed."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many examples there are."""

    @abc.abstractmethod
    def solve(self, right: Values) -> Float[np.ndarray, "n *columns"]:
        """`A⁻¹ right`."""

    @abc.abstractmethod
    def explained(self, right: Values) -> Float[np.ndarray, " columns"]:
        """The diagonal of `rightᵀ A⁻¹ right`."""

    @abc.abstractmethod
    def gram(self, right: Values) -> Float[np.ndarray, "columns columns"]:
        """`rightᵀ A⁻¹ right`."""

    @property
    @abc.abstractmethod
    def log_determinant(self) -> float:
        """`log det A`."""

    def weights(self, targets: np.ndarray) -> Float[np.ndarray, "n *columns"]:
        """`A⁻¹ targets`, the one solve of a fit."""
        return self.solve(targets)

    def inverse_diagonal_at(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """Some entries of `diag(A⁻¹)`, a few at a time."""
        parts = np.array_split(rows, max(1, -(-len(rows) // LEFT_OUT)))
        return np.concatenate([self.explained(unit_columns(len(self), part)) for part in parts])

    def inverse_block(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "rows rows"]:
        """The block of `A⁻¹` at some rows and columns."""
        return self.gram(unit_columns(len(self), rows))

    def inverse(self) -> Float[np.ndarray, "n n"]:
        """`A⁻¹` in full."""
        return self.inverse_block(np.arange(len(self)))

    @property
    def calibration_rows(self) -> Int[np.ndarray, " rows"]:
        """Training examples whose leave-one-out predictions are affordable: all."""
        return np.arange(len(self))


class Triangular(Inverse):
    """What follows from the triangular factor `L` of `A = L Lᵀ`, read in blocks."""

    places: Any = slice(None)
    """Numbers of the examples as they stand in the factor."""

    @property
    @abc.abstractmethod
    def spans(self) -> Sequence[slice]:
        """The rows of every block, as they stand in the factor."""

    @abc.abstractmethod
    def block(self, i: int, j: int) -> np.ndarray:
        """A block, i ≥ j; what is above the diagonal of one on the diagonal has no meaning."""

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
            for k in range(first, i):
                found[rows] -= self.block(i, k) @ found[self.spans[k]]
            found[rows] = _back(self.block(i, i), found[rows])
        return found

    def solve(self, right: Values) -> Float[np.ndarray, "n *columns"]:
        right = self._columns(right)
        found = self._half(right.reshape(len(right), -1)[self.places], 0)
        for i, rows in reversed(list(enumerate(self.spans))):
            for k in range(i + 1, len(self.spans)):
                found[rows] -= self.block(k, i).T @ found[self.spans[k]]
            found[rows] = _back(self.block(i, i), found[rows], trans=1)
        back = np.empty_like(found)
        back[self.places] = found
        return back.reshape(right.shape)

    def explained(self, right: Values) -> Float[np.ndarray, " columns"]:
        half = self.half_solve(right)
        return np.einsum("nm,nm->m", half, half)

    def gram(self, right: Values) -> Float[np.ndarray, "columns columns"]:
        half = self.half_solve(right)
        return half.T @ half

    @cached_property
    def log_determinant(self) -> float:
        """`log det A = 2 Σ log L_ii`."""
        diagonals = [np.diagonal(self.block(i, i)) for i in range(len(self.spans))]
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
        few = 3 * len(rows) < len(self)
        return super().inverse_diagonal_at(rows) if few else self.inverse_diagonal[rows]

    def _columns(self, right: Values) -> np.ndarray:
        array = np.asarray(right, dtype=np.float64)
        if array.ndim not in (1, 2) or array.shape[0] != len(self):
            raise ShapeError(
                f"A right-hand side of shape {array.shape} does not fit {len(self)} examples.",
                got=f"{array.shape[0] if array.ndim else 0} rows",
                remedy="pass (rows,) or (rows, columns)",
            )
        return array
