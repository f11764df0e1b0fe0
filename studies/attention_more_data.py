"""What attention does at more data: `python -m studies.attention_more_data FOLDER` in a clone.

A trunk of two convolutions with 2×2 pooling between, on 8×8 images; then structured attention and
pooling, or pooling alone. Both are solved exactly with as many training images as the machine
allows, and compared on the same 8,000 test images. FOLDER has `cifar10_full.npz`.

The trunk is nearly all of the work, so both networks are positions of one output: entry (0, 0) of
a kernel's last axes is with attention, (1, 1) without.
"""

from pathlib import Path
from typing import Any

import typer

from widelimit import Dense, MeanPool, Serial
from widelimit.app.studies import cifar10
from widelimit.app.studies.accuracy import gap
from widelimit.app.studies.readouts import Readouts
from widelimit.inference import KernelKind
from widelimit.layers.base import Layer

from .phases import Sizes, Study, Workers


def network() -> Layer:
    """The trunk, then attention between it and a readout, beside the readout alone."""
    trunk = cifar10.trunks()[0].network
    attention = Serial(cifar10.structured(0.5, 4.0), MeanPool(), Dense(1))
    return Serial(trunk, Readouts(attention, Serial(MeanPool(), Dense(1))))


def table(known: dict[str, Any]) -> str:
    """The accuracies of both, and attention's less pooling's on the same test images."""
    lines = ["| images | kernel | attention | pooling | difference |", "|---|---|---|---|---|"]
    ends = " attention - pooling"
    for title in (key.removesuffix(ends) for key in known if key.endswith(ends)):
        _, size, kind = title.split()
        cells = [f"{int(size):,}", KernelKind(kind).name]
        for way in (0, 1):
            one = known[f"both {size} {kind}-{way} predict"]
            cells.append(f"{one['accuracy']:.4f} ({one['low']:.4f}–{one['high']:.4f})")
        gap = known[title + ends]
        cells.append(f"{gap['difference']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run(
    folder: Path,
    out: Path = Path("out/attention_more_data"),
    sizes: Sizes = "4000,12000,20000",
    tests: int = 8_000,
    workers: Workers = 2,
) -> None:
    """Both networks at every size, and the paired difference of their accuracies."""
    study = Study(folder, out, sizes, tests, "cholesky", workers)
    for size in study.counts:
        attention, pooling = study.learned("both", network(), size, (0, 1))
        for kind in KernelKind:
            said = gap(attention[kind], pooling[kind])
            entry = {"difference": said.difference, "low": said.low, "high": said.high}
            study.record.known[f"both {size} {kind.value} attention - pooling"] = entry
            print(f"{size} {kind.value}: attention is {said.verdict}: {entry}", flush=True)
        study.record.write()
    print(table(study.record.known))


if __name__ == "__main__":
    typer.run(run)
