"""CIFAR-10 with all images at hand: exact kernels by a cluster, and landmarks against them.

The kernels of the CIFAR-10 study at 8×8 of all training images go into a store, computed by the
workers of a cluster on this machine. Landmarks are chosen by randomly pivoted Cholesky from m of
the columns; the ridge of either is chosen by its own leave-one-out accuracy on training images
(with landmarks, on those that are none, as test images are). Test images are looked at once.

A quarter of the images is looked at again within the training images: every fifth of them is a test
of the others in turn. With four times as many tests a loss of 0.005 can be told from chance. Beside
the landmarks stands what as many eigenvectors of the exact kernel lose: of all kernels of that rank
theirs is the nearest, though not of necessity the one that classifies best.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies import cifar10
from widelimit.app.studies.accuracy import RIDGES, Accuracy, Validated, climbed, gap
from widelimit.app.studies.comparison import KINDS, Arena, FamilyGroup, Selection, choose
from widelimit.app.studies.study import Result, Size, Study, Table, publish, tracked
from widelimit.inference import GPPosterior, centred_one_hot
from widelimit.inference.nystrom import NystromPosterior
from widelimit.inference.pivots import Pivoted, pivoted
from widelimit.inference.spectrum import Spectrum
from widelimit.progress import Callback

PARTS = {
    Size.SMALL: cifar10.ImageSize(8, 200, 400),
    Size.LARGE: cifar10.ImageSize(8, 50_000, 10_000),  # as many as there are
}
FAMILIES = ("flatten", "global pooling")
"""One kernel without and one with pooling over positions."""
SHARES = (16, 8, 4, 2)
"""Landmarks: these parts of the training images."""
FOLDS, FOLD_SHARE = 5, 4
"""Parts that are tests in turn, and the part of the other images that are landmarks then."""


class LabelledKernel(NamedTuple):
    """A kernel (train and test, train), and the labels of both."""

    whole: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def square(self) -> np.ndarray:
        """Of the training images."""
        return self.whole[: len(self.train)]

    @property
    def cross(self) -> np.ndarray:
        """Of test with training images."""
        return self.whole[len(self.train) :]

    @property
    def scale(self) -> float:
        """Its mean diagonal, by which ridges are measured."""
        return float(np.diagonal(self.square).mean())


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `landmarks.csv`, `.json` and `.png` into `out`, kernels beside it."""
    place = arena(size, out)
    begin = time.monotonic()
    with shared(place, size) as workers:
        choice, kernels = everything(place, size)
    computed = time.monotonic() - begin
    data = place.views[choice.trunk.view]
    names = list(choice.readouts)
    rows, folds = [], []
    both = dict(zip(KINDS, kernels, strict=True))
    work = [(name, kind) for name in FAMILIES for kind in KINDS]
    for name, kind in tracked(work, progress):
        whole = np.asarray(both[kind][names.index(name)])
        kernel = LabelledKernel(whole, data.y_train, data.y_test)
        rows += compared(kernel, name, kind, place.name)
        folds += in_folds(kernel, name, kind, place.name)
    result = {
        "data": place.name,
        "images": [len(data.y_train), len(data.y_test)],
        "settings": {name: choice.readouts[name] for name in FAMILIES},
        "kernels": {"seconds": computed, "workers": workers, "readouts": len(names)},
        "rows": rows,
        "folds": folds,
    }
    publish(out, "landmarks", result, rows, _plot(rows))
    return result


def arena(size: Size, out: Path) -> Arena:
    """All images at 8×8."""
    return cifar10.arena(Size(size), PARTS[Size(size).at_most_large], out)


@contextmanager
def shared(place: Arena, size: Size) -> Iterator[int]:
    """Kernels by a process for every core, and how many; a small run is done before they start."""
    if Size(size) is Size.SMALL:
        cluster, workers = nullcontext(), 1
    else:
        from widelimit.scale.cluster import local_client  # only large runs need Dask

        workers = os.cpu_count() or 1
        cluster = local_client(workers)
    with cluster as client:
        place.kept.client = client
        yield workers
    place.kept.client = None


