"""A user's file or folder, read: what it holds and what is to be predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...data import (
    DataError,
    LabelNames,
    Table,
    load_imdb,
    load_npz,
    load_npz_split,
    read_npz,
    read_table,
)
from ...data.npz import check_inputs
from ...data.pictures import named_image_folder, named_image_folder_split
from .columns import Roles, assign, feature, known
from .examples import Examples, LabelledFile, TextsAndColumns
from .kinds import Kind, Task

FEWEST_EXAMPLES = 10
_RANKS = {2: Kind.TABLE, 3: Kind.SEQUENCE, 4: Kind.IMAGE}
_MOST_CLASSES_SHARE = 0.2  # more classes than this share of the rows: numbers, not classes


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read; what is not said is found out."""

    text: str | None = None
    label: str | None = None
    features: Sequence[str] = ()
    split: str | None = None
    drop: Sequence[str] = ()
    encoding: str = "utf-8"
    delimiter: str | None = None
    decimal: str | None = None
    image_size: int | None = None
    skip: bool = False
    """Leave out rows that lack something and files that are no images, instead of filling in
    values or stopping."""

    def table(self, path: Path) -> Table:
        """A table, with what was said about it."""
        return read_table(
            path,
            encoding=self.encoding,
            delimiter=self.delimiter,
            decimal=self.decimal,
            skip=self.skip,
        )


def read_source(
    path: Path | str, task: Task, how: Reading | None = None, *, labels_needed: bool = True
) -> LabelledFile:
    """Read a table, an `.npz` file or a folder of images together with its labels.

    Without `labels_needed` labels are read where they are, and nothing is asked of them.
    """
    path, how = Path(path), how or Reading()
    if not labels_needed:
        return _inputs_alone(path, task, how)
    if path.is_dir():
        source = _folder(path, task, how)
    elif path.suffix == ".npz":
        source = _npz(path, task)
    else:
        source = _table(path, task, how)
    if task is Task.CLASSIFY:
        _require_classes(source)
    _require_enough(path, len(source))
    return source


def _require_enough(path: Path, count: int) -> None:
    if count < FEWEST_EXAMPLES:
        raise DataError(
            f"Learning and testing need at least {FEWEST_EXAMPLES} examples.",
            got=f"{count} in '{path}'",
            remedy="give a file with more rows",
        )


def image_extent(size: int | None) -> tuple[int, int] | None:
    """`--image-size 16` as (height, width)."""
    return None if size is None else (size, size)


# --- tables ---------------------------------------------------------------------------------------


def _table(path: Path, task: Task, how: Reading) -> LabelledFile:
    table = how.table(path)
    _require_enough(path, len(table))
    roles = assign(
        table,
        task,
        text=how.text,
        label=how.label,
        features=how.features,
        split=how.split,
        drop=how.drop,
    )
    assert roles.label is not None  # it is needed here, so it was found
    notes = [*table.notes, *roles.notes(table)]
    if how.skip:
        table, more = complete(table, roles.text, roles.features, roles.label, task)
        notes += more
    if task is Task.CLASSIFY:
        labels = table.labels(roles.label)
        names = LabelNames.fit(labels)
        y, class_names = names.encode(labels), names.names
    else:
        y, class_names = table.numbers(roles.label)[:, 0], ()
    return LabelledFile(
        path,
        table_examples(table, roles.text, roles.features),
        y,
        class_names,
        _described(roles),
        tuple(notes),
        _test_part(table, roles),
    )


def complete(
    table: Table,
    text: str | None,
    features: Sequence[str],
    label: str | None = None,
    task: Task = Task.CLASSIFY,
) -> tuple[Table, list[str]]:
    """The table without rows that lack a text, a value or the label, or hold a mistake there."""
    good = np.ones(len(table), dtype=bool)
    for name in features:
        good &= known(table.column(name))
    if text is not None:
        values = table.column(text).values
        good &= np.array([isinstance(value, str) and bool(value.strip()) for value in values])
    if label is not None:
        column = table.column(label)
        good &= np.isfinite(column.numbers) if task is Task.REGRESS else ~column.blank
    if good.all():
        return table, []
    used = [name for name in (text, *features, label) if name is not None]
    if not good.any():
        raise DataError(
            "Some rows must be complete.",
            got=f"no row of '{table.path}' with a value in all of {', '.join(map(repr, used))}",
            remedy="leave --skip away, so that missing values are filled in, or leave out columns "
            "that are mostly empty with --drop",
        )
    left = int((~good).sum())
    note = f"left out: {left:,} of {len(table):,} rows in which something is missing or wrong"
    return table.take(np.flatnonzero(good)), [note]


