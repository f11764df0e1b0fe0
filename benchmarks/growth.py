"""How time grows with examples, positions and depth: fitted exponents."""

import statistics
import time
from typing import Any

import numpy as np
from ours import network
from workloads import Layers

_ENDS = (("pool",), ("dense",))
_STEP = (("conv", 3), ("relu",))
_MIX = (("attention",), ("relu",))


def _seconds(layers: Layers, examples: int, positions: int) -> float:
    net = network(layers)
    x = np.random.default_rng(0).normal(size=(examples, positions, 8)).astype(np.float32)
    net.kernel(x, progress=False)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        net.kernel(x, progress=False)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _fit(sizes: list[int], seconds: list[float]) -> float:
    """The slope between logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure(quick: bool) -> dict[str, Any]:
    """Seconds against each size, the others fixed."""
    plain = (*_STEP, *_MIX, *_ENDS)
    examples = [16, 32, 64] if quick else [64, 128, 256, 512]
    positions = [16, 32, 64] if quick else [32, 64, 128, 256]
    depths = [1, 2, 4] if quick else [2, 4, 8, 16]
    found = {
        "examples": (examples, [_seconds(plain, n, 32) for n in examples]),
        "positions": (positions, [_seconds(plain, 24, s) for s in positions]),
        "depth": (depths, [_seconds((*(_STEP + _MIX) * d, *_ENDS), 48, 32) for d in depths]),
    }
    return {
        name: {"sizes": sizes, "seconds": seconds, "exponent": _fit(sizes, seconds)}
        for name, (sizes, seconds) in found.items()
    }
