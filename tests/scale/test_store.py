"""A stored kernel is the network's, is computed once, and is trusted only where it is whole."""

import json
import os
import time
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from stores import TILE, Counter, chunks, corrupt, empty, examples, network, truncate

import widelimit as wl
from widelimit.engine import tiles
from widelimit.engine.threads import one_at_a_time

pytest.importorskip("zarr")
import zarr
from zarr.storage import MemoryStore

from widelimit.scale import KernelStore, StoreError, compute
from widelimit.scale.places import Files


def test_a_stored_kernel_is_the_kernel(tmp_path):
    x = examples()
    exact, stored = network().kernel(x), network().kernel_into(tmp_path / "k", x, tile=TILE)
    np.testing.assert_allclose(np.asarray(stored.nngp), exact.nngp, rtol=1e-14)
    np.testing.assert_allclose(np.asarray(stored.ntk), exact.ntk, rtol=1e-14)
    assert len(chunks(tmp_path / "k")) == 4 * 5 // 2  # one half of 4 × 4 tiles
    rows, columns = [29, 3, 3], slice(5, 25, 3)
    np.testing.assert_array_equal(stored.ntk[rows, columns], np.asarray(stored.ntk)[rows, columns])
    np.testing.assert_array_equal(stored.ntk[7], np.asarray(stored.ntk)[7])
    assert stored.ntk[7, 2] == stored.ntk[2, 7]
    np.testing.assert_array_equal(stored.nngp.diagonal(), np.diagonal(stored.nngp))
    right = np.random.default_rng(1).normal(size=(30, 2))
    np.testing.assert_allclose(stored.nngp @ right, exact.nngp @ right, rtol=1e-12)


def test_test_against_training_examples(tmp_path):
    x, test = examples(), examples(11, seed=1)
    exact = network().kernel(test, x)
    stored = network().kernel_into(tmp_path / "k", test, x, tile=TILE)
    np.testing.assert_allclose(np.asarray(stored.ntk), exact.ntk, rtol=1e-14)


@pytest.mark.slow
def test_nngp_alone_and_kernels_that_keep_positions(tmp_path):
    net = wl.Serial(wl.Conv(4, 3), wl.Relu(), wl.Dense(1))
    x = np.random.default_rng(0).normal(size=(9, 5, 2)).astype(np.float32)
    stored = net.kernel_into(tmp_path / "k", x, tile=4, ntk=False)
    assert stored.ntk is None
    exact = net.kernel(x, ntk=False).nngp
    np.testing.assert_allclose(np.asarray(stored.nngp), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(stored.nngp[8, 1], np.asarray(stored.nngp)[8, 1])


@pytest.mark.slow
def test_sampled_kernels_keep_their_standard_errors(tmp_path):
    net = wl.Serial(wl.Attention(4), wl.MeanPool(), wl.Dense(1))
    x = np.random.default_rng(0).normal(size=(6, 3, 2))
    stored, exact = net.kernel_into(tmp_path / "k", x, tile=4), net.kernel(x)
    np.testing.assert_allclose(np.asarray(stored.ntk_error), exact.ntk_error, rtol=1e-9)
    with pytest.raises(StoreError, match=r"sampler"):
        net.kernel_into(tmp_path / "k", x, key=1)
    # Landmarks are chosen among the examples: more of them have other ones.
    deep, more = wl.Serial(wl.Dense(4), wl.Relu(), net), np.concatenate([x, x + 1])
    deep.kernel_into(tmp_path / "deep", x, tile=4)
    with pytest.raises(StoreError, match=r"draw the heads of the first call, sampler=net\.sampler"):
        deep.kernel_into(tmp_path / "deep", more)
    sampler = deep.sampler(x)
    stored = deep.kernel_into(tmp_path / "deep", more, sampler=sampler)
    exact = deep.kernel(more, sampler=sampler)
    np.testing.assert_allclose(np.asarray(stored.ntk), exact.ntk, rtol=1e-9)


def test_sequences_are_sorted_by_length_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "_COMPILATION", 1e-6)
    monkeypatch.setattr(tiles, "_MOST_GROUPS", 2)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 2)) for n in rng.integers(1, 24, size=20)]
    net = wl.Serial(wl.Dense(4), wl.MeanPool(), wl.Dense(1))
    stored = net.kernel_into(tmp_path / "k", x, tile=TILE)
    strips = KernelStore(tmp_path / "k").manifest.rows
    order = np.concatenate([strip.members for strip in strips])
    lengths = {part.length for strip in strips for part in strip.parts}
    assert len(lengths) > 1
    assert (np.diff([len(x[i]) for i in order]) < 0).sum() < len(lengths)
    np.testing.assert_allclose(np.asarray(stored.ntk), net.kernel(x).ntk, rtol=1e-12)
    longer = x + [rng.normal(size=(n, 2)) for n in (30, 3)]  # the old ones are padded further
    more = net.kernel_into(tmp_path / "k", longer)
    np.testing.assert_allclose(np.asarray(more.ntk), net.kernel(longer).ntk, rtol=1e-12)


