"""Kernel matrices computed block by block into files; an interrupted run goes on where it was."""

import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...data import write_text
from ...data.files import output, unwritable
from ...data.locks import alone
from ...engine.inputs import Inputs
from ...inference import KernelKind, NetworkKernels
from ...inference.network_kernels import chosen
from ...options import seed_words
from ..fingerprint import fingerprint
from .kinds import SILENT, Advance, Listener

BLOCK = 512
"""Examples in a block: large enough that a block's overhead is small, small enough to lose one."""


Block = tuple[int, int]  # numbers of the examples' spans, rows before columns


class SquareFile:
    """A square matrix in a `.npy` file, written and read block by block.

    The file is not mapped: on a full disk a plain write is an error, a mapped one ends the process.
    """

    def __init__(self, path: Path, size: int, dtype: Any, *, new: bool):
        """A new file gets all its room at once; one that is there must have its header and size."""
        self.path, self.size, self.dtype = path, size, np.dtype(dtype)
        header = io.BytesIO()
        whole = {"descr": self.dtype.str, "fortran_order": False, "shape": (size, size)}
        np.lib.format.write_array_header_1_0(header, whole)
        self.start = len(header.getvalue())
        length = self.start + size * size * self.dtype.itemsize
        self.file = path.open("w+b" if new else "r+b")
        try:
            if new:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self.file.fileno(), 0, length)
                self.file.write(header.getvalue())
                self.file.truncate(length)
                self.file.flush()
            elif os.fstat(self.file.fileno()).st_size != length or (
                self.file.read(self.start) != header.getvalue()
            ):
                raise ValueError("not the matrix that is looked for")
        except BaseException:
            self.file.close()
            raise

    def write(self, rows: slice, columns: slice, block: np.ndarray) -> None:
        """Put a block in its place."""
        for row, values in enumerate(np.ascontiguousarray(block, self.dtype), rows.start):
            self.file.seek(self._offset(row, columns.start))
            self.file.write(values.data)
        self.file.flush()

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """A block from its place."""
        block = np.empty((rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        for row, values in enumerate(block, rows.start):
            self.file.seek(self._offset(row, columns.start))
            if self.file.readinto(values.data) != values.nbytes:
                raise EOFError(f"'{self.path}' is cut off")
        return block

    def close(self) -> None:
        """Let everything reach the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def _offset(self, row: int, column: int) -> int:
        return self.start + (row * self.size + column) * self.dtype.itemsize


class KernelFiles:
    """One or both kernels of the same examples in `.npy` files, and what is known of them.

    A kernel grows in `<name>.part` and gets its name when it is whole. A record beside it holds the
    fingerprint of network, examples and heads, and a checksum for every block: of a file that is
    cut off, changed, or of something else, no block is believed.
    """

    def __init__(self, paths: dict[KernelKind, Path], record: Path | None = None):
        """Where each kernel goes, and where the record of whole kernels is kept, if it is."""
        self.paths, self.record = paths, record
        first = next(iter(paths.values()))
        self.parts = {kind: path.with_name(f"{path.name}.part") for kind, path in paths.items()}
        self.growing = first.with_name(f"{first.name}.part.json")
        self.place = first.with_name(f".{first.name}.lock")
        self.mark, self.checksums, self.open_files = "", {}, {}

    def open(self, spans: list[slice], dtype: Any, mark: str) -> set[Block]:
        """Look for whole blocks of the kernel called `mark`; else begin new files."""
        self.mark, size = mark, spans[-1].stop
        whole = [] if self.record is None else [(self.paths, self.record)]
        for paths, record in [*whole, (self.parts, self.growing)]:
            files = {}
            try:
                for kind, path in paths.items():
                    files[kind] = SquareFile(path, size, dtype, new=False)
                self.checksums = _trusted(files, _noted(record, mark), spans)
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                self.checksums = {}
            if self.checksums and (paths is self.parts or len(self.checksums) == _blocks(spans)):
                self.open_files = files
                return set(self.checksums)
            for file in files.values():
                file.file.close()
        self.checksums = {}
        with self._guarded("an earlier kernel is kept"):
            for kind, path in self.parts.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                output(self.paths[kind])
                self.open_files[kind] = SquareFile(path, size, dtype, new=True)
        return set()

    def put(self, block: Block, spans: list[slice], values: dict[KernelKind, np.ndarray]) -> None:
        """Write a block and its mirror image, and note that they are there."""
        rows, columns = (spans[number] for number in block)
        with self._guarded("finished blocks and an earlier kernel are kept"):
            for kind, file in self.open_files.items():
                file.write(rows, columns, values[kind])
                if rows != columns:
                    file.write(columns, rows, values[kind].T)
        self.checksums[block] = {kind.value: _checksum(values[kind]) for kind in self.open_files}
        self._note(self.growing)

    def whole(self) -> dict[KernelKind, np.ndarray]:
        """The finished kernels under their names."""
        with self._guarded("an earlier kernel is kept"):
            for kind, file in self.open_files.items():
                file.close()
                if file.path == self.parts[kind]:
                    file.path.replace(self.paths[kind])
        self.open_files = {}
        if self.record is not None:
            self._note(self.record)
        self.growing.unlink(missing_ok=True)
        # Other runs replace these files and never shorten them: they may be mapped.
        return {kind: np.load(path, mmap_mode="r") for kind, path in self.paths.items()}

    def close(self) -> None:
        """Let go of the files; what is done stays on disk."""
        for file in self.open_files.values():
            file.file.close()
        self.open_files = {}

    def remove(self) -> None:
        """Delete the kernels, once they have been written elsewhere."""
        for path in (*self.paths.values(), *([] if self.record is None else [self.record])):
            path.unlink(missing_ok=True)

    def _note(self, record: Path) -> None:
        done = [[*block, sums] for block, sums in self.checksums.items()]
        write_text(record, json.dumps({"fingerprint": self.mark, "done": done}))

    @contextmanager
    def _guarded(self, kept: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self.checksums:  # nothing in them is worth its room
                self.close()
                for path in self.parts.values():
                    path.unlink(missing_ok=True)
            raise unwritable(next(iter(self.paths.values())), error, kept) from error


def _noted(record: Path, mark: str) -> dict[Block, dict[str, int]]:
    note = json.loads(record.read_text())
    if note["fingerprint"] != mark:
        return {}
    return {(int(i), int(j)): dict(sums) for i, j, sums in note["done"]}


def _trusted(
    files: dict[KernelKind, SquareFile], noted: dict[Block, dict[str, int]], spans: list[slice]
) -> dict[Block, dict[str, int]]:
    """The blocks that are what was noted of them."""

    def good(block: Block, sums: dict[str, int]) -> bool:
        rows, columns = (spans[number] for number in block)
        for kind, file in files.items():
            values = file.read(rows, columns)
            mirrored = values if rows == columns else file.read(columns, rows)
            if _checksum(values) != sums[kind.value] or not np.array_equal(values, mirrored.T):
                return False
        return True

    return {block: sums for block, sums in noted.items() if good(block, sums)}


def _checksum(block: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(block).data)


def _blocks(spans: list[slice]) -> int:
    return len(spans) * (len(spans) + 1) // 2


def compute(
    data: NetworkKernels,
    inputs: Inputs,
    kinds: Sequence[KernelKind],
    *,
    files: KernelFiles | None = None,
    listener: Listener = SILENT,
) -> dict[KernelKind, np.ndarray]:
    """The kernels of `inputs` with themselves, with the heads of `data`'s sampler."""
    size = inputs.size
    spans = [slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]
    blocks = [(i, j) for i in range(len(spans)) for j in range(i, len(spans))]
    if files is None:
        arrays = {kind: np.empty((size, size), inputs.dtype) for kind in kinds}
        _fill(data, inputs, kinds, blocks, spans, listener, arrays)
        return arrays
    with alone(files.place):
        mark = fingerprint(
            data.net, data.engine.samples, seed_words(data.engine.key), inputs.x, inputs.mask,
            [kind.value for kind in kinds],
        )  # fmt: skip
        done = files.open(spans, inputs.dtype, mark)
        if done:
            listener.say(f"going on with the kernel of an earlier run: {len(done)}/{len(blocks)}")
        try:
            missing = [block for block in blocks if block not in done]
            _fill(data, inputs, kinds, missing, spans, listener, files)
            return files.whole()
        finally:
            files.close()


def _fill(
    data: NetworkKernels,
    inputs: Inputs,
    kinds: Sequence[KernelKind],
    blocks: list[Block],
    spans: list[slice],
    listener: Listener,
    into: KernelFiles | dict[KernelKind, np.ndarray],
) -> None:
    """Compute the blocks, one after the other, into files or arrays."""
    pairs = _counted(blocks, spans)
    with listener.bar(f"kernel of {inputs.size:,} examples") as advance:
        for block in blocks:
            rows, columns = (spans[number] for number in block)
            kernels = data.net.kernel(
                inputs[rows],
                None if rows == columns else inputs[columns],
                sampler=data.sampler,
                ntk=KernelKind.NTK in kinds,
                progress=_within(advance, pairs, block),
            )
            values = {kind: chosen(kernels, kind) for kind in kinds}
            if isinstance(into, KernelFiles):
                into.put(block, spans, values)
                continue
            for kind, array in into.items():
                array[rows, columns] = values[kind]
                array[columns, rows] = values[kind].T


def _counted(blocks: list[Block], spans: list[slice]) -> dict[Block, tuple[int, int, int]]:
    """For each block, how many pairs come before it, how many it has, and how many there are."""
    pairs, before = {}, 0
    for i, j in blocks:
        rows, columns = (spans[k].stop - spans[k].start for k in (i, j))
        count = rows * columns // (2 if i == j else 1)
        pairs[i, j] = (before, count)
        before += count
    return {block: (*counts, before) for block, counts in pairs.items()}


def _within(advance: Advance, pairs: dict[Block, tuple[int, int, int]], block: Block) -> Advance:
    """Progress of a block as progress of the whole."""
    before, count, total = pairs[block]
    return lambda done, of: advance(before + count * done // of, total)
