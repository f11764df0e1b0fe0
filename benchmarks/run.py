"""Both libraries on the same arrays, alternating; writes results/latest.json, .md and .png.

python benchmarks/run.py                 # everything
python benchmarks/run.py --quick         # small sizes: does it all run?
python benchmarks/run.py --only a8 c     # some rows; the others keep their last values
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import growth
import limits
import numpy as np
import report
from workloads import WORKLOADS, operations

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_PEER_ENVIRONMENT = _HERE.parent / ".venv-reference"
_PEER_PACKAGES = (
    "neural-tangents==0.6.5",
    "jax==0.4.23",
    "jaxlib==0.4.23",
    "numpy<2",
    "scipy<1.13",
)
_REPEATS = 5


@dataclass(frozen=True)
class Row:
    """What is compared: sizes of either side, what one unit of work is, and the least ratio."""

    title: str
    ours: int
    peer: int
    quick: tuple[int, int]
    target: float
    unit: str = "entry"
    peer_name: str = "neural-tangents"

    def units(self, size: int) -> float:
        """How many units a size has."""
        return float(size) if self.unit == "run" else float(size) ** 2


def rows() -> dict[str, Row]:
    """All rows of the table."""
    kernels = {
        name: Row(w.title, w.ours, w.peer, w.quick, w.target) for name, w in WORKLOADS.items()
    }
    direct = "Monte Carlo over finite networks"
    return kernels | {
        "g": Row(
            "(g) infinite softmax heads at 1/√d, 1 % error",
            8, 8, (4, 4), 100, "entry", direct,
        ),
        "h": Row(
            "(h) attention of width 1,024 simulated",
            50_000, 2, (5_000, 1), 10_000, "run", "explicit weights",
        ),
        "i": Row("(i) Gaussian-process inference, float64", 8000, 8000, (1000, 1000), 1),
        "j": Row("(j) empirical NTK, transformer of 25,000 weights", 256, 256, (16, 16), 1),
    }  # fmt: skip


class Worker:
    """A process that runs one library on one workload."""

    def __init__(self, python: Path, script: str, name: str, size: int, result: Path):
        """Starts it; the first answer is the time of the first call."""
        command = [str(python), str(_HERE / script), name, str(size), str(result)]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.times: list[float] = []
        self.cpu: list[float] = []

    def hear(self) -> dict[str, Any]:
        """One answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"refused": "the process ended (out of memory?)"}

    def ask(self, word: str) -> dict[str, Any]:
        """Send a word and wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.hear()

    def run(self) -> None:
        """One more timed call."""
        answer = self.ask("run")
        self.times.append(answer["seconds"])
        self.cpu.append(answer["cpu"])


def measured(name: str, row: Row, quick: bool, most: limits.Limits) -> dict[str, Any]:
    """One row: both libraries, alternating."""
    size, peer_size = row.quick if quick else (row.ours, row.peer)
    own = Path(sys.executable)
    direct = row.peer_name != "neural-tangents"
    peer_python = own if direct else _PEER_ENVIRONMENT / "bin" / "python"
    peer_script, peer_workload = ("ours.py", f"{name}_direct") if direct else ("peer.py", name)
    found: dict[str, Any] = {
        "name": name, "title": row.title, "unit": row.unit, "peer_name": row.peer_name,
        "target": row.target, "size": size, "peer_size": peer_size,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "ours.npz", Path(folder) / "peer.npz"]
        # One after the other at first: compilations are timed too.
        ours = Worker(own, "ours.py", name, size, files[0])
        first = ours.hear()
        if "refused" in first:
            raise RuntimeError(f"{name}: {first['refused']}")
        peer = Worker(peer_python, peer_script, peer_workload, peer_size, files[1])
        peer_first = peer.hear()
        accepted = "refused" not in peer_first
        for _ in range(2 if quick else _REPEATS):
            ours.run()
            if accepted:
                peer.run()
        found["memory"] = ours.ask("finish")["memory"]
        seconds = statistics.median(ours.times)
        found |= {
            "ours": seconds / row.units(size), "seconds": seconds, "times": ours.times,
            "first_call": first["seconds"],
        }  # fmt: skip
        if name in WORKLOADS:
            found["limit"] = most.seconds(operations(WORKLOADS[name], size)) / seconds
        if not accepted:
            return found | {"refused": peer_first["refused"]}
        found["peer_memory"] = peer.ask("finish")["memory"]
        peer_seconds = statistics.median(peer.times)
        found |= {
            "peer": peer_seconds / row.units(peer_size), "peer_seconds": peer_seconds,
            "peer_times": peer.times,
        }  # fmt: skip
        if not direct:
            found["peer_first_call"] = peer_first["seconds"]
        found["ratio"] = found["peer"] / found["ours"]
        cpu, peer_cpu = statistics.median(ours.cpu), statistics.median(peer.cpu)
        found["cpu"], found["peer_cpu"] = cpu / row.units(size), peer_cpu / row.units(peer_size)
        found["cpu_ratio"] = found["peer_cpu"] / found["cpu"]
        if not direct:
            found |= _difference(np.load(files[0]), np.load(files[1]))
    return found


def _difference(ours: Any, peer: Any) -> dict[str, float]:
    """Largest relative difference of distinct inputs, and of inputs with themselves."""
    apart = same = 0.0
    for key in peer.files:
        one, two = ours[key].astype(float), peer[key].astype(float)
        one = one[tuple(slice(extent) for extent in two.shape)]
        if key == "mean":
            apart = max(apart, float(np.max(np.abs(one - two)) / np.max(np.abs(two))))
            continue
        relative = np.abs(one - two) / np.sqrt(np.outer(np.diag(two), np.diag(two)))
        diagonal = np.eye(len(two), dtype=bool)
        apart = max(apart, float(relative[~diagonal].max()))
        same = max(same, float(relative[diagonal].max()))
    return {"difference": apart, "difference_same": same}


def build_peer_environment() -> None:
    """neural-tangents needs an old JAX: it has an environment of its own, made once."""
    if (_PEER_ENVIRONMENT / "bin" / "python").exists():
        return
    print("making the environment of neural-tangents 0.6.5 (once)", flush=True)
    base = "python3.11"
    subprocess.run([base, "-m", "venv", str(_PEER_ENVIRONMENT)], check=True)
    pip = [str(_PEER_ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *_PEER_PACKAGES], check=True)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=list(rows()), help="these rows only")
    options = parser.parse_args()
    build_peer_environment()
    stem = "quick" if options.quick else "latest"
    path = _RESULTS / f"{stem}.json"
    before: dict[str, Any] = {"rows": []}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
    most = limits.measure()
    kept = {} if options.only is None else {row["name"]: row for row in before["rows"]}
    grown = before.get("growth", {})
    chosen = [name for name in rows() if options.only is None or name in options.only]
    for name in chosen:
        kept[name] = measured(name, rows()[name], options.quick, most)
        print(report.line(kept[name]), flush=True)
        _write(path, kept, most, grown)
    if options.only is None:
        grown = growth.measure(options.quick)
    result = _write(path, kept, most, grown)
    report.picture(result, path.with_suffix(".png"))
    print(report.markdown(result, stem))


def _write(
    path: Path, kept: dict[str, Any], most: limits.Limits, grown: dict[str, Any]
) -> dict[str, Any]:
    """What is known so far, as JSON and as a table."""
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": limits.machine(),
        "load": os.getloadavg()[0],
        "limits": asdict(most),
        "rows": [kept[name] for name in rows() if name in kept],
        "growth": grown,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    path.with_suffix(".md").write_text(report.markdown(result, path.stem), encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
