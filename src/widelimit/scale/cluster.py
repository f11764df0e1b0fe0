"""Work shared by the workers of a cluster: one loop for tiles, blocks of tests and of factors.

What all tasks need goes to every worker once, from the client or from another worker. A worker that
dies takes its current tasks with it: others do them. What died with the last worker that had it is
sent again.
"""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..engine.inputs import Inputs
from ..engine.kernel import Problem
from ..engine.threads import one_at_a_time
from ..errors import MissingExtraError
from ..state import Kernels
from .errors import StoreError
from .manifest import NAMES
from .places import shared
from .problem import Walk
from .store import KernelStore, Tile

try:
    from dask import config as dask_config
    from distributed import Client, KilledWorker, LocalCluster, wait
    from distributed.client import FuturesCancelledError
except ImportError as missing:
    raise MissingExtraError("distributed", "scale") from missing

# Tasks that wait at a worker's thread, so that it never waits for the scheduler.
_AHEAD = 2
# How often data are sent anew without a single task in between.
MOST_ATTEMPTS = 3
# Seconds without any worker after which the work is given up, and between looks at it.
PATIENCE, _LOOK = 60.0, 1.0
_LOST = ("cancelled", "lost")
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


class Sent:
    """A value on all workers of a client; sent when it is needed, and again where it was lost."""

    def __init__(self, client: Any, value: Any):
        """Nothing is sent yet."""
        self.client, self.value, self._future = client, value, None

    @property
    def future(self) -> Any:
        """What stands for it in a task."""
        if self._future is None or self._future.status in (*_LOST, "error"):
            [self._future] = self.client.scatter([self.value], broadcast=True, hash=False)
        return self._future

    def forget(self) -> None:
        """It died with the last worker that had it."""
        self._future = None


def by_workers(
    client: Any,
    function: Callable[..., Any],
    data: Sequence[Sent],
    tasks: Sequence[Any],
    *,
    after: Callable[[Any], Sequence[Hashable]] = lambda _: (),
) -> Generator[tuple[Any, Any], None, None]:
    """Yield every task with `function(*data, task)`, in the order in which they are done.

    A task waits for those that `after` names.
    """
    require_client(client)
    waiting, done, attempts = deque(tasks), set(), 0
    while waiting:
        begun = len(waiting)
        yield from _round(client, function, data, waiting, done, after)
        attempts = attempts + 1 if len(waiting) == begun else 0
        if attempts == MOST_ATTEMPTS:
            raise _no_worker_lived(f"{attempts} times all workers that had the data were lost")


def _round(
    client: Any,
    function: Callable[..., Any],
    data: Sequence[Sent],
    waiting: deque[Any],
    done: set[Hashable],
    after: Callable[[Any], Sequence[Hashable]],
) -> Iterator[tuple[Any, Any]]:
    """Do what waits; returns early where data are lost."""
    try:
        futures = [one.future for one in data]
    except TimeoutError as error:
        raise _no_worker_lived("no worker was there to take the data") from error
    running: dict[Any, Any] = {}

    def submit() -> None:
        room = _AHEAD * max(1, sum(client.nthreads().values())) - len(running)
        for _ in range(len(waiting)):
            if room <= 0:
                return
            task = waiting.popleft()
            if all(one in done for one in after(task)):
                running[client.submit(function, *futures, task, pure=False)] = task
                room -= 1
            else:
                waiting.append(task)

    try:
        submit()
        while running:
            for future in _finished(client, running):
                task = running[future]
                if future.status in _LOST:
                    for one in data:
                        one.forget()
                    return
                if future.status == "error":
                    _raise(future, task)
                del running[future]
                yield task, future.result()
                done.add(task if isinstance(task, Hashable) else None)
            submit()
    finally:
        client.cancel(list(running), force=True)
        waiting.extendleft(reversed(running.values()))


def _finished(client: Any, running: dict[Any, Any]) -> list[Any]:
    """Wait for the next tasks to end, as long as there is hope."""
    alone = 0.0
    while True:
        try:
            wait(list(running), timeout=_LOOK, return_when="FIRST_COMPLETED")
        except TimeoutError:
            alone = 0.0 if client.nthreads() else alone + _LOOK
            if alone > PATIENCE:
                raise _no_worker_lived(f"no worker for {PATIENCE:.0f} seconds") from None
        except (asyncio.CancelledError, FuturesCancelledError):  # of a task whose data died
            pass
        if ended := [future for future in running if future.status != "pending"]:
            return ended


def _raise(future: Any, task: Any) -> None:
    """The error of a task, as it would be without a cluster."""
    try:
        future.result()
    except KilledWorker as error:
        raise StoreError(
            f"Task {task!r:.60} has killed several workers.",
            got=str(error)[:200],
            remedy="give workers more memory, or pass a smaller memory= (or block=)",
        ) from error


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


class TileWork:
    """A problem and the place of its store; a worker keeps its encoded examples between tiles."""

    def __init__(self, problem: Problem, place: Any):
        """Nothing is opened yet."""
        self.problem, self.place, self.walk = problem, place, None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"walk": None}

    def compute(self, tile: Tile) -> None:
        """Compute a tile and write it."""
        with _making:
            if self.walk is None:
                self.walk = Walk(self.problem, KernelStore(self.place, read_only=False))
        self.walk.store.write(tile, self.walk.tile(tile))


def computed_by_workers(
    problem: Problem, store: KernelStore, tiles: Sequence[Tile], client: Any
) -> Generator[Tile, None, None]:
    """Have tiles computed and kept by the workers of a client; yields those that are kept."""
    require_client(client)
    if not shared(store.place):
        raise StoreError(
            f"'{store}' belongs to one process, and workers are others.",
            got="a store in memory or in a file",
            remedy="give a folder on a shared disk, or the address of an object store",
        )
    work = Sent(client, TileWork(problem, store.place))
    for tile, _ in by_workers(client, TileWork.compute, [work], tiles):
        yield tile


# --- blocks of other examples, gathered in memory -------------------------------------------------


class Crossing:
    """The examples of a problem on the workers of a client, and their kernels with others."""

    def __init__(self, problem: Problem, client: Any):
        """They are sent with the first call, and stay."""
        self.problem, self.client = Sent(client, problem), client

    def kernels(self, rows: Inputs) -> Kernels:
        """Kernels (rows, training examples)."""
        size = (rows.size, self.problem.value.rows.size)
        spans = [
            (i, min(i + _ROWS, size[0]), j, min(j + _COLUMNS, size[1]))
            for i in range(0, size[0], _ROWS)
            for j in range(0, size[1], _COLUMNS)
        ]
        whole: dict[str, Any] = {}
        data = [self.problem, Sent(self.client, rows)]
        for (i, end_i, j, end_j), found in by_workers(self.client, _block, data, spans):
            for name in NAMES:
                part = getattr(found, name)
                if part is not None:
                    shape = (*size, *part.shape[2:])
                    into = whole.setdefault(name, np.empty(shape, part.dtype))
                    into[i:end_i, j:end_j] = part
        return Kernels(*(whole.get(name) for name in NAMES))


def _block(problem: Problem, rows: Inputs, span: tuple[int, int, int, int]) -> Kernels:
    """Kernels of some other and some training examples, in this thread alone."""
    i, end_i, j, end_j = span
    with one_at_a_time():
        return problem.net.kernel(
            rows[slice(i, end_i)],
            problem.rows[slice(j, end_j)],
            sampler=problem.sampler,
            ntk=problem.ntk,
            dtype=problem.dtype,
            memory=problem.memory,
            progress=False,
        )
