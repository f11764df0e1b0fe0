"""`kill -9` in every phase of a long run: `python -m studies.kills FOLDER` in a clone.

`studies.cifar10_all` is run to its end once, and once more with a kill in the middle of the
kernels, of each factor and before each prediction. Both must give the same predictions, bit for
bit, and no tile or block that was there may be written again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from .phases import TILE

TILES, FACTOR = "dense_*/n*/c/*/*", ".factor/*/*/[0-9]*-*[0-9]"

Condition = Callable[[Path], bool]


@dataclass
class Watched:
    """The tiles and blocks below a folder, and those that were written more than once."""

    folder: Path
    times: dict[Path, int] = field(default_factory=dict)
    again: set[Path] = field(default_factory=set)

    def look(self) -> None:
        """Note what is new."""
        for path in (one for kind in (TILES, f"dense_*{FACTOR}") for one in self.folder.glob(kind)):
            try:
                written = path.stat().st_mtime_ns
            except OSError:  # it went while we looked
                continue
            if self.times.setdefault(path, written) != written:
                self.again.add(path)
                self.times[path] = written


def written(pattern: str, count: int) -> Condition:
    """So many files are there."""
    return lambda out: len(list(out.glob(pattern))) >= count


def weights(kind: str, size: int) -> Condition:
    """A solve is done, and what it predicts is not."""
    return lambda out: (out / f"dense_{kind}_{size}.npy").exists()


def run(
    folder: Path,
    out: Path = Path("out/kills"),
    size: Annotated[int, typer.Option(help="Training images.")] = 20_000,
    workers: int = 2,
) -> None:
    """Run, kill and restart; print one line of JSON for every start and one for the comparison."""
    half, some = ((-(-size // block)) ** 2 // 4 for block in (TILE, 2 * TILE))  # of a triangle
    kills: dict[str, Condition] = {
        "kernels": written("dense_train/nngp/c/*/*", half),
        "nngp solve": written(f"dense_nngp_{size}{FACTOR}", some),
        "nngp predict": weights("nngp", size),
        "ntk solve": written(f"dense_ntk_{size}{FACTOR}", some),
        "ntk predict": weights("ntk", size),
    }
    options = ["--sizes", str(size), "--network", "dense", "--workers", str(workers)]
    for name, plan in (("whole", {}), ("killed", kills)):
        place, seen = out / name, Watched(out / name)
        for phase, condition in [*plan.items(), ("none", lambda _: False)]:
            command = [sys.executable, "-m", "studies.cifar10_all", folder, "--out", place]
            begin, before = time.monotonic(), len(seen.times)
            process = subprocess.Popen(
                [*map(str, command), *options], stdout=subprocess.DEVNULL, start_new_session=True
            )
            while process.poll() is None and not condition(place):
                seen.look()
                time.sleep(0.02)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            ended = process.wait()
            seen.look()
            facts = {
                "run": name,
                "kill": phase,
                "ended": ended,
                "seconds": time.monotonic() - begin,
            }
            new = len(seen.times) - before
            print(json.dumps({**facts, "written": new, "again": len(seen.again)}), flush=True)
            assert ended == (0 if phase == "none" else -signal.SIGKILL)
    equal = {}
    for kind in ("nngp", "ntk"):
        for file in (f"dense_{kind}_{size}.npy", f"dense_{kind}_{size}_correct.npy"):
            one, two = (np.load(out / name / file) for name in ("whole", "killed"))
            equal[file] = bool(np.array_equal(one, two))
    print(json.dumps({"equal": equal}))


if __name__ == "__main__":
    typer.run(run)
