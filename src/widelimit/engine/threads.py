"""Several tiles at once: threads keep all cores busy where the steps of one tile are too small.

Everything a tile needs happens in its thread – compiling, computing, fetching – so that different
shapes are compiled side by side too. These threads are not XLA's: they wait outside its pool for
programs of which no step waits inside it (see `compilation`), so any number of them may.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import jax

from ..errors import StallError

_alone: ContextVar[bool] = ContextVar("alone", default=False)

Job = TypeVar("Job")
Done = TypeVar("Done")

# A tile's small steps and the interpreter leave gaps; a second tile for every core fills them.
_PER_CORE = 2
# More tiles at once than this wait for memory rather than for cores.
_MOST_THREADS = 16
# Seconds between two looks at work that does not answer, how many of them without any use of the
# processor are the end of waiting, and the share of the processor that counts as use.
_INTERVAL, _MOST_IDLE, _BUSY = 5.0, 24, 0.002
_END = object()


def most_at_once() -> int:
    """How many tiles keep all devices busy: some for every core, two where they have a queue."""
    if _alone.get():
        return 1
    count = len(devices())
    if jax.default_backend() != "cpu":
        return 2 * count
    return max(count, min(_PER_CORE * (os.cpu_count() or 1), _MOST_THREADS))


@contextlib.contextmanager
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
    run and cancels the others. Threads that have stopped forever are given up (`StallError`).
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
    running = 0
    crew = _Crew(_with_settings_of_this_thread(function), min(at_once, len(jobs)))
    try:
        while first or ready or running:
            # One more than can run is ready, so that no thread waits for the listener.
            while (first or ready) and running <= at_once:
                crew.orders.put((first or ready).popleft())
                running += 1
            job, answer = crew.answer(running)
            running -= 1
            ready.extend(later.pop(alike(job), ()))
            yield answer.result()
    finally:
        crew.dismiss()


class _Crew:
    """Threads that work off orders; a stuck one holds up neither the caller nor the program's end.

    XLA's own threads were once seen to wait for each other forever. Programs of this package no
    longer hold the steps that can (see `compilation`), but other code in the process, which shares
    the pool, may. Nothing in a process can wake them; whoever waits for them can be told.
    """

    def __init__(self, function: Callable[[Any], Any], count: int):
        self.orders: SimpleQueue[Any] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, Future[Any]]] = SimpleQueue()
        self.function, self.stalled = function, False
        options: dict[str, Any] = {"name": "widelimit", "daemon": True}
        self.threads = [Thread(target=self._work, **options) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        while (job := self.orders.get()) is not _END:
            answer: Future[Any] = Future()
            try:
                answer.set_result(self.function(job))
            except BaseException as error:
                answer.set_exception(error)
            self.answers.put((job, answer))
            del job, answer

    def answer(self, running: int) -> tuple[Any, Future[Any]]:
        """The next answer; an error when nothing at all has happened for minutes."""
        idle = 0
        while idle < _MOST_IDLE:
            begin, used = time.monotonic(), time.process_time()
            try:
                return self.answers.get(timeout=_INTERVAL)
            except Empty:
                seconds, used = time.monotonic() - begin, time.process_time() - used
            # A process that was stopped, or had to wait for its turn, is not stuck; the work of
            # other devices would not be seen.
            awake = seconds < 2 * _INTERVAL and jax.default_backend() == "cpu"
            idle = idle + 1 if awake and used < _BUSY * seconds else 0
        self.stalled = True
        raise StallError(
            f"{running} tiles had no answer and no use of the processor for "
            f"{_MOST_IDLE * _INTERVAL:.0f} seconds.",
            got="threads of XLA that wait for each other",
            remedy="start again in a new process (what a store holds is kept); should it happen "
            'again, call jax.config.update("jax_cpu_enable_async_dispatch", False) first of all',
        )

    def dismiss(self) -> None:
        """Cancel what has not begun and wait for the rest."""
        while not self.orders.empty():
            with contextlib.suppress(Empty):
                self.orders.get_nowait()
        for _ in self.threads:
            self.orders.put(_END)
        for thread in self.threads:
            if not self.stalled:
                thread.join()


def _with_settings_of_this_thread(function: Callable[[Job], Done]) -> Callable[[Job], Done]:
    """The function, under those JAX settings that a `with` statement makes for one thread only."""
    names = ("jax_enable_x64", "jax_default_device", "jax_default_matmul_precision")
    wide, device, matmul = (getattr(jax.config, name) for name in names)

    def run(job: Job) -> Done:
        with jax.enable_x64(wide), jax.default_device(device), jax.default_matmul_precision(matmul):
            return function(job)

    return run