@pytest.mark.parametrize(("scale", "w_std"), [(1e-20, 1e19), (1e22, 1e-22)])
def test_what_single_precision_cannot_compute(tmp_path, scale, w_std):
    """Squares of the inputs leave single precision; the kernels do not."""
    x = (scale * examples()).astype(np.float32)
    stored = network(w_std).kernel_into(tmp_path / "k", x, tile=TILE)
    plain = network(w_std).kernel(x)
    assert stored.ntk.dtype == plain.ntk.dtype == np.float32
    exact = network(w_std).kernel(x.astype(np.float64))
    np.testing.assert_allclose(np.asarray(stored.ntk), exact.ntk, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(stored.ntk), plain.ntk, rtol=1e-6)


def test_activations_without_digits_in_single_precision(tmp_path):
    net = wl.Serial(wl.Dense(4, w_std=1e-6), wl.Tanh(), wl.Dense(1, w_std=1e6))
    x = examples(9).astype(np.float32)
    stored = net.kernel_into(tmp_path / "k", x, tile=TILE)
    np.testing.assert_allclose(np.asarray(stored.ntk), net.kernel(x).ntk, rtol=1e-6)


def test_what_is_whole_is_not_computed_again(tmp_path, monkeypatch):
    x = examples()
    first = np.asarray(network().kernel_into(tmp_path / "k", x, tile=TILE).ntk)
    counter = Counter(monkeypatch)
    again = network().kernel_into(tmp_path / "k", x)
    assert counter.tiles == 0
    np.testing.assert_array_equal(np.asarray(again.ntk), first)


def test_a_store_of_both_kernels_serves_who_wants_one(tmp_path, monkeypatch):
    x, place = examples(40), tmp_path / "k"
    both = network().kernel_into(place, x[:30], tile=TILE)
    counter = Counter(monkeypatch)
    alone = network().kernel_into(place, x[:30], ntk=False)
    assert counter.tiles == 0
    assert alone.ntk is None
    np.testing.assert_array_equal(np.asarray(alone.nngp), np.asarray(both.nngp))
    # More examples extend both kernels, or the store would be whole in one and not in the other.
    network().kernel_into(place, x, ntk=False)
    before = counter.tiles
    extended = network().kernel_into(place, x)
    assert counter.tiles == before
    np.testing.assert_allclose(np.asarray(extended.ntk), network().kernel(x).ntk, rtol=1e-14)
    network().kernel_into(tmp_path / "one", x, tile=TILE, ntk=False)
    with pytest.raises(StoreError, match="names"):
        network().kernel_into(tmp_path / "one", x)


def test_computing_goes_on_while_the_disk_takes_its_time(tmp_path, monkeypatch):
    counter, enough, write = Counter(monkeypatch), Event(), KernelStore.write
    counter.listeners.append(lambda: enough.set() if counter.tiles == 4 else None)

    def slow(*args):
        assert enough.wait(60), "the next tiles are not computed before the first one is written"
        write(*args)

    monkeypatch.setattr(KernelStore, "write", slow)
    with one_at_a_time():  # else other threads compute while nobody listens
        stored = network().kernel_into(tmp_path / "k", examples(), tile=TILE)
    np.testing.assert_allclose(np.asarray(stored.ntk), network().kernel(examples()).ntk, rtol=1e-14)


