"""Tiles computed by the workers of a cluster, which write them to the store themselves.

Network and examples go to every worker once, from the client or from another worker; what comes
back is the number of a tile. A worker that dies takes its current tiles with it: others compute
them. If the examples died with the last worker that had them, they are sent again.
"""

import os
import threading
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import MissingExtraError
from .errors import StoreError
from .places import shared
from .problem import Problem, Walk
from .store import KernelStore

try:
    from dask import config as dask_config
    from distributed import Client, KilledWorker, LocalCluster, as_completed
except ImportError as missing:
    raise MissingExtraError("distributed", "scale") from missing

# Tiles that wait at a worker's thread, so that it never waits for the scheduler.
_AHEAD = 2
# How often examples are sent anew without a single tile in between.
MOST_ATTEMPTS = 3

# What a worker keeps between its tasks: the pairs of one problem, with its encoded examples.
_walks: dict[str, Walk] = {}
_making = threading.Lock()


@contextmanager
def local_client(workers: int | None = None) -> Iterator[Client]:
    """A cluster on this machine: processes of one thread each, by default one per core."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    # NPROC is the number of XLA's own threads: more of them compete with those of the neighbours.
    alone = {"XLA_FLAGS": flags, "NPROC": "1"}
    before = dask_config.get("distributed.nanny.pre-spawn-environ", {})
    settings = {
        "distributed.nanny.pre-spawn-environ": before | alone,
        "distributed.worker.memory.terminate": False,  # the kernel's own bound is `memory=`
    }
    with (
        dask_config.set(settings),
        LocalCluster(
            n_workers=workers or os.cpu_count() or 1,
            threads_per_worker=1,
            dashboard_address=None,  # pyright: ignore[reportArgumentType] none is allowed
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def computed_by_workers(
    problem: Problem, store: KernelStore, tiles: Sequence[tuple[int, int]], client: Any
) -> Generator[tuple[int, int], None, None]:
    """Have tiles computed and kept by the workers of a client; yields those that are kept."""
    _require_workers(client, store)
    mark = uuid.uuid4().hex
    waiting, attempts = deque(tiles), 0
    while waiting:
        begun = len(waiting)
        yield from _round(problem, store, waiting, client, mark)
        attempts = attempts + 1 if len(waiting) == begun else 0
        if attempts == MOST_ATTEMPTS:
            raise no_worker_lived("a tile", attempts)


def _round(
    problem: Problem,
    store: KernelStore,
    waiting: deque[tuple[int, int]],
    client: Any,
    mark: str,
) -> Iterator[tuple[int, int]]:
    """Send the examples and compute what waits; returns early if they are lost."""
    data = client.scatter(problem, broadcast=True, hash=False)
    running: dict[Any, tuple[int, int]] = {}

    def submit() -> list[Any]:
        room = _AHEAD * max(1, sum(client.nthreads().values())) - len(running)
        new = []
        while waiting and len(new) < room:
            tile = waiting.popleft()
            future = client.submit(compute_tile, data, store.place, mark, tile, pure=False)
            running[future] = tile
            new.append(future)
        return new

    try:
        walk = as_completed(submit())
        for future in walk:
            tile = running.pop(future)
            if future.status in ("cancelled", "lost"):  # examples died with their last worker
                waiting.append(tile)
                return
            if future.status == "error":
                _raise(future, tile, store)
            yield tile
            walk.update(submit())
    finally:
        client.cancel(list(running), force=True)
        waiting.extend(running.values())


def _raise(future: Any, tile: tuple[int, int], store: KernelStore) -> None:
    """The error of a tile, as it would be without a cluster."""
    try:
        future.result()
    except KilledWorker as error:
        raise StoreError(
            "Every tile is small enough for some worker to compute it.",
            got=f"tile {tile} of '{store}' has killed several workers ({error})",
            remedy="give workers more memory, or pass a smaller memory=",
        ) from error


def compute_tile(problem: Problem, place: Any, mark: str, tile: tuple[int, int]) -> tuple[int, int]:
    """What a worker does: compute a tile and write it."""
    walk = _walk(problem, place, mark)
    walk.store.write(tile, walk.tile(tile))
    return tile


def _walk(problem: Problem, place: Any, mark: str) -> Walk:
    with _making:
        if mark not in _walks:
            _walks.clear()
            _walks[mark] = Walk(problem, KernelStore(place, read_only=False))
        return _walks[mark]


def no_worker_lived(what: str, attempts: int) -> StoreError:
    """All workers that had the examples died, again and again."""
    return StoreError(
        f"Workers live long enough to compute {what}.",
        got=f"{attempts} times all workers that had the examples were lost",
        remedy="look at the logs of the workers: the usual cause is too little memory",
    )


def require_client(client: Any) -> None:
    """A client of Dask that has workers."""
    if not isinstance(client, Client):
        raise StoreError(
            "client= is a client of dask.distributed.",
            got=f"{type(client).__name__}",
            remedy="pass distributed.Client(address), or widelimit.scale.local_client()",
        )
    if client.status in ("closing", "closed"):
        raise StoreError(
            "A client is open as long as there is work for it.",
            got=f"a client that was closed, {client!r}",
            remedy="make the call inside its `with` block, or open another client",
        )
    if not client.nthreads():
        raise StoreError(
            "A cluster has workers when work is given to it.",
            got=f"a client without workers, {client!r}",
            remedy="start some, and call client.wait_for_workers(1) first",
        )


def _require_workers(client: Any, store: KernelStore) -> None:
    require_client(client)
    if not shared(store.place):
        raise StoreError(
            "Workers write to a store that all of them reach.",
            got=f"'{store}', which belongs to one process",
            remedy="give a folder on a shared disk, or the address of an object store; "
            "KernelStore(...).pack('kernel.zip') makes one file of it",
        )
