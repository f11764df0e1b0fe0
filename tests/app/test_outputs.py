"""Outputs are whole, belong to one run, and never replace what is read."""

import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from command_line import call, refused, write_flowers

from widelimit.app.cli import matrix, outputs
from widelimit.data import DataError, save_npz, write_text
from widelimit.data.locks import alone


def accuracy(capsys, *arguments):
    return json.loads(call(capsys, *arguments, "--json").out)["accuracy"]


# --- one run at a time ----------------------------------------------------------------------------

HOLD = """
import sys
from widelimit.data.locks import alone
with alone(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold():
    """Another process that holds a lock until the test ends."""
    others = []

    def start(place):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        other = subprocess.Popen([sys.executable, "-c", HOLD, str(place)], **pipes)
        others.append(other)
        assert other.stdout.readline() == b"held\n"
        return other

    yield start
    for other in others:
        other.communicate(timeout=20)


def test_a_folder_in_use_is_refused_and_free_again_after_a_kill(capsys, tmp_path, hold):
    file, out = write_flowers(tmp_path / "t.csv"), tmp_path / "out"
    other = hold(out / ".lock")
    said = refused(capsys, "classify", file, "--label", "species", "--out", out)
    assert "--out" in said
    assert not (out / "predictions.csv").exists()
    other.kill()
    other.wait()
    with alone(out / ".lock"), alone(out / ".lock"):  # again, by the same thread
        pass
    assert not (out / ".lock").exists()


def test_threads_exclude_each_other(tmp_path):
    def enter():
        with alone(tmp_path / ".lock"):
            return True

    with ThreadPoolExecutor(1) as pool:
        with alone(tmp_path / ".lock"):
            late = pool.submit(enter)
            assert isinstance(late.exception(), DataError)
        assert pool.submit(enter).result()


def test_a_lock_on_a_full_disk_is_refused_and_not_asked_for_again_and_again(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(DataError, match="No space left"), alone(tmp_path / ".lock"):
            pass
    assert list(tmp_path.iterdir()) == []
    with alone(tmp_path / ".lock"):
        pass


def test_folders_made_for_a_lock_go_with_it_unless_something_is_in_them(tmp_path):
    (tmp_path / "mine").mkdir()
    with alone(tmp_path / "mine" / "new" / "inner" / ".lock"):
        pass
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    with alone(tmp_path / "kept" / ".lock"):
        write_text(tmp_path / "kept" / "result.txt", "whole")
    assert [found.name for found in (tmp_path / "kept").iterdir()] == ["result.txt"]


def test_runs_that_end_and_begin_in_one_new_folder_do_not_meet_a_hole(tmp_path):
    """One removes the folder that the other has just made: the other makes it again."""

    def visits(number):
        outcomes = []
        for _ in range(300):
            try:
                with alone(tmp_path / "new" / ".lock"):
                    outcomes.append("held")
            except DataError as error:
                outcomes.append("refused" if "Another run is at work" in str(error) else str(error))
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        found = {outcome for outcomes in pool.map(visits, range(4)) for outcome in outcomes}
    assert "held" in found
    assert found <= {"held", "refused"}


@pytest.mark.parametrize("hole", [FileNotFoundError, FileExistsError])
def test_a_folder_that_vanishes_while_it_is_made_is_made_again(tmp_path, monkeypatch, hole):
    """`mkdir` finds it there, and then it is gone; or it is gone when the lock is opened."""
    real, holes = Path.mkdir, [hole()]

    def mkdir(self, *arguments, **options):
        if holes:
            raise holes.pop()
        real(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with alone(tmp_path / "new" / ".lock"):
        assert (tmp_path / "new" / ".lock").exists()


def test_a_refused_command_leaves_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(capsys, "classify", "nowhere.csv")
    assert list(tmp_path.iterdir()) == []


# --- kept kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    ["cut", "flip", *(pytest.param(d, marks=pytest.mark.slow) for d in ("zeros", "empty"))],
)
def test_a_damaged_kept_kernel_is_not_believed(capsys, tmp_path, damage):
    file, out = write_flowers(tmp_path / "t.csv"), tmp_path / "out"
    command = ("classify", file, "--label", "species", "--out", out, "--network", "linear")
    first = accuracy(capsys, *command)
    (chunk,) = (p for p in (out / "kernel_nngp" / "nngp" / "c").rglob("*") if p.is_file())
    whole = chunk.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "flip": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "empty": b"",
    }
    chunk.write_bytes(damaged[damage])
    found = call(capsys, *command, "--json")
    assert json.loads(found.out)["accuracy"] == first
    assert "damaged" in found.err
    assert chunk.read_bytes() == whole
    assert not list(out.glob(".*"))


def test_a_full_disk_leaves_the_earlier_kernel(capsys, tmp_path, monkeypatch):
    file, out = write_flowers(tmp_path / "t.csv"), tmp_path / "k.npy"
    call(capsys, "kernel", file, "-o", out, "--network", "linear")
    before = out.read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(capsys, "kernel", file, "-o", out, "--network", "linear")
    assert out.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


# --- what outputs may be --------------------------------------------------------------------------


def test_inputs_are_not_overwritten(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = write_flowers(Path("t.csv"))
    os.link(table, "link.csv")
    Path("soft.csv").symlink_to(table)
    rng = np.random.default_rng(0)
    save_npz("f.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2)
    before = table.read_bytes(), Path("f.npz").read_bytes()
    learn = ("classify", "t.csv", "--label", "species")
    for command in (
        ("kernel", "f.npz", "-o", "f.npz"),
        ("kernel", "f.npz", "-o", "k.npy", "--report", "f.npz"),
        (*learn, "--save", "t.csv"),
        (*learn, "--save", "../" + tmp_path.name + "/t.csv"),
        (*learn, "--save", "link.csv"),
        (*learn, "--save", "soft.csv"),
        (*learn, "--report", "t.csv"),
        ("predict", "m.wl", "t.csv", "-o", "m.wl"),
        ("predict", "m.wl", "t.csv", "-o", "t.csv"),
        ("law", "t.csv", "--text", "colour", "--report", "t.csv"),
    ):
        assert "would overwrite" in refused(capsys, *command), command
    Path("t.predictions.csv").write_bytes(before[0])
    assert "would overwrite" in refused(capsys, "predict", "m.wl", "t.predictions.csv")
    Path("out").mkdir()
    Path("out/predictions.csv").write_bytes(before[0])
    assert "would overwrite" in refused(
        capsys, "classify", "out/predictions.csv", "--label", "species", "--out", "out"
    )
    assert "are one file" in refused(capsys, *learn, "--save", "m", "--report", "m")
    assert (table.read_bytes(), Path("f.npz").read_bytes()) == before


def test_tiles_have_a_folder_of_their_own(capsys, tmp_path, monkeypatch):
    """It is taken away when a kernel is done, with all that is in it."""
    monkeypatch.chdir(tmp_path)
    for folder in ("k.npz.store", "out/kernel_nngp"):
        Path(folder).mkdir(parents=True)
    table = write_flowers(Path("k.npz.store/t.csv"))
    other = write_flowers(Path("t.csv"))
    learn = ("classify", "t.csv", "--label", "species", "--out", "out")
    for command in (
        ("kernel", table, "-o", "k.npz"),
        ("kernel", other, "-o", "k.npz", "--report", "k.npz.store/r.html"),
        (*learn, "--save", "out/kernel_nngp"),
        (*learn, "--save", "out/kernel_nngp/m.wl"),
    ):
        said = refused(capsys, *command)
        assert "of their own" in said or "folder" in said, command
    assert table.exists()


@pytest.mark.parametrize("command", [("kernel", "-o", "k.npz"), ("classify", "--out", "out")])
def test_foreign_folders_are_no_stores(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write_flowers(Path("t.csv"))
    name = {"kernel": "k.npz.store", "classify": "out/kernel_nngp"}[command[0]]
    arguments = (command[0], "t.csv", *command[1:], "--network", "linear", "--label", "species")
    Path(name).mkdir(parents=True)
    (Path(name) / "diary.txt").write_text("dear")
    refused(capsys, *arguments)
    assert (Path(name) / "diary.txt").read_text() == "dear"
    (Path(name) / "diary.txt").unlink()
    Path(name).rmdir()
    Path(name).write_text("dear")
    refused(capsys, *arguments)
    assert Path(name).read_text() == "dear"


def test_folders_of_images_are_not_written_into(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="would overwrite"):
        outputs.ready({"--save": tmp_path / "images" / "a" / "model.wl"}, [tmp_path / "images"])
    outputs.ready({"--save": tmp_path / "images" / "model.wl"}, [tmp_path / "images"])


def test_odd_outputs_are_refused_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["widelimit.app.workflow.run"], "_fit", None)
    monkeypatch.setattr(matrix, "compute", None)  # nothing is computed
    table, ring = write_flowers(tmp_path / "t.csv"), tmp_path / "ring"
    ring.symlink_to(ring)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder.npy").mkdir()
    learn = ("classify", table, "--label", "species", "--out", tmp_path / "out")
    assert "folder" in refused(capsys, "kernel", table, "-o", tmp_path / "folder.npy")
    for odd in ("/dev/null", tmp_path / "pipe", tmp_path, ring, table / "m.wl"):
        refused(capsys, *learn, "--save", odd)
        refused(capsys, *learn, "--report", odd)
    refused(capsys, "classify", table, "--label", "species", "--out", table)
    refused(capsys, "reproduce", "scores", "--out", table)
    assert not (tmp_path / "out").exists()


def test_a_device_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot be written: it is"):
        write_text(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_long_names_can_be_written(tmp_path):
    write_text(tmp_path / ("n" * 250), "x")
    assert [len(p.name) for p in tmp_path.iterdir()] == [250]


# --- programs that meet, and programs that are killed ---------------------------------------------


def started(folder, network, out):
    """A program of its own that learns with this network into a folder."""
    program = [sys.executable, "-m", "widelimit_command", "classify", "t.csv", "--json"]
    options = ["--label", "species", "--network", network, "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*program, *options], cwd=folder, **pipes)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_runs_that_meet_are_right_or_refused(tmp_path, count):
    write_flowers(tmp_path / "t.csv", 60)
    networks, right = ("linear", "fcn"), {}
    for network in networks:
        out, _ = started(tmp_path, network, tmp_path / network).communicate()
        right[network] = json.loads(out)["accuracy"]
    for _ in range(20):
        chosen = [networks[i % 2] for i in range(count)]
        programs = [started(tmp_path, network, tmp_path / "one") for network in chosen]
        codes = []
        for network, program in zip(chosen, programs, strict=True):
            out, err = program.communicate()
            codes.append(program.returncode)
            assert program.returncode in (0, 2), err
            if program.returncode:
                assert b"Another run is at work" in err
            else:
                assert json.loads(out)["accuracy"] == right[network]
        assert 0 in codes


@pytest.mark.slow
def test_killed_runs_leave_nothing_wrong(tmp_path):
    write_flowers(tmp_path / "t.csv", 300)
    assert started(tmp_path, "fcn", tmp_path / "out").communicate()[0]
    expected = (tmp_path / "out" / "predictions.csv").read_bytes()
    rng = np.random.default_rng(0)
    for after in rng.uniform(0.5, 8, size=25):
        program = started(tmp_path, "fcn", tmp_path / "killed")
        try:
            program.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            program.kill()
            program.communicate()
        predictions = tmp_path / "killed" / "predictions.csv"
        assert not predictions.exists() or predictions.read_bytes() == expected
    last = started(tmp_path, "fcn", tmp_path / "killed")
    last.communicate()
    assert last.returncode == 0
    assert predictions.read_bytes() == expected