def test_who_stops_it_finds_all_that_was_computed_for_the_disk(tmp_path, monkeypatch):
    """Nothing writes there any more, and the next call goes on with it."""
    seen, write = [], KernelStore.write

    def counted(*args):
        time.sleep(0.05)  # tiles wait for the disk when it is stopped
        write(*args)
        seen.append(args[1])

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(KernelStore, "write", counted)
    with pytest.raises(KeyboardInterrupt):
        network().kernel_into(tmp_path / "k", examples(), tile=TILE, progress=stop)
    whole = KernelStore(tmp_path / "k").list_tiles()
    assert len(whole) >= 2
    assert sorted(seen) == whole
    counter = Counter(monkeypatch)
    network().kernel_into(tmp_path / "k", examples())
    assert counter.tiles == 10 - len(whole)


@pytest.mark.parametrize("spoil", [corrupt, truncate, empty, Path.unlink])
def test_what_is_not_whole_is_found_and_computed_again(tmp_path, monkeypatch, spoil):
    x, folder = examples(), tmp_path / "k"
    whole = np.asarray(network().kernel_into(folder, x, tile=TILE).ntk)
    spoil(chunks(folder, "ntk")[3])
    spoil(chunks(folder, "nngp")[7])
    with pytest.raises(StoreError, match=r"damaged|missing"):
        np.asarray(KernelStore(folder).ntk)
    damaged = KernelStore(folder, read_only=False).verify(remove=True)
    assert len(damaged) == (0 if spoil is Path.unlink else 2)
    counter = Counter(monkeypatch)
    again = network().kernel_into(folder, x)
    assert counter.tiles == 2
    np.testing.assert_array_equal(np.asarray(again.ntk), whole)
    assert KernelStore(folder).verify() == []


def test_more_examples_extend_it(tmp_path, monkeypatch):
    x = examples(40)
    network().kernel_into(tmp_path / "k", x[:30], tile=TILE)
    counter = Counter(monkeypatch)
    stored = network().kernel_into(tmp_path / "k", x)
    assert counter.tiles == 2 * 4 + 3  # two new strips of 8 and 2 examples, against four old ones
    np.testing.assert_allclose(np.asarray(stored.ntk), network().kernel(x).ntk, rtol=1e-14)


def test_an_extension_that_was_stopped_is_not_what_the_next_one_is(tmp_path, monkeypatch):
    """It had written the new shapes of its arrays, and not yet the manifest."""
    monkeypatch.setattr(tiles, "_COMPILATION", 1e-6)
    rng = np.random.default_rng(0)
    net = wl.Serial(wl.Dense(4), wl.MeanPool(), wl.Dense(1))

    def sequences(*sizes):
        return [rng.normal(size=(size, 2)) for size in sizes]

    first, place = sequences(3, 9, 20, 4), tmp_path / "k"
    stopped, other = sequences(2, 30, 5, 17, 2, 2), sequences(30, 2, 17, 5, 30, 30)
    net.kernel_into(place, first, tile=4)

    def stop(files, key, content):
        if key == "zarr.json":
            raise KeyboardInterrupt
        write(files, key, content)

    write = Files.write
    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            net.kernel_into(place, first + stopped)
    for more in (other[:5], other):  # fewer examples, and as many
        stored = net.kernel_into(place, first + more)
        exact = net.kernel(first + more)
        np.testing.assert_allclose(np.asarray(stored.ntk), exact.ntk, rtol=1e-12)


