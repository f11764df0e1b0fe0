"""Several tiles at once: threads keep all cores busy where the steps of one tile are too small.

Everything a tile needs happens in its thread – compiling, computing, fetching – so that different
shapes are compiled side by side too.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax

_alone: ContextVar[bool] = ContextVar("alone", default=False)

Job = TypeVar("Job")
Done = TypeVar("Done")

# A tile's small steps and the interpreter leave gaps; a second tile for every core fills them.
_PER_CORE = 2
# More tiles at once than this wait for memory rather than for cores.
_MOST_THREADS = 16


def most_at_once() -> int:
    """How many tiles keep all devices busy: some for every core, two where they have a queue."""
    if _alone.get():
        return 1
    count = len(devices())
    if jax.default_backend() != "cpu":
        return 2 * count
    return max(count, min(_PER_CORE * (os.cpu_count() or 1), _MOST_THREADS))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Tiles one after the other: for processes that have neighbours on every other core."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def devices() -> list[Any]:
    """The devices that share the work: all of this process, or the one that JAX was told to use.

    A single device is None, for then JAX chooses it.
    """
    if getattr(jax.config, "jax_default_device", None) is not None:
        return [None]
    found = jax.local_devices()
    return found if len(found) > 1 else [None]


def in_threads(
    function: Callable[[Job], Done],
    jobs: Sequence[Job],
    *,
    at_once: int,
    alike: Callable[[Job], Any],
) -> Generator[Done, None, None]:
    """Results of all jobs as they come; jobs are `alike` if they share a compilation.

    The first job of every kind goes before all others, and others of its kind wait until it is
    done: it compiles for them. Whoever stops listening, or is interrupted, waits for the jobs that
    run and cancels the others.
    """
    first: deque[Job] = deque()
    later: dict[Any, list[Job]] = {}
    for job in jobs:
        if alike(job) in later:
            later[alike(job)].append(job)
        else:
            first.append(job)
            later[alike(job)] = []
    ready: deque[Job] = deque()
    running: dict[Future[Done], Job] = {}
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="widelimit")
    run = _with_settings_of_this_thread(function)
    try:
        while first or ready or running:
            # One more than can run is ready, so that no thread waits for the listener.
            while (first or ready) and len(running) <= at_once:
                job = (first or ready).popleft()
                running[pool.submit(run, job)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ready.extend(later.pop(alike(running.pop(future)), ()))
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _with_settings_of_this_thread(function: Callable[[Job], Done]) -> Callable[[Job], Done]:
    """The function, under those JAX settings that a `with` statement makes for one thread only."""
    names = ("jax_enable_x64", "jax_default_device", "jax_default_matmul_precision")
    wide, device, matmul = (getattr(jax.config, name) for name in names)

    def run(job: Job) -> Done:
        with jax.enable_x64(wide), jax.default_device(device), jax.default_matmul_precision(matmul):
            return function(job)

    return run
