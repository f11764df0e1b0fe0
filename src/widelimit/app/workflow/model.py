"""A fitted pipeline together with what it takes to go from a file to predictions."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from ...data import DataError, Holds, read_npz
from ...data.npz import check_inputs
from ...data.pictures import read_images
from ...inference import centred_one_hot
from ...persist import ModelFileError, load, save
from ...sklearn import InfiniteNetworkClassifier, WordVectorizer
from ...sklearn.inputs import Examples
from ...sklearn.networks import Kind
from .columns import require_columns
from .kinds import Task
from .sources import (
    Reading,
    Source,
    array_source,
    checked_cells,
    column_labels,
    complete,
    finite_numbers,
)

_MEASURED = (Holds.NUMBERS, Holds.DATES)
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions with their uncertainty, for examples in some order.

    Classes: `answers` and `probabilities` (m, classes) of `classes`. Numbers: `answers` and `std`
    of a new observation.
    """

    answers: np.ndarray
    std: np.ndarray | None
    probabilities: np.ndarray | None
    classes: tuple[Any, ...]

    @property
    def confidence(self) -> np.ndarray:
        """Its probability."""
        assert self.probabilities is not None
        return self.probabilities.max(axis=1)


@dataclass(frozen=True, eq=False)
class Model:
    """What `widelimit classify` and `regress` save and `predict` loads.

    `pipeline` is scikit-learn's, from the columns `inputs` of a table (or from arrays) to
    predictions; `label` is the column the labels came from, `shape` that of an array example,
    `trained` says in words what it was trained on.
    """

    task: Task
    pipeline: Any
    kind_name: str
    inputs: tuple[str, ...]
    text: str | None
    label: str
    shape: tuple[int, ...]
    trained: str

    @classmethod
    def of(cls, task: Task, prepare: Any, estimator: Any, source: Source, trained: str) -> "Model":
        """Not yet fitted."""
        steps = [] if prepare is None else [("prepare", prepare)]
        table = source.frame is not None
        return cls(
            task,
            Pipeline([*steps, ("network", estimator)]),
            source.kind.value,
            tuple(source.x.columns) if table else (),
            source.columns.get("text"),
            source.columns.get("label", ""),
            () if table else tuple(map(int, source.x.shape[1:])),
            trained,
        )

    @property
    def kind(self) -> Kind:
        """What one example is."""
        return Kind(self.kind_name)

    @property
    def estimator(self) -> Any:
        """The network at the end of the pipeline."""
        return self.pipeline[-1]

    @property
    def embedder(self) -> Any:
        """What makes vectors of words; None for models that read no text."""
        steps = self.pipeline[0].transformers_ if self.text is not None else ()
        found = [step for _, step, _ in steps if isinstance(step, WordVectorizer)]
        return found[0].embedder_ if found else None

    def fit(self, train: Source) -> None:
        """Fit all steps to labelled examples."""
        options = {"mask": train.mask, "sample_weight": train.weights}
        given = {f"network__{name}": v for name, v in options.items() if v is not None}
        self.pipeline.fit(train.x, train.y, **given)

    def kept(self, train: Source) -> np.ndarray:
        """The labels of the training examples; those of weight 0 are no part of the model."""
        assert train.y is not None
        return train.y if train.weights is None else train.y[train.weights > 0]

    def targets(self, y: np.ndarray) -> np.ndarray:
        """What the process is conditioned on: centred one-hot vectors, or scaled numbers."""
        if self.task is Task.CLASSIFY:
            return centred_one_hot(y)[0]
        unit = float(np.abs(y).max()) or 1.0  # differences of extreme numbers do not fit
        return (y / unit - self.estimator.y_mean_ / unit) / (self.estimator.y_scale_ / unit)

    def examples(self, source: Source) -> Examples:
        """Examples as the network sees them."""
        x = self.pipeline[:-1].transform(source.x) if len(self.pipeline) > 1 else source.x
        return self.estimator._read(x, source.mask)

    def answers(self, mean: np.ndarray) -> np.ndarray:
        """Classes or numbers from means of the process."""
        if self.task is Task.CLASSIFY:
            return self.estimator.classes_[mean.reshape(len(mean), -1).argmax(axis=1)]
        return self.estimator._rescaled(mean)

    def predict(self, source: Source) -> Predicted:
        """Calibrated probabilities, or numbers with the deviation of a new observation."""
        if isinstance(self.estimator, InfiniteNetworkClassifier):
            x = self.pipeline[:-1].transform(source.x) if len(self.pipeline) > 1 else source.x
            found = self.estimator._observed(x, source.mask)  # once for classes and probabilities
            table = self.estimator.temperature_.probabilities(found.mean, found.variance)
            classes = tuple(self.estimator.classes_.tolist())
            return Predicted(self.answers(found.mean), None, table, classes)
        mask = {} if source.mask is None else {"mask": source.mask}
        mean, std = self.pipeline.predict(source.x, return_std=True, **mask)
        return Predicted(mean, std, None, ())

    def lost_words(self, source: Source) -> list[str]:
        """What was lost on the way: unknown words, texts without any, texts cut short."""
        embedder = self.embedder
        if embedder is None:
            return []
        texts = [value if isinstance(value, str) else "" for value in source.x[self.text]]
        tokens = [embedder.tokenizer(text) for text in texts]
        share = embedder.vectors.coverage([word for text in tokens for word in text])
        notes = [f"{share:.1%} of the words have a vector"]
        if empty := sum(not embedder.positions(text) for text in texts):
            notes.append(f"{empty} texts have no word with a vector: they stand for an average one")
        length = embedder.length
        if length is not None and (cut := sum(len(text) > length for text in tokens)):
            notes.append(
                f"{cut} texts are cut to their {embedder.keep} {length} words (--length and --keep "
                "change that)"
            )
        if embedder.phrase > 1:
            notes.append(
                f"long texts: {embedder.phrase} neighbouring words are averaged into one position "
                "(--phrase changes that)"
            )
        return notes

    def save(self, path: Path | str) -> None:
        """Write the model to one file."""
        save(self, path)


