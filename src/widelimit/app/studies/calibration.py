"""What a run will cost, from a short calibration: time per kernel entry × entries."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...data import Labelled
from ...layers.base import Layer

_EXAMPLES = 8  # on each side of the timed block


class CostedKernel(NamedTuple):
    """A kernel of a run: examples like its own, and how many entries it has."""

    name: str
    network: Layer
    like: Labelled
    entries: int


def seconds_per_entry(network: Layer, like: Labelled, examples: int = _EXAMPLES) -> float:
    """Seconds for both kernels of one pair, after compilation."""
    index = np.arange(2 * examples) % len(like)
    one, two = like.take(index[:examples]), like.take(index[examples:])

    def block() -> float:
        begin = time.perf_counter()
        network.kernel(one.x, two.x, mask=one.mask, mask2=two.mask, progress=False)
        return time.perf_counter() - begin

    block()  # compiles
    return block() / examples**2


def cost_of(title: str, steps: Sequence[CostedKernel]) -> str:
    """A few lines for a person who is about to start the run."""
    lines, total = [f"{title}, calibrated on {_EXAMPLES}×{_EXAMPLES} entries of each kernel:"], 0.0
    for step in steps:
        each = seconds_per_entry(step.network, step.like)
        total += each * step.entries
        lines.append(
            f"  {step.name}: {step.entries:.3g} entries × {1e6 * each:.3g} µs = "
            f"{duration(each * step.entries)}"
        )
    return "\n".join([*lines, f"  together about {duration(total)} on this machine"])


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
