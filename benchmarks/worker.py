"""One library on one workload in a process of its own, told over standard input what to do.

A worker prints lines of JSON: first the seconds of its first call (compilation included), then for
every line "run" the seconds of one call, and for "finish" its peak memory, having written results.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Result = dict[str, np.ndarray]


def serve(make: Callable[[str, int], Callable[[], Result]]) -> None:
    """Serve the workload, size and result file named on the command line.

    `make` prepares a call. A result named "seconds" replaces the time of the call: that is how long
    the same work takes by rights, where only a part of it was run.
    """
    name, size, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    try:
        call = make(name, size)
        spent, result = _timed(call)
    except Exception as error:
        _say({"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})
        return
    _say(spent)
    for line in sys.stdin:
        if line.strip() == "finish":
            np.savez(path, **result)  # pyright: ignore[reportArgumentType]
            _say({"memory": peak_memory()})
            return
        spent, result = _timed(call)
        _say(spent)


def peak_memory() -> int:
    """Most bytes resident at once. `getrusage` would count the process this one was forked from."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _timed(call: Callable[[], Result]) -> tuple[dict[str, float], Result]:
    """Seconds on the clock, and of all processors together: the latter hardly feels other load."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    result = call()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    rightful = float(result.pop("seconds", seconds))
    return {"seconds": rightful, "cpu": cpu * rightful / seconds}, result


def _say(message: Mapping[str, object]) -> None:
    print(json.dumps(message), flush=True)