def load_model(path: Path | str) -> Model:
    """Read what `Model.save` wrote."""
    found = load(path)
    if not isinstance(found, Model):
        raise ModelFileError(
            f"'{path}' holds a {type(found).__name__}, no model of 'classify' or 'regress'.",
            got="another object",
            remedy="load it in Python with widelimit.load, or save a model of those commands",
            option="save",
        )
    return found


def read_new_examples(
    model: Model, path: Path | str, how: Reading, *, score: bool = True
) -> Source:
    """Read a file for a model: the columns it was trained with; labels only to score them."""
    path = Path(path)
    if path.is_dir() or path.suffix.lower() in _IMAGES:
        return _pictures(model, path, how, score=score)
    if path.suffix == ".npz":
        return _arrays(model, path, score=score)
    if not model.inputs:
        raise _wrong_kind(path, model.kind)
    frame, notes = how.frame(path), []
    if model.text is not None and how.text is not None and how.text in frame.columns:
        frame = frame.rename(columns={how.text: model.text})
    require_columns(frame, path, model.inputs)
    frame = _as_in_training(model, frame, path, how)
    notes += _new_categories(model, frame)
    if how.skip:
        whole = complete(frame, model.inputs)
        if not whole.all():
            notes.append(f"left out: {int((~whole).sum()):,} of {len(frame):,} incomplete rows")
        frame = frame[whole]
    label, y = how.label or model.label, None
    if score and label in frame.columns:
        if frame[label].isna().any():
            notes.append(f"{label!r} is missing in some rows: predictions are not compared with it")
        else:
            y = _encoded(model, column_labels(frame, label, path, model.task))
    names = tuple(f"row {number}" for number in frame.index)
    columns = {"label": label} | ({} if model.text is None else {"text": model.text})
    x = frame[list(model.inputs)]
    return Source(path, model.kind, x, y, names, columns, tuple(notes), frame=frame)


def _steps(model: Model) -> dict[str, tuple[Any, list[str]]]:
    """What was fitted to columns of each kind, and to which."""
    return {name: (step, list(columns)) for name, step, columns in model.pipeline[0].transformers_}


def _as_in_training(model: Model, frame: Any, path: Path, how: Reading) -> Any:
    """The frame, whose columns of numbers and dates are such, too."""
    pd: Any = importlib.import_module("pandas")

    numbers, dates = (_steps(model).get(kind.value, (None, []))[1] for kind in _MEASURED)
    frame = frame.copy()
    for name in (*numbers, *dates):
        column = frame[name]
        if name in numbers:
            found, seen = finite_numbers(column, how.decimal), "numbers"
        else:
            found, seen = pd.to_datetime(column, errors="coerce"), "dates"
        frame[name] = checked_cells(column, found, path, how, f"the model has seen {seen}")
    return frame


