"""Finite networks, trained on CIFAR-10 images, beside the kernels of the same networks.

A fully connected network and a convolutional one with attention are trained by Adam on squared loss
with centred one-hot labels – what their kernels solve in closed form – from a few random starts.
What is trained is the change of the outputs, `f(x) − f_0(x)`, so the function starts at zero. Step
count and learning rate are the same for every start; the rate is chosen on a held-out fifth of the
training images.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widelimit.app.studies import cifar10, results, sources
from widelimit.app.studies.accuracy import Accuracy, evaluate, row
from widelimit.app.studies.comparison import KINDS
from widelimit.app.studies.kept_kernels import KeptKernels
from widelimit.app.studies.study import Result, Size, Study, tracked
from widelimit.app.studies.training import HEADS, TrainingSize, best_trained
from widelimit.data import Dataset
from widelimit.finite.widths import with_heads
from widelimit.layers.activations import Relu
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.conv import Conv
from widelimit.layers.dense import Dense
from widelimit.layers.pool import Flatten, MeanPool
from widelimit.progress import Callback

SCALES = {
    Size.SMALL: TrainingSize(160, 300, 32, 150, 2),
    Size.LARGE: TrainingSize(1000, 1000, 64, 1000, 3),
}


def networks(width: int, outputs: int) -> dict[str, Layer]:
    """The same architectures at any width."""

    def dense() -> Dense:
        return Dense(width, w_std=math.sqrt(2), b_std=0.1)

    conv = Conv(width, 3, w_std=math.sqrt(2), b_std=0.1)
    return {
        "fully connected": Serial(
            Flatten(), dense(), Relu(), dense(), Relu(), Dense(outputs, b_std=0.1)
        ),
        "convolution, attention": Serial(
            conv,
            Relu(),
            MeanPool(2),
            cifar10.structured(0.5, 4.0, width),
            MeanPool(),
            Dense(outputs),
        ),
    }


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `trained.csv`, `.json`, `.md` and `.png` into `out`, kernels beside it."""
    scale = SCALES[Size(size).at_most_large]
    data, name = sources.images(Size(size), side=8, train=scale.train, test=scale.test)
    data = sources.image_views(data)[sources.WHITE]
    sizes = {"data": name, "train": len(data.y_train), "test": len(data.y_test)}
    rows: list[dict[str, Any]] = []
    kept = KeptKernels(out.parent / "kernels")
    for label, net in tracked(list(networks(scale.width, 1).items()), progress):
        kernels = kept.get(net, data.train, data.test)
        for kind, kernel in zip(KINDS, kernels, strict=True):
            tested = evaluate(kernel, data.y_train, data.y_test)
            rows.append(row(label, kind, tested, **sizes, settings="infinite width"))
        rows += _trained(label, scale, data, sizes)
    result = {"rows": rows, "claims": [], "summary": summary(rows)}
    results.write("trained", out, result)
    return result


def _trained(
    label: str, scale: TrainingSize, data: Dataset, sizes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One line for each random start, with the learning rate that did best on a held-out fifth."""
    classes = len(np.unique(data.y_train))
    net = with_heads(networks(scale.width, classes)[label], HEADS)
    validated, correct = best_trained(net, data, scale)
    rows = []
    for start in range(scale.starts):
        tested = Accuracy(validated, correct[start])
        facts = f"width {scale.width}, start {start}, learning rate in place of a ridge"
        rows.append(row(label, "trained", tested, **sizes, settings=facts))
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Kernels beside the mean over starts, and the spread of the starts."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(one["kernel"] for one in rows):
        here = [one for one in rows if one["kernel"] == name]
        starts = [one["accuracy"] for one in here if one["kind"] == "trained"]
        kernels = {one["kind"]: one["accuracy"] for one in here if one["kind"] in KINDS}
        spread = float(np.std(starts, ddof=1))
        found[name] = kernels | {"trained": float(np.mean(starts)), "spread": spread}
    return found


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    return [
        f"{name}: kernels {', '.join(f'{k} {one[k]:.3f}' for k in ('NNGP', 'NTK') if k in one)}; "
        f"trained networks {one['trained']:.3f} on average, {one['spread']:.3f} apart from start "
        "to start."
        for name, one in result["summary"].items()
    ]


STUDY = Study(
    "trained",
    "Trained networks beside their kernels",
    "Finite networks trained by Adam on the images their kernels see, over several starts.",
    run,
    {"trained": results.CAPTION},
    conclude,
    tables=results.tables,
)
