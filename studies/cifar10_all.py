"""All of CIFAR-10, exactly: `python -m studies.cifar10_all FOLDER` in a clone, with two workers.

Kernels of a dense and of a convolutional network on 8×8 images, NNGP and NTK, of 2,000 to 50,000
training images and 8,000 tests. FOLDER has `cifar10_full.npz`. A run that was stopped goes on, and
`record.json` in the output folder says what every phase took.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from widelimit import Conv, Dense, Flatten, Relu, Serial
from widelimit.app.drawing.plots import canvas
from widelimit.layers.base import Layer

from .phases import Sizes, SolverName, Study, Workers


def networks() -> dict[str, Layer]:
    """Five dense layers; three convolutions whose positions are flattened."""
    scales = {"w_std": math.sqrt(2), "b_std": 0.1}
    dense = [layer for _ in range(5) for layer in (Dense(512, **scales), Relu())]
    conv = [layer for _ in range(3) for layer in (Conv(128, 3, **scales), Relu())]
    return {
        "dense": Serial(Flatten(), *dense, Dense(1)),
        "convolutions": Serial(*conv, Flatten(), Dense(1)),
    }


def run(
    folder: Path,
    out: Path = Path("out/cifar10_all"),
    sizes: Sizes = "2000,4000,8000,20000,50000",
    tests: int = 8_000,
    network: Annotated[str, typer.Option(help="dense, convolutions or both.")] = "both",
    solver: SolverName = "blocked",
    workers: Workers = 2,
) -> None:
    """Compute, solve and predict, smallest size first."""
    known = networks()
    if network not in (*known, "both"):
        raise typer.BadParameter(f"{network!r} is none of {', '.join(known)}, both")
    study = Study(folder, out, sizes, tests, solver, workers)
    for name, net in known.items():
        for size in study.counts if network in (name, "both") else ():
            study.learned(name, net, size)
    plot(study.record.known).savefig(out / "cifar10_all.png")


def plot(known: Mapping[str, Any]) -> Any:
    """Accuracy by the number of training images, with 95 % intervals."""
    found = {tuple(name.split()[:3]): one for name, one in known.items() if "accuracy" in one}
    figure, [[axis]] = canvas(width=6.4, height=4.4)
    curves = dict.fromkeys((network, kind) for network, _, kind in found)
    for number, (network, kind) in enumerate(curves):
        here = {int(n): one for (name, n, k), one in found.items() if (name, k) == (network, kind)}
        counts = np.array(list(here)) * (
            1 + 0.03 * (number - (len(curves) - 1) / 2)
        )  # side by side
        middle, low, high = (
            np.array([one[part] for one in here.values()]) for part in ("accuracy", "low", "high")
        )
        ends = (middle - low, high - middle)
        label = f"{network}, {kind.upper()}"
        axis.errorbar(counts, middle, ends, fmt="o-", ms=4, lw=1, capsize=2, label=label)
    axis.set_xscale("log")
    sizes = sorted({int(n) for _, n, _ in found})
    axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axis.set_xticks([], minor=True)
    axis.set(xlabel="training images", ylabel="test accuracy")
    axis.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    typer.run(run)
