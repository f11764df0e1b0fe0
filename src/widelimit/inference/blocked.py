"""Cholesky out of core: the factor of a kernel that no memory holds, in blocks on disk.

    L_ij = (A_ij − Σ_{k<j} L_ik L_jkᵀ) L_jj^-T,   L_jj L_jjᵀ = A_jj − Σ_{k<j} L_jk L_jkᵀ

Columns are computed from left to right. A block depends on those to its left and on the diagonal
above it, so the workers of a cluster share them. In memory are one row of blocks and a few blocks.

`dask.array.linalg.cholesky` computes the same; it keeps every block of the factor in the memory of
its workers until the last one is done, which is what this is to avoid.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ..errors import MissingExtraError, NumericalError, WidelimitError, warn
from . import checks
from .checks import Values
from .solve import Jitter, JitterWarning, Triangular, unit_columns

Report = Callable[[int, int], None]
Place = tuple[int, int]


@dataclass(frozen=True, eq=False)
class StoredFactor(Triangular):
    """The lower Cholesky factor of `A = K + noise + jitter`, in blocks of a Zarr array.

    It is the factor of `A` with its examples in `order`, which is how the kernel stands on disk.
    """

    folder: str
    order: Int[np.ndarray, " n"] = field(repr=False)
    block: int
    jitter: float
    scale: float
    unit: float
    keeper: "Folder" = field(repr=False)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def _edges(self) -> list[slice]:
        return edges(len(self), self.block)

    @cached_property
    def _blocks(self) -> Any:
        return opened(self.folder)

    def _at(self, i: int, j: int) -> np.ndarray:
        try:
            found = read_block(self._blocks, self._edges, i, j)
        except (OSError, ValueError) as error:  # no folder; a checksum that does not hold
            raise self._lost(i, j, str(error)) from error
        if np.isnan(found).any():
            raise self._lost(i, j, "it is missing")
        return found

    def _lost(self, i: int, j: int, why: str) -> WidelimitError:
        return WidelimitError(
            "The factor of a model stays on disk, as it was written, while the model is used.",
            got=f"block ({i}, {j}) in '{self.folder}' ({why})",
            remedy="fit the model again; give BlockedCholesky(folder=...) a place that is kept",
        )

    def half_solve(self, right: Values) -> Float[np.ndarray, "n columns"]:
        """`L⁻¹ right`, whose columns have inner products `rightᵀ A⁻¹ right`."""
        right = np.asarray(right, np.float64)
        found = np.array(right.reshape(len(right), -1)[self.order])
        spans = self._edges
        for i, rows in enumerate(spans):
            for k in range(i):
                found[rows] -= self._at(i, k) @ found[spans[k]]
            found[rows] = solve_triangular(self._at(i, i), found[rows], lower=True)
        return found

    def solve(self, right: Values) -> Float[np.ndarray, "n columns"]:
        """`A⁻¹ right`."""
        right = np.asarray(right, np.float64)
        found, spans = self.half_solve(right), self._edges
        for i in reversed(range(len(spans))):
            for k in range(i + 1, len(spans)):
                found[spans[i]] -= self._at(k, i).T @ found[spans[k]]
            found[spans[i]] = solve_triangular(self._at(i, i), found[spans[i]], lower=True, trans=1)
        back = np.empty_like(found)
        back[self.order] = found
        return back.reshape(right.shape)

    @cached_property
    def log_determinant(self) -> float:
        """`log det A`."""
        diagonals = [np.diagonal(self._at(i, i)) for i in range(len(self._edges))]
        return float(2.0 * np.log(np.concatenate(diagonals)).sum())

    @cached_property
    def inverse_diagonal(self) -> Float[np.ndarray, " n"]:
        """`diag(A⁻¹)`: as much work as the factor."""
        return self.inverse_diagonal_at(np.arange(len(self)))

    def inverse_diagonal_at(self, rows: np.ndarray) -> Float[np.ndarray, " rows"]:
        """Some entries of `diag(A⁻¹)`."""
        parts = []
        for begin in range(0, len(rows), self.block):
            chosen = rows[begin : begin + self.block]
            parts.append(self.explained(unit_columns(len(self), chosen)))
        return np.concatenate(parts)

    @property
    def calibration_rows(self) -> None:
        """All training examples serve for calibration."""
        return

    def extend(self, *_: Any, **__: Any) -> Any:
        """Refused: extend the store, and factorise it again."""
        raise WidelimitError(
            "A factor on disk is not extended.",
            got="more data for a model with solver=BlockedCholesky(...)",
            remedy="fit again with all examples: the stored kernel is extended, not computed anew",
        )


def factorise_in_blocks(
    kernel: Any,
    noise: np.ndarray,
    *,
    folder: str | None,
    block: int,
    jitter: Jitter,
    client: Any = None,
    progress: Report | None = None,
) -> StoredFactor:
    """The factor of `kernel + noise`; its folder is removed with the last reference."""
    with _writable(folder):
        keeper = Folder(folder)
    order = _order(kernel)
    diagonal = np.asarray(kernel.diagonal(), np.float64)
    unit, scale = checks.rounding_unit(np.asarray(kernel[:1])), float(diagonal.mean())
    start, limit = jitter.range_for(len(order), unit)
    added, attempt = 0.0, 0
    while True:
        # A folder of its own: workers may still be at a block of an attempt that failed.
        target = str(keeper.path / str(attempt))
        try:
            with _writable(target):
                _run(_Work(kernel, noise + added, order, target, block), client, progress)
            break
        except LinAlgError as error:
            shutil.rmtree(target, ignore_errors=True)
            if added >= limit * scale:
                raise NumericalError(
                    "A kernel matrix plus noise must be positive definite.",
                    got=f"{error}, with {added:g} added to the diagonal",
                    remedy="give the data noise, or allow more with Jitter(limit=...)",
                ) from error
            added = min(max(start * scale, added * jitter.growth), limit * scale)
            attempt += 1
    if added:
        warn(
            JitterWarning(
                f"The kernel matrix is not positive definite in floating point; added {added:.3g} "
                f"to its diagonal ({added / scale:.1e} of the mean diagonal)."
            )
        )
    return StoredFactor(target, order, block, added, scale, unit, keeper)


class Folder:
    """A folder of one factor, which goes when nobody holds the factor any more.

    Every fit has its own, also below a folder that a user has named: a solver is used for several
    models, at once too, and none may write into what another one reads.
    """

    def __init__(self, around: str | None):
        """A new one, in a folder or in that of the system for temporary files."""
        self.named = around is not None
        if around is not None:
            os.makedirs(around, exist_ok=True)
            around = os.path.abspath(around)  # workers have a folder of their own
        self.path = Path(tempfile.mkdtemp(prefix="widelimit-factor-", dir=around))
        self.end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __deepcopy__(self, memo: Any) -> "Folder":
        return self

    def __reduce__(self) -> Any:
        """Who reads the copy may live longer: a named folder then stays."""
        if not self.named:
            raise WidelimitError(
                "A factor in a temporary folder goes with the process that made it.",
                got="a copy to be sent or kept of a model with solver=BlockedCholesky()",
                remedy="fit with BlockedCholesky(folder=...), and remove that folder yourself",
            )
        self.end.detach()
        return _Kept, (self.path,)


class _Kept(Folder):
    """The folder of a factor that came from elsewhere, and stays."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return _Kept, (self.path,)


