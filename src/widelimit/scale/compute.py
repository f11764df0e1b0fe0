"""Kernels into a store: what is not whole is computed, by this process or by those of a cluster."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.inputs import Inputs
from ..engine.phases import mirrored, precision, symmetrise
from ..engine.sampling import Sampler, realisations
from ..engine.threads import in_threads
from ..engine.tiles import Pairs
from ..layers.base import Layer
from ..progress import Callback
from ..state import Kernels
from .errors import DamagedTilesWarning, StoreError
from .layout import Side
from .manifest import Manifest
from .store import NAMES, KernelStore, Place
from .watch import Watch

Place2 = tuple[int, int]
# Tiles of the engine that are in one queue; a queue that runs dry costs the last tile's time.
_QUEUE = 20_000

log = logging.getLogger("widelimit.scale")


@dataclass(frozen=True, eq=False)
class Problem:
    """A kernel to be computed: all that a process needs beside the store."""

    net: Layer
    rows: Inputs
    columns: Inputs | None
    sampler: Sampler | None
    ntk: bool
    dtype: Any
    memory: int

    @property
    def inputs(self) -> tuple[Inputs, ...]:
        """The examples of the rows and, where they are others, of the columns."""
        return (self.rows,) if self.columns is None else (self.rows, self.columns)

    def manifest(self, tile: int | None) -> Manifest:
        """The manifest of a store that is begun with it."""
        return Manifest.make(
            self.net,
            self.rows,
            self.columns,
            sampler=self.sampler,
            ntk=self.ntk,
            dtype=self.dtype,
            tile=tile,
        )


def into_store(
    problem: Problem,
    place: Place,
    *,
    tile: int | None = None,
    client: Any = None,
    progress: bool | Callback | None = None,
) -> KernelStore:
    """The store, complete: begun, extended or gone on with, whatever it takes."""
    store = _prepared(problem, place, tile)
    survey = store.survey()
    if survey.damaged:
        warnings.warn(
            f"{len(survey.damaged)} tiles of '{store}' are damaged and are computed anew; the "
            f"first is {survey.damaged[0]}.",
            DamagedTilesWarning,
            stacklevel=4,
        )
    pending = sorted(survey.missing + survey.damaged)
    if not pending:
        return store
    if store.read_only:
        store = KernelStore(place, read_only=False)
    pairs = [int(np.prod(store.counts(tile))) for tile in pending]
    watch = Watch.make(progress, f"kernel in '{store}'", len(survey.whole), pairs)
    if client is None:
        walk = computed_here(problem, store, pending)
    else:
        from .cluster import computed_by_workers

        walk = computed_by_workers(problem, store, pending, client)
    kept = len(survey.whole)
    try:
        for _ in watch.track(walk):
            kept += 1
    except KeyboardInterrupt:
        log.warning(
            "interrupted; '%s' has %d of %d tiles, and the same call goes on with them",
            store,
            kept,
            len(store.manifest.tiles),
        )
        raise
    if str(place).endswith(".zip"):  # its list of contents is written when it is closed
        store.close()
        return KernelStore(place)
    return store


def _prepared(problem: Problem, place: Place, tile: int | None) -> KernelStore:
    """The store with the right manifest: a new one, one to go on with, or one to extend."""
    if not KernelStore.exists(place):
        return KernelStore.begin(place, problem.manifest(tile))
    store = KernelStore(place)
    if tile not in (None, store.manifest.tile):
        raise StoreError(
            "The tiles of a store have one size, chosen when it is begun.",
            got=f"tile={tile}, and '{store}' has tiles of {store.manifest.tile}",
            remedy="leave out tile=, or begin another store",
        )
    store.manifest.require_same(problem.manifest(store.manifest.tile), problem.inputs, str(store))
    manifest = store.manifest.extended(problem.net, problem.inputs)
    if manifest.shape == store.manifest.shape:
        return store
    return KernelStore(place, read_only=False).extend(manifest)


class Walk:
    """The pairs of a problem, cut as its store is; a process has one for all its tiles."""

    def __init__(self, problem: Problem, store: KernelStore):
        """Draws heads where the network needs them; examples are encoded when they are needed."""
        self.problem, self.store = problem, store
        cuts = [[part for strip in side.groups for part in strip] for side in store.manifest.sides]
        with precision(problem.dtype):
            self.pairs = Pairs(
                realisations(problem.net, problem.sampler, problem.dtype),
                problem.rows,
                problem.columns,
                cuts=cuts,
                dtype=problem.dtype,
                with_ntk=problem.ntk,
                memory=problem.memory,
            )

    @cached_property
    def _blocks(self) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
        """For every strip its blocks, each with the place where it begins in the strip."""
        sides = zip(self.store.manifest.sides, (self.pairs.left, self.pairs.right), strict=False)
        found = [_in_strips(side, blocks.blocks) for side, blocks in sides]
        return found[0], found[-1]

    def jobs(self, tile: Place2) -> list[tuple[Place2, Place2, Place2]]:
        """What a stored tile is made of: tile, place of the engine, and where it begins."""
        ones, twos = self._blocks[0][tile[0]], self._blocks[1][tile[1]]
        half = self.store.manifest.symmetric and tile[0] == tile[1]
        return [
            (tile, (i, j), (begin1, begin2))
            for i, begin1 in ones
            for j, begin2 in twos
            if not half or i <= j
        ]

    def computed(self, job: tuple[Place2, Place2, Place2]) -> tuple[Any, Kernels]:
        """One of these parts."""
        return job, self.pairs.computed(job[1]).kernels

    def put(self, job: tuple[Place2, Place2, Place2], found: Kernels, into: Kernels) -> None:
        """A part to its place in the tile, and its mirror image where the tile is symmetric."""
        tile, (i, j), (begin1, begin2) = job
        for name in NAMES:
            part, whole = getattr(found, name), getattr(into, name)
            if whole is None:
                continue
            rows = slice(begin1, begin1 + len(part))
            columns = slice(begin2, begin2 + part.shape[1])
            diagonal = self.store.manifest.symmetric and tile[0] == tile[1]
            if diagonal and i == j:
                symmetrise(part)
            whole[rows, columns] = part
            if diagonal and i != j:
                whole[columns, rows] = mirrored(part)

    def tile(self, tile: Place2) -> Kernels:
        """A whole tile, computed in this thread alone."""
        whole = self.store.blank()
        with precision(self.problem.dtype):
            for job in self.jobs(tile):
                self.put(*self.computed(job), whole)
        return whole


def _in_strips(side: Side, blocks: Sequence[Any]) -> list[list[tuple[int, int]]]:
    """Blocks come in the order of the groups they were cut from, and so do strips."""
    result: list[list[tuple[int, int]]] = []
    index = 0
    for members in side.members:
        strip, begin = [], 0
        while begin < len(members):
            strip.append((index, begin))
            begin += len(blocks[index].members)
            index += 1
        result.append(strip)
    return result


def computed_here(
    problem: Problem, store: KernelStore, tiles: Sequence[Place2]
) -> Iterator[Place2]:
    """Compute and keep tiles with the threads of this process; yields those that are kept."""
    walk = Walk(problem, store)
    with precision(problem.dtype):
        for batch in _batches(walk, tiles):
            left = {tile: len(jobs) for tile, jobs in batch.items()}
            open_tiles: dict[Place2, Kernels] = {}
            jobs = [job for jobs in batch.values() for job in jobs]
            for job, found in in_threads(
                walk.computed,
                jobs,
                at_once=walk.pairs.at_once,
                alike=lambda job: walk.pairs.kind(job[1]),
            ):
                tile = job[0]
                if tile not in open_tiles:
                    open_tiles[tile] = store.blank()
                walk.put(job, found, open_tiles[tile])
                left[tile] -= 1
                if not left[tile]:
                    store.write(tile, open_tiles.pop(tile))
                    yield tile


def _batches(walk: Walk, tiles: Sequence[Place2]) -> Iterator[dict[Place2, list[Any]]]:
    """Tiles with their jobs, so many that the queue stays short."""
    batch: dict[Place2, list[Any]] = {}
    count = 0
    for tile in tiles:
        batch[tile] = walk.jobs(tile)
        count += len(batch[tile])
        if count >= _QUEUE:
            yield batch
            batch, count = {}, 0
    if batch:
        yield batch
