"""Accuracy by the number of training images: beginnings of one kernel, so every N is nested.

The kernels are those of the CIFAR-10 study at 8×8, of all images at hand; they are found again if
the study of landmarks ran before with the same output folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies.accuracy import evaluate, row
from widelimit.app.studies.comparison import KINDS
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.progress import Callback

from . import landmarks


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `learning_curve.csv`, `.json` and `.png` into `out`, kernels beside it."""
    place = landmarks.arena(size, out)
    with landmarks.shared(place, size):
        choice, kernels = landmarks.everything(place, size)
    data, names = place.views[choice.trunk.view], list(choice.readouts)
    rows = []
    work = [(count, i) for count in sizes(len(data.y_train)) for i in range(len(names))]
    for count, index in tracked(work, progress):
        for kind, kernel in zip(KINDS, kernels, strict=True):
            block = np.concatenate([kernel[index, :count], kernel[index, len(data.y_train) :]])
            tested = evaluate(block[:, :count], data.y_train[:count], data.y_test)
            rows.append(row(names[index], kind, tested, data=place.name, train=count))
    result = {"data": place.name, "rows": rows, "gain_per_doubling": gains(rows)}
    publish(out, "learning_curve", result, rows, _plot(rows))
    return result


def sizes(most: int) -> list[int]:
    """All images, and halves of that: down to about a hundred, and at least twice."""
    found = [most]
    while found[-1] >= 200 or len(found) < 3:
        found.append(found[-1] // 2)
    return found[::-1]


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Accuracy gained with each doubling of the training images, by least squares."""
    result = {}
    for name, kind in dict.fromkeys((one["kernel"], one["kind"]) for one in rows):
        here = [one for one in rows if (one["kernel"], one["kind"]) == (name, kind)]
        counts = np.log2([one["train"] for one in here])
        result[f"{name}, {kind}"] = float(np.polyfit(counts, [o["accuracy"] for o in here], 1)[0])
    return result


def _plot(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Curves, with the interval of the first kernel: those of the others are as wide."""
    figure, axes = canvas(len(KINDS), width=5.2, height=4.0)
    counts = list(dict.fromkeys(one["train"] for one in rows))
    names = list(dict.fromkeys(one["kernel"] for one in rows))
    for axis, kind in zip(axes[0], KINDS, strict=True):
        for name in names:
            here = [one for one in rows if one["kernel"] == name and one["kind"] == kind]
            axis.plot(counts, [one["accuracy"] for one in here], "o-", ms=4, label=name)
            if name == names[0]:
                ends = [one["low"] for one in here], [one["high"] for one in here]
                label = f"{name}, 95 % interval"
                axis.fill_between(counts, *ends, color="0.9", label=label, zorder=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.set(title=kind, xlabel="training images", ylabel="test accuracy")
        axis.legend(fontsize=8)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    gains = result["gain_per_doubling"]
    return [
        f"Each doubling of the training images adds {min(gains.values()):.3f} to "
        f"{max(gains.values()):.3f} of accuracy, by kernel: "
        + ", ".join(f"{name} {gain:.3f}" for name, gain in gains.items())
        + "."
    ]


STUDY = Study(
    "learning-curve",
    "Accuracy by the number of training images",
    "The CIFAR-10 kernels on nested beginnings of one training set.",
    run,
    {
        "learning_curve": "Test accuracy by the number of training images, 95 % intervals.",
    },
    conclude,
)