def table_examples(table: Table, text: str | None, features: Sequence[str]) -> Examples:
    """The texts, the features, or both."""
    columns = {name: feature(table, name) for name in features}
    return rows_of(table, text, columns)


def rows_of(table: Table, text: str | None, columns: dict[str, np.ndarray]) -> Examples:
    """Rows as examples; beside columns a text may be missing."""
    names = tuple(f"line {number}" for number in table.line_numbers)
    given = {
        name: np.fromiter(column.values, dtype=object, count=len(table))
        for name, column in table.columns.items()
    }
    if text is None:
        return Examples(Kind.TABLE, columns, names, given=given)
    if not columns:
        return Examples(Kind.TEXT, table.texts(text), names, given=given)
    words = tuple(table.column(text).words.tolist())
    return Examples(Kind.MIXED, TextsAndColumns(words, columns), names, given=given)


def _described(roles: Roles) -> dict[str, str]:
    found = {} if roles.label is None else {"label": roles.label}
    if roles.text is not None:
        found["text"] = roles.text
    if roles.features:
        found["features"] = ", ".join(roles.features)
    if roles.split is not None:
        found["split"] = roles.split
    return found


def _test_part(table: Table, roles: Roles) -> np.ndarray | None:
    if roles.split is None:
        return None
    parts = np.array(table.labels(roles.split))
    if set(parts.tolist()) != {"train", "test"}:
        raise DataError(
            f"Column {roles.split!r} must say 'train' or 'test' and hold both.",
            got=", ".join(map(repr, sorted(set(parts.tolist()))[:5])),
            remedy="correct the column, or leave --split away for a random test part",
        )
    return np.flatnonzero(parts == "test")


# --- arrays and folders ---------------------------------------------------------------------------


def _npz(path: Path, task: Task) -> LabelledFile:
    held = read_npz(path)
    test, notes = None, []
    if "x_train" in held:
        data = load_npz_split(path)
        parts = data.train, data.test
        x = _stacked(path, [part.x for part in parts])
        without = [name for name in ("mask_train", "mask_test") if name not in held]
        mask = np.concatenate([part.real for part in parts]) if len(without) < 2 else None
        if len(without) == 1:
            notes.append(f"no {without[0]} in the file: all its positions are taken as real")
        y, class_names = np.concatenate([part.y for part in parts]), data.class_names
        test = np.arange(len(parts[0]), len(x))
    else:
        data = load_npz(path)
        x, y, mask, class_names = data.x, data.y, data.mask, data.class_names
    y, class_names = _as_task(path, y, class_names, task)
    examples = array_examples(path, x, mask)
    return LabelledFile(path, examples, y, class_names, {"label": "y"}, tuple(notes), test)


def _stacked(path: Path, parts: list[np.ndarray]) -> np.ndarray:
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(
            "Training and test inputs have one shape.",
            got=f"{parts[0].shape[1:]} and {parts[1].shape[1:]} in '{path}'",
            remedy="pad or resize them, and give masks where they are padded",
        )
    return np.concatenate(parts)


