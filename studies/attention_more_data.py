"""What attention does at more data: `python -m studies.attention_more_data FOLDER` in a clone.

A trunk of two convolutions with 2×2 pooling between, on 8×8 images; then structured attention and
pooling, or pooling alone. Both are solved exactly with as many training images as the machine
allows, and compared on the same 8,000 test images. FOLDER has `cifar10_full.npz`.
"""

from pathlib import Path

import typer

from widelimit import Dense, MeanPool, Serial
from widelimit.app.studies import cifar10
from widelimit.app.studies.accuracy import gap
from widelimit.inference import KernelKind
from widelimit.layers.base import Layer

from .phases import Sizes, SolverName, Study, Workers


def networks() -> dict[str, Layer]:
    """The same trunk and readout, with attention between them and without."""
    trunk = cifar10.trunks()[0].network
    return {
        "attention": Serial(trunk, cifar10.structured(0.5, 4.0), MeanPool(), Dense(1)),
        "pooling": Serial(trunk, MeanPool(), Dense(1)),
    }


def run(
    folder: Path,
    out: Path = Path("out/attention_more_data"),
    sizes: Sizes = "4000,12000",
    tests: int = 8_000,
    solver: SolverName = "cholesky",
    workers: Workers = 2,
) -> None:
    """Both networks at every size, and the paired difference of their accuracies."""
    study = Study(folder, out, sizes, tests, solver, workers)
    for size in study.counts:
        found = {name: study.learned(name, net, size) for name, net in networks().items()}
        for kind in KernelKind:
            said = gap(found["attention"][kind], found["pooling"][kind])
            entry = {"difference": said.difference, "low": said.low, "high": said.high}
            study.record.known[f"{size} {kind.value} attention - pooling"] = entry
            print(f"{size} {kind.value}: attention is {said.verdict}: {entry}", flush=True)
        study.record.write()


if __name__ == "__main__":
    typer.run(run)
