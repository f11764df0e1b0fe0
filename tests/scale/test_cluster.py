"""A cluster computes what one process does, bit for bit, also when workers die."""

import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from stores import TILE, examples, network

import widelimit as wl
from widelimit.data import load_sample_images
from widelimit.inference import network_kernels

pytest.importorskip("distributed")
from distributed import Client, LocalCluster
from zarr.storage import MemoryStore

from widelimit.scale import KernelStore, StoreError, cluster, local_client

# Dask's own servers leave sockets and loops to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def threads(workers):
    """Workers in this process: what they do, without what it takes to start them."""
    return LocalCluster(
        n_workers=workers, threads_per_worker=2, processes=False, dashboard_address=":0"
    )


@pytest.fixture(scope="module")
def two_threads():
    """A client of two workers in this process."""
    with (
        warnings.catch_warnings(),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as c,
        Client(c) as client,
    ):
        yield client


def test_threads_of_a_cluster_compute_the_same_bits(tmp_path, two_threads):
    x = examples()
    alone = network().kernel_into(tmp_path / "one", x, tile=TILE)
    shared = network().kernel_into(tmp_path / "two", x, tile=TILE, client=two_threads)
    with pytest.raises(StoreError, match="belongs to one process"):
        network().kernel_into(MemoryStore(), x, tile=TILE, client=two_threads)
    with pytest.raises(StoreError, match="belongs to one process"):
        network().kernel_into("memory://cluster/k", x, tile=TILE, client=two_threads)
    np.testing.assert_array_equal(np.asarray(shared.nngp), np.asarray(alone.nngp))
    np.testing.assert_array_equal(np.asarray(shared.ntk), np.asarray(alone.ntk))


@pytest.mark.parametrize(
    "solver",
    [
        wl.inference.BlockedCholesky(block=7),
        pytest.param(wl.inference.Nystrom(landmarks=30), marks=pytest.mark.slow),
    ],
)
def test_workers_factorise_and_predict(tmp_path, two_threads, monkeypatch, solver):
    """Blocks of the factor, columns of landmarks and blocks of tests, all by workers."""
    monkeypatch.setattr(network_kernels, "ALONE", 1)
    x, test = examples(), examples(11, seed=1)
    dense = wl.GP(network(), noise=0.1, engine=wl.Engine(dtype=np.float64)).fit(x, x[:, 0])
    asked = []
    submit = two_threads.submit
    monkeypatch.setattr(
        two_threads, "submit", lambda *a, **k: asked.append(a[1:2]) or submit(*a, **k)
    )
    engine = wl.Engine(dtype=np.float64, store=tmp_path / "k", client=two_threads)
    model = wl.GP(network(), noise=0.1, engine=engine, solver=solver).fit(x, x[:, 0])
    found, wanted = model.predict(test), dense.predict(test)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.std, wanted.std, rtol=1e-7)
    names = [function.__qualname__ for tail in asked for function in tail]
    assert "_block" in names
    if isinstance(solver, wl.inference.BlockedCholesky):
        assert names.count("_Work.compute") == 5 * 6 // 2


def test_a_client_without_workers(tmp_path):
    with (
        threads(0) as c,
        Client(c) as client,
        pytest.raises(StoreError, match="has no workers"),
    ):
        network().kernel_into(tmp_path / "k", examples(), tile=TILE, client=client)
    with pytest.raises(StoreError, match="client was closed"):
        network().kernel_into(tmp_path / "k", examples(), tile=TILE, client=client)
    with pytest.raises(StoreError, match=r"is no client of dask\.distributed"):
        network().kernel_into(tmp_path / "k", examples(), tile=TILE, client="local")


