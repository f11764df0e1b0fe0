"""All of CIFAR-10, exactly: `python -m studies.cifar10_all FOLDER` in a clone, with two workers.

Kernels of a dense and of a convolutional network on 8×8 images, NNGP and NTK, of 2,000 to 50,000
training images and 8,000 tests. FOLDER has `cifar10_full.npz`. A run that was stopped goes on, and
`record.json` in the output folder says what every phase took.
"""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from widelimit import Conv, Dense, Flatten, Relu, Serial
from widelimit.inference import KernelKind
from widelimit.layers.base import Layer
from widelimit.scale import local_client

from .phases import Record, Run, read_images

SIZES = (2_000, 4_000, 8_000, 20_000, 50_000)
SIDE = 8


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
    sizes: Annotated[str, typer.Option(help="Training images, commas between.")] = ",".join(
        map(str, SIZES)
    ),
    tests: int = 8_000,
    network: Annotated[str, typer.Option(help="dense, convolutions or both.")] = "both",
    solver: Annotated[
        str, typer.Option(help="cholesky, blocked, gradients or descent.")
    ] = "descent",
    workers: Annotated[int, typer.Option(help="0: this process alone.")] = 2,
) -> None:
    """Compute, solve and predict, smallest size first."""
    out.mkdir(parents=True, exist_ok=True)
    counts = sorted(int(size) for size in sizes.split(","))
    record = Record(out / "record.json")
    images = read_images(folder, counts[-1], tests, SIDE)
    wanted = {k: net for k, net in networks().items() if network in (k, "both")}
    for name, net in wanted.items():
        for size in counts:
            with local_client(workers) if workers else nullcontext() as client:
                Run(name, net, images, out, record, solver, client).kernels(size)
            solving = Run(name, net, images, out, record, solver)
            for kind in KernelKind:
                solving.tested(size, kind)


if __name__ == "__main__":
    typer.run(run)
