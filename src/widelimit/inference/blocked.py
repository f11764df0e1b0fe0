"""Cholesky out of core: the factor of a kernel that no memory holds, in blocks on disk.

Columns are computed from left to right (see `solve`). A block depends on those to its left and
on the diagonal above it, so the workers of a cluster share them. In memory are one row of blocks
and a few blocks.

`dask.array.linalg.cholesky` computes the same; it keeps every block of the factor in the memory of
its workers until the last one is done, which is what this is to avoid.
"""

import hashlib
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ..data.files import writing
from ..errors import NumericalError, WidelimitError
from ..options import whole
from . import checks
from .solve import Triangular, edges, warn_of_jitter
from .solvers import ExactSolver

Report = Callable[[int, int], None]
Place = tuple[int, int]


@dataclass(frozen=True)
class BlockFiles:
    """Blocks of float64 numbers in files of a folder, each with its checksum."""

    folder: str
    size: int
    block: int

    @property
    def spans(self) -> list[slice]:
        """The examples of every block."""
        return edges(self.size, self.block)

    def write(self, place: Place, values: np.ndarray) -> None:
        """Whole or not at all."""
        content = np.ascontiguousarray(values, np.float64).data
        with writing(Path(self.folder, "{}-{}".format(*place))) as file:
            file.write(content)
            file.write(zlib.crc32(content).to_bytes(4, "little"))

    def read(self, place: Place) -> np.ndarray:
        """A block; raises `OSError` where it is not there, `ValueError` where it is damaged."""
        content = Path(self.folder, "{}-{}".format(*place)).read_bytes()
        shape = tuple(self.spans[i].stop - self.spans[i].start for i in place)
        if len(content) != 8 * shape[0] * shape[1] + 4:
            raise ValueError(f"{len(content)} bytes")
        if zlib.crc32(memoryview(content)[:-4]) != int.from_bytes(content[-4:], "little"):
            raise ValueError("its checksum does not hold")
        return np.frombuffer(content, np.float64, shape[0] * shape[1]).reshape(shape)


@dataclass(frozen=True, eq=False)
class StoredFactor(Triangular):
    """The lower Cholesky factor of `A = K + noise + jitter`, in blocks on disk.

    It is the factor of `A` with its examples in the order `places`, as the kernel stands on disk.
    """

    files: BlockFiles
    places: Int[np.ndarray, " n"] = field(repr=False)
    jitter: float
    scale: float
    unit: float
    temporary: "_Temporary | None" = field(repr=False)

    @property
    def spans(self) -> list[slice]:
        return self.files.spans

    def block(self, i: int, j: int) -> np.ndarray:
        try:
            return self.files.read((i, j))
        except (OSError, ValueError) as error:
            raise WidelimitError(
                f"Block ({i}, {j}) of the factor in '{self.files.folder}' is missing or damaged "
                f"({error}).",
                got="a model whose factor is not on disk as it was written",
                remedy="fit the model again; give BlockedCholesky(folder=...) a place that is kept",
            ) from error


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockedCholesky(ExactSolver):
    """One exact factorisation in blocks on disk, by this process or by the engine's cluster.

    The factor takes 4 N² bytes: in a temporary folder that goes with the model, or in a `folder`,
    which workers of other machines must reach too. There it stays, and a run that was stopped goes
    on with its blocks. Two rows of blocks of `block` examples are in memory; a worker has five
    blocks. `progress(done, blocks)` is called as it goes.
    """

    folder: str | os.PathLike[str] | None = None
    block: int = 2048
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self):
        whole("block", self.block)

    def factor(self, kernel, noise, jitter, client):
        order = np.arange(len(kernel))
        if not isinstance(kernel, np.ndarray):  # as examples stand on disk
            order = np.concatenate(kernel.store.members[0])
        diagonal = np.asarray(kernel.diagonal(), np.float64)
        unit, scale = checks.rounding_unit(np.asarray(kernel[:1])), float(diagonal.mean())
        failure = None
        try:
            temporary = _Temporary() if self.folder is None else None
            around = temporary.path if temporary else _kept(self.folder, kernel, noise, self.block)
            for attempt, added in enumerate(jitter.amounts(len(order), unit, scale)):
                # A folder of its own: workers may still be at a block of an attempt that failed.
                files = BlockFiles(str(around / str(attempt)), len(order), self.block)
                try:
                    _run(_Work(kernel, noise + added, order, files), client, self.progress)
                except LinAlgError as error:
                    shutil.rmtree(files.folder, ignore_errors=True)
                    failure = f"{error}, with {added:g} added to the diagonal"
                else:
                    warn_of_jitter(added, scale)
                    return StoredFactor(files, order, added, scale, unit, temporary)
        except OSError as error:
            raise WidelimitError(
                f"'{self.folder or tempfile.gettempdir()}' could not be written "
                f"({error.strerror or error}).",
                got="a place for the factor of a kernel",
                remedy="give BlockedCholesky(folder=...) a folder with 4 N² bytes of space, one "
                "that all workers reach",
            ) from error
        raise NumericalError(
            "The kernel matrix plus noise is not positive definite.",
            got=str(failure),
            remedy="give the data noise, or allow more with Jitter(limit=...)",
        )


