"""Kernels into a store: what is not there is computed, by this process or by those of a cluster."""

import logging
import math
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..engine.kernel import Problem
from ..engine.threads import in_threads
from ..options import whole
from ..progress import Callback, Progress
from ..state import Kernels
from .description import StoreError
from .manifest import Manifest
from .places import Place, alone, located
from .store import KernelStore, Tile
from .walk import Walk

# Tiles that may wait for the disk while others are computed.
_UNWRITTEN = 2
# Seconds between two lines of the log.
_LOG_SECONDS = 60.0

log = logging.getLogger("widelimit.scale")


def compute_into_store(
    problem: Problem, place: Place, tile: int | None, client: Any, progress: bool | Callback | None
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
        store = KernelStore(place, read_only=False)
        _fill(Walk(whole, store), pending, client, progress)
    found = store.kernels
    return found if problem.ntk else Kernels(found.nngp, None, found.nngp_error)


def _prepared(problem: Problem, place: Place, tile: int | None) -> tuple[Problem, KernelStore]:
    """The store with the right manifest: a new one, one to go on with, or one to extend.

    A store of both kernels serves those who want the NNGP kernel alone, and stays one of both.
    """
    if tile is not None:
        whole("tile", tile)
    if not KernelStore.exists(place):
        manifest = Manifest.make(problem, tile)
        entries = manifest.tile**2 * math.prod(manifest.shape[2:]) * len(manifest.names)
        taken = entries * manifest.dtype.itemsize
        if tile is not None and taken > problem.memory:  # a tile is filled in memory
            raise StoreError(
                f"One tile of {tile} examples takes {taken / 2**20:,.0f} MiB, more than the memory "
                "of the call.",
                got=f"tile={tile} with memory={problem.memory / 2**20:,.0f} MiB",
                remedy="give a smaller tile=, or leave it out",
            )
        return problem, KernelStore.begin(place, manifest)
    store = KernelStore(place)
    problem = replace(problem, ntk=problem.ntk or store.ntk is not None)
    if tile not in (None, store.manifest.tile):
        raise StoreError(
            f"'{store}' has tiles of {store.manifest.tile} examples, chosen when it was begun.",
            got=f"tile={tile}",
            remedy="leave out tile=, or begin another store",
        )
    store.manifest.require_same(problem, str(store))
    manifest = store.manifest.extended(problem.net, problem.inputs)
    if manifest.shape == store.manifest.shape:
        return problem, store
    return problem, KernelStore.begin(place, manifest, extends=True)


def _fill(
    walk: Walk, pending: Sequence[Tile], client: Any, progress: bool | Callback | None
) -> None:
    """Compute the tiles that are not there."""
    if client is None:
        work = computed_here(walk, pending)
    else:
        from .cluster import computed_by_workers  # Dask is needed with workers only

        work = computed_by_workers(walk, pending, client)
    store, total = walk.store, len(walk.store.manifest.tiles)
    kept = before = total - len(pending)
    log.info("kernel in '%s': %d of %d tiles to compute", store, len(pending), total)
    bar = Progress.make(progress, f"kernel in '{store}'")
    begin = told = time.monotonic()
    try:
        with closing(work):  # waits for what is being written
            for _ in work if bar is None else bar.track(work, total, before):
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


def computed_here(walk: Walk, tiles: Sequence[Tile]) -> Generator[None, None, None]:
    """Compute and keep tiles with the threads of this process; yields for each that is kept.

    Computing goes on while the disk takes its time. Whoever stops listening waits for what is
    being written.
    """
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="widelimit-disk") as disk:
        work = in_threads(
            lambda tile: (tile, walk.tile(tile)), tiles, at_once=walk.pairs.at_once, alike=walk.kind
        )
        for tile, kernels in work:
            waiting.append(disk.submit(walk.store.write, tile, kernels))
            while len(waiting) > _UNWRITTEN or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
