"""Infinitely wide networks on small tables, beside an RBF process, an SVM and a random forest.

Every method sees the same random
splits of the data sets that come with scikit-learn, standardised on the training part. Networks,
SVM and forest choose their few settings by 3-fold cross-validation inside the training part, the
RBF process by its evidence. Scores are accuracy (classes) and R² (diabetes).

Random splits share data, so the spread over splits is too small an error. The 95 % intervals are
those of the corrected resampled t-test: variance `(1/J + n_test/n_train)·s²` for J splits.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies.study import Result, Size, Study, Table, publish, tracked
from widelimit.errors import MissingExtraError
from widelimit.inference import KernelKind, centred_one_hot
from widelimit.inference.checks import Values
from widelimit.layers.activations import Relu
from widelimit.layers.base import Layer
from widelimit.layers.compose import Repeat, Serial
from widelimit.layers.dense import Dense
from widelimit.progress import Callback

_NOISES = [1e-3, 1e-2, 1e-1, 1.0]
_DEPTHS = (1, 3)
_TREES = 200


class SplitSize(NamedTuple):
    """Training examples (at most), test examples (at most), and random splits."""

    train: int
    test: int
    splits: int


_SCALES = {Size.SMALL: SplitSize(200, 100, 6), Size.LARGE: SplitSize(1000, 500, 20)}


class TableTask(NamedTuple):
    """A data set, read."""

    name: str
    x: np.ndarray
    y: np.ndarray
    classes: bool


def tasks() -> list[TableTask]:
    """The four data sets."""
    try:
        from sklearn import datasets
    except ImportError as missing:
        raise MissingExtraError("scikit-learn", "sklearn") from missing
    loaders = {
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
        "breast cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
    }
    found = {name: load(return_X_y=True) for name, load in loaders.items()}
    return [TableTask(name, x, y, name != "diabetes") for name, (x, y) in found.items()]


def network(depth: int) -> Layer:
    """A fully connected ReLU network."""
    hidden = Serial(Dense(512, w_std=2**0.5, b_std=0.3), Relu())
    return Serial(Repeat(hidden, depth), Dense(1))


def methods(classes: bool) -> dict[str, Callable[[], Any]]:
    """Names to functions that make a fresh estimator."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC, SVR

    from widelimit.sklearn import InfiniteNetworkClassifier, InfiniteNetworkRegressor

    def chosen(estimator: Any, **grid: Any) -> Callable[[], Any]:
        return lambda: GridSearchCV(estimator, grid, cv=3)

    ours = InfiniteNetworkClassifier if classes else InfiniteNetworkRegressor
    nngp, ntk = (ours(kind=kind) for kind in KernelKind)
    networks = [network(depth) for depth in _DEPTHS]
    forest = RandomForestClassifier if classes else RandomForestRegressor
    machine = SVC() if classes else SVR()
    return {
        "NNGP": chosen(nngp, network=networks, noise=_NOISES),
        "NTK": chosen(ntk, network=networks, noise=_NOISES),
        "RBF process": lambda: RbfProcess(classes),
        "SVM": chosen(machine, C=[0.1, 1.0, 10.0, 100.0], gamma=["scale", 0.01, 0.1]),
        "random forest": chosen(
            forest(n_estimators=_TREES, random_state=0), max_features=["sqrt", 0.5]
        ),
    }


