"""Labelled texts from the columns of a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .datasets import LabelledTexts, TextDataset
from .errors import DataError, some
from .frames import read_frame
from .labels import class_names, class_numbers

if TYPE_CHECKING:
    from pandas import DataFrame


def load_texts(
    path: Path | str, *, text: str = "text", label: str = "label", **how: Any
) -> LabelledTexts:
    """Texts and class labels from two columns of a table; `how` as in `read_frame`."""
    return _labelled(read_frame(path, **how), Path(path), text, label)


def load_texts_split(
    path: Path | str, *, text: str = "text", label: str = "label", split: str = "split", **how: Any
) -> TextDataset:
    """Texts and class labels with a column that says `train` or `test`."""
    frame = read_frame(path, **how)
    every = _labelled(frame, Path(path), text, label)
    parts = np.array(_words(frame, Path(path), split, "train or test"))
    if set(parts.tolist()) != {"test", "train"}:
        raise DataError(
            f"Column {split!r} says something else than 'train' and 'test'.",
            got=f"{some(sorted(map(repr, set(parts.tolist()))))} in '{path}'",
            remedy="correct the column, or load all texts and split them with .split(test=0.2)",
        )
    train, test = (every.take(np.flatnonzero(parts == part)) for part in ("train", "test"))
    return TextDataset.join(train, test)


def _labelled(frame: "DataFrame", path: Path, text: str, label: str) -> LabelledTexts:
    texts, labels = _words(frame, path, text, "a text"), _words(frame, path, label, "a label")
    names = class_names(labels)
    return LabelledTexts(tuple(texts), class_numbers(labels, names), names)


def _words(frame: "DataFrame", path: Path, name: str, what: str) -> list[str]:
    """A column as texts, none of them empty; the numbers `1` and `1.0` are both `1`."""
    if name not in frame:
        raise DataError(
            f"'{path}' has no column {name!r}.",
            got=", ".join(map(repr, frame.columns)),
            remedy="name one of these, or what separates them",
            option=("text", "label", "delimiter"),
        )
    column = frame[name]
    values = ["" if gone else value for value, gone in zip(column, column.isna(), strict=True)]
    words = [f"{v:.17g}" if isinstance(v, float) else str(v) for v in values]
    rows = zip(frame.index, words, strict=True)
    if empty := [f"row {row}" for row, word in rows if not word.strip()]:
        raise DataError(
            f"Column {name!r} lacks {what} in {some(empty)}.",
            got=f"'{path}'",
            remedy="fill these rows, or remove them",
        )
    return [word.strip() if what == "a label" else word for word in words]
