"""A full disk in the middle of every command that writes: one sentence, earlier files as before."""

import contextlib

import pytest
from command_line import call, write_flowers

from widelimit.app.studies import finite_heads as setting
from widelimit.app.studies.finite_heads import SimulationSize

LEARN = ("--label", "species", "--network", "linear")
COMMANDS = {
    "classify": ("classify", "t.csv", *LEARN, "--out", "disk/out"),
    "classify --save": ("classify", "t.csv", *LEARN, "--out", "out", "--save", "disk/m.wl"),
    "classify --report": ("classify", "t.csv", *LEARN, "--out", "out", "--report", "disk/r.html"),
    "regress": (
        *("regress", "t.csv", "--target", "height", "--network", "linear"),
        *("--out", "disk/out"),
    ),
    "kernel .npy": ("kernel", "t.csv", "--network", "linear", "--out", "disk/k.npy"),
    "kernel .npz": ("kernel", "t.csv", "--network", "linear", "--out", "disk/k.npz"),
    "kernel --report": (
        *("kernel", "t.csv", "--network", "linear", "--out", "k.npz"),
        *("--report", "disk/kernel.html"),
    ),
    "audit": ("audit", "m.py:make", "--shape", "3", "--report", "disk/audit.html"),
    "predict": ("predict", "m.wl", "t.csv", "--out", "disk/p.csv"),
    "law": ("law", "--heads", "1", "--width", "0", "--draws", "64", "--report", "disk/law.html"),
    "reproduce": ("reproduce", "scores", "--out", "disk/out"),
}


MODEL = """
import jax

def make(width, key):
    weights = jax.random.normal(key, (width, 3))
    readout = jax.random.normal(jax.random.fold_in(key, 1), (width,))
    return lambda x: readout @ jax.numpy.tanh(weights @ x) / width**0.5
"""


@pytest.fixture
def disk(tmp_path, mounted, monkeypatch):
    """A small disk, `disk` in the folder of the test, where commands run."""
    place = mounted("size=64m")
    (tmp_path / "disk").symlink_to(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setting, "SMALL", SimulationSize(runs=500, seeds=1, draws=2**8))
    (tmp_path / "m.py").write_text(MODEL)
    write_flowers(tmp_path / "t.csv", 600)  # outputs are larger than what is left
    return place


def fill(disk, left):
    """All of the disk but this number of bytes."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):  # no space left
            while file.write(bytes(65536)) == 65536:
                pass
        file.truncate(max(0, file.tell() - left))


def contents(disk):
    """All files that a user looks at: locks and stores of kernels are the program's own."""
    paths = [p for p in disk.rglob("*") if p.is_file() and p.name != "filler"]
    return {p: p.read_bytes() for p in paths if "kernel_" not in str(p) and ".store" not in str(p)}


def check(capsys, disk, name, left):
    if name == "predict":
        save = ("classify", "t.csv", *LEARN, "--out", "out", "--save", "m.wl")
        call(capsys, *save)
    call(capsys, *COMMANDS[name])
    before = contents(disk)
    assert before
    fill(disk, min(left, sum(map(len, before.values())) // 2))
    found = call(capsys, *COMMANDS[name], code=2)
    assert all(part in found.err for part in ("error: ", "got: ", "remedy: ", "space"))
    assert not found.out or name == "audit"  # which has said its table before it writes the page
    assert contents(disk) == before
    (disk / "filler").unlink()
    call(capsys, *COMMANDS[name])
    assert contents(disk).keys() == before.keys()


def test_a_full_disk_in_the_middle_of_a_kernel(capsys, disk):
    check(capsys, disk, "kernel .npy", 16384)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 4096, 16384])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_in_the_middle_of_a_command(capsys, disk, name, left):
    check(capsys, disk, name, left)
