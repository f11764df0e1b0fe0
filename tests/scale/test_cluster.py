"""A cluster computes what one process does, bit for bit, also when workers die."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest
from stores import TILE, examples, network

pytest.importorskip("distributed")
from distributed import Client, LocalCluster
from zarr.storage import MemoryStore

from widelimit.scale import StoreError, cluster, local_client

# Dask's own servers leave sockets and loops to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def threads(workers):
    """Workers in this process: what they do, without what it takes to start them."""
    return LocalCluster(
        n_workers=workers, threads_per_worker=2, processes=False, dashboard_address=":0"
    )


def test_threads_of_a_cluster_compute_the_same_bits(tmp_path):
    x = examples()
    alone = network().kernel(x, store=tmp_path / "one", tile=TILE)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as c,
        Client(c) as client,
    ):
        shared = network().kernel(x, store=tmp_path / "two", tile=TILE, client=client)
        with pytest.raises(StoreError, match="belongs to one process"):
            network().kernel(x, store=MemoryStore(), tile=TILE, client=client)
    np.testing.assert_array_equal(np.asarray(shared.nngp), np.asarray(alone.nngp))
    np.testing.assert_array_equal(np.asarray(shared.ntk), np.asarray(alone.ntk))


def test_a_client_without_workers(tmp_path):
    with (
        threads(0) as c,
        Client(c) as client,
        pytest.raises(StoreError, match="without workers"),
    ):
        network().kernel(examples(), store=tmp_path / "k", tile=TILE, client=client)
    with pytest.raises(StoreError, match=r"client= is a client of dask\.distributed"):
        network().kernel(examples(), store=tmp_path / "k", tile=TILE, client="local")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_survived(tmp_path, workers):
    x = examples(400)
    alone = network().kernel(x, store=tmp_path / "one", tile=16)
    with local_client(workers) as client:
        victim = next(iter(client.run(os.getpid).values()))
        killed = threading.Event()

        def kill(done, total):
            if done >= total // 4 and not killed.is_set():
                os.kill(victim, signal.SIGKILL)
                killed.set()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shared = network().kernel(
                x, store=tmp_path / "two", tile=16, client=client, progress=kill
            )
        assert killed.is_set()
    np.testing.assert_array_equal(np.asarray(shared.ntk), np.asarray(alone.ntk))


def test_workers_keep_one_problem_at_a_time(tmp_path):
    cluster._walks.clear()
    x = examples(10)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as c,
        Client(c) as client,
    ):
        for w_std in (1.0, 1.1):
            place = tmp_path / str(w_std)
            stored = network(w_std).kernel(x, store=place, tile=4, client=client)
            np.testing.assert_allclose(np.asarray(stored.ntk), network(w_std).kernel(x).ntk)
    assert len(cluster._walks) == 1