def everything(place: Arena, size: Size) -> tuple[Selection, Any]:
    """Settings by validation, and the kernels of all images, one for each family."""
    tuned_on = cifar10.SCALES[Size(size).at_most_large].tuned_on
    group = FamilyGroup(cifar10.trunks(), cifar10.families())
    trials = [
        trial
        for trunk in group.trunks
        for trial in place.validated(trunk, group.families, tuned_on)
    ]
    choice = choose(group, trials)
    return choice, place.kernels(choice.trunk, choice.layers(group.families), None)


def compared(
    kernel: LabelledKernel,
    name: str,
    kind: str,
    data: str,
    shares: Sequence[int] = SHARES,
    *,
    eigenvectors: bool = False,
) -> list[dict[str, Any]]:
    """The exact posterior, and landmarks of every number, on the same test images.

    With `eigenvectors`, as many of them as well; that takes a decomposition of the whole kernel.
    """
    begin = time.process_time()
    exact = solved_exactly(kernel)
    seconds = time.process_time() - begin
    size = len(kernel.train)
    facts = {"kernel": name, "kind": kind, "data": data, "train": size}
    rows = [_row(facts, "exact", size, size * (size + 1) // 2, exact, exact, 0.0, seconds)]
    begin = time.process_time()
    found = marked(kernel, size // min(shares))
    choosing = (time.process_time() - begin) / found.factor.shape[1] ** 2
    for share in shares:
        begin = time.process_time()
        some = first(found, size // share, np.diagonal(kernel.square))
        tested = solved_by(kernel, some)
        missed = float(some.missed.sum()) / (size * kernel.scale)
        marks = len(some.pivots)
        seconds = time.process_time() - begin + choosing * marks**2
        rows.append(_row(facts, "Nyström", marks, size * marks, tested, exact, missed, seconds))
    if eigenvectors:
        begin = time.process_time()
        spectrum = Spectrum.of(kernel.square)
        for share in shares:
            leading = spectrum.truncated(size // share)
            tested = solved_in(kernel, leading)
            missed = 1 - float(leading.values.sum() / spectrum.values.sum())
            seconds = time.process_time() - begin
            entries = size * (size + 1) // 2
            found = (tested, exact, missed, seconds)
            rows.append(_row(facts, "eigenvectors", size // share, entries, *found))
    return rows


def in_folds(kernel: LabelledKernel, name: str, kind: str, data: str) -> list[dict[str, Any]]:
    """The same with a quarter as landmarks, every training image being a test once."""
    order = np.random.default_rng(0).permutation(len(kernel.train))
    runs = []
    for tests in np.array_split(order, FOLDS):
        others = np.setdiff1d(order, tests)
        fold = LabelledKernel(
            kernel.square[np.ix_(np.concatenate([others, tests]), others)],
            kernel.train[others],
            kernel.train[tests],
        )
        runs.append(compared(fold, name, kind, data, (FOLD_SHARE,), eigenvectors=True))
    return [_averaged(rows) for rows in zip(*runs, strict=True)]


def _averaged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One solver over all folds; the images of different folds are different ones."""
    result = {name: rows[0][name] for name in ("kernel", "kind", "data", "solver", "landmarks")}
    result["tests"] = sum(row["tests"] for row in rows)
    for name in ("accuracy", "gap", "solve_seconds"):
        result[name] = float(np.mean([row[name] for row in rows]))
    result["gap_error"] = float(np.linalg.norm([row["gap_error"] for row in rows]) / len(rows))
    return result


def solved_exactly(kernel: LabelledKernel) -> Accuracy:
    """One factorisation for every ridge that is tried, with all training images."""
    targets, classes = centred_one_hot(kernel.train)

    def posterior(ridge: float) -> GPPosterior:
        return GPPosterior.condition(kernel.square, targets, noise=ridge * kernel.scale)

    return _tested(kernel, classes, posterior, kernel.cross)


def solved_by(kernel: LabelledKernel, found: Pivoted) -> Accuracy:
    """The same through landmarks."""
    posterior, classes = _conditioned(kernel, found)
    return _tested(kernel, classes, posterior, kernel.cross[:, found.pivots])


def solved_in(kernel: LabelledKernel, spectrum: Spectrum) -> Accuracy:
    """With the kernel of a spectrum, whose eigenvectors are also the features of test images."""
    targets, classes = centred_one_hot(kernel.train)
    seen = spectrum.values > 0
    response = (kernel.cross @ spectrum.vectors)[:, seen]
    rotated = (spectrum.vectors.T @ targets)[seen]

    def left_out(ridge: float) -> float:
        found = spectrum.leave_one_out(targets, ridge * kernel.scale)
        return _accuracy(np.searchsorted(classes, kernel.train), found.mean)

    def mean(ridge: float) -> np.ndarray:
        return response / (spectrum.values[seen] + ridge * kernel.scale) @ rotated

    return _chosen(kernel, classes, left_out, mean)


def _conditioned(
    kernel: LabelledKernel, found: Pivoted
) -> tuple[Callable[[float], NystromPosterior], np.ndarray]:
    targets, classes = centred_one_hot(kernel.train)
    diagonal = np.diagonal(kernel.square)

    def posterior(ridge: float) -> NystromPosterior:
        noise = ridge * kernel.scale
        return NystromPosterior.condition(found, diagonal, targets, noise=noise, unit=_UNIT)

    return posterior, classes


_UNIT = float(np.finfo(np.float32).eps)


def _accuracy(wanted: np.ndarray, mean: np.ndarray) -> float:
    return float(np.mean(np.argmax(mean, axis=1) == wanted))


def _tested(
    kernel: LabelledKernel,
    classes: np.ndarray,
    posterior: Callable[[float], Any],
    cross: np.ndarray,
) -> Accuracy:
    """The ridge that is best for left-out training images, and test images with it."""
    columns = np.searchsorted(classes, kernel.train)

    def left_out(ridge: float) -> float:
        found = posterior(ridge)
        rows = found.calibration_rows
        return _accuracy(columns[rows], found.left_out_at(rows).mean)

    return _chosen(kernel, classes, left_out, lambda ridge: posterior(ridge).mean(cross))


def _chosen(
    kernel: LabelledKernel,
    classes: np.ndarray,
    left_out: Callable[[float], float],
    mean: Callable[[float], np.ndarray],
) -> Accuracy:
    """The ridge with the best score of left-out images, and the means of test images with it."""
    ridge, validated = climbed(left_out, RIDGES)
    correct = classes[np.argmax(mean(ridge), axis=1)] == kernel.test
    return Accuracy(Validated(ridge, validated), correct)


def marked(kernel: LabelledKernel, count: int) -> Pivoted:
    """Landmarks in the order they are drawn: fewer of them are the first of these."""
    square = kernel.square
    return pivoted(
        np.diagonal(square),
        lambda chosen: square[:, chosen],
        lambda chosen: square[np.ix_(chosen, chosen)],
        count,
        rng=np.random.default_rng(0),
        unit=_UNIT,
    )


def first(found: Pivoted, count: int, diagonal: np.ndarray) -> Pivoted:
    """The first landmarks alone."""
    factor = found.factor[:, :count]
    missed = np.maximum(diagonal - np.einsum("nm,nm->n", factor, factor), 0.0)
    missed[found.pivots[:count]] = 0.0
    return Pivoted(found.pivots[:count], factor, missed)


def _row(
    facts: Mapping[str, Any],
    solver: str,
    landmarks: int,
    entries: int,
    tested: Accuracy,
    exact: Accuracy,
    missed: float,
    seconds: float,
) -> dict[str, Any]:
    found = gap(tested, exact)
    low, high = tested.interval
    change = tested.correct.astype(float) - exact.correct
    return {
        **facts,
        "tests": len(change),
        "solver": solver,
        "landmarks": landmarks,
        "entries": entries,
        "missed": missed,
        "accuracy": tested.accuracy,
        "low": low,
        "high": high,
        "gap": found.difference,
        "gap_error": float(change.std() / np.sqrt(len(change))),
        "gap_low": found.low,
        "gap_high": found.high,
        "validation": tested.validated.accuracy,
        "ridge": tested.validated.ridge,
        "solve_seconds": seconds,
    }


def tables(result: Result) -> list[Table]:
    """Every solver on the test images, and averages over folds of the training images."""

    def change(one: Mapping[str, Any]) -> str:
        return "" if one["solver"] == "exact" else f"{one['gap']:+.4f} ({one['gap_error']:.4f})"

    solvers = [
        [
            f"{one['kernel']}, {one['kind']}",
            one["solver"],
            one["landmarks"],
            f"{one['entries'] / 1e6:.3g} M",
            f"{one['missed']:.1%}",
            f"{one['ridge']:g}",
            f"{one['accuracy']:.3f} ({one['low']:.3f}–{one['high']:.3f})",
            change(one),
            f"{one['solve_seconds']:.1f}",
        ]
        for one in result["rows"]
    ]
    folds = [
        [
            f"{one['kernel']}, {one['kind']}",
            one["solver"],
            one["landmarks"],
            f"{one['accuracy']:.3f}",
            change(one),
        ]
        for one in result["folds"]
    ]
    accuracy, against = "test accuracy (95 % interval)", "against exact (standard error)"
    first = ["kernel", "solver", "m"]
    more = ["entries", "variance missed", "ridge", accuracy, against, "processor seconds"]
    return [([*first, *more], solvers), ([*first, "accuracy over all folds", against], folds)]


def _plot(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Accuracy lost by landmarks, with two standard errors, one panel for each kernel."""
    figure, axes = canvas(len(FAMILIES), width=5.2, height=4.0)
    for axis, name in zip(axes[0], FAMILIES, strict=True):
        for number, kind in enumerate(KINDS):
            here = [r for r in rows if (r["kernel"], r["kind"]) == (name, kind)]
            marks = [one for one in here if one["solver"] == "Nyström"]
            axis.errorbar(
                [one["landmarks"] * 1.03 ** (number - 0.5) for one in marks],
                [one["gap"] for one in marks],
                yerr=[2 * one["gap_error"] for one in marks],
                fmt="o-",
                ms=4,
                capsize=2,
                label=f"{kind}; exact: {here[0]['accuracy']:.3f}",
            )
        counts = list(dict.fromkeys(one["landmarks"] for one in rows if one["solver"] != "exact"))
        axis.axhspan(-0.005, 0.005, color="0.92", zorder=0, label="within 0.005")
        axis.axhline(0, color="0.5", lw=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts])
        size = rows[0]["train"]
        axis.set(title=name, xlabel=f"landmarks, of {size} training images")
        axis.set_ylabel("test accuracy − exact (2 standard errors)")
        axis.legend(fontsize=8)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""

    def said(row: Mapping[str, Any]) -> str:
        solver = row["solver"]
        features = solver if solver == "eigenvectors" else f"landmarks ({solver})"
        return (
            f"{row['kernel']}, {row['kind']}, {row['landmarks']:,} {features}: "
            f"{row['gap']:+.4f} (± {row['gap_error']:.4f}) against the exact solve"
        )

    marks = [row for row in result["rows"] if row["solver"] != "exact"]
    folds = [row for row in result["folds"] if row["solver"] != "exact"]
    return [f"{said(row)}; {row['missed']:.1%} of the variance is missed." for row in marks] + [
        f"{said(row)} on {row['tests']:,} training images, each a test of other ones."
        for row in folds
    ]


STUDY = Study(
    "cifar10-landmarks",
    "Landmarks against exact kernels on all images",
    "CIFAR-10 at 8×8 by store and cluster: accuracy lost by Nyström over the landmarks.",
    run,
    {
        "landmarks": "Accuracy lost by landmarks against the exact solve on the same images, "
        "with two standard errors.",
    },
    conclude,
    tables=tables,
)
