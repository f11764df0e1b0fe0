"""Labelled texts from any CSV, TSV or JSONL file."""

from pathlib import Path

import numpy as np

from .datasets import LabelledTexts, TextDataset
from .errors import DataError
from .labels import LabelNames
from .tables import Table, read_table


def load_texts(
    path: Path | str,
    *,
    text: str = "text",
    label: str = "label",
    names: LabelNames | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> LabelledTexts:
    """Texts and class labels from two columns of a table (see `read_table`).

    With `names`, e.g. those of a trained model, every label must be among them.
    """
    table = read_table(path, encoding=encoding, delimiter=delimiter)
    texts, labels = table.texts(text), table.labels(label)
    names = names or LabelNames.fit(labels)
    return LabelledTexts(texts, names.encode(labels), names.names)


def load_scored_texts(
    path: Path | str,
    *,
    text: str = "text",
    target: str = "target",
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> LabelledTexts:
    """Texts and real-valued targets, for regression."""
    table = read_table(path, encoding=encoding, delimiter=delimiter)
    return LabelledTexts(table.texts(text), table.numbers(target)[:, 0], ())


def load_texts_split(
    path: Path | str,
    *,
    text: str = "text",
    label: str = "label",
    split: str = "split",
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> TextDataset:
    """Texts and class labels with a column that says `train` or `test`."""
    table = read_table(path, encoding=encoding, delimiter=delimiter)
    texts, labels = table.texts(text), table.labels(label)
    names = LabelNames.fit(labels)
    everything = LabelledTexts(texts, names.encode(labels), names.names)
    train, test = _parts(table, split)
    return TextDataset.join(everything.take(train), everything.take(test))


def _parts(table: Table, split: str) -> tuple[np.ndarray, np.ndarray]:
    parts = np.array(table.labels(split))
    if sorted(set(parts.tolist())) != ["test", "train"]:
        raise DataError(
            f"Column {split!r} must say 'train' or 'test' and hold both.",
            got=f"{', '.join(map(repr, sorted(set(parts.tolist()))))} in '{table.path}'",
            remedy="correct the column, or load all texts and split them with .split(test=0.2)",
        )
    return np.flatnonzero(parts == "train"), np.flatnonzero(parts == "test")
