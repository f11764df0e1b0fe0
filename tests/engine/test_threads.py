"""Tiles in threads: every job once, one of each kind first, settings and mistakes carried over."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine import threads
from widelimit.engine.threads import in_threads


def test_every_job_is_done_once_and_the_first_of_each_kind_starts_first():
    jobs = [("a", i) for i in range(5)] + [("b", i) for i in range(5)]
    started: list[tuple[str, int]] = []

    def job(name: tuple[str, int]) -> tuple[str, int]:
        started.append(name)
        return name

    done = list(in_threads(job, jobs, at_once=3, alike=lambda job: job[0]))
    assert started[:2] == [("a", 0), ("b", 0)]
    assert sorted(done) == jobs


def test_nobody_waits_for_the_slow_first_job_of_another_kind():
    free = threading.Event()

    def job(name: tuple[str, int]) -> tuple[str, int]:
        if name == ("slow", 0):
            assert free.wait(timeout=10)
        if name == ("quick", 3):
            free.set()
        return name

    jobs = [("slow", 0), ("slow", 1)] + [("quick", i) for i in range(4)]
    done = list(in_threads(job, jobs, at_once=2, alike=lambda job: job[0]))
    assert sorted(done) == sorted(jobs)


def test_jobs_of_one_kind_wait_for_the_first_of_them():
    finished: list[int] = []

    def job(number: int) -> int:
        if number == 0:
            time.sleep(0.1)
        else:
            assert 0 in finished
        finished.append(number)
        return number

    assert len(list(in_threads(job, range(6), at_once=4, alike=lambda _: "all"))) == 6


def test_several_jobs_run_at_a_time():
    both = threading.Barrier(2, timeout=10)  # passes only if two threads wait at once
    jobs = [("x", 0), ("y", 0)]
    assert len(list(in_threads(lambda _: both.wait(), jobs, at_once=2, alike=str))) == 2


def test_whoever_stops_listening_cancels_the_rest():
    started: list[int] = []

    def job(number: int) -> int:
        started.append(number)
        return number

    walk = in_threads(job, range(1000), at_once=2, alike=lambda _: "all")
    next(walk)
    walk.close()
    assert len(started) < 10


def test_a_mistake_in_a_thread_is_raised_where_results_are_read():
    def job(number: int) -> float:
        return 1 / number

    with pytest.raises(ZeroDivisionError):
        list(in_threads(job, [2, 1, 0], at_once=2, alike=lambda _: "all"))


def test_threads_that_do_nothing_are_given_up(monkeypatch):
    """As XLA's threads were once seen to: neither an answer nor any use of the processor."""
    monkeypatch.setattr(threads, "_INTERVAL", 0.2)
    monkeypatch.setattr(threads, "_MOST_IDLE", 3)
    free = threading.Event()
    with pytest.raises(wl.errors.StallError, match=r"2 tiles had no answer.*new process"):
        list(in_threads(lambda _: free.wait(), [1, 2], at_once=2, alike=int))
    free.set()


def test_work_that_takes_long_is_not_given_up(monkeypatch):
    monkeypatch.setattr(threads, "_INTERVAL", 0.1)
    monkeypatch.setattr(threads, "_MOST_IDLE", 3)

    def busy(_: int) -> int:
        end = time.thread_time() + 0.5
        count = 0
        while time.thread_time() < end:
            count += 1
        return count

    assert all(in_threads(busy, [1, 2], at_once=2, alike=int))


def test_threads_take_over_the_settings_of_the_caller():
    def dtype(_: int) -> str:
        return str(jnp.ones(3).dtype)

    def found() -> set[str]:
        return set(in_threads(dtype, range(4), at_once=2, alike=int))

    assert found() == {"float32"}
    with jax.enable_x64(True):
        assert found() == {"float64"}


def test_an_interrupted_kernel_ends_at_once_and_the_next_one_is_whole():
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    x = np.random.default_rng(0).normal(size=(60, 40, 3)).astype(np.float32)
    seen = []

    def interrupt(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        net.kernel(x, progress=interrupt)
    assert seen[-1][0] == 2 < seen[-1][1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("widelimit")]
    np.testing.assert_allclose(net.kernel(x).nngp, net.kernel(x, x).nngp, rtol=1e-5)
