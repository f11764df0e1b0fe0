"""What answers for `A⁻¹`: Cholesky factors in blocks, in memory and on disk alike.

    L_jj L_jjᵀ = A_jj − Σ_{k<j} L_jk L_jkᵀ,   L_ij = (A_ij − Σ_{k<j} L_ik L_jkᵀ) L_jj^-T

Almost all of the work is products of NumPy's. It is done in place, where NumPy's own `cholesky`
takes a second matrix, and without holding the interpreter's lock, which SciPy's `cholesky` does
until it is done: meanwhile progress is shown and Ctrl-C heard. That costs some speed (at N = 4,000
on one thread .70 s against SciPy's .50 s); blocks of 512 cost two threads twice as much again.

One N×N float64 array beside the kernel is all the memory used: an attempt that failed begins anew
from the kernel, with jitter that reports itself.
"""

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cholesky, eigvalsh, get_lapack_funcs, solve_triangular
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from ..errors import NumericalError, ShapeError, warn
from ..printing import written
from . import checks
from .checks import Values
from .conventions import LEFT_OUT

_pstrf, _potri = get_lapack_funcs(("pstrf", "potri"), dtype=np.float64)

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

    @cached_property
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


_ALL_EIGENVALUES = 1500  # up to so many rows they take no longer than a search for the smallest


class JitterWarning(UserWarning):
    """A kernel matrix was not positive definite and something was added to its diagonal."""


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """How much may be added to the diagonal when, and only when, a factorisation fails.

    Both numbers are fractions of the mean kernel diagonal. `None` takes what rounding in the
    kernel's own precision explains: `start = √N·ε`, but at least 10³ roundings of the float64
    solve, below which an answer is rounding error; and `limit = 10⁻³` for float32 kernels,
    `10⁻⁶` for float64 ones. `Jitter(limit=0.0)` forbids jitter.
    """

    start: float | None = None
    limit: float | None = None
    growth: float = 10.0

    def __repr__(self) -> str:
        return written(self)

    def range_for(self, rows: int, unit: float) -> tuple[float, float]:
        """The first and the largest jitter, as fractions of the mean diagonal."""
        least = np.sqrt(rows) * max(unit, 1e3 * np.finfo(np.float64).eps)
        start = least if self.start is None else self.start
        if self.limit is not None:
            return start, self.limit
        return start, 1e-6 if unit < 1e-10 else 1e-3

    def amounts(self, rows: int, unit: float, scale: float) -> Iterator[float]:
        """What is added to the diagonal in turn: nothing, then more and more up to the limit."""
        share, limit = self.range_for(rows, unit)
        yield 0.0
        while share < limit:
            yield share * scale
            share *= self.growth
        if limit > 0.0:
            yield limit * scale


@dataclass(frozen=True, eq=False)
class Factor(Triangular):
    """Lower Cholesky factor `L` of `A = K + noise + jitter·I`, so that `A = L Lᵀ`.

    `storage` holds `L` in its lower triangle; what is above the diagonal has no meaning.
    """

    storage: Float[np.ndarray, "n n"] = field(repr=False)
    jitter: float
    scale: float
    unit: float

    @property
    def lower(self) -> Float[np.ndarray, "n n"]:
        """A clean copy of `L`, zeros above the diagonal."""
        return np.tril(self.storage)

    @property
    def spans(self) -> list[slice]:
        return edges(len(self.storage), BLOCK)

    def block(self, i: int, j: int) -> np.ndarray:
        return self.storage[self.spans[i], self.spans[j]]

    def inverse(self) -> Float[np.ndarray, "n n"]:
        lower, _ = _potri(self.storage, lower=1)  # a third of the work of solving for all columns
        return np.tril(lower) + np.tril(lower, -1).T

    def inverse_block(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "rows rows"]:
        few = 4 * len(rows) < len(self)
        return super().inverse_block(rows) if few else self.inverse()[np.ix_(rows, rows)]


def factorise(kernel: Values, *, noise: Values = 0.0, jitter: Jitter | None = None) -> Factor:
    """Cholesky factor of `kernel + diag(noise)` in float64, whatever the kernel's precision.

    Jitter is added only when the plain factorisation fails; it grows from `Jitter.start`, is
    reported by a `JitterWarning` and on the result, and past `Jitter.limit` a `NumericalError`
    names the cause.
    """
    checked = checks.square(kernel, "The kernel matrix")
    variances = checks.variances(noise, "The noise", len(checked))
    diagonal = np.diagonal(checked)
    if diagonal.min() < 0:
        raise NumericalError(
            "The diagonal of a kernel holds variances and cannot be negative.",
            got=f"{diagonal.min():.3g} in row {int(diagonal.argmin())}",
            remedy="check that the matrix is a kernel of the examples with themselves",
        )
    scale = float(diagonal.mean(dtype=np.float64))
    unit = checks.rounding_unit(checked)
    amounts = (jitter or Jitter()).amounts(len(checked), unit, scale)
    diagonal = diagonal + variances
    storage = np.empty(checked.shape, order="F")
    added = 0.0
    for added in amounts:
        # Symmetry lets row-major input be copied without transposing; where that failed, the other
        # triangle is tried, which may differ by rounding.
        storage[:] = checked.T if checked.flags.c_contiguous == (added == 0.0) else checked
        np.fill_diagonal(storage, diagonal + added)
        if cholesky_in_place(storage) and not _lost_pivots(storage, diagonal + added):
            why = f" Cause: {_cause(checked, diagonal, scale, unit)}." if added else ""
            warn_of_jitter(added, scale, why)
            storage.flags.writeable = False
            return Factor(storage, added, scale, unit)
    storage[:] = checked
    np.fill_diagonal(storage, diagonal)
    smallest = _smallest_eigenvalue(storage)
    raise NumericalError(
        "A kernel matrix plus noise must be positive definite.",
        got=f"smallest eigenvalue {smallest:.3g}, mean kernel diagonal {scale:.3g}, jitter limit "
        f"{added:.3g}; cause: {_cause(checked, diagonal, scale, unit, smallest)}",
        remedy="give the data noise, remove repeated examples, check how the kernel was computed, "
        "or allow more with Jitter(limit=...)",
    )


