"""How time grows with examples, positions and depth; prints one line of JSON per size.

python benchmarks/growth.py [--quick]
"""

import json
import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from workloads import Layers

_ENDS = (("pool",), ("dense",))
_STEP = (("conv", 3), ("relu",))
_MIX = (("attention",), ("relu",))
_REPEATS = 3


def _measured(layers: Layers, examples: int, positions: int) -> dict[str, float]:
    """Seconds of a call, and of the compilation before the first one."""
    import jax
    from ours import network

    jax.clear_caches()
    net = network(layers)
    x = np.random.default_rng(0).normal(size=(examples, positions, 8)).astype(np.float32)
    times = []
    for _ in range(1 + _REPEATS):
        begin = time.perf_counter()
        net.kernel(x, progress=False)
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times[1:])
    return {"seconds": seconds, "compilation": max(times[0] - seconds, 0.0)}


def _cases(quick: bool) -> Iterable[tuple[str, int, Layers, int, int]]:
    """What grows, how large it is, and the network, examples and positions it is measured with."""
    plain = (*_STEP, *_MIX, *_ENDS)
    for n in (16, 32, 64) if quick else (64, 128, 256, 512):
        yield "examples", n, plain, n, 32
    for s in (16, 32, 64) if quick else (32, 64, 128, 256):
        yield "positions", s, plain, 24, s
    for d in (1, 2, 4) if quick else (1, 2, 4, 8):
        yield "depth", d, (*(_STEP + _MIX) * d, *_ENDS), 48, 32


def fitted(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Per thing that grows: sizes, seconds, and the slope between their logarithms."""
    found: dict[str, Any] = {}
    for line in lines:
        item = found.setdefault(line["name"], {"sizes": [], "seconds": [], "compilation": []})
        item["sizes"].append(line["size"])
        item["seconds"].append(line["seconds"])
        item["compilation"].append(line["compilation"])
    found = {name: item for name, item in found.items() if len(item["sizes"]) > 1}
    for item in found.values():
        slope = np.polyfit(np.log(item["sizes"]), np.log(item["seconds"]), 1)[0]
        item["exponent"] = float(slope)
    return found


if __name__ == "__main__":
    for name, size, layers, examples, positions in _cases("--quick" in sys.argv):
        found = {"name": name, "size": size, **_measured(layers, examples, positions)}
        print(json.dumps(found), flush=True)
