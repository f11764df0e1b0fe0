"""Several tiles at once: threads keep all cores busy where the steps of one tile are too small.

Everything a tile needs happens in its thread – compiling, computing, fetching – so that different
shapes are compiled side by side too.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

Job = TypeVar("Job")
Done = TypeVar("Done")

# A tile's small steps and the interpreter leave gaps; a second tile for every core fills them.
_PER_CORE = 2
# More tiles at once than this wait for memory rather than for cores.
_MOST_THREADS = 16


def most_at_once() -> int:
    """How many tiles keep the device busy: some for every core, two where it has its own queue."""
    if jax.default_backend() != "cpu":
        return 2
    return min(_PER_CORE * (os.cpu_count() or 1), _MOST_THREADS)


def in_threads(
    function: Callable[[Job], Done],
    jobs: Sequence[Job],
    *,
    at_once: int,
    alike: Callable[[Job], Any],
) -> Generator[Done, None, None]:
    """Results of all jobs, one of every kind first; jobs are `alike` if they share a compilation.

    Jobs of one kind run side by side only after the first of them has been compiled. Whoever stops
    listening, or is interrupted, waits for the jobs that run and cancels the others.
    """
    firsts = {alike(job): place for place, job in reversed(list(enumerate(jobs)))}
    leading = sorted(firsts.values())
    following = sorted(set(range(len(jobs))) - set(leading))
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="widelimit")
    run = _with_settings_of_this_thread(function)
    try:
        for places in (leading, following):
            waiting: deque[Future[Done]] = deque()
            for place in places:
                waiting.append(pool.submit(run, jobs[place]))
                # One more than can run is ready, so that no thread waits for the listener.
                if len(waiting) > at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
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
