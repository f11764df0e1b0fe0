"""Killed runs and full disks: the kernel is right in the end, and nothing whole is redone."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from stores import Counter, chunks, corrupt, empty, examples, network, truncate

pytest.importorskip("zarr")
from widelimit.scale import KernelStore, StoreError

TILE, SIZE = 32, 512
TILES = (SIZE // TILE) * (SIZE // TILE + 1) // 2

_RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from stores import examples, network
print("begin", flush=True)
network().kernel_into(sys.argv[2], examples(int(sys.argv[3])), tile=int(sys.argv[4]))
print("end", flush=True)
"""


def started(folder):
    """A process that computes the kernel, once it is about to begin."""
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", _RUN, here, str(folder), str(SIZE), str(TILE)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    return process


def whole(folder):
    return set(KernelStore(folder).list_tiles()) if KernelStore.exists(folder) else set()


def killed(folder, seconds, tiles=1):
    """Tiles that are whole after a run was killed, some seconds after its first tiles."""
    before = len(chunks(folder)) if folder.exists() else 0
    process = started(folder)
    while process.poll() is None and len(chunks(folder)) < before + tiles:
        time.sleep(0.001)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return whole(folder)


def finished(folder, monkeypatch):
    """The kernel after a last run, and how many tiles that run computed."""
    counter = Counter(monkeypatch)
    stored = network().kernel_into(folder, examples(SIZE))
    exact = network().kernel(examples(SIZE))
    np.testing.assert_allclose(np.asarray(stored.nngp), exact.nngp, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(np.asarray(stored.ntk), exact.ntk, rtol=1e-13, atol=1e-15)
    return counter


def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "k"
    left = killed(folder, 0.0, tiles=5)
    assert left
    counter = Counter(monkeypatch)
    network().kernel_into(folder, examples(SIZE))
    assert counter.tiles == TILES - len(left)
    finished(folder, monkeypatch)


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path, monkeypatch):
    folder, rng = tmp_path / "k", np.random.default_rng(0)
    left: set = set()
    for _ in range(20):
        now = killed(folder, rng.uniform(0, 0.05))
        assert left <= now  # nothing that was whole is lost
        left = now
        if len(left) == TILES:  # done too early: some of it goes
            for path in rng.choice(chunks(folder), TILES // 2, replace=False):
                path.unlink()
            left = whole(folder)
    counter = Counter(monkeypatch)
    network().kernel_into(folder, examples(SIZE))
    assert counter.tiles == TILES - len(left)
    finished(folder, monkeypatch)


@pytest.mark.slow
def test_many_tiles_spoiled_in_every_way(tmp_path, monkeypatch):
    folder, rng = tmp_path / "k", np.random.default_rng(1)
    network().kernel_into(folder, examples(SIZE), tile=TILE)
    spoiled = set()
    for name in ("nngp", "ntk"):
        for path in rng.choice(chunks(folder, name), 12, replace=False):
            [corrupt, truncate, empty, type(path).unlink][rng.integers(4)](path)
            spoiled.add((path.parent.name, path.name))
    KernelStore(folder, read_only=False).verify(remove=True)
    assert len(whole(folder)) == TILES - len(spoiled)
    counter = Counter(monkeypatch)
    network().kernel_into(folder, examples(SIZE))
    assert counter.tiles == len(spoiled)
    finished(folder, monkeypatch)


def test_a_full_disk_is_said_and_survived(mounted, monkeypatch):
    place = mounted("size=1m")
    with pytest.raises(StoreError, match="free some space and make the same call again"):
        network().kernel_into(place / "k", examples(SIZE), tile=TILE)
    left = whole(place / "k")
    assert 0 < len(left) < TILES
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    counter = Counter(monkeypatch)
    network().kernel_into(place / "k", examples(SIZE))
    assert counter.tiles == TILES - len(left)
    finished(place / "k", monkeypatch)


def test_a_read_only_disk(mounted):
    place = mounted("ro")
    with pytest.raises(StoreError, match="choose a folder on a disk that you may write to"):
        network().kernel_into(place / "k", examples())