@pytest.mark.slow
def test_processes_factorise_out_of_core(tmp_path):
    """Real images, workers of their own, and a kernel that needs jitter to be factorised."""
    data = load_sample_images()
    x, test = (part.x.astype(np.float64) for part in (data.train, data.test))
    y = np.eye(10)[data.train.y]
    net = wl.Serial(wl.Flatten(), wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(1))
    engine = wl.Engine(dtype=np.float64)
    dense = wl.GP(net, noise=0.01, engine=engine).fit(x, y).predict(test)
    with local_client(2) as client:
        engine = wl.Engine(dtype=np.float64, store=tmp_path / "k", client=client)
        solver = wl.inference.BlockedCholesky(folder=tmp_path / "factor", block=64)
        found = wl.GP(net, noise=0.01, engine=engine, solver=solver).fit(x, y).predict(test)
        assert np.abs(found.mean - dense.mean).max() < 1e-6 * np.abs(dense.mean).max()
        assert np.abs(found.std - dense.std).max() < 1e-6 * dense.std.max()
        half = len(x) // 2
        twice = np.concatenate([x[:half], x[:half]])
        engine = wl.Engine(dtype=np.float64, store=tmp_path / "twice", client=client)
        with pytest.warns(wl.inference.JitterWarning):
            model = wl.GP(net, noise=0.0, engine=engine, solver=solver).fit(twice, y[: 2 * half])
        assert model.jitter > 0


@pytest.mark.slow
@pytest.mark.optimised  # as workers compile: bit for bit
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_survived(tmp_path, workers):
    x = examples(400)
    alone = network().kernel_into(tmp_path / "one", x, tile=16)
    with local_client(workers) as client:
        # One thread of XLA each: two workers of two threads were slower by 13 %.
        assert set(client.run(lambda: os.environ["NPROC"]).values()) == {"1"}
        # Dask's own limit of 64 KiB cost them half of their time in new pages.
        trimmed = client.run(lambda: int(os.environ["MALLOC_TRIM_THRESHOLD_"])).values()
        assert min(trimmed) > 2**26
        victim = next(iter(client.run(os.getpid).values()))
        killed = threading.Event()

        def kill(done, total):
            if done >= total // 4 and not killed.is_set():
                os.kill(victim, signal.SIGKILL)
                killed.set()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"tile": 16, "client": client, "progress": kill}
            shared = network().kernel_into(tmp_path / "two", x, **options)
        assert killed.is_set()
    np.testing.assert_array_equal(np.asarray(shared.ntk), np.asarray(alone.ntk))


def test_workers_keep_no_problem_longer_than_it_is_computed(tmp_path, two_threads):
    x = examples()
    for w_std in (1.0, 1.1):
        place = tmp_path / str(w_std)
        stored = network(w_std).kernel_into(place, x, tile=TILE, client=two_threads)
        np.testing.assert_allclose(np.asarray(stored.ntk), network(w_std).kernel(x).ntk)
    for _ in range(100):
        held = two_threads.run(lambda dask_worker: len(dask_worker.data))
        if not sum(held.values()):
            break
        time.sleep(0.1)
    assert not sum(held.values())


def half(work, task):
    return task / work


def test_tasks_wait_for_those_they_need(two_threads):
    """And the error of one is the error of all."""
    rng = np.random.default_rng(0)
    tasks = list(range(40))
    data = [cluster.sent(two_threads, 2)]
    needs = {task: [int(i) for i in rng.choice(task, min(task, 2))] for task in tasks if task}
    done = []
    for task, found in cluster.by_workers(
        two_threads, half, data, tasks, after=lambda task: needs.get(task, ())
    ):
        assert found == task / 2
        assert set(needs.get(task, ())) <= set(done)
        done.append(task)
    assert sorted(done) == list(range(40))
    with pytest.raises(ZeroDivisionError):
        list(cluster.by_workers(two_threads, half, [cluster.sent(two_threads, 0)], tasks))


def test_all_workers_gone_is_said(tmp_path, monkeypatch):
    """They are retired while they work, and nobody starts others."""
    monkeypatch.setattr(cluster, "PATIENCE", 1.0)
    x = examples(200)
    with threads(2) as c, Client(c) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def leave(done, total):
            if done == 3:
                c.scale(0)
                c.sync(c._correct_state)

        with pytest.raises(StoreError, match="did not live until the work was done"):
            network().kernel_into(tmp_path / "k", x, tile=8, client=client, progress=leave)
    left = len(KernelStore(tmp_path / "k").list_tiles())
    assert 3 <= left < 25 * 26 // 2
    stored = network().kernel_into(tmp_path / "k", x)
    np.testing.assert_allclose(np.asarray(stored.ntk), network().kernel(x).ntk, rtol=1e-12)