def _new_categories(model: Model, frame: Any) -> list[str]:
    """Categories that were not there in training, by column."""
    steps = _steps(model)
    if Holds.CATEGORIES.value not in steps:
        return []
    step, names = steps[Holds.CATEGORIES.value]
    notes = []
    for name, known in zip(names, step.categories_, strict=True):
        new = sorted({str(one) for one in frame[name].dropna()} - {str(one) for one in known})
        notes += [f"new in {name!r}: {', '.join(new[:5])}"] if new else []
    return notes


def _encoded(model: Model, labels: np.ndarray) -> np.ndarray:
    """Labels as the model has them; numbers and the texts of numbers are the same."""
    if model.task is Task.REGRESS:
        return labels
    known = {str(one): one for one in model.estimator.classes_.tolist()}
    strangers = sorted({str(label) for label in labels} - known.keys())
    if strangers:
        raise DataError(
            f"The model has no class {strangers[0]!r}.",
            got=f"{len(strangers)} unknown labels; its classes are {', '.join(list(known)[:8])}",
            remedy="correct these rows, or predict without looking at labels",
            option="no_score",
        )
    return np.array([known[str(label)] for label in labels], model.estimator.classes_.dtype)


def _arrays(model: Model, path: Path, *, score: bool) -> Source:
    held = read_npz(path, "x")
    x, mask = held["x"], held.get("mask")
    check_inputs(path, x, mask)
    source = array_source(path, x, mask)
    fixed = slice(None) if model.kind is not Kind.SEQUENCE else slice(-1, None)
    if source.kind is not model.kind or model.inputs:
        raise _wrong_kind(path, model.kind)
    if x.shape[1:][fixed] != model.shape[fixed]:
        raise DataError(
            f"Examples of '{path}' have another shape than those the model learned from.",
            got=f"shape {x.shape[1:]}, where training had {model.shape}",
            remedy="prepare them in the same way",
        )
    y = None
    if score and "y" in held:
        y = _array_labels(model, path, x, held)
    return array_source(path, x, mask, y=y, columns={"label": "y"})


def _array_labels(model: Model, path: Path, x: np.ndarray, held: dict[str, Any]) -> np.ndarray:
    y, known = held["y"], held.get("class_names")
    known = None if known is None or y.dtype.kind not in "iu" else known.astype(str)
    wrong = y.shape != (len(x),)
    if model.task is Task.CLASSIFY and known is not None and not wrong:
        wrong = not np.isin(y, np.arange(len(known))).all()
        y = y if wrong else known[y]
    if wrong:
        raise DataError(
            f"y does not fit the examples or the class names in '{path}'.",
            got=f"y {y.shape} for x {x.shape}"
            + ("" if known is None else f", from {y.min()} to {y.max()} for {len(known)} names"),
            remedy="save matching arrays, or predict without looking at labels",
            option="no_score",
        )
    return _encoded(model, y) if model.task is Task.CLASSIFY else y.astype(np.float64)


def _pictures(model: Model, path: Path, how: Reading, *, score: bool) -> Source:
    """An image, a folder of images, or a folder with a folder per class."""
    if model.kind is not Kind.IMAGE:
        raise _wrong_kind(path, model.kind)
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    paths = [p for p in found if not p.name.startswith(".")]
    notes = []
    if how.skip:
        kept = [p for p in paths if p.suffix.lower() in _IMAGES]
        if len(kept) < len(paths):
            notes.append(f"left out: {len(paths) - len(kept)} files that are no images")
        paths = kept
    height, width, channels = model.shape
    x = read_images(paths, size=(height, width), grey=channels == 1)
    names = tuple(str(p.relative_to(path)) if path.is_dir() else p.name for p in paths)
    y = None
    if score and path.is_dir() and all(p.parent != path for p in paths):
        y = _encoded(model, np.array([p.parent.name for p in paths], dtype=object))
    return Source(path, Kind.IMAGE, x, y, names, {"label": "folder"}, tuple(notes))


def _wrong_kind(path: Path, kind: Kind) -> DataError:
    return DataError(
        f"'{path}' holds other examples than the {kind} data the model was trained on.",
        got="another kind of file",
        remedy="give a file like the one it was trained on",
    )
