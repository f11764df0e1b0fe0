"""What this machine can do at most, measured with the compiler the library uses."""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from workloads import Operations

_REPEATS = 7


@dataclass(frozen=True)
class Limits:
    """Operations and bytes per second, float32, all cores."""

    products: float
    elementwise: float
    bandwidth: float

    def seconds(self, work: Operations) -> float:
        """The least time for this work: arithmetic on all cores, and the result written once."""
        arithmetic = work.products / self.products + work.elementwise / self.elementwise
        return max(arithmetic, work.result_bytes / self.bandwidth)

    def best(self, other: "Limits") -> "Limits":
        """The larger of two measurements of every rate."""
        one, two = astuple(self), astuple(other)
        return Limits(*(max(pair) for pair in zip(one, two, strict=True)))


def measure() -> Limits:
    """Matrix products of side 2048; a polynomial on data in cache; copying 256 MB."""
    square = jnp.asarray(np.random.default_rng(0).normal(size=(2048, 2048)), jnp.float32)
    products = 2 * 2048.0**3 / _best(jax.jit(lambda a: a @ a), square)

    degree, small = 256, jnp.linspace(0.0, 1.0, 2**18, dtype=jnp.float32)

    def polynomial(x: Any) -> Any:
        total = x
        for _ in range(degree):
            total = total * x + jnp.float32(0.5)
        return total

    elementwise = 2.0 * degree * small.size / _best(jax.jit(polynomial), small)
    large = jnp.zeros(2**26, jnp.float32)
    bandwidth = 2.0 * large.nbytes / _best(jax.jit(lambda a: a + 1), large)
    return Limits(products, elementwise, bandwidth)


def _best(function: Callable[[Any], Any], argument: Any) -> float:
    function(argument).block_until_ready()
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        function(argument).block_until_ready()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def machine() -> str:
    """The processor, its cores and the memory."""
    info = Path("/proc/cpuinfo")
    names = [platform.processor() or platform.machine()]
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores"
