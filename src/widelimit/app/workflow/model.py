"""A fitted model together with everything it takes to go from a file to predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ...data import DataError, LabelNames, Table, read_npz
from ...data.npz import check_inputs
from ...data.pictures import read_images
from ...inference import FittedClassifier, FittedGP
from ...persist import ModelFileError, load, save
from .examples import Examples
from .kinds import Kind, Task
from .posterior import Predicted
from .preparation import (
    ArrayPreparation,
    MixedPreparation,
    Preparation,
    TablePreparation,
    TextPreparation,
)
from .sources import Reading, array_examples, complete, rows_of

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True, eq=False)
class Model:
    """What `widelimit classify` and `regress` save and `predict` loads.

    `label` is the column the labels came from; `shift` and `scale` undo the normalisation of
    regression targets; `trained` says in words what it was trained on.
    """

    task: Task
    preparation: Preparation
    fitted: FittedClassifier | FittedGP
    class_names: tuple[str, ...]
    label: str
    shift: float
    scale: float
    trained: str

    @property
    def process(self) -> FittedGP:
        """The Gaussian process inside."""
        return self.fitted.process if isinstance(self.fitted, FittedClassifier) else self.fitted

    def predict(self, examples: Examples) -> Predicted:
        """Calibrated probabilities, or numbers with the deviation of a new observation."""
        x, mask = self.preparation(examples)
        x = jax.tree.map(lambda a: a.astype(self.preparation.dtype), x)
        found = self.process.predict(x, mask)
        variance = found.variance + float(np.asarray(self.process.gp.noise).reshape(()))
        if isinstance(self.fitted, FittedClassifier):
            table = self.fitted.temperature.probabilities(found.mean, variance)
            return Predicted(found.mean, np.sqrt(variance), table)
        mean = np.reshape(found.mean, (len(examples), -1))[:, 0]
        return Predicted(mean * self.scale + self.shift, np.sqrt(variance) * self.scale, None)

    def save(self, path: Path | str) -> None:
        """Write the model to one file."""
        save(self, path)


def load_model(path: Path | str) -> Model:
    """Read what `Model.save` wrote."""
    found = load(path)
    if not isinstance(found, Model):
        raise ModelFileError(
            "This command takes a model that 'widelimit classify' or 'regress' saved.",
            got=f"'{path}', which holds a {type(found).__name__}",
            remedy="load it in Python with widelimit.persist.load, or save one with --save",
        )
    return found


class NewExamples(NamedTuple):
    """Examples to predict, their true labels if the file has them, and notes on the reading."""

    examples: Examples
    labels: np.ndarray | None
    notes: list[str]


def read_new_examples(
    model: Model, path: Path | str, how: Reading, *, score: bool = True
) -> NewExamples:
    """Read a file for a model: the columns it was trained with; labels only to score them."""
    path = Path(path)
    preparation = model.preparation
    if path.is_dir() or path.suffix.lower() in _IMAGES:
        return _pictures(model, path, how, score=score)
    if path.suffix == ".npz":
        return _arrays(model, path, score=score)
    if isinstance(preparation, ArrayPreparation):
        raise _wrong_kind(path, preparation.kind)
    table = how.table(path)
    table, examples, notes = _rows(preparation, table, path, how)
    labels = None
    label = how.label or model.label
    if score and label in table.columns and table.column(label).blank.any():
        notes.append(f"{label!r} is missing in some rows: predictions are not compared with it")
    elif score and label in table.columns:
        if model.task is Task.CLASSIFY:
            labels = _encoded(model, table.labels(label))
        else:
            labels = table.numbers(label)[:, 0]
    return NewExamples(examples, labels, notes + preparation.notes(examples))


def _rows(
    preparation: TextPreparation | TablePreparation | MixedPreparation,
    table: Table,
    path: Path,
    how: Reading,
) -> tuple[Table, Examples, list[str]]:
    """The columns a model was trained with; incomplete rows are left out where one wants that."""
    text = table_part = None
    if isinstance(preparation, MixedPreparation):
        text, table_part = preparation.text, preparation.table
    elif isinstance(preparation, TextPreparation):
        text = preparation
    else:
        table_part = preparation
        if not preparation.features:
            raise _wrong_kind(path, "array")
    column = None if text is None else how.text or text.column or "text"
    features = () if table_part is None else table_part.features
    notes = list(table.notes)
    if how.skip:
        table, more = complete(table, column, [one.name for one in features])
        notes += more
    columns = {one.name: one.read(table) for one in features}
    return table, rows_of(table, column, columns), notes


def _encoded(model: Model, labels: tuple[str, ...]) -> np.ndarray:
    try:
        return LabelNames(model.class_names).encode(labels)
    except DataError as error:
        raise DataError(
            error.rule,
            got=error.got,
            remedy="correct these rows, or pass --no-score to predict without looking at labels",
        ) from None


def _arrays(model: Model, path: Path, *, score: bool) -> NewExamples:
    held = read_npz(path, "x")
    preparation = model.preparation
    named = isinstance(preparation, TablePreparation) and preparation.features
    if isinstance(preparation, TextPreparation | MixedPreparation) or named:
        raise _wrong_kind(path, preparation.kind)
    x = held["x"]
    check_inputs(path, x, held.get("mask"))
    examples = array_examples(path, x, held.get("mask"))
    if examples.kind is not preparation.kind:
        raise _wrong_kind(path, preparation.kind)
    labels = None
    if score and "y" in held:
        y = held["y"]
        if y.shape != (len(x),):
            raise DataError(
                "Labels are one per example.",
                got=f"y {y.shape} for x {x.shape} in '{path}'",
                remedy="save matching arrays, or pass --no-score",
            )
        labels = y.astype(np.float64)
        if model.task is Task.CLASSIFY:
            known = held.get("class_names")
            texts = y.astype(str) if known is None else known.astype(str)[y.astype(int)]
            labels = _encoded(model, tuple(texts.tolist()))
    return NewExamples(examples, labels, preparation.notes(examples))


def _pictures(model: Model, path: Path, how: Reading, *, score: bool) -> NewExamples:
    """An image, a folder of images, or a folder with a folder per class."""
    preparation = model.preparation
    if not isinstance(preparation, ArrayPreparation) or preparation.kind is not Kind.IMAGE:
        raise _wrong_kind(path, preparation.kind)
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    hidden = [p for p in found if p.name.startswith(".")]
    paths = [p for p in found if p not in hidden]
    notes = []
    if how.skip:
        kept = [p for p in paths if p.suffix.lower() in _IMAGES]
        if len(kept) < len(paths):
            notes.append(f"left out: {len(paths) - len(kept)} files that are no images")
        paths = kept
    height, width, channels = preparation.positions
    x = read_images(paths, size=(height, width), grey=channels == 1)
    names = tuple(str(p.relative_to(path)) if path.is_dir() else p.name for p in paths)
    labels = None
    folders = [p.parent.name for p in paths]
    if score and path.is_dir() and all(p.parent != path for p in paths):
        labels = _encoded(model, tuple(folders))
    examples = Examples(Kind.IMAGE, x, names)
    return NewExamples(examples, labels, notes + preparation.notes(examples))


def _wrong_kind(path: Path, kind: Kind | str) -> DataError:
    return DataError(
        f"This model was trained on {kind} data and predicts for the same.",
        got=f"'{path}'",
        remedy="give a file like the one it was trained on",
    )
