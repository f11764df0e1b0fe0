"""Kernels into a store: what is not there is computed, by this process or by those of a cluster."""

import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.kernel import Problem
from ..engine.phases import precision
from ..engine.threads import in_threads
from ..options import whole
from ..progress import Callback, Progress
from ..state import Kernels
from .errors import StoreError
from .manifest import Manifest
from .places import Place, alone, located
from .problem import Walk
from .store import KernelStore, Tile

# Tiles of the engine that are in one queue; a queue that runs dry costs the last tile's time.
_QUEUE = 20_000
# Stored tiles that may wait for the disk while others are computed.
_UNWRITTEN = 2
# Seconds between two lines of the log.
_LOG_SECONDS = 60.0

log = logging.getLogger("widelimit.scale")


def compute_into_store(
    problem: Problem,
    place: Place,
    tile: int | None,
    client: Any,
    progress: bool | Callback | None,
) -> Kernels:
    """The kernels in a store, begun, extended or gone on with, whatever it takes.

    Their arrays are read when they are indexed.
    """
    problem.require_numbers()
    place = located(place)
    with alone(place):
        whole, store = _prepared(problem, place, tile)
    there = set(store.list_tiles())
    pending = [tile for tile in store.manifest.tiles if tile not in there]
    if pending:
        store = KernelStore(place, read_only=False) if store.read_only else store
        _fill(whole, store, there, pending, client, progress)
    found = store.kernels
    return found if problem.ntk else Kernels(found.nngp, None, found.nngp_error)


def _fill(
    problem: Problem,
    store: KernelStore,
    there: set[Tile],
    pending: list[Tile],
    client: Any,
    progress: bool | Callback | None,
) -> None:
    """Compute the tiles that are not there."""
    if client is None:
        walk = computed_here(problem, store, pending)
    else:
        from .cluster import computed_by_workers  # Dask is needed with workers only

        walk = computed_by_workers(problem, store, pending, client)
    total, before = len(store.manifest.tiles), len(there)
    log.info("kernel in '%s': %d of %d tiles to compute", store, len(pending), total)
    bar = Progress.make(progress, f"kernel in '{store}'")
    kept, begin = before, time.monotonic()
    told = begin
    try:
        with closing(walk):  # waits for what is being written
            for _ in walk if bar is None else bar.track(walk, total, before):
                kept, now = kept + 1, time.monotonic()
                if now - told > _LOG_SECONDS:
                    left = (now - begin) / (kept - before) * (total - kept)
                    log.info("kernel in '%s': %d/%d tiles, %.0f s left", store, kept, total, left)
                    told = now
    except KeyboardInterrupt:
        log.warning(
            "interrupted; '%s' has %d of %d tiles or more, and the same call goes on with them",
            store,
            kept,
            total,
        )
        raise


def _prepared(problem: Problem, place: Place, tile: int | None) -> tuple[Problem, KernelStore]:
    """The store with the right manifest: a new one, one to go on with, or one to extend.

    A store of both kernels serves those who want the NNGP kernel alone, and stays one of both.
    """
    if tile is not None:
        whole("tile", tile)
    if not KernelStore.exists(place):
        manifest = Manifest.make(problem, tile)
        if tile is not None:
            _require_room(manifest, problem.memory)
        return problem, KernelStore.begin(place, manifest)
    store = KernelStore(place)
    problem = replace(problem, ntk=problem.ntk or store.ntk is not None)
    if tile not in (None, store.manifest.tile):
        raise StoreError(
            f"'{store}' has tiles of {store.manifest.tile} examples, chosen when it was begun.",
            got=f"tile={tile}",
            remedy="leave out tile=, or begin another store",
        )
    wanted = Manifest.make(problem, store.manifest.tile)
    store.manifest.require_same(wanted, problem.inputs, str(store))
    manifest = store.manifest.extended(problem.net, problem.inputs)
    if manifest.shape == store.manifest.shape:
        return problem, store
    return problem, KernelStore(place, read_only=False).extend(manifest)


def _require_room(manifest: Manifest, memory: int) -> None:
    """A tile is filled in memory."""
    entries = manifest.tile**2 * math.prod(manifest.positions) * len(manifest.names)
    taken = entries * np.dtype(manifest.dtype).itemsize
    if taken > memory:
        raise StoreError(
            f"One tile of {manifest.tile} examples takes {taken / 2**20:,.0f} MiB, more than the "
            "memory of the call.",
            got=f"tile={manifest.tile} with memory={memory / 2**20:,.0f} MiB",
            remedy="give a smaller tile=, or leave it out",
        )


def computed_here(
    problem: Problem, store: KernelStore, tiles: Sequence[Tile]
) -> Generator[Tile, None, None]:
    """Compute and keep tiles with the threads of this process; yields those that are kept.

    Computing goes on while the disk takes its time. Whoever stops listening waits for what is
    being written.
    """
    walk = Walk(problem, store)
    waiting: deque[Future[Tile]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="widelimit-disk") as disk:
        with precision(walk.pairs.dtype):
            for tile, kernels in _computed(walk, tiles):
                waiting.append(disk.submit(_kept, store, tile, kernels))
                while len(waiting) > _UNWRITTEN or (waiting and waiting[0].done()):
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _kept(store: KernelStore, tile: Tile, kernels: Kernels) -> Tile:
    store.write(tile, kernels)
    return tile


def _computed(walk: Walk, tiles: Sequence[Tile]) -> Iterator[tuple[Tile, Kernels]]:
    """Tiles as they are complete; those that are begun are in memory."""
    for batch in _batches(walk, tiles):
        left = {tile: len(jobs) for tile, jobs in batch.items()}
        begun: dict[Tile, Kernels] = {}
        jobs = [job for jobs in batch.values() for job in jobs]
        for job, found in in_threads(
            walk.computed,
            jobs,
            at_once=walk.pairs.at_once,
            alike=lambda job: walk.pairs.kind(job[1]),
        ):
            tile = job[0]
            if tile not in begun:
                begun[tile] = walk.store.blank()
            walk.put(job, found, begun[tile])
            left[tile] -= 1
            if not left[tile]:
                yield tile, begun.pop(tile)


def _batches(walk: Walk, tiles: Sequence[Tile]) -> Iterator[dict[Tile, list[Any]]]:
    """Tiles with their jobs, few enough for a short queue."""
    batch: dict[Tile, list[Any]] = {}
    count = 0
    for tile in tiles:
        batch[tile] = walk.jobs(tile)
        count += len(batch[tile])
        if count >= _QUEUE:
            yield batch
            batch, count = {}, 0
    if batch:
        yield batch
