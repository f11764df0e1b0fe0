"""Factorising kernel matrices: float64 Cholesky, in place, with jitter that reports itself.

The upper triangle of the working array is never touched by the factorisation, so it serves as
the backup from which a failed attempt is restored: one N×N float64 array is all the memory used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigvalsh, get_lapack_funcs
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from ..errors import NumericalError, warn
from ..printing import written
from . import checks
from .checks import Values
from .triangular import BLOCK, Triangular, cholesky_in_place, edges

_pstrf, _potri = get_lapack_funcs(("pstrf", "potri"), dtype=np.float64)

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
    `jitter` is the largest amount that was added to a diagonal entry, 0.0 if none was needed;
    `scale` is the mean diagonal of `K`, by which jitter is measured; `unit` is the machine
    epsilon of the precision in which `K` was computed.
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

    def corner(self, i: int) -> np.ndarray:
        return self.storage[self.spans[i], self.spans[i]]

    def left(self, i: int, first: int) -> Iterator[tuple[slice, np.ndarray]]:
        columns = slice(self.spans[first].start, self.spans[i].start)
        yield columns, self.storage[self.spans[i], columns]

    def below(self, i: int) -> Iterator[tuple[slice, np.ndarray]]:
        rows = slice(self.spans[i].stop, len(self))
        yield rows, self.storage[rows, self.spans[i]]

    def inverse(self) -> Float[np.ndarray, "n n"]:
        """`A⁻¹` in full, both triangles."""
        inverse, _ = _potri(self.storage, lower=1)
        _mirror(inverse)
        return inverse

    def inverse_block(self, rows: np.ndarray) -> Float[np.ndarray, "rows rows"]:
        if 4 * len(rows) < len(self):  # above that, the whole inverse is less work
            return super().inverse_block(rows)
        return self.inverse()[np.ix_(rows, rows)]

    def extend(
        self,
        cross: Values,
        corner: Values,
        *,
        noise: Values = 0.0,
        jitter: Jitter | None = None,
    ) -> "Factor":
        """The factor of the matrix bordered by new rows, in `O(N²M)` instead of `O((N+M)³)`.

        `[[A, Bᵀ], [B, C]] = [[L, 0], [H, S]] [[L, 0], [H, S]]ᵀ` with `H = B L⁻ᵀ` and
        `S Sᵀ = C − H Hᵀ`. `cross` is `B` (new, old); `corner` is `C` (new, new) without noise.
        The jitter already in `A` is given to the new rows too; more is added only if they need it.
        """
        old = len(self)
        corner = checks.square(corner, "The kernel of the new examples")
        new = len(corner)
        cross = checks.matrix(
            cross, "The kernel of new against old examples", rows=new, columns=old
        )
        variances = checks.variances(noise, "The noise", new)
        unit = max(self.unit, checks.rounding_unit(corner))

        half = self.half_solve(cross.T)
        remainder = _working_copy(corner)
        remainder[np.diag_indices(new)] += variances + self.jitter
        remainder -= half.T @ half
        added = _factorise_in_place(
            remainder, scale=self.scale, unit=unit, policy=jitter or Jitter(), added_to=old
        )
        storage = np.empty((old + new, old + new), order="F")
        storage[:old, :old] = self.storage
        storage[old:, :old] = half.T
        storage[old:, old:] = remainder
        return _sealed(storage, self.jitter + added, self.scale, unit)


def factorise(
    kernel: Values,
    *,
    noise: Values = 0.0,
    jitter: Jitter | None = None,
    overwrite: bool = False,
) -> Factor:
    """Cholesky factor of `kernel + diag(noise)` in float64, whatever the kernel's precision.

    Jitter is added only when the plain factorisation fails; it grows from `Jitter.start`, is
    reported by a `JitterWarning` and on the result, and past `Jitter.limit` a `NumericalError`
    names the cause. With `overwrite=True` a float64 `kernel` array is used as the working array
    and destroyed, which saves one N×N array.
    """
    checked = checks.square(kernel, "The kernel matrix")
    rows = len(checked)
    variances = checks.variances(noise, "The noise", rows)
    diagonal = np.diagonal(checked)
    if diagonal.min() < 0:
        raise NumericalError(
            "The diagonal of a kernel holds variances and cannot be negative.",
            got=f"{diagonal.min():.3g} in row {int(diagonal.argmin())}",
            remedy="check that the matrix is a kernel of the examples with themselves",
        )
    scale = float(diagonal.mean(dtype=np.float64))
    unit = checks.rounding_unit(checked)
    if overwrite and checked.dtype == np.float64 and checked.flags.writeable:
        storage = checked if checked.flags.f_contiguous else checked.T
        storage = storage if storage.flags.f_contiguous else _working_copy(checked)
    else:
        storage = _working_copy(checked)
    storage[np.diag_indices(rows)] += variances
    added = _factorise_in_place(storage, scale=scale, unit=unit, policy=jitter or Jitter())
    return _sealed(storage, added, scale, unit)


def _working_copy(symmetric: np.ndarray) -> np.ndarray:
    """A float64 column-major copy; symmetry lets row-major input be copied without transposing."""
    source = symmetric.T if symmetric.flags.c_contiguous else symmetric
    return np.array(source, dtype=np.float64, order="F")


def _sealed(storage: np.ndarray, jitter: float, scale: float, unit: float) -> Factor:
    storage.flags.writeable = False
    return Factor(storage, jitter, scale, unit)


def _mirror(symmetric: np.ndarray) -> None:
    """Overwrite the upper triangle by the lower one, in blocks: no second matrix is needed."""
    rows = len(symmetric)
    for start in range(0, rows, checks.ROWS_PER_BLOCK):
        stop = min(start + checks.ROWS_PER_BLOCK, rows)
        block = symmetric[start:stop, start:stop]
        symmetric[start:stop, stop:] = symmetric[stop:, start:stop].T
        block[:] = np.tril(block) + np.tril(block, -1).T


def _factorise_in_place(
    storage: np.ndarray, *, scale: float, unit: float, policy: Jitter, added_to: int = 0
) -> float:
    """Replace the lower triangle of `storage` by its factor; return the jitter it took.

    `added_to` counts the rows that were factorised before these (see `Factor.extend`); it only
    shapes the messages.
    """
    diagonal = np.diagonal(storage).copy()
    jitter = 0.0
    for jitter in policy.amounts(added_to + len(storage), unit, scale):
        np.fill_diagonal(storage, diagonal + jitter)
        if cholesky_in_place(storage) and not _lost_pivots(storage, diagonal + jitter):
            why = f" Cause: {_cause(storage, diagonal, scale, unit, added_to)}." if jitter else ""
            warn_of_jitter(jitter, scale, why)
            return jitter
        _mirror(storage.T)  # from its upper triangle
    np.fill_diagonal(storage, diagonal)
    smallest = _smallest_eigenvalue(storage)
    cause = _cause(storage, diagonal, scale, unit, added_to, smallest)
    raise NumericalError(
        "A kernel matrix plus noise must be positive definite.",
        got=f"smallest eigenvalue {smallest:.3g}, mean kernel diagonal {scale:.3g}, jitter limit "
        f"{jitter:.3g}; cause: {cause}",
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
    storage: np.ndarray,
    diagonal: np.ndarray,
    scale: float,
    unit: float,
    added_to: int,
    smallest: float = 0.0,
) -> str:
    """Why the matrix, whose upper triangle is intact in `storage`, is not positive definite."""
    if not diagonal.any():
        return "the kernel is zero everywhere and there is no noise"
    if smallest < -1e-4 * scale:
        return "the matrix is not a kernel: it has a direction of clearly negative variance"
    if added_to:
        return "to the kernel, the new examples are combinations of those already present"
    pairs, count = _repeated_rows(storage, diagonal, 10.0 * unit)
    if count:
        named = ", ".join(f"{i} and {j}" for i, j in pairs)
        more = f", and {count - len(pairs)} more pairs" if count > len(pairs) else ""
        return f"rows {named}{more} are the same example to the kernel, and there is no noise"
    return "some examples are combinations of others up to rounding, and there is no noise"


def _repeated_rows(
    storage: np.ndarray, diagonal: np.ndarray, tolerance: float
) -> tuple[list[tuple[int, int]], int]:
    """Pairs with `K_ii + K_jj − 2K_ij` no larger than rounding: the first three, and how many."""
    pairs: list[tuple[int, int]] = []
    count = 0
    for start in range(0, len(storage), checks.ROWS_PER_BLOCK):
        rows = slice(start, start + checks.ROWS_PER_BLOCK)
        apart = diagonal[rows, None] + diagonal[None, start:] - 2.0 * storage[rows, start:]
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
