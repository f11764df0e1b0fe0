"""Cholesky out of core: the factor of a kernel that no memory holds, in blocks on disk.

Columns are computed from left to right (see `triangular`). A block depends on those to its left and
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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from ..data.files import writing
from ..errors import NumericalError, WidelimitError
from . import checks
from .solve import Jitter, warn_of_jitter
from .triangular import Triangular, edges

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

    def path(self, place: Place) -> Path:
        """Where a block is."""
        return Path(self.folder) / f"{place[0]}-{place[1]}"

    def write(self, place: Place, values: np.ndarray) -> None:
        """Whole or not at all."""
        content = np.ascontiguousarray(values, np.float64).data
        with writing(self.path(place)) as file:
            file.write(content)
            file.write(zlib.crc32(content).to_bytes(4, "little"))

    def read(self, place: Place) -> np.ndarray:
        """A block; raises `OSError` where it is not there, `ValueError` where it is damaged."""
        content = self.path(place).read_bytes()
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

    def corner(self, i: int) -> np.ndarray:
        return self._at(i, i)

    def left(self, i: int, first: int) -> Iterator[tuple[slice, np.ndarray]]:
        for k in range(first, i):
            yield self.spans[k], self._at(i, k)

    def below(self, i: int) -> Iterator[tuple[slice, np.ndarray]]:
        for k in range(i + 1, len(self.spans)):
            yield self.spans[k], self._at(k, i)

    def _at(self, i: int, j: int) -> np.ndarray:
        try:
            return self.files.read((i, j))
        except (OSError, ValueError) as error:
            raise WidelimitError(
                f"Block ({i}, {j}) of the factor in '{self.files.folder}' is missing or damaged "
                f"({error}).",
                got="a model whose factor is not on disk as it was written",
                remedy="fit the model again; give BlockedCholesky(folder=...) a place that is kept",
            ) from error


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
    """The factor of `kernel + noise`, in a temporary folder that goes with its last reference.

    In a folder of the user it stays, and a call that was stopped goes on.
    """
    order = _order(kernel)
    with _writable(folder):
        temporary = None if folder else _Temporary()
        around = temporary.path if temporary else _kept(str(folder), kernel, noise, block)
    diagonal = np.asarray(kernel.diagonal(), np.float64)
    unit, scale = checks.rounding_unit(np.asarray(kernel[:1])), float(diagonal.mean())
    failure = None
    for attempt, added in enumerate(jitter.amounts(len(order), unit, scale)):
        # A folder of its own: workers may still be at a block of an attempt that failed.
        files = BlockFiles(str(around / str(attempt)), len(order), block)
        try:
            with _writable(files.folder):
                _run(_Work(kernel, noise + added, order, files), client, progress)
        except LinAlgError as error:
            shutil.rmtree(files.folder, ignore_errors=True)
            failure = f"{error}, with {added:g} added to the diagonal"
        else:
            warn_of_jitter(added, scale)
            return StoredFactor(files, order, added, scale, unit, temporary)
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


def _kept(folder: str, kernel: Any, noise: np.ndarray, block: int) -> Path:
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


@contextmanager
def _writable(place: Any) -> Iterator[None]:
    """Turn what a disk refuses into an error that names the place."""
    try:
        yield
    except OSError as error:
        raise WidelimitError(
            f"'{place or tempfile.gettempdir()}' could not be written ({error.strerror or error}).",
            got="a place for the factor of a kernel",
            remedy="give BlockedCholesky(folder=...) a folder with 4 N² bytes of space, one that "
            "all workers reach",
        ) from error


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

    def there(self, place: Place) -> bool:
        """Whether an earlier call has left it, whole."""
        try:
            self.files.read(place)
        except (OSError, ValueError):
            return False
        return True


def _ahead(read: Callable[[int], Any], numbers: Iterable[int]) -> Iterator[Any]:
    """What is read for numbers in turn, for the next one while something is done with the last."""
    coming: deque[Any] = deque()
    with ThreadPoolExecutor(1) as disk:
        for number in numbers:
            coming.append(disk.submit(read, number))
            if len(coming) > 1:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _run(work: _Work, client: Any, progress: Report | None) -> None:
    """All blocks that are not there, reporting how many are done."""
    os.makedirs(work.files.folder, exist_ok=True)
    count = len(work.files.spans)
    places = [(i, j) for j in range(count) for i in range(j, count)]
    left = [place for place in places if not work.there(place)]
    walk = _here(work, left) if client is None else _by_workers(work, left, client)
    for done, _ in enumerate(walk, start=len(places) - len(left) + 1):
        if progress is not None:
            progress(done, len(places))


def _here(work: _Work, places: list[Place]) -> Iterator[Place]:
    """Column by column; the row of blocks that a column needs is read once."""
    row, of = [], -1
    for i, j in places:
        if i > j and of != j:
            row, of = [work.files.read((j, k)) for k in range(j + 1)], j
        work.compute((i, j), row if i > j else None)
        yield i, j


def _by_workers(work: _Work, places: list[Place], client: Any) -> Iterator[Place]:
    """Every block as soon as its left neighbour and the diagonal above it are there."""
    from ..scale.cluster import Sent, by_workers  # Dask is needed with workers only

    still = set(places)

    def after(place: Place) -> list[Place]:
        i, j = place
        return [one for one in ((i, j - 1), (j, j)) if one in still and one != place]

    for place, _ in by_workers(client, _Work.compute, [Sent(client, work)], places, after=after):
        yield place


def _order(kernel: Any) -> np.ndarray:
    """Examples as they stand on disk."""
    if isinstance(kernel, np.ndarray):
        return np.arange(len(kernel))
    return np.concatenate(kernel.store.members[0])