def warn_of_jitter(added: float, scale: float, why: str = "") -> None:
    """Say what was added to the diagonal, if anything was."""
    if added:
        warn(
            JitterWarning(
                f"The kernel matrix is not positive definite in floating point; added {added:.3g} "
                f"to its diagonal ({added / scale:.1e} of the mean diagonal).{why}"
            )
        )


def _lost_pivots(storage: np.ndarray, diagonal: np.ndarray) -> bool:
    """Whether the square of a pivot is rounding: what cancellation left of the diagonal.

    Whether such a pivot came out positive is chance, and every number divided by it is noise.
    """
    rounding = len(storage) * np.finfo(np.float64).eps
    return bool((np.square(np.diagonal(storage)) <= rounding * diagonal).any())


def _smallest_eigenvalue(matrix: np.ndarray) -> float:
    if len(matrix) <= _ALL_EIGENVALUES:
        return float(eigvalsh(matrix, subset_by_index=(0, 0))[0])
    try:
        found = eigsh(matrix, k=1, which="SA", tol=1e-3, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
        return float(found[0])
    except ArpackNoConvergence:  # it is near others, and so near zero
        return 0.0


def _cause(
    matrix: np.ndarray, diagonal: np.ndarray, scale: float, unit: float, smallest: float = 0.0
) -> str:
    """Why the matrix with this diagonal is not positive definite."""
    if not diagonal.any():
        return "the kernel is zero everywhere and there is no noise"
    if smallest < -1e-4 * scale:
        return "the matrix is not a kernel: it has a direction of clearly negative variance"
    pairs, count = _repeated_rows(matrix, diagonal, 10.0 * unit)
    if count:
        named = ", ".join(f"{i} and {j}" for i, j in pairs)
        more = f", and {count - len(pairs)} more pairs" if count > len(pairs) else ""
        return f"rows {named}{more} are the same example to the kernel, and there is no noise"
    return "some examples are combinations of others up to rounding, and there is no noise"


def _repeated_rows(
    matrix: np.ndarray, diagonal: np.ndarray, tolerance: float
) -> tuple[list[tuple[int, int]], int]:
    """Pairs with `K_ii + K_jj − 2K_ij` no larger than rounding: the first three, and how many."""
    pairs: list[tuple[int, int]] = []
    count = 0
    for start in range(0, len(matrix), checks.ROWS_PER_BLOCK):
        rows = slice(start, start + checks.ROWS_PER_BLOCK)
        apart = diagonal[rows, None] + diagonal[None, start:] - 2.0 * matrix[rows, start:]
        size = np.maximum(diagonal[rows, None], diagonal[None, start:])
        close = np.argwhere(np.triu(apart <= tolerance * size, 1))
        pairs += [(start + int(i), start + int(j)) for i, j in close[: 3 - len(pairs)]]
        count += len(close)
    return pairs, count


def semidefinite_root(
    covariance: Float[np.ndarray, "n n"], *, scale: float, unit: float
) -> Float[np.ndarray, "n rank"]:
    """`R` with `R Rᵀ = covariance`, by Cholesky with pivoting, for matrices without full rank.

    Directions whose variance is below `√n·unit·scale` count as rounding and are left out.
    """
    rows = len(covariance)
    floor = np.sqrt(rows) * unit * scale
    storage, order, rank, _ = _pstrf(
        np.array(covariance, dtype=np.float64, order="F"), tol=floor, lower=1, overwrite_a=1
    )
    root = np.empty((rows, rank))
    root[order - 1] = np.tril(storage)[:, :rank]
    # Pivoting stops silently at negative directions too; a random probe shows what was left out.
    probe = np.random.default_rng(0).standard_normal(rows)
    missed = float(np.linalg.norm(covariance @ probe - root @ (root.T @ probe)))
    if missed > 10.0 * rows * floor:
        raise NumericalError(
            "A covariance must be positive semi-definite.",
            got=f"a remainder of about {missed:.3g} that is not, for variances up to {scale:.3g}",
            remedy="check that all blocks come from one kernel",
        )
    return root