@contextmanager
def _writable(place: Any) -> Iterator[None]:
    """Turn what a disk refuses into an error that names the place."""
    try:
        yield
    except OSError as error:
        raise WidelimitError(
            "The factor of a kernel is kept on a disk that can be written.",
            got=f"'{place or tempfile.gettempdir()}' ({error.strerror or error})",
            remedy="give BlockedCholesky(folder=...) a folder with 4 N² bytes of space, one that "
            "all workers reach",
        ) from error


@dataclass(frozen=True, eq=False)
class _Work:
    """What a block of the factor is computed from; it goes to workers."""

    kernel: Any
    noise: np.ndarray
    order: np.ndarray
    folder: str
    block: int

    def compute(self, i: int, j: int, row: Sequence[np.ndarray] | None = None) -> None:
        """Block (i, j), and write it; `row` are the blocks to the left of (j, j), if at hand."""
        blocks, spans = opened(self.folder), edges(len(self.order), self.block)
        ones, twos = self.order[spans[i]], self.order[spans[j]]
        found = np.array(checks.pairs(self.kernel, ones, twos), np.float64)
        if i == j:
            found[np.diag_indices(len(found))] += self.noise[ones]
        for k in range(j):
            other = read_block(blocks, spans, j, k) if row is None else row[k]
            found -= (other if i == j else read_block(blocks, spans, i, k)) @ other.T
        if i == j:
            found = cholesky(found, lower=True, check_finite=False)
        else:
            corner = read_block(blocks, spans, j, j) if row is None else row[j]
            found = solve_triangular(corner, found.T, lower=True, check_finite=False).T
        whole = np.zeros((self.block, self.block))
        whole[: len(found), : found.shape[1]] = found
        blocks.set_block_selection((i, j), whole)


