"""What a run will cost, from a short calibration: time per kernel entry × entries."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...layers.base import Layer
from ...layers.compose import Serial
from .comparison import FamilyGroup
from .readouts import Readouts

_EXAMPLES = 8  # on each side of the timed block


class CostedKernel(NamedTuple):
    """A data set of a run: the shape of an example, and how many entries its kernels have."""

    name: str
    shape: tuple[int, ...]
    entries: int


def seconds_per_entry(network: Layer, shape: tuple[int, ...], examples: int = _EXAMPLES) -> float:
    """Seconds for both kernels of one pair of random examples, after compilation."""
    x = np.random.default_rng(0).normal(size=(2 * examples, *shape)).astype(np.float32)

    def block() -> float:
        begin = time.perf_counter()
        network.kernel(x[:examples], x[examples:], progress=False)
        return time.perf_counter() - begin

    block()  # compiles
    return block() / examples**2


def cost_of(title: str, groups: Sequence[FamilyGroup], kernels: Sequence[CostedKernel]) -> str:
    """A few lines for a person who is about to start the run: one setting of every family."""
    lines, total = [f"{title}, calibrated on {_EXAMPLES}×{_EXAMPLES} entries of each kernel:"], 0.0
    for kernel in kernels:
        for group in groups:
            layers = [next(iter(family.readouts.values())) for family in group.families]
            network = Serial(group.trunks[-1].network, Readouts(*layers))
            each = seconds_per_entry(network, kernel.shape)
            total += each * kernel.entries
            names = ", ".join(family.name for family in group.families)
            lines.append(
                f"  {names}, {kernel.name}: {kernel.entries:.3g} entries × {1e6 * each:.3g} µs = "
                f"{duration(each * kernel.entries)}"
            )
    return "\n".join([*lines, f"  together about {duration(total)} on this machine"])


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
