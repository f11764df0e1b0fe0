"""Long runs in phases, on a few pictures: what is done stays done, tables say what was found."""

import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import widelimit as wl
from studies import phases
from studies.cifar10_all import networks
from widelimit.app.studies.readouts import Readouts
from widelimit.inference import KernelKind
from widelimit.layers.base import Layer


@pytest.fixture
def pictures():
    """How many there are to learn from."""
    return 40


@pytest.fixture
def folder(tmp_path, monkeypatch, pictures):
    """Pictures of two classes, brighter and darker, in the layout of `cifar10_full.npz`."""
    nothing = SimpleNamespace(seconds=0.0, factorising=0.0, disk=0)  # instead of seconds
    monkeypatch.setattr(Layer, "cost", lambda *args, **options: nothing)
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", pictures), ("test", 12)):
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
    return study, [study.learned("dense", net, size)[0] for size in study.counts]


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
    assert study.record.known["dense 40 ntk noise"]["noise"] > 0


def test_a_larger_size_extends_the_stores(folder):
    run(folder, "grown", "20")
    _, grown = run(folder, "grown", "20,40")
    _, whole = run(folder, "whole", "40")
    for kind in KernelKind:
        np.testing.assert_array_equal(grown[1][kind].correct, whole[0][kind].correct)


def test_networks_beside_one_another_are_learned_as_each_alone(folder):
    study = phases.Study(folder, folder / "out", "40", 12, "cholesky", 0)
    trunk = wl.Serial(wl.Conv(8, 3), wl.Relu())
    ends = (wl.Serial(wl.MeanPool(), wl.Dense(1)), wl.Serial(wl.Flatten(), wl.Dense(1)))
    both = study.learned("both", wl.Serial(trunk, Readouts(*ends)), 40, (0, 1))
    for number, end in enumerate(ends):
        [alone] = study.learned(f"alone{number}", wl.Serial(trunk, end), 40)
        for kind in KernelKind:
            one, two = (
                np.load(study.out / f"{name}_40.npy")
                for name in (f"both_{kind.value}-{number}", f"alone{number}_{kind.value}")
            )
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4 * np.abs(two).max())
            np.testing.assert_array_equal(both[number][kind].correct, alone[kind].correct)


KILLED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from studies import phases
from studies.cifar10_all import networks
from widelimit.inference.blocked import BlockFiles
from widelimit.scale import KernelStore

folder, out, event, left = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
nothing = SimpleNamespace(seconds=0.0, factorising=0.0, disk=0)
phases.TILE, phases.Layer.cost = 64, lambda *args, **options: nothing

def watched(owner, name, label):
    real = getattr(owner, name)
    def call(self, place, *rest):
        global left
        found = real(self, place, *rest)
        where = getattr(self, "place", getattr(self, "folder", ""))
        with open(out.with_suffix(".log"), "a") as log:
            print(label, Path(str(where)).name, Path(str(where)).parent.name, place, file=log)
        left -= label == event
        if label == event and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(owner, name, call)

def saved(file, array, save=np.save):
    save(file, array)
    if event == "correct" and np.asarray(array).dtype == bool:
        os.kill(os.getpid(), signal.SIGKILL)

watched(KernelStore, "write", "tile")
watched(BlockFiles, "write", "block")
phases.np.save = saved
study = phases.Study(folder, out, "400", 12, "blocked", 0)
[found] = study.learned("dense", networks()["dense"], 400)
np.save(out.with_suffix(".npy"), [found[kind].correct.astype(int) for kind in phases.KernelKind])
"""


@pytest.mark.slow
@pytest.mark.parametrize("pictures", [400])
def test_kill_9_in_each_phase_costs_what_was_being_done(folder):
    """After some tiles, after some blocks of either factor, and when predictions are kept."""
    for name, kills in (("whole", []), ("killed", KILLS)):
        for event, left in [*kills, ("none", 0)]:
            command = [sys.executable, "-c", KILLED, folder, folder / name, event, str(left)]
            ended = subprocess.run(command, check=False, capture_output=True)
            assert ended.returncode == (0 if event == "none" else -9), ended.stderr.decode()
    one, two = (np.load(folder / f"{name}.npy") for name in ("whole", "killed"))
    np.testing.assert_array_equal(one, two)
    logs = [(folder / f"{name}.log").read_text().splitlines() for name in ("whole", "killed")]
    tiles, blocks = 28 + 7, 2 * 10  # of a kernel of 400 and one with the tests; of two factors
    assert len(logs[0]) == len(set(logs[0])) == tiles + blocks
    assert sorted(line[:5] for line in logs[1]) == sorted(line[:5] for line in logs[0])
    assert len(set(logs[1])) == len(logs[1])  # none that was there is written again


KILLS = [("tile", 5), ("tile", 20), ("block", 4), ("block", 4), ("correct", 0), ("block", 7)]
