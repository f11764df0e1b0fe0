"""Stores wherever they are, and what is said of places that are none."""

import json
import threading
import time

import numpy as np
import pytest
from stores import TILE, chunks, examples, network

import widelimit as wl
from widelimit.engine import tiles

pytest.importorskip("zarr")
from zarr.storage import LocalStore

from widelimit.scale import KernelStore, StoreError
from widelimit.scale.places import located, shared


def same(stored, x):
    np.testing.assert_allclose(np.asarray(stored.ntk), network().kernel(x).ntk, rtol=1e-13)


def test_a_relative_path_means_the_same_place_later(tmp_path, monkeypatch):
    """Arrays are read when they are indexed, and workers have a folder of their own."""
    monkeypatch.chdir(tmp_path)
    stored = network().kernel_into("some/k", examples(), tile=TILE)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    same(stored, examples())
    assert stored.ntk.store.place == str(tmp_path / "some" / "k")


@pytest.mark.parametrize("place", ["memory://places/k", "file://{}/k", "{}/a b ü漢%20#/k"])
def test_addresses_and_paths(tmp_path, place):
    x, place = examples(), place.format(tmp_path)
    same(network().kernel_into(place, x[:20], tile=TILE), x[:20])
    same(network().kernel_into(place, x), x)
    assert KernelStore.exists(place)
    assert KernelStore(place).shape == (30, 30)


def test_zarr_stores_that_were_opened_before(tmp_path):
    x = examples()
    same(network().kernel_into(LocalStore(tmp_path / "k"), x[:20], tile=TILE), x[:20])
    reads = LocalStore(tmp_path / "k", read_only=True)
    same(network().kernel_into(reads, x[:20]), x[:20])
    with pytest.raises(StoreError, match="only reads"):
        network().kernel_into(reads, x)


@pytest.mark.parametrize("place", [5, "", b"k", {}, "nosuch://k"])
def test_what_is_no_place(place):
    with pytest.raises(StoreError, match=r"no place for a store|no address that fsspec knows"):
        network().kernel_into(place, examples())


def test_memory_belongs_to_one_process():
    assert not shared(located("memory://k"))
    assert shared(located("k"))


@pytest.mark.parametrize("tile", [0, -1, 1.5, "8", 10**9])
def test_tiles_have_a_size(tmp_path, tile):
    with pytest.raises(wl.WidelimitError, match=r"tile= is not a positive integer|One tile of"):
        network().kernel_into(tmp_path / "a" / "k", examples(), tile=tile)
    assert not (tmp_path / "a").exists()


def test_two_that_begin_at_once(tmp_path, monkeypatch):
    """Both ask for the same kernel of a place where there is none: one begins, both have it."""
    exists, found, x = KernelStore.exists, [], examples()

    def slow(place):
        there = exists(place)
        time.sleep(0.2)
        return there

    monkeypatch.setattr(KernelStore, "exists", staticmethod(slow))

    def ask():
        try:
            found.append(network().kernel_into(tmp_path / "k", x, tile=TILE))
        except Exception as error:
            found.append(error)

    both = [threading.Thread(target=ask) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    for one in found:
        assert not isinstance(one, Exception), one
        same(one, x)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("zarr.json", '"attributes"', '"attri`utes"'),
        ("zarr.json", '"node_type"', '"nnde_type"'),
        ("zarr.json", '"nngp"', '"nnwp"'),
        ("zarr.json", '"tile": 8', '"tile": 9'),
    ],
)
def test_descriptions_with_a_bit_that_flipped(tmp_path, name, old, new):
    network().kernel_into(tmp_path / "k", examples(), tile=TILE)
    path = tmp_path / "k" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(StoreError):
        network().kernel_into(tmp_path / "k", examples())


def test_a_length_in_the_manifest_that_has_changed(tmp_path, monkeypatch):
    """Tiles are cut by it: those that are still to come would be of shortened sequences."""
    monkeypatch.setattr(tiles, "_COMPILATION", 1e-6)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 2)) for n in rng.integers(1, 24, size=12)]
    net = wl.Serial(wl.Dense(4), wl.MeanPool(), wl.Dense(1))
    net.kernel_into(tmp_path / "k", x, tile=TILE)
    chunks(tmp_path / "k", "ntk")[1].unlink()
    path = tmp_path / "k" / "zarr.json"
    node = json.loads(path.read_text())
    cuts = node["attributes"]["widelimit"]["rows"][0]["cuts"]
    cuts[-1][1] -= 4
    path.write_text(json.dumps(node))
    with pytest.raises(StoreError, match="its digest does not hold"):
        net.kernel_into(tmp_path / "k", x)


def test_infinite_heads_are_in_a_manifest(tmp_path):
    net = wl.Serial(wl.Attention(4, scaling=wl.layers.Scaling.LINEAR), wl.MeanPool(), wl.Dense(1))
    x = np.random.default_rng(0).normal(size=(5, 3, 2))
    stored = [net.kernel_into(tmp_path / "k", x, tile=TILE) for _ in range(2)][1]
    np.testing.assert_allclose(np.asarray(stored.ntk), net.kernel(x).ntk, rtol=1e-13)
