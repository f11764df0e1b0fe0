"""Kept kernels are those the network has, are computed once, and are trusted only if whole."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.app.fingerprint import fingerprint
from widelimit.app.studies.kept_kernels import KeptKernels, bands, entries
from widelimit.data import Labelled
from widelimit.engine import lengths
from widelimit.engine.inputs import Inputs
from widelimit.layers.base import Layer

TRAIN, TEST, HEIGHT = 10, 5, 4


def network(w_std=1.5):
    return wl.Serial(wl.MeanPool(), wl.Dense(1, w_std=w_std))


def part(count, seed, length=3):
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(1, length + 1, size=(count, 1))
    x = rng.normal(size=(count, length, 2)).astype(np.float32) * mask[..., None]
    return Labelled(x, np.zeros(count, np.int64), ("a", "b"), mask)


@pytest.fixture
def data():
    return part(TRAIN, 0), part(TEST, 1, length=4)


@pytest.fixture
def computed(monkeypatch):
    """How many kernel entries were computed."""
    counted = []
    real = Layer.kernel

    def kernel(self, x1, x2=None, **options):
        counted.append(len(x1) * (len(x1) + 1) // 2 if x2 is None else len(x1) * len(x2))
        return real(self, x1, x2, **options)

    monkeypatch.setattr(Layer, "kernel", kernel)
    return counted


def files(folder):
    return sorted(folder.rglob("*.npy"))


def test_bands_cover_every_needed_entry_once():
    covered = np.zeros((TRAIN + TEST, TRAIN), int)
    for band in bands(TRAIN, TEST, HEIGHT):
        covered[band.begin : band.end, : band.columns] += 1
    assert (covered <= 1).all()
    assert covered[np.tril_indices(TRAIN + TEST, 0, TRAIN)].all()


def test_kernels_are_those_of_the_network(tmp_path, data):
    found = KeptKernels(tmp_path, height=HEIGHT).get(network(), *data)
    joint = np.zeros((TRAIN + TEST, 4, 2), np.float32)
    mask = np.zeros((TRAIN + TEST, 4), bool)
    joint[:TRAIN, :3], joint[TRAIN:] = data[0].x, data[1].x
    mask[:TRAIN, :3], mask[TRAIN:] = data[0].mask, data[1].mask
    exact = network().kernel(joint, mask=mask)
    np.testing.assert_allclose(found.nngp, exact.nngp[:, :TRAIN], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.ntk, exact.ntk[:, :TRAIN], rtol=1e-5, atol=1e-6)


def test_sequences_cut_by_length_give_the_same_kernels(tmp_path, monkeypatch, computed):
    monkeypatch.setattr(lengths, "_COMPILATION", 1e-6)
    train, test = part(21, 0, length=40), part(9, 1, length=40)
    net = wl.Serial(wl.Conv(4, 3), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    found = KeptKernels(tmp_path, height=8).get(net, train, test)
    assert sum(computed) == entries(21, 9)
    assert train.mask is not None
    assert test.mask is not None
    x, mask = np.concatenate([train.x, test.x]), np.concatenate([train.mask, test.mask])
    assert len(lengths.groups(net, Inputs(x, mask, False))) > 2
    exact = net.kernel(x, mask=mask)
    np.testing.assert_allclose(found.nngp, exact.nngp[:, :21], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.ntk, exact.ntk[:, :21], rtol=1e-5, atol=1e-7)


def test_a_second_run_computes_nothing(tmp_path, data, computed):
    first = KeptKernels(tmp_path, height=HEIGHT).get(network(), *data)
    assert sum(computed) == entries(TRAIN, TEST)
    computed.clear()
    told = []
    again = KeptKernels(tmp_path, height=HEIGHT).get(
        network(), *data, told=lambda *step: told.append(step)
    )
    assert computed == []
    assert told[-1] == (len(told), len(told))
    np.testing.assert_array_equal(first.ntk, again.ntk)
    np.testing.assert_array_equal(first.nngp, again.nngp)


def test_an_interrupted_run_goes_on(tmp_path, data, computed):
    kept = KeptKernels(tmp_path, height=HEIGHT)

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.get(network(), *data, told=stop)
    before = sum(computed)
    assert 0 < before < entries(TRAIN, TEST)
    kept.get(network(), *data)
    assert sum(computed) == entries(TRAIN, TEST)


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def empty(path):
    path.write_bytes(b"")


def other_shape(path):
    np.save(path, np.zeros((2, 1, 1), np.float32))


@pytest.mark.parametrize("damage", [cut, flip, empty, other_shape])
def test_a_damaged_band_is_computed_anew(tmp_path, data, computed, damage):
    kept = KeptKernels(tmp_path, height=HEIGHT)
    whole = kept.get(network(), *data)
    computed.clear()
    damage(files(tmp_path)[1])
    again = kept.get(network(), *data)
    assert 0 < sum(computed) < entries(TRAIN, TEST)
    np.testing.assert_array_equal(whole.ntk, again.ntk)


def test_a_half_written_band_is_never_named(tmp_path, data, monkeypatch):
    def broken(file, array):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", broken)
    with pytest.raises(KeyboardInterrupt):
        KeptKernels(tmp_path, height=HEIGHT).get(network(), *data)
    assert not files(tmp_path)


def test_another_network_or_other_data_are_other_kernels(tmp_path, data, computed):
    kept = KeptKernels(tmp_path, height=HEIGHT)
    kept.get(network(), data[0])
    for net, train in ((network(w_std=1.6), data[0]), (network(), part(TRAIN, 7))):
        computed.clear()
        kept.get(net, train)
        assert sum(computed) == entries(TRAIN, 0)


def test_fingerprints_tell_structure_and_numbers_apart():
    attention = wl.Attention(8, scaling=wl.Scaling.LINEAR)
    names = [
        fingerprint(network()),
        fingerprint(network(1.6)),
        fingerprint(wl.Serial(attention, wl.MeanPool())),
        fingerprint(wl.Serial(wl.Attention(8), wl.MeanPool())),
        fingerprint(wl.Serial(attention, wl.SumPool())),
        fingerprint(wl.Serial(attention, wl.Flatten())),
        fingerprint(np.zeros(4)),
        fingerprint(np.zeros((2, 2))),
        fingerprint(np.zeros(4, np.float32)),
        fingerprint({"samples": 4}),
        fingerprint({"samples": 5}),
    ]
    assert len(set(names)) == len(names)
    assert fingerprint(network()) == fingerprint(network())