def test_another_kernel_is_refused_with_what_differs(tmp_path):
    x, place = examples(), tmp_path / "k"
    network().kernel_into(place, x, tile=TILE)
    with pytest.raises(StoreError, match=r"w_std is 1\.5, and 1\.3 in the store"):
        network(1.5).kernel_into(place, x)
    with pytest.raises(StoreError, match="dtype is float32, and float64"):
        network().kernel_into(place, x.astype(np.float32))
    with pytest.raises(StoreError, match=r"among 16 to 23 of 'x1'"):
        network().kernel_into(place, np.where(np.arange(30)[:, None] == 20, 0.0, x))
    with pytest.raises(StoreError, match="20 examples in 'x1', and 30"):
        network().kernel_into(place, x[:20])
    with pytest.raises(StoreError, match="tiles of 8"):
        network().kernel_into(place, x, tile=16)
    with pytest.raises(StoreError, match="symmetric is False"):
        network().kernel_into(place, x, x)


def test_other_zarr_stores():
    x, memory = examples(), MemoryStore()
    first = np.asarray(network().kernel_into(memory, x, tile=TILE).ntk)
    np.testing.assert_array_equal(KernelStore(memory).ntk[:], first)


def test_any_program_for_zarr_reads_the_tiles(tmp_path):
    network().kernel_into(tmp_path / "k", examples(32), tile=TILE)
    found = zarr.open_group(tmp_path / "k", mode="r")["ntk"][:8, 8:]
    np.testing.assert_array_equal(found, KernelStore(tmp_path / "k").ntk[:8, 8:])


def test_progress_counts_all_tiles(tmp_path):
    seen = []
    x = examples()
    network().kernel_into(tmp_path / "k", x[:24], tile=TILE)
    network().kernel_into(tmp_path / "k", x, progress=lambda *told: seen.append(told))
    assert seen == [(7, 10), (8, 10), (9, 10), (10, 10)]


def test_the_log_has_tiles_and_time_left(tmp_path, monkeypatch, caplog):
    x = examples()
    network().kernel_into(tmp_path / "k", x[:24], tile=TILE)
    monkeypatch.setattr(compute, "_LOG_SECONDS", -1.0)  # else one a minute
    with caplog.at_level("INFO", logger="widelimit.scale"):
        network().kernel_into(tmp_path / "k", x)
    told = [record.getMessage().split(": ")[1] for record in caplog.records]
    assert told[0] == "4 of 10 tiles to compute"
    assert [line.split(" tiles, ")[0] for line in told[1:]] == ["7/10", "8/10", "9/10", "10/10"]
    assert told[-1].endswith("tiles, 0 s left")


# --- bad places -----------------------------------------------------------------------------------


def _edited(folder, change):
    path = folder / "zarr.json"
    node = json.loads(path.read_text())
    change(node["attributes"]["widelimit"])
    path.write_text(json.dumps(node))


def test_a_store_of_another_version(tmp_path):
    network().kernel_into(tmp_path / "k", examples(), tile=TILE)
    _edited(tmp_path / "k", lambda node: node.update(version=99))
    with pytest.raises(StoreError, match="of version 99"):
        network().kernel_into(tmp_path / "k", examples())


def test_half_a_manifest(tmp_path):
    network().kernel_into(tmp_path / "k", examples(), tile=TILE)
    _edited(tmp_path / "k", lambda node: node.pop("rows"))
    with pytest.raises(StoreError, match="damaged manifest"):
        network().kernel_into(tmp_path / "k", examples())
    truncate(tmp_path / "k" / "zarr.json")
    with pytest.raises(StoreError, match="damaged manifest"):
        network().kernel_into(tmp_path / "k", examples())


def test_a_path_that_is_something_else(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(StoreError, match="is a file"):
        network().kernel_into(tmp_path / "file", examples())
    with pytest.raises(StoreError, match="holds other things"):
        network().kernel_into(tmp_path, examples())
    with pytest.raises(StoreError, match="no store at"):
        KernelStore(tmp_path / "none")
    with pytest.raises(StoreError, match="is a file"):
        KernelStore(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(StoreError, match="choose a folder on a disk that you may write to"):
        network().kernel_into(tmp_path / "locked" / "k", examples())


def test_tiles_are_for_stores():
    with pytest.raises(wl.WidelimitError, match="tile= is set, and the kernels do not go"):
        network().kernel_into(lambda *_: None, examples(), tile=4)
