"""Kernel matrices computed block by block into files; an interrupted run goes on where it was."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ... import __version__
from ...data import writing
from ...engine.inputs import Inputs
from ...inference import KernelKind, NetworkKernels
from ...inference.network_kernels import chosen
from ...options import seed_words
from .kinds import SILENT, Advance, Listener

BLOCK = 512
"""Examples in a block: large enough that a block's overhead is small, small enough to lose one."""


class KernelFiles:
    """Memory maps for one or both kernels of the same examples, and a record of what is done.

    `<stem>.npy` holds a kernel, `<record>` the finished blocks and a fingerprint of network,
    examples and heads: a record of something else is not continued but replaced.
    """

    def __init__(self, paths: dict[KernelKind, Path], record: Path):
        """Where each kernel goes, and where the record is kept."""
        self.paths, self.record = paths, record

    def open(self, size: int, dtype: Any, fingerprint: str) -> tuple[dict[KernelKind, Any], set]:
        """Maps of the kernels and the blocks that are already in them."""
        done = self._done(fingerprint) if all(p.exists() for p in self.paths.values()) else set()
        mode: Any = "r+" if done else "w+"
        maps = {}
        for kind, path in self.paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if done:
                maps[kind] = np.lib.format.open_memmap(path, mode)
            else:
                maps[kind] = np.lib.format.open_memmap(path, mode, dtype, (size, size))
        return maps, done

    def finish(self, fingerprint: str, done: set, maps: dict[KernelKind, Any]) -> None:
        """Note that these blocks are on disk."""
        for array in maps.values():
            array.flush()
        note = {"fingerprint": fingerprint, "done": sorted(done)}
        with writing(self.record) as file:
            file.write(json.dumps(note).encode())

    def remove(self) -> None:
        """Delete everything, once it has been written elsewhere."""
        for path in (*self.paths.values(), self.record):
            path.unlink(missing_ok=True)

    def _done(self, fingerprint: str) -> set:
        try:
            note = json.loads(self.record.read_text())
            same = note["fingerprint"] == fingerprint
            return {tuple(block) for block in note["done"]} if same else set()
        except (OSError, ValueError, KeyError, TypeError):
            return set()  # no record, or not ours: start anew


def compute(
    data: NetworkKernels,
    inputs: Inputs,
    kinds: Sequence[KernelKind],
    *,
    files: KernelFiles | None = None,
    listener: Listener = SILENT,
) -> dict[KernelKind, np.ndarray]:
    """The kernels of `inputs` with themselves, with the heads of `data`'s sampler."""
    size, dtype = inputs.size, inputs.dtype
    edges = range(0, size, BLOCK)
    blocks = [(i, j) for i in range(len(edges)) for j in range(i, len(edges))]
    mark, done = "", set()
    if files is None:
        arrays: dict[KernelKind, Any] = {kind: np.empty((size, size), dtype) for kind in kinds}
    else:
        mark = fingerprint(data, inputs, kinds)
        arrays, done = files.open(size, dtype, mark)
        if done:
            listener.say(f"going on with the kernel of an earlier run: {len(done)}/{len(blocks)}")
    spans = [slice(start, min(start + BLOCK, size)) for start in edges]
    pairs = _counted(blocks, spans, done)
    with listener.bar(f"kernel of {size:,} examples") as advance:
        for i, j in blocks:
            if (i, j) in done:
                continue
            _fill(data, inputs, arrays, (spans[i], spans[j]), _within(advance, pairs, (i, j)))
            if files is not None:
                done.add((i, j))
                files.finish(mark, done, arrays)
    return arrays


def _counted(blocks: list, spans: list[slice], done: set) -> dict[tuple[int, int], tuple]:
    """For each block, how many pairs come before it, how many it has, and how many there are."""
    pairs, before = {}, 0
    for i, j in blocks:
        if (i, j) not in done:
            rows, columns = (spans[k].stop - spans[k].start for k in (i, j))
            count = rows * columns // (2 if i == j else 1)
            pairs[i, j] = (before, count)
            before += count
    return {block: (*counts, before) for block, counts in pairs.items()}


def _within(advance: Advance, pairs: dict, block: tuple[int, int]) -> Advance:
    """Progress of a block as progress of the whole."""
    before, count, total = pairs[block]
    return lambda done, of: advance(before + count * done // of, total)


def _fill(
    data: NetworkKernels,
    inputs: Inputs,
    arrays: dict[KernelKind, Any],
    spans: tuple[slice, slice],
    advance: Advance,
) -> None:
    rows, columns = spans
    same = rows == columns
    kernels = data.net.kernel(
        inputs[rows],
        None if same else inputs[columns],
        sampler=data.sampler,
        ntk=KernelKind.NTK in arrays,
        progress=advance,
    )
    for kind, array in arrays.items():
        block = chosen(kernels, kind)
        array[rows, columns] = block
        if not same:
            array[columns, rows] = block.T


def fingerprint(data: NetworkKernels, inputs: Inputs, kinds: Sequence[KernelKind]) -> str:
    """A name for exactly this kernel: network, examples, heads, version."""
    engine = data.engine
    leaves, structure = jax.tree.flatten((data.net, engine.samples, seed_words(engine.key)))
    digest = hashlib.sha256(f"{__version__} {structure} {[k.value for k in kinds]}".encode())
    for leaf in (*leaves, inputs.x, inputs.mask):
        if leaf is not None:
            array = np.ascontiguousarray(leaf)
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
