"""Ten data sets, from files to scores: ours by its defaults against what people use otherwise.

python -m benchmarks.datasets --data-dir FOLDER [--splits 5] [--only wine digits] [--out FOLDER]

FOLDER holds cifar10.npz, rt_polarity.jsonl.gz, imdb.jsonl.gz and GloVe vectors; without it the sets
that need them are left out. Every split is written as the file a user would have, with a column
`split` or arrays `x_train`…, and goes through `widelimit classify` or `regress` as it is. The
others get the same rows: numbers standardised, medians and indicators for what is missing,
categories as zeros and ones; texts as TF-IDF for linear models and machines, as average word
vectors for trees and the process. Writes `datasets.json` and `datasets.md` after each data set;
those of an earlier run that are not measured again stay.
"""

import argparse
import csv
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.small_data import RbfProcess, interval
from widelimit.app.workflow import Settings, Task, run
from widelimit.data import downsample, load_cifar10, load_glove, read_frame, save_npz
from widelimit.data.embedding import Embedder, Empty

TRAIN, TEST = 300, 300
Parts = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Example:
    """A data set: arrays or columns by name, what is to be predicted, and a text column if any."""

    name: str
    content: Any  # an array (N, ...), or {column: values}
    y: np.ndarray
    task: Task
    text: str | None = None


# --- the data -------------------------------------------------------------------------------------


def waves(rng: np.random.Generator) -> Example:
    """The next value of a noisy series from thirty before it, one channel."""
    t = np.arange(1531)
    slow = 0.03 * np.cumsum(rng.normal(size=len(t)))
    fast = 0.6 * np.sin(2 * np.pi * t / 7.3) * (1 + 0.5 * np.sin(t / 80))
    s = np.sin(2 * np.pi * t / 24) + fast + slow + 0.25 * rng.normal(size=len(t))
    windows = np.stack([s[i : i + 30] for i in range(1500)])[..., None]
    return Example("series: next value", windows, s[30:1530], Task.REGRESS)


def pulses(rng: np.random.Generator) -> Example:
    """Which of four shapes is hidden in a noisy series of forty values, anywhere in it."""
    shapes = np.stack(
        [
            np.sin(np.linspace(0, 2 * np.pi, 16)),
            np.linspace(-1, 1, 16),
            np.sign(np.sin(np.linspace(0, 4 * np.pi, 16))),
            np.exp(-(np.linspace(-2, 2, 16) ** 2)) * 2 - 0.5,
        ]
    )
    kinds = rng.integers(4, size=1500)
    x = 0.5 * rng.normal(size=(1500, 40))
    for row, kind in enumerate(kinds):
        at = rng.integers(0, 24)
        x[row, at : at + 16] += shapes[kind]
    names = np.array(["sine", "ramp", "square", "bump"])
    return Example("series: which shape", x[..., None], names[kinds], Task.CLASSIFY)


def flats(rng: np.random.Generator) -> Example:
    """Rents by a few words of description, numbers and a district, a fifth of them missing."""
    n = 1500
    words = {"quiet": 40, "bright": 60, "renovated": 120, "central": 90, "noisy": -60, "old": -80}
    filler = ["flat", "with", "kitchen", "near", "park", "station", "and", "garden", "room"]
    size, year = rng.gamma(9, 8, n), rng.integers(1900, 2024, n).astype(float)
    district = rng.choice(["north", "south", "east", "west", "harbour"], n)
    place = {"north": 0, "south": 80, "east": -60, "west": 150, "harbour": 260}
    texts, worth = [], np.zeros(n)
    for i in range(n):
        chosen = rng.choice(list(words), rng.integers(1, 4), replace=False)
        worth[i] = sum(words[word] for word in chosen)
        said = [*chosen, *rng.choice(filler, 4)]
        rng.shuffle(said)
        texts.append(" ".join(["a", *said]))
    age = np.where(year > 1990, 1.5, 1.0)
    rent = 200 + 9 * size * age + worth * size / 60 + [place[d] for d in district]
    rent += 60 * rng.normal(size=n)
    columns = {
        "description": np.array(texts, object),
        "size": holes(size.round(1), rng),
        "year": holes(year, rng),
        "district": holes(district, rng),
        "id": np.arange(n).astype(str).astype(object),
    }
    return Example("mixed: rents", columns, rent.round(0), Task.REGRESS, "description")


def opinions(rng: np.random.Generator, folder: Path) -> Example:
    """Sentences about films beside columns that know something of the verdict, with holes."""
    data = read_frame(folder / "rt_polarity.jsonl.gz")
    data = data.iloc[rng.permutation(len(data))[:1500]]
    y = data["label"].to_numpy()
    stars = np.clip(np.round(3 + 0.8 * (2 * y - 1) + 1.3 * rng.normal(size=1500)), 1, 5)
    genre = np.where(rng.random(1500) < 0.55, np.where(y == 1, "drama", "horror"), "comedy")
    columns = {
        "text": data["text"].to_numpy(object),
        "stars": holes(stars, rng),
        "genre": holes(genre, rng),
        "minutes": holes(rng.normal(105, 15, 1500).round(), rng),
    }
    return Example("mixed: opinions", columns, y.astype(str), Task.CLASSIFY, "text")