class RbfProcess:
    """A Gaussian process with an RBF kernel and noise, fitted by evidence; classes as one-hot."""

    def __init__(self, classes: bool):
        """`classes`: whether the targets are labels."""
        self.classes = classes

    def fit(self, x: np.ndarray, y: np.ndarray) -> "RbfProcess":
        """Fit scale, length and noise."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        length = RBF(np.sqrt(x.shape[1]), (1e-2, 1e3))
        kernel = ConstantKernel(1.0, (1e-3, 1e4)) * length + WhiteKernel(0.1, (1e-6, 10.0))
        targets, self.labels = centred_one_hot(y) if self.classes else (y, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model = GaussianProcessRegressor(kernel, normalize_y=True).fit(x, targets)
        return self

    def score(self, x: np.ndarray, y: np.ndarray) -> float:
        """Accuracy or R²."""
        if self.labels is None:
            return float(self.model.score(x, y))
        columns = np.argmax(np.asarray(self.model.predict(x)), axis=1)
        return float(np.mean(self.labels[columns] == y))


def splits(task: TableTask, scale: SplitSize) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random (train, test) indices; classes keep their shares."""
    from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

    train = min(scale.train, 4 * len(task.y) // 5)
    test = min(scale.test, len(task.y) - train)
    kind = StratifiedShuffleSplit if task.classes else ShuffleSplit
    cutter = kind(scale.splits, train_size=train, test_size=test, random_state=0)
    return list(cutter.split(task.x, task.y))


def interval(scores: Values, train: int, test: int) -> float:
    """Half the width of the 95 % interval of a mean over random splits that share data."""
    count = np.size(np.asarray(scores))
    variance = (1 / count + test / train) * np.var(np.asarray(scores), ddof=1)
    return float(stdtrit(count - 1, 0.975) * np.sqrt(variance))


def compare(
    scale: SplitSize, chosen: Sequence[TableTask] | None = None, progress: Callback | None = None
) -> list[dict[str, Any]]:
    """One row per data set and method: mean score and its interval."""
    from sklearn.preprocessing import StandardScaler

    work = [(task, name) for task in chosen or tasks() for name in methods(task.classes)]
    rows = []
    for task, name in tracked(work, progress):
        parts, scores = splits(task, scale), []
        for train, test in parts:
            scaler = StandardScaler().fit(task.x[train])
            model = methods(task.classes)[name]()
            model.fit(scaler.transform(task.x[train]), task.y[train])
            scores.append(float(model.score(scaler.transform(task.x[test]), task.y[test])))
        sizes = len(parts[0][0]), len(parts[0][1])
        rows.append(
            {
                "data": task.name,
                "score": "accuracy" if task.classes else "R²",
                "method": name,
                "train": sizes[0],
                "test": sizes[1],
                "splits": len(parts),
                "scores": scores,
                "mean": float(np.mean(scores)),
                "half_interval": interval(scores, *sizes),
            }
        )
    return rows


def tables(result: Result) -> list[Table]:
    """Data sets down, methods across.

    A star: the best mean, and those whose paired difference from it may be zero.
    """
    rows = result["rows"]
    names = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        here = {row["method"]: row for row in rows if row["data"] == data}
        best = max(here.values(), key=lambda row: row["mean"])
        cells = []
        for name in names:
            row = here[name]
            gaps = np.subtract(best["scores"], row["scores"])
            tied = np.mean(gaps) <= interval(gaps, row["train"], row["test"])
            cells.append(f"{row['mean']:.3f} ± {row['half_interval']:.3f}{'*' * bool(tied)}")
        lines.append([f"{data} ({here[names[0]]['train']})", here[names[0]]["score"], *cells])
    return [(["data (train)", "score", *names], lines)]


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `small_data.json`, `.csv` and `.png` into the folder `out`."""
    rows = compare(_SCALES[Size(size).at_most_large], progress=progress)
    result = {"rows": rows}
    plain = [{key: value for key, value in row.items() if key != "scores"} for row in rows]
    publish(out, "small_data", result, plain, _plot(rows))
    return result


def _plot(rows: Sequence[dict[str, Any]]) -> Any:
    data = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = canvas(len(data), width=3.2, height=3.0)
    for axis, name in zip(axes[0], data, strict=True):
        here = [row for row in rows if row["data"] == name]
        places = np.arange(len(here))[::-1]
        means = [row["mean"] for row in here]
        halves = [row["half_interval"] for row in here]
        axis.errorbar(means, places, xerr=halves, fmt="o", capsize=3, color="tab:blue")
        axis.set_yticks(places, [row["method"] for row in here])
        axis.set(title=name, xlabel=here[0]["score"])
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    rows: Sequence[Mapping[str, Any]] = result["rows"]
    said = []
    for data in dict.fromkeys(row["data"] for row in rows):
        best = max((row for row in rows if row["data"] == data), key=lambda row: row["mean"])
        said.append(
            f"{data}: {best['method']} has the highest mean, {best['score']} {best['mean']:.3f} "
            f"± {best['half_interval']:.3f}."
        )
    return said


STUDY = Study(
    "small-data",
    "Small tables",
    "Infinite networks beside an RBF process, an SVM and a random forest.",
    run,
    {
        "small_data": "Mean score over random splits with its 95 % interval, one panel for "
        "each data set.",
    },
    conclude,
    tables=tables,
)
