"""A hundred kills at random moments: equal results in the end, and nothing whole is computed twice.

`WIDELIMIT_KILLS=10` makes it ten instead of a hundred.
"""

import contextlib
import json
import os
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


def killed(folder, name, seconds):
    """Whether a run was killed in time."""
    program = started(folder, name)
    try:
        _, said = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        return True
    assert program.returncode == 0, said
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
        counts["killed"] += killed(folder, name, rng.uniform(0, seconds))
        after = whole(folder)
        if name != "kernel" or after:  # a finished kernel takes its store away
            kept = [path for path in before if path in after]
            assert len(kept) == len(before)
            assert [after[path] for path in kept] == [before[path] for path in kept]
            counts["went on with tiles"] += bool(before)
        with contextlib.suppress(FileNotFoundError):  # whole and right, or not there
            assert results(folder, name) == expected
    finished(folder, name)
    assert results(folder, name) == expected
    assert counts["went on with tiles"] > 0
    print(name, counts)
