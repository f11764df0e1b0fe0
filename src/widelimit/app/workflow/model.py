"""A fitted pipeline together with what it takes to go from a file to predictions."""

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from ...data import DataError, Holds, read_frame, read_images
from ...inference import centred_one_hot
from ...persist import ModelFileError, load, save
from ...sklearn import WordVectorizer
from ...sklearn.inputs import Examples
from ...sklearn.networks import Kind
from .columns import require_columns
from .kinds import Reading, Task
from .sources import (
    Source,
    as_task,
    checked_cells,
    column_labels,
    complete_rows,
    finite_numbers,
    read_arrays,
)

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
    def vectorizer(self) -> Any:
        """What makes vectors of words; None for models that read no text."""
        steps = self.pipeline[0].transformers_ if self.text is not None else ()
        return next((step for _, step, _ in steps if isinstance(step, WordVectorizer)), None)

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

    def _prepared(self, source: Source) -> Any:
        return self.pipeline[:-1].transform(source.x) if len(self.pipeline) > 1 else source.x

    def examples(self, source: Source) -> Examples:
        """Examples as the network sees them."""
        return self.estimator._read(self._prepared(source), source.mask)

    def answers(self, mean: np.ndarray) -> np.ndarray:
        """Classes or numbers from means of the process."""
        return self.estimator._answers(mean.reshape(len(mean), -1))

    def predict(self, source: Source) -> Predicted:
        """Calibrated probabilities, or numbers with the deviation of a new observation."""
        x, estimator = self._prepared(source), self.estimator
        if self.task is Task.REGRESS:
            mean, std = estimator.predict(x, return_std=True, mask=source.mask)
            return Predicted(mean, std, None, ())
        found = estimator._observed(x, source.mask)  # once for classes and probabilities
        table = estimator.temperature_.probabilities(found.mean, found.variance)
        return Predicted(self.answers(found.mean), None, table, tuple(estimator.classes_.tolist()))

    def lost_words(self, source: Source) -> list[str]:
        """What was lost on the way: unknown words, texts without any, texts cut short."""
        if self.vectorizer is None:
            return []
        embedder = self.vectorizer.embedder_
        texts = [value if isinstance(value, str) else "" for value in source.x[self.text]]
        tokens = [embedder.tokenizer(text) for text in texts]
        share = embedder.vectors.coverage([word for text in tokens for word in text])
        notes = [f"{share:.1%} of the words have a vector in {self.vectorizer.place_}"]
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
        source = _pictures(model, path, how, score=score)
    elif path.suffix == ".npz":
        source = _arrays(model, path, score=score)
    else:
        source = _table(model, path, how, score=score)
    y = source.y
    if y is None:
        return source
    if model.task is Task.REGRESS:
        return replace(source, y=as_task(path, y, model.task))
    known = {str(one): one for one in model.estimator.classes_.tolist()}  # "1" and 1 are the same
    if strangers := sorted({str(label) for label in y} - known.keys()):
        raise DataError(
            f"The model has no class {strangers[0]!r}.",
            got=f"{len(strangers)} unknown labels; its classes are {', '.join(list(known)[:8])}",
            remedy="correct these rows, or predict without looking at labels",
            option="no_score",
        )
    names = [known[str(label)] for label in y]
    return replace(source, y=np.array(names, model.estimator.classes_.dtype))


def _table(model: Model, path: Path, how: Reading, *, score: bool) -> Source:
    """The columns of the training table; numbers and dates must be such here, too."""
    pd: Any = importlib.import_module("pandas")

    if not model.inputs:
        raise _wrong_kind(path, model.kind)
    notes: list[str] = []
    frame: Any = read_frame(path, **how.table_options())
    if model.text is not None and how.text is not None and how.text in frame.columns:
        frame = frame.rename(columns={how.text: model.text})
    require_columns(frame, path, model.inputs)
    frame = frame.copy()
    for kind, step, columns in model.pipeline[0].transformers_:
        for place, name in enumerate(columns):
            column = frame[name]
            if kind == Holds.NUMBERS.value:
                found, seen = finite_numbers(column, how.decimal), "the model has seen numbers"
                frame[name] = checked_cells(column, found, path, how, seen)
            elif kind == Holds.DATES.value:
                found, seen = pd.to_datetime(column, errors="coerce"), "the model has seen dates"
                frame[name] = checked_cells(column, found, path, how, seen)
            elif kind == Holds.CATEGORIES.value:
                known = {str(one) for one in step.categories_[place]}
                new = sorted({str(one) for one in column.dropna()} - known)
                notes += [f"new in {name!r}: {', '.join(new[:5])}"] if new else []
    if how.skip:
        frame, more = complete_rows(frame, model.inputs, path)
        notes += more
    label, y = how.label or model.label, None
    if score and label in frame.columns:
        if frame[label].isna().any():
            notes.append(f"{label!r} is missing in some rows: predictions are not compared with it")
        else:
            y = column_labels(frame, label, path, model.task)
    names = tuple(f"row {number}" for number in frame.index)
    columns = {"label": label} | ({} if model.text is None else {"text": model.text})
    x = frame[list(model.inputs)]
    return Source(path, model.kind, x, y, names, columns, tuple(notes), frame=frame)


def _arrays(model: Model, path: Path, *, score: bool) -> Source:
    """Arrays like those the model learned from; sequences may be of another length."""
    source = read_arrays(path, model.task, labels=None if score else False)
    if source.kind is not model.kind or model.inputs:
        raise _wrong_kind(path, model.kind)
    shape, fixed = source.x.shape[1:], slice(-1 if model.kind is Kind.SEQUENCE else 0, None)
    if shape[fixed] != model.shape[fixed]:
        raise DataError(
            f"Examples of '{path}' have another shape than those the model learned from.",
            got=f"shape {shape}, where training had {model.shape}",
            remedy="prepare them in the same way",
        )
    return source


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
        y = np.array([p.parent.name for p in paths], dtype=object)
    return Source(path, Kind.IMAGE, x, y, names, {"label": "folder"}, tuple(notes))


def _wrong_kind(path: Path, kind: Kind) -> DataError:
    return DataError(
        f"'{path}' holds other examples than the {kind} data the model was trained on.",
        got="another kind of file",
        remedy="give a file like the one it was trained on",
    )
