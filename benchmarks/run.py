"""Both libraries on the same arrays, alternating; writes results/latest.json, .md and .png.

python benchmarks/run.py                 # everything
python benchmarks/run.py --quick         # small sizes: does it all run?
python benchmarks/run.py --only a8 c     # some rows; the others keep what their run found
"""

import argparse
import contextlib
import datetime
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import growth
import limits
import numpy as np
import report
import scripts
from workloads import WORKLOADS, Operations, operations

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
_REPEATS, _QUICK_REPEATS = 5, 2
# Seconds: for one answer, and for all repetitions of one row.
_PATIENCE, _LONGEST = 240, 60


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
    } | {
        name: Row(scripts.TITLES[name], size, size, (16, 16), 1)
        for name, size in zip(scripts.TITLES, (1024, 16, 64, 128, 256), strict=True)
    }  # fmt: skip


class Worker:
    """A process that runs one library on one workload, and is ended when it takes too long."""

    def __init__(self, python: Path, script: str, name: str, size: int, result: Path):
        """Starts it; the first answer is the time of the first call."""
        command = [str(python), str(_HERE / script), name, str(size), str(result)]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self.errors = result.with_suffix(".log")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, env=environment,
            )  # fmt: skip
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.times: list[float] = []
        self.cpu: list[float] = []

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def hear(self) -> dict[str, Any]:
        """One answer, or why there is none."""
        try:
            line = self.answers.get(timeout=_PATIENCE)
        except queue.Empty:
            self.end()
            return {"refused": f"no answer within {_PATIENCE} s"}
        return json.loads(line) if line else self._ended()

    def _ended(self) -> dict[str, Any]:
        """How the process ended, and the last thing it said."""
        code = self.process.wait()
        last = self.errors.read_text().strip().rsplit("\n", 1)[-1][:200]
        why = f"signal {-code} (out of memory?)" if code < 0 else f"code {code}: {last}"
        return {"refused": f"the process ended with {why}"}

    def ask(self, word: str) -> dict[str, Any]:
        """Send a word and wait for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        return self.hear()

    def run(self) -> str | None:
        """One more timed call; what went wrong, if anything did."""
        answer = self.ask("run")
        if "refused" in answer:
            return answer["refused"]
        self.times.append(answer["seconds"])
        self.cpu.append(answer["cpu"])
        return None

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()


def measured(name: str, row: Row, quick: bool) -> dict[str, Any]:
    """One row: both libraries, alternating. What could not be measured is missing."""
    size, peer_size = row.quick if quick else (row.ours, row.peer)
    own = Path(sys.executable)
    direct = row.peer_name != "neural-tangents"
    peer_python = own if direct else _PEER_ENVIRONMENT / "bin" / "python"
    peer_script, peer_workload = ("ours.py", f"{name}_direct") if direct else ("peer.py", name)
    found: dict[str, Any] = {
        "name": name, "title": row.title, "unit": row.unit, "peer_name": row.peer_name,
        "target": row.target, "size": size, "peer_size": peer_size,
    }  # fmt: skip
    if name in WORKLOADS:
        found["operations"] = asdict(operations(WORKLOADS[name], size))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files = [Path(folder) / f"{side}.npz" for side in ("ours", "peer", "double")]

        def started(*arguments: Any) -> tuple[Worker, dict[str, Any]]:
            worker = Worker(*arguments)
            stack.callback(worker.end)
            return worker, worker.hear()

        # One after the other at first: compilations are timed too.
        ours, first = started(own, "ours.py", name, size, files[0])
        if "refused" in first:
            return found | {"failed": first["refused"]}
        found |= {"first_call": first["seconds"], "first_cpu": first["cpu"]}
        peer, peer_first = started(peer_python, peer_script, peer_workload, peer_size, files[1])
        refused = peer_first.get("refused")
        begin = time.monotonic()
        for _ in range(_QUICK_REPEATS if quick else _REPEATS):
            failed = ours.run()
            if failed:
                return found | {"failed": failed}
            refused = refused or peer.run()
            if time.monotonic() - begin > _LONGEST:
                break
        found |= _summary("ours", "", ours, row.units(size))
        if not refused:
            found |= _summary("peer", "peer_", peer, row.units(peer_size))
        if refused or "peer_memory" not in found:
            return found | {"refused": refused or "it ended while writing its result"}
        if not direct:
            found |= {"peer_first_call": peer_first["seconds"], "peer_first_cpu": peer_first["cpu"]}
            exact = np.load(files[1])
            if name in WORKLOADS:  # rounding of the other library is not our difference
                double, answer = started(
                    peer_python, peer_script, f"{name}_double", peer_size, files[2]
                )
                answer |= double.ask("finish")
                if "refused" in answer:
                    return found | {"failed": f"the comparison: {answer['refused']}"}
                exact = np.load(files[2])
                found["peer_difference"] = _difference(np.load(files[1]), exact)
            found["difference"] = _difference(np.load(files[0]), exact)
        found["ratio"] = found["peer"] / found["ours"]
        found["cpu_ratio"] = found["peer_cpu"] / found["cpu"]
    return found


def _summary(side: str, prefix: str, worker: Worker, units: float) -> dict[str, Any]:
    """Times of one side, of a whole call and per unit of work, and its peak memory.

    The clock by its median; processor time by its least, the one with the least disturbance.
    """
    seconds = statistics.median(worker.times)
    summary = {
        "seconds": seconds, "times": worker.times, "cpu": min(worker.cpu) / units,
        **worker.ask("finish"),
    }  # fmt: skip
    summary.pop("refused", None)
    return {side: seconds / units} | {prefix + key: value for key, value in summary.items()}


def _difference(ours: Any, peer: Any) -> tuple[float, float]:
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
    return apart, same


def build_peer_environment() -> None:
    """neural-tangents needs an old JAX: it has an environment of its own, made once."""
    python = _PEER_ENVIRONMENT / "bin" / "python"
    check = [str(python), "-c", "import neural_tangents"]
    if python.exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return
    print("making the environment of neural-tangents 0.6.5 (once)", flush=True)
    base = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if base is None:
        sys.exit("neural-tangents 0.6.5 runs on Python 3.11: install python3.11, then try again.")
    subprocess.run([base, "-m", "venv", "--clear", str(_PEER_ENVIRONMENT)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *_PEER_PACKAGES], check=True)


def measured_growth(quick: bool) -> dict[str, Any]:
    """Times by size, from a process of its own that may not take for ever."""
    command = [sys.executable, str(_HERE / "growth.py"), *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
        lines = done.stdout
    except subprocess.TimeoutExpired as late:
        lines = (late.stdout or b"").decode()
    return growth.fitted([json.loads(line) for line in lines.splitlines()])


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=[*rows(), "growth"], help="these rows only")
    options = parser.parse_args()
    build_peer_environment()
    path = _RESULTS / ("quick.json" if options.quick else "latest.json")
    chosen = options.only or [*rows(), "growth"]
    before: dict[str, Any] = {"rows": [], "growth": {}}
    if options.only and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
    kept = {row["name"]: row for row in before["rows"]}
    # Before and after: what the machine reached once, it can do.
    most, found = limits.measure(), {}
    for name in [name for name in rows() if name in chosen]:
        found[name] = measured(name, rows()[name], options.quick)
        _write(path, kept, found, most, before)
        print(report.line(found[name]), flush=True)
    if "growth" in chosen:
        before["growth"] = measured_growth(options.quick)
    result = _write(path, kept, found, most.best(limits.measure()), before)
    report.picture(result, path.with_suffix(".png"))
    print(report.markdown(result, path.stem))


def _write(
    path: Path,
    kept: dict[str, Any],
    found: dict[str, Any],
    most: limits.Limits,
    before: dict[str, Any],
) -> dict[str, Any]:
    """What is known so far, as JSON and as a table.

    Rows of an earlier run are `kept` as they are, and what is said about that run stays; rows
    `found` beside them carry day, machine and load of their own.
    """
    here = {
        "date": datetime.date.today().isoformat(),
        "machine": limits.machine(),
        "load": os.getloadavg()[0],
    }
    earlier = "date" in before
    for row in found.values():
        row |= {"run": here} if earlier else {}
        if "operations" in row and "seconds" in row:
            row["limit"] = most.seconds(Operations(**row["operations"])) / row["seconds"]
    rest = kept | found
    result = {
        **({key: before[key] for key in here} if earlier else here),
        "limits": before["limits"] if earlier else asdict(most),
        "rows": [rest[name] for name in rows() if name in rest],
        "growth": before["growth"],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    path.with_suffix(".md").write_text(report.markdown(result, path.stem), encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
