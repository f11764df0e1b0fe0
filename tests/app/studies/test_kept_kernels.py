"""Kept kernels are those the network has, are computed once, and are trusted only if whole."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.app.studies.kept_kernels import KeptKernels
from widelimit.data import Labelled
from widelimit.engine.tiles import Pairs

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
    real = Pairs.computed

    def count(pairs, place):
        tile = real(pairs, place)
        rows, columns = tile.kernels.nngp.shape[:2]
        counted.append(rows * (rows + 1) // 2 if tile.diagonal else rows * columns)
        return tile

    monkeypatch.setattr(Pairs, "computed", count)
    return counted


def test_kernels_are_those_of_the_network(tmp_path, data):
    found = KeptKernels(tmp_path, tile=HEIGHT).get(network(), *data)
    joint = np.zeros((TRAIN + TEST, 4, 2), np.float32)
    mask = np.zeros((TRAIN + TEST, 4), bool)
    joint[:TRAIN, :3], joint[TRAIN:] = data[0].x, data[1].x
    mask[:TRAIN, :3], mask[TRAIN:] = data[0].mask, data[1].mask
    exact = network().kernel(joint, mask=mask)
    np.testing.assert_allclose(found.nngp, exact.nngp[:, :TRAIN], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.ntk, exact.ntk[:, :TRAIN], rtol=1e-5, atol=1e-6)


def test_a_second_run_computes_nothing(tmp_path, data, computed):
    first = KeptKernels(tmp_path, tile=HEIGHT).get(network(), *data)
    assert sum(computed) == TRAIN * (TRAIN + 1) // 2 + TEST * TRAIN
    computed.clear()
    seen = []
    again = KeptKernels(tmp_path, tile=HEIGHT).get(
        network(), *data, progress=lambda *step: seen.append(step)
    )
    assert computed == []
    assert seen == []
    np.testing.assert_array_equal(first.ntk, again.ntk)
    np.testing.assert_array_equal(first.nngp, again.nngp)


def test_an_interrupted_run_goes_on(tmp_path, data):
    kept = KeptKernels(tmp_path, tile=HEIGHT)

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    def tiles():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("c/*/*")}

    with pytest.raises(KeyboardInterrupt):
        kept.get(network(), *data, progress=stop)
    before = tiles()
    kept.get(network(), *data)
    after = tiles()
    assert 0 < len(before) < len(after)
    assert before.items() <= after.items()


def test_another_network_or_other_data_are_other_kernels(tmp_path, data, computed):
    kept = KeptKernels(tmp_path, tile=HEIGHT)
    kept.get(network(), data[0])
    for net, train in ((network(w_std=1.6), data[0]), (network(), part(TRAIN, 7))):
        computed.clear()
        kept.get(net, train)
        assert sum(computed) == TRAIN * (TRAIN + 1) // 2
