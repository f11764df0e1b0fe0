"""A hundred kills at random moments: equal results in the end, and nothing whole is computed twice.

`WIDELIMIT_KILLS=10` makes it ten instead of a hundred.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from command_line import write_flowers

pytest.importorskip("zarr")
from widelimit.scale import KernelStore

KILLS = int(os.environ.get("WIDELIMIT_KILLS", "100"))

# Small tiles, so that there are many moments between them.
PROGRAM = """
import sys
from widelimit.scale import manifest
manifest.tile_height = lambda *_: 16
from widelimit.app.cli import main
main(sys.argv[1:])
"""
COMMANDS = {
    "classify": ("classify", "t.csv", "--label", "species", "--out", "out"),
    "kernel": ("kernel", "t.csv", "--out", "out/k.npz"),
    "reproduce": ("reproduce", "scaling-softmax", "--out", "out"),
}


def started(folder, name):
    program = [sys.executable, "-c", PROGRAM, *COMMANDS[name]]
    return subprocess.Popen(
        program, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finished(folder, name):
    """Run to the end: seconds it took."""
    begin = time.monotonic()
    program = started(folder, name)
    _, said = program.communicate()
    assert program.returncode == 0, said
    return time.monotonic() - begin


def tiles(folder):
    return sum(1 for _ in folder.rglob("c/*/*"))


def killed(folder, name, seconds, *, more_tiles):
    """Whether a run was killed in time: after some seconds, or soon after its first new tiles."""
    before, end = tiles(folder), time.monotonic() + (600 if more_tiles else seconds)
    program = started(folder, name)
    while program.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
        if more_tiles and tiles(folder) > before:
            time.sleep(seconds % 0.3)
            break
    if program.poll() is None:
        program.kill()
        program.communicate()
        return True
    assert program.returncode == 0, program.communicate()[1]
    return False


def whole(folder):
    """The files of all whole tiles in all stores of a folder, with the time they were written."""
    found = {}
    for place in folder.rglob("zarr.json"):
        store = place.parent
        if (store / "nngp").is_dir() and KernelStore.exists(store):
            for row, column in KernelStore(store).survey().whole:
                for path in store.glob(f"*/c/{row}/{column}*"):
                    found[path] = path.stat().st_mtime_ns
    return found


def results(folder, name):
    """What a user reads of a run; figures and pages carry times."""
    out = folder / "out"
    if name == "classify":
        return (out / "predictions.csv").read_bytes()
    if name == "kernel":
        with np.load(out / "k.npz", allow_pickle=False) as found:
            return {key: found[key].tobytes() for key in found.files}
    return json.loads((out / "scaling-softmax" / "scaling_softmax.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_runs_are_right_in_the_end(tmp_path, name):
    for folder in (tmp_path / "right", tmp_path / "killed"):
        folder.mkdir()
        (folder / "out").mkdir()
        write_flowers(folder / "t.csv", 200)
    seconds = finished(tmp_path / "right", name)
    expected = results(tmp_path / "right", name)
    rng = np.random.default_rng(0)
    folder = tmp_path / "killed"
    counts = {"killed": 0, "went on with tiles": 0}
    while counts["killed"] < -(-KILLS // len(COMMANDS)):
        before = whole(folder)
        counts["killed"] += killed(
            folder, name, rng.uniform(0, seconds), more_tiles=bool(rng.integers(2))
        )
        after = whole(folder)
        taken_away = name == "kernel" and (folder / "out" / "k.npz").exists()
        if not taken_away:  # a finished kernel has no use for its tiles
            assert before.keys() <= after.keys()
            assert all(after[path] == written for path, written in before.items())
            counts["went on with tiles"] += bool(before)
        with contextlib.suppress(FileNotFoundError):  # whole and right, or not there
            assert results(folder, name) == expected
            if name == "kernel":  # once more from the beginning
                (folder / "out" / "k.npz").unlink()
                shutil.rmtree(folder / "out" / "k.npz.store", ignore_errors=True)
    finished(folder, name)
    assert results(folder, name) == expected
    assert counts["went on with tiles"] > 0 or KILLS < 30
    print(name, counts)