def _run(work: _Work, client: Any, progress: Report | None) -> None:
    """All blocks, reporting how many are done."""
    count = len(edges(len(work.order), work.block))
    opened(work.folder, create=count * work.block, block=work.block)
    walk = _here(work, count) if client is None else _by_workers(work, count, client)
    total = count * (count + 1) // 2
    for done, _ in enumerate(walk, start=1):
        if progress is not None:
            progress(done, total)


def _here(work: _Work, count: int) -> Iterator[Place]:
    """Column by column; the row of blocks that a column needs is read once."""
    blocks, spans = opened(work.folder), edges(len(work.order), work.block)
    for j in range(count):
        work.compute(j, j)
        yield j, j
        row = [read_block(blocks, spans, j, k) for k in range(j + 1)]
        for i in range(j + 1, count):
            work.compute(i, j, row)
            yield i, j


def _by_workers(work: _Work, count: int, client: Any) -> Iterator[Place]:
    """Every block as soon as its left neighbour and the diagonal above it are there."""
    from ..scale.cluster import Sent, by_workers  # Dask is needed with workers only

    places = [(i, j) for j in range(count) for i in range(j, count)]

    def after(place: Place) -> list[Place]:
        i, j = place
        return [(i, j - 1)] * (j > 0) + [(j, j)] * (i > j)

    for place, _ in by_workers(client, _compute, [Sent(client, work)], places, after=after):
        yield place


def _compute(work: _Work, place: Place) -> None:
    work.compute(*place)


def edges(size: int, block: int) -> list[slice]:
    """The examples of every block."""
    return [slice(begin, min(begin + block, size)) for begin in range(0, size, block)]


def opened(folder: str, *, create: int | None = None, block: int = 0) -> Any:
    """The Zarr array of the blocks; a new one of `create` rows."""
    try:
        import zarr
        from zarr.codecs import Crc32cCodec
    except ImportError as missing:
        raise MissingExtraError("zarr", "scale") from missing
    if create is None:
        return zarr.open_array(folder, mode="r+")
    return zarr.create_array(
        folder,
        shape=(create, create),
        chunks=(block, block),
        dtype=np.float64,
        fill_value=np.nan,
        compressors=Crc32cCodec(),
        config={"write_empty_chunks": True},
        overwrite=True,
    )


def read_block(blocks: Any, spans: list[slice], i: int, j: int) -> np.ndarray:
    """A block of the factor, without what fills it up."""
    rows, columns = (span.stop - span.start for span in (spans[i], spans[j]))
    return np.asarray(blocks.get_block_selection((i, j)))[:rows, :columns]


def _order(kernel: Any) -> np.ndarray:
    """Examples as they stand on disk."""
    if isinstance(kernel, np.ndarray):
        return np.arange(len(kernel))
    return np.concatenate(kernel.store.members[0])
