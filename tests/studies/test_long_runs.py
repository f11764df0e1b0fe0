"""Long runs in phases, on a few pictures: what is done stays done, tables say what was found."""

import io

import numpy as np
import pytest
from PIL import Image

from studies import phases
from studies.cifar10_all import networks
from widelimit.inference import KernelKind
from widelimit.layers.base import Layer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Pictures of two classes, brighter and darker, in the layout of `cifar10_full.npz`."""
    monkeypatch.setattr(Layer, "cost", lambda *args, **options: "")  # seconds of calibration
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 40), ("test", 12)):
        labels = np.arange(count) % 2
        pixels = rng.integers(0, 160, (count, 32, 32, 3)) + 90 * labels[:, None, None, None]
        files = []
        for picture in pixels.astype(np.uint8):
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "JPEG", quality=95)
            files.append(file.getvalue())
        arrays[f"jpeg_{split}"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"offsets_{split}"] = np.cumsum([0, *map(len, files)])
        arrays[f"y_{split}"] = labels
    np.savez(tmp_path / "cifar10_full.npz", **arrays)
    return tmp_path


def run(folder, out, sizes):
    study = phases.Study(folder, folder / out, sizes, 12, "blocked", 0)
    net = networks()["dense"]
    return study, [study.learned("dense", net, size) for size in study.counts]


def test_a_run_goes_on_where_it_was_stopped(folder, monkeypatch):
    _, whole = run(folder, "whole", "20,40")
    saved = np.save

    def stopped(file, array):
        if np.shape(array) == (40, 2):
            raise KeyboardInterrupt
        saved(file, array)

    with monkeypatch.context() as patched:
        patched.setattr(phases.np, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(folder, "stopped", "20,40")
    study, again = run(folder, "stopped", "20,40")
    for kind in KernelKind:
        for one, other in zip(whole, again, strict=True):
            np.testing.assert_array_equal(one[kind].correct, other[kind].correct)
            assert one[kind].accuracy > 0.8
    table = (folder / "stopped" / "record.md").read_text().splitlines()
    assert len(table) == 2 + 4
    assert all(line.count("|") == table[0].count("|") for line in table)
    assert f"{whole[1][KernelKind.NTK].accuracy:.4f}" in table[-1]
    assert study.record.known["dense 40 ntk solve"]["noise"] > 0


def test_a_larger_size_extends_the_stores(folder):
    run(folder, "grown", "20")
    _, grown = run(folder, "grown", "20,40")
    _, whole = run(folder, "whole", "40")
    for kind in KernelKind:
        np.testing.assert_array_equal(grown[1][kind].correct, whole[0][kind].correct)
