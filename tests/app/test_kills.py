"""A hundred kills at random moments: equal results in the end, and nothing whole is computed twice.

Runs are copies of one process that has imported everything, and share what was compiled, so that
kills come where work is done. `WIDELIMIT_KILLS=10` makes it ten instead of a hundred.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import time

import jax
import numpy as np
import pytest
from command_line import write_flowers

pytest.importorskip("zarr")
from widelimit.app.cli import main
from widelimit.app.studies import Size, comparison, film_texts
from widelimit.scale import KernelStore, manifest

KILLS = int(os.environ.get("WIDELIMIT_KILLS", "100"))

COMMANDS = {
    "classify": ("classify", "t.csv", "--label", "species", "--network", "fcn", "--out", "out"),
    "kernel": ("kernel", "t.csv", "--network", "fcn", "--out", "out/k.npz"),
    "reproduce": ("reproduce", "imdb", "--out", "out"),
}


def run(folder, name):
    """A command in a process of its own, which says what it says into a file."""
    os.chdir(folder)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    manifest.tile_height = lambda *_: 16  # many moments between small tiles
    parts = (film_texts.TextSize(6, 1, 48, 48),)
    film_texts.SCALES[Size.SMALL] = comparison.ContestSize(parts, 32)
    jax.config.update("jax_compilation_cache_dir", str(folder.parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    main(list(COMMANDS[name]))


def started(folder, name):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    program = processes.Process(target=run, args=(folder, name))
    program.start()
    return program


def finished(folder, name):
    """Run to the end: seconds it took."""
    begin = time.monotonic()
    program = started(folder, name)
    program.join()
    assert program.exitcode == 0, (folder / "said").read_text()
    return time.monotonic() - begin


def tiles(folder):
    """How many there are; a store may be taken away while one looks at it."""
    return sum(len(names) for place, _, names in os.walk(folder) if "/c/" in place)


def killed(folder, name, seconds, *, more_tiles):
    """Whether a run was killed in time: after some seconds, or soon after its first new tiles."""
    before, end = tiles(folder), time.monotonic() + (600 if more_tiles else seconds)
    program = started(folder, name)
    while program.is_alive() and time.monotonic() < end:
        time.sleep(0.005)
        if more_tiles and tiles(folder) > before:
            time.sleep(seconds % 0.3)
            break
    program.kill()
    program.join()
    assert program.exitcode in (0, -signal.SIGKILL), (folder / "said").read_text()
    return program.exitcode != 0


def whole(folder):
    """The files of all whole tiles in all stores of a folder, with the time they were written."""
    found = {}
    for place in folder.rglob("zarr.json"):
        store = place.parent
        if (store / "nngp").is_dir() and KernelStore.exists(store):
            for row, column in KernelStore(store).list_tiles():
                for path in store.glob(f"*/c/{row}/{column}"):
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
    return json.loads((out / "imdb" / "imdb.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_runs_are_right_in_the_end(tmp_path, name):
    for folder in (tmp_path / "right", tmp_path / "killed"):
        folder.mkdir()
        (folder / "out").mkdir()
        write_flowers(folder / "t.csv", 200)
    finished(tmp_path / "right", name)
    expected = results(tmp_path / "right", name)
    shutil.copytree(tmp_path / "right", tmp_path / "again", ignore=lambda *_: {"out"})
    (tmp_path / "again" / "out").mkdir()
    seconds = finished(tmp_path / "again", name)  # with everything compiled
    assert results(tmp_path / "again", name) == expected
    rng = np.random.default_rng(0)
    folder = tmp_path / "killed"
    counts = {"killed": 0, "went on with tiles": 0, "finished": 0}
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
            counts["finished"] += 1
            shutil.rmtree(folder / "out")  # once more from the beginning
            (folder / "out").mkdir()
    finished(folder, name)
    assert results(folder, name) == expected
    assert counts["went on with tiles"] > 0 or KILLS < 30
    print(name, counts)