class _Temporary:
    """A folder that goes when nobody holds its factor any more."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="widelimit-factor-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __deepcopy__(self, memo: Any) -> "_Temporary":
        return self

    def __reduce__(self) -> Any:
        raise WidelimitError(
            "The factor of this model is in a temporary folder, which goes with its process.",
            got="a copy to be sent or kept of a model with solver=BlockedCholesky()",
            remedy="fit with BlockedCholesky(folder=...), and remove that folder yourself",
        )


def _kept(folder: Any, kernel: Any, noise: np.ndarray, block: int) -> Path:
    """A folder of its own for the factor of this kernel, noise and size of blocks.

    A solver is used for several models, and none may write into what another one reads.
    """
    if isinstance(kernel, np.ndarray):
        known = hashlib.sha256(np.ascontiguousarray(kernel).data).hexdigest()
    else:
        known = f"{kernel.store.manifest.store} {kernel.name} {kernel.shape}"
    mark = hashlib.sha256(f"{known} {block}".encode() + noise.tobytes()).hexdigest()[:24]
    path = Path(os.path.abspath(folder)) / f"factor-{mark}"  # workers are in folders of their own
    path.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True, eq=False)
class _Work:
    """What a block of the factor is computed from; it goes to workers."""

    kernel: Any
    noise: np.ndarray
    order: np.ndarray
    files: BlockFiles

    def compute(self, place: Place, row: list[np.ndarray] | None = None) -> None:
        """A block (i, j), written; `row` are the blocks to the left of (j, j), if at hand."""
        (i, j), read, spans = place, self.files.read, self.files.spans
        ones, twos = self.order[spans[i]], self.order[spans[j]]
        found = np.array(checks.pairs(self.kernel, ones, twos), np.float64)
        if i == j:
            found[np.diag_indices(len(found))] += self.noise[ones]

        def pair(k: int) -> tuple[np.ndarray, np.ndarray]:
            block = read((i, k))
            return block, block if i == j else read((j, k)) if row is None else row[k]

        for block, other in _ahead(pair, range(j)):
            found -= block @ other.T  # of a block with itself NumPy computes one half
        if i == j:
            found = cholesky(found, lower=True, check_finite=False)
        else:
            corner = read((j, j)) if row is None else row[j]
            found = solve_triangular(corner, found.T, lower=True, check_finite=False).T
        self.files.write(place, found)


def _ahead(read: Callable[[int], Any], numbers: Iterable[int]) -> Iterator[Any]:
    """What is read for numbers in turn, for the next one while something is done with the last."""
    coming = None
    with ThreadPoolExecutor(1) as disk:
        for number in numbers:
            now, coming = coming, disk.submit(read, number)
            if now is not None:
                yield now.result()
        if coming is not None:
            yield coming.result()


def _run(work: _Work, client: Any, progress: Report | None) -> None:
    """All blocks that are not there whole, reporting how many are done."""
    files = work.files
    os.makedirs(files.folder, exist_ok=True)
    count = len(files.spans)
    places = [(i, j) for j in range(count) for i in range(j, count)]
    left = []
    for place in places:
        try:
            files.read(place)
        except (OSError, ValueError):
            left.append(place)
    if client is None:
        walk = _here(work, left)
    else:
        from ..scale.cluster import by_workers, sent  # Dask is needed with workers only

        def after(place: Place) -> list[Place]:
            """Its left neighbour and the diagonal above it."""
            i, j = place
            return [one for one in ((i, j - 1), (j, j)) if one != place]

        walk = by_workers(client, _Work.compute, [sent(client, work)], left, after=after)
    for done, _ in enumerate(walk, start=len(places) - len(left) + 1):
        if progress is not None:
            progress(done, len(places))


def _here(work: _Work, places: list[Place]) -> Iterator[None]:
    """Column by column; the row of blocks that a column needs is read once."""
    row, of = [], -1
    for i, j in places:
        if i > j and of != j:
            row, of = [work.files.read((j, k)) for k in range(j + 1)], j
        yield work.compute((i, j), row if i > j else None)
