"""Work shared by the workers of a cluster: one loop for tiles, blocks of tests and of factors.

What all tasks need goes to every worker once, from the client or from another worker. What died
with a worker, Dask has others do again.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ..engine.inputs import Inputs
from ..engine.kernel import Problem
from ..engine.threads import one_at_a_time
from ..errors import MissingExtraError
from ..state import Kernels
from .description import StoreError
from .manifest import NAMES
from .places import shared
from .store import Tile
from .walk import Walk

try:
    from dask import config as dask_config
    from distributed import Client, KilledWorker, LocalCluster
    from distributed.client import FuturesCancelledError
except ImportError as missing:
    raise MissingExtraError("distributed", "scale") from missing

# Seconds without any worker after which the work is given up, and between looks at it.
PATIENCE, _LOOK = 60.0, 5.0
# Examples on the sides of a block: some tenths of a second of work for most networks.
_ROWS, _COLUMNS = 128, 1024

_making = threading.Lock()


@contextmanager
def local_client(workers: int | None = None) -> Iterator[Client]:
    """A cluster on this machine: processes of one thread each, by default one per core."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    # NPROC is the number of XLA's own threads: more of them compete with those of the neighbours.
    # Dask has workers give freed memory back at once, and then XLA's buffers are made of new pages,
    # tile after tile: half of the time of small tiles.
    keeping = {"MALLOC_TRIM_THRESHOLD_": str(2**29), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
    alone = {"XLA_FLAGS": flags, "NPROC": "1", **keeping}
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
            # Streams and processes that end while it closes; errors of tasks are raised here.
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def sent(client: Any, value: Any) -> Any:
    """A value that workers have when tasks need it, from the client or from one another.

    It is the result of a task: Dask makes it anew where it died with its last worker.
    """
    with dask_config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
        return client.submit(partial(_itself, value), pure=False)


def _itself(value: Any) -> Any:
    return value


def by_workers(
    client: Any,
    function: Callable[..., Any],
    data: Sequence[Any],
    tasks: Sequence[Any],
    *,
    after: Callable[[Any], Sequence[Any]] | None = None,
) -> Generator[tuple[Any, Any], None, None]:
    """Yield every task with `function(*data, task)`, in the order in which they are done.

    `data` are values that were `sent`. A task waits for those that `after` names, which come before
    it.
    """
    require_client(client)
    running: dict[Any, Any] = {}
    futures: dict[Any, Any] = {}
    ended: SimpleQueue[Any] = SimpleQueue()
    try:
        for task in tasks:
            before = [futures[one] for one in after(task) if one in futures] if after else []
            future = client.submit(_task, function, data, task, before, pure=False)
            running[future] = task
            if after:
                futures[task] = future
        futures.clear()  # results that were fetched are not kept
        for future in running:
            future.add_done_callback(ended.put)
        while running:
            future = _patiently(client, ended.get)
            task = running[future]
            try:
                found = _patiently(client, future.result)  # made anew where it died with a worker
            except KilledWorker as error:
                raise StoreError(
                    f"Task {task!r:.60} has killed several workers.",
                    got=str(error)[:200],
                    remedy="give workers more memory, or pass a smaller memory= (or block=)",
                ) from error
            except (asyncio.CancelledError, FuturesCancelledError) as error:
                raise _no_worker_lived(f"its tasks were cancelled ({error})") from error
            del running[future]
            yield task, found
    finally:
        client.cancel(list(running), force=True)


def _task(function: Callable[..., Any], data: list[Any], task: Any, _: list[Any]) -> Any:
    """A task, after those before it."""
    return function(*data, task)


def _patiently(client: Any, ask: Callable[..., Any]) -> Any:
    """What there is to come, as long as there is hope."""
    alone = 0.0
    while alone <= PATIENCE:
        try:
            return ask(timeout=_LOOK)
        except (Empty, TimeoutError):
            alone = 0.0 if client.nthreads() else alone + _LOOK
    raise _no_worker_lived(f"no worker for {PATIENCE:.0f} seconds")


def _no_worker_lived(why: str) -> StoreError:
    return StoreError(
        f"The workers of the client did not live until the work was done: {why}.",
        got="a cluster that has lost its workers",
        remedy="look at their logs (the usual cause is too little memory), and make the same call "
        "again: what is in a store is kept",
    )


def require_client(client: Any) -> None:
    """A client of Dask that has workers."""
    if not isinstance(client, Client):
        raise StoreError(
            "client= is no client of dask.distributed.",
            got=f"{type(client).__name__}",
            remedy="pass distributed.Client(address), or widelimit.scale.local_client()",
        )
    if client.status in ("closing", "closed"):
        raise StoreError(
            "The client was closed before its work was done.",
            got=f"{client!r}",
            remedy="make the call inside its `with` block, or open another client",
        )
    if not client.nthreads():
        raise StoreError(
            "The client has no workers.",
            got=f"{client!r}",
            remedy="start some, and call client.wait_for_workers(1) first",
        )


# --- tiles of a store -----------------------------------------------------------------------------


def computed_by_workers(
    walk: Walk, tiles: Sequence[Tile], client: Any
) -> Generator[None, None, None]:
    """Have tiles computed and kept by the workers of a client; yields for each that is kept."""
    require_client(client)
    if not shared(walk.store.place):
        raise StoreError(
            f"'{walk.store}' belongs to one process, and workers are others.",
            got="a store in memory or in a file",
            remedy="give a folder on a shared disk, or the address of an object store",
        )
    for _ in by_workers(client, _compute, [sent(client, walk)], tiles):
        yield


def _compute(walk: Walk, tile: Tile) -> None:
    """Compute a tile and write it; a worker keeps its encoded examples between tiles."""
    with _making:
        _ = walk.pairs
    walk.store.write(tile, walk.tile(tile))


# --- blocks of other examples, gathered in memory -------------------------------------------------


def crossed_by_workers(client: Any, training: Any, size: int, rows: Inputs) -> Kernels:
    """Kernels (rows, training examples), of `size` examples in a problem that was `sent`."""
    shape = (rows.size, size)
    spans = [
        (slice(i, min(i + _ROWS, rows.size)), slice(j, min(j + _COLUMNS, size)))
        for i in range(0, rows.size, _ROWS)
        for j in range(0, size, _COLUMNS)
    ]
    whole: dict[str, Any] = {}
    for span, found in by_workers(client, _block, [training, sent(client, rows)], spans):
        for name in NAMES:
            part = getattr(found, name)
            if part is not None:
                if name not in whole:
                    whole[name] = np.empty((*shape, *part.shape[2:]), part.dtype)
                whole[name][span] = part
    return Kernels(*(whole.get(name) for name in NAMES))


def _block(problem: Problem, rows: Inputs, span: tuple[slice, slice]) -> Kernels:
    """Kernels of some other and some training examples, in this thread alone."""
    with one_at_a_time():
        return problem.net.kernel(
            rows[span[0]],
            problem.rows[span[1]],
            sampler=problem.sampler,
            ntk=problem.ntk,
            dtype=problem.dtype,
            memory=problem.memory,
            progress=False,
        )