def _as_task(
    path: Path, y: np.ndarray, class_names: tuple[str, ...], task: Task
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Whole numbers may be targets too; fractions are no classes."""
    if task is Task.REGRESS and class_names:
        try:
            return np.array([float(class_names[number]) for number in y]), ()
        except ValueError:
            raise DataError(
                "Regression needs numbers to predict.",
                got=f"labels such as {class_names[0]!r} in '{path}'",
                remedy="use 'widelimit classify', or store numbers as y",
            ) from None
    if task is Task.CLASSIFY and not class_names:
        raise DataError(
            "Classes are whole numbers or texts.",
            got=f"y of floating-point numbers in '{path}'",
            remedy="use 'widelimit regress', or store y as integers or texts",
        )
    return y, class_names


def array_examples(path: Path, x: np.ndarray, mask: np.ndarray | None) -> Examples:
    """Rows (N, channels), sequences (N, positions, channels) or images (N, h, w, channels)."""
    if x.ndim not in _RANKS:
        raise DataError(
            "Inputs are rows (N, channels), sequences (N, positions, channels) or images "
            "(N, height, width, channels).",
            got=f"x of shape {x.shape} in '{path}'",
            remedy="reshape x before saving it",
        )
    kind = _RANKS[x.ndim]
    return Examples(kind, x, tuple(f"row {i}" for i in range(len(x))), mask)


def _folder(path: Path, task: Task, how: Reading) -> LabelledFile:
    if task is Task.REGRESS:
        raise DataError(
            "Folders name classes, not numbers to predict.",
            got=f"the folder '{path}'",
            remedy="use 'widelimit classify', or an .npz file with x and y",
        )
    if (path / "train" / "pos").is_dir() and any((path / "train" / "pos").glob("*.txt")):
        data = load_imdb(path)
        texts = (*data.texts_train, *data.texts_test)
        y = np.concatenate([data.y_train, data.y_test])
        names = tuple(f"review {i}" for i in range(len(texts)))
        test = np.arange(len(data.y_train), len(texts))
        examples = Examples(Kind.TEXT, texts, names)
        return LabelledFile(path, examples, y, data.class_names, {"label": "folder"}, (), test)
    options: dict[str, Any] = {"size": image_extent(how.image_size), "skip_other": how.skip}
    test = None
    if (path / "train").is_dir() and (path / "test").is_dir():
        both, names = named_image_folder_split(path, **options)
        x = np.concatenate([both.x_train, both.x_test])
        y, class_names = np.concatenate([both.y_train, both.y_test]), both.class_names
        test = np.arange(len(both.y_train), len(y))
    else:
        data, names = named_image_folder(path, **options)
        x, y, class_names = data.x, data.y, data.class_names
    examples = Examples(Kind.IMAGE, x, names)
    return LabelledFile(path, examples, y, class_names, {"label": "folder"}, (), test)


def _inputs_alone(path: Path, task: Task, how: Reading) -> LabelledFile:
    """A file whose labels do not matter: none may be there."""
    if path.is_dir():
        return _folder(path, task, how)
    if path.suffix == ".npz":
        held = read_npz(path)
        if "x_train" in held or "y" in held:
            return _npz(path, task if _classes_in(held) else Task.REGRESS)
        x, mask = read_npz(path, "x")["x"], held.get("mask")
        check_inputs(path, x, mask)
        examples = array_examples(path, x, mask)
        return LabelledFile(path, examples, np.empty(0), (), {})
    table = how.table(path)
    roles = assign(
        table,
        task,
        text=how.text,
        label=how.label,
        features=how.features,
        drop=how.drop,
        labels_needed=False,
    )
    notes = [*table.notes, *roles.notes(table)]
    if how.skip:
        table, more = complete(table, roles.text, roles.features)
        notes += more
    examples = table_examples(table, roles.text, roles.features)
    y, class_names = np.empty(0), ()
    if roles.label is not None and not table.column(roles.label).blank.any():
        labels = table.labels(roles.label)
        if 1 < len(set(labels)) <= max(20, _MOST_CLASSES_SHARE * len(labels)):
            names = LabelNames.fit(labels)
            y, class_names = names.encode(labels), names.names
    return LabelledFile(path, examples, y, class_names, _described(roles), tuple(notes))


def _classes_in(held: dict[str, np.ndarray]) -> bool:
    return held["y_train" if "x_train" in held else "y"].dtype.kind != "f"


# --- what must hold -------------------------------------------------------------------------------


def _require_classes(source: LabelledFile) -> None:
    """Enough examples of every class, and classes that are classes."""
    counts = np.bincount(source.y, minlength=len(source.class_names))
    classes = len(counts)
    if classes > max(20, _MOST_CLASSES_SHARE * len(source)):
        raise DataError(
            "Classes are few, and each has several examples.",
            got=f"{classes} different labels in {len(source)} examples of '{source.path}'",
            remedy="name another label column with --label, or use 'widelimit regress' for numbers",
        )
    rare = [f"{source.class_names[c]!r} ({counts[c]})" for c in np.flatnonzero(counts < 2)]
    if rare:
        raise DataError(
            "Every class needs at least two examples: one to learn from, one to test.",
            got=f"{', '.join(rare[:5])} in '{source.path}'",
            remedy="add examples, or remove or merge these classes",
        )