def holes(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A fifth of the values missing."""
    return np.where(rng.random(len(values)) < 0.2, "", values.astype(str)).astype(object)


def everything(folder: Path | None) -> Iterator[Example]:
    """The ten data sets, or those of them that need no folder."""
    from sklearn import datasets

    rng = np.random.default_rng(0)
    for name, load, task in (
        ("wine", datasets.load_wine, Task.CLASSIFY),
        ("diabetes", datasets.load_diabetes, Task.REGRESS),
    ):
        found = load()
        columns = {str(n): found.data[:, i] for i, n in enumerate(found.feature_names)}
        y = found.target if task is Task.REGRESS else found.target_names[found.target]
        yield Example(name, columns, y, task)
    digits = datasets.load_digits()
    yield Example("digits", digits.images[..., None], digits.target, Task.CLASSIFY)
    yield waves(rng)
    yield pulses(rng)
    yield flats(rng)
    if folder is None:
        return
    yield opinions(rng, folder)
    for name in ("rt_polarity", "imdb"):
        data = read_frame(folder / f"{name}.jsonl.gz")
        data = data.iloc[rng.permutation(len(data))[:1500]]
        texts = {"text": data["text"].to_numpy(object)}
        yield Example(name, texts, data["label"].to_numpy(str), Task.CLASSIFY, "text")
    images = load_cifar10(folder)
    rows = rng.permutation(len(images.y_train))[:1500]
    small = downsample(images.x_train[rows].astype(np.float32), (8, 8))
    yield Example("CIFAR-10, 8×8", small, images.y_train[rows], Task.CLASSIFY)


# --- ours -----------------------------------------------------------------------------------------


def ours(data: Example, parts: Parts, folder: Path, vectors: Path | None) -> tuple[float, float]:
    """A file with this split through the defaults of the command line."""
    train, test = parts
    if isinstance(data.content, np.ndarray):
        path = folder / "data.npz"
        arrays = {"x_train": data.content[train], "x_test": data.content[test]}
        save_npz(path, **arrays, y_train=data.y[train], y_test=data.y[test])
    else:
        path = folder / "data.csv"
        part = np.full(len(data.y), "", object)
        part[train], part[test] = "train", "test"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*data.content, "target", "split"])
            for i in np.concatenate(parts):
                writer.writerow([*(v[i] for v in data.content.values()), data.y[i], part[i]])
    found = run(path, data.task, settings=Settings(vectors=vectors, folds=0))
    return found.score.value, sum(found.seconds.values())


# --- the others -----------------------------------------------------------------------------------


def table_rows(columns: dict[str, np.ndarray], train: np.ndarray) -> Any:
    """What stands before a model that takes numbers: medians, indicators, zeros and ones."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame, numbers, words = [], [], []
    for name, values in columns.items():
        if name == "id":
            continue
        text = np.array([str(v) for v in values], object)
        try:
            column = np.array([float(v) if v else np.nan for v in text], object)
            numbers.append(len(frame))
        except ValueError:
            column = text
            words.append(len(frame))
        frame.append(column)
    rows = np.stack(frame, axis=1)
    filled = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    maker = make_column_transformer((filled, numbers), (encoder, words))
    return np.asarray(maker.fit(rows[train]).transform(rows), float)


def features(data: Example, train: np.ndarray, embed: Callable | None) -> tuple[Any, Any]:
    """Rows for linear models and machines, and rows for trees and processes."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import StandardScaler

    if isinstance(data.content, np.ndarray):
        flat = data.content.reshape(len(data.y), -1).astype(float)
        rows = StandardScaler().fit(flat[train]).transform(flat)
        return rows, rows
    columns = {name: v for name, v in data.content.items() if name != data.text}
    beside = table_rows(columns, train) if columns else np.zeros((len(data.y), 0))
    if data.text is None:
        return beside, beside
    texts = data.content[data.text]
    counted = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
    counted.fit([texts[i] for i in train])
    assert embed is not None
    averaged = np.concatenate([embed(texts), beside], axis=1)
    both = sparse.hstack([counted.transform(texts), sparse.csr_matrix(beside)]).tocsr()
    return both, StandardScaler().fit(averaged[train]).transform(averaged)


def models(task: Task) -> dict[str, tuple[bool, Any]]:
    """Whether they take the first kind of rows, and the models, each tuned as people do."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC, SVR

    classes = task is Task.CLASSIFY
    machine, grid = (
        (SVC() if classes else SVR()),
        {"C": [0.1, 1, 10, 100], "gamma": ["scale", 0.01]},
    )
    linear = (
        GridSearchCV(LogisticRegression(max_iter=3000), {"C": [0.01, 0.1, 1, 10]}, cv=3)
        if classes
        else GridSearchCV(Ridge(), {"alpha": [0.01, 0.1, 1, 10, 100]}, cv=3)
    )
    forest = RandomForestClassifier if classes else RandomForestRegressor
    boosting = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return {
        "linear": (True, linear),
        "SVM, grid": (True, GridSearchCV(machine, grid, cv=3)),
        "forest": (False, forest(200, random_state=0)),
        "boosting": (False, boosting(random_state=0)),
        "RBF process": (False, RbfProcess(classes)),
    }


def embedder(folder: Path | None) -> Callable | None:
    """Average word vectors of texts."""
    if folder is None:
        return None
    vectors = Embedder(vectors=load_glove(folder), empty=Empty.MEAN)

    def average(texts: Any) -> np.ndarray:
        x, mask = vectors(list(texts))
        return x.sum(axis=1) / mask.sum(axis=1, keepdims=True)

    return average


# --- the run --------------------------------------------------------------------------------------


def splits(data: Example, count: int) -> list[Parts]:
    """Random parts; classes keep their shares."""
    from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

    train = min(TRAIN, 4 * len(data.y) // 5)
    kind = StratifiedShuffleSplit if data.task is Task.CLASSIFY else ShuffleSplit
    test = min(TEST, len(data.y) - train)
    cutter = kind(count, train_size=train, test_size=test, random_state=0)
    return list(cutter.split(np.zeros(len(data.y)), data.y))


def one_split(
    data: Example, parts: Parts, embed: Callable | None, vectors: Path | None
) -> dict[str, tuple[float, float]]:
    """Score and seconds of every method."""
    train, test = parts
    with tempfile.TemporaryDirectory() as place:
        found = {"widelimit": ours(data, parts, Path(place), vectors)}
    sparse_rows, rows = features(data, train, embed)
    for name, (first, model) in models(data.task).items():
        x, begin = sparse_rows if first else rows, time.monotonic()
        score = model.fit(x[train], data.y[train]).score(x[test], data.y[test])
        found[name] = float(score), time.monotonic() - begin
    return found


def measured(data: Example, count: int, folder: Path | None) -> dict[str, Any]:
    """Scores and seconds of every method on every split."""
    embed = embedder(folder) if data.text is not None else None
    vectors = None if folder is None else folder / "glove_100d.npz"
    found: dict[str, dict[str, list[float]]] = {}
    parts = splits(data, count)
    for part in parts:
        for name, (score, seconds) in one_split(data, part, embed, vectors).items():
            row = found.setdefault(name, {"scores": [], "seconds": []})
            row["scores"].append(score)
            row["seconds"].append(seconds)
    sizes = len(parts[0][0]), len(parts[0][1])
    return {"data": data.name, "task": str(data.task), "sizes": sizes, "methods": found}


def markdown(results: list[dict[str, Any]]) -> str:
    """Data sets down, methods across: mean, half of its 95 % interval, median seconds."""
    names = list(results[0]["methods"])
    head = "| data (train, test) | score | " + " | ".join(names) + " |"
    lines = [head, "|---" * (len(names) + 2) + "|"]
    for result in results:
        rows, sizes = result["methods"], result["sizes"]
        best = max(rows.values(), key=lambda row: np.mean(row["scores"]))
        cells = []
        for name in names:
            row = rows[name]
            half = interval(row["scores"], *sizes)
            text = f"{np.mean(row['scores']):.3f} ± {half:.3f}"
            gaps = np.subtract(best["scores"], row["scores"])
            tied = np.mean(gaps) <= interval(gaps, *sizes)
            text = f"**{text}**" if tied else text
            cells.append(f"{text}, {np.median(row['seconds']):.1f} s")
        score = "accuracy" if result["task"] == "classify" else "R²"
        lines.append(f"| {result['data']} {tuple(sizes)} | {score} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    if given.data_dir is not None:
        os.environ["WIDELIMIT_DATA"] = str(given.data_dir)
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "datasets.json"
    results = {row["data"]: row for row in json.loads(kept.read_text())} if kept.exists() else {}
    for data in everything(given.data_dir):
        if not given.only or data.name in given.only:
            results[data.name] = row = measured(data, given.splits, given.data_dir)
            print(markdown([row]).splitlines()[-1], flush=True)
            kept.write_text(json.dumps(list(results.values()), indent=1) + "\n")
            (given.out / "datasets.md").write_text(markdown(list(results.values())))


if __name__ == "__main__":
    main()
