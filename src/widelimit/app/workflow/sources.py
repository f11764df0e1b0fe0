"""A user's file or folder, read: what it holds and what is to be predicted."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data import (
    DataError,
    Dataset,
    Labelled,
    find_leaks,
    load_imdb,
    load_npz,
    load_npz_split,
    read_frame,
    read_npz,
)
from ...data.npz import check_inputs
from ...data.pictures import named_image_folder, named_image_folder_split
from ...sklearn.networks import Kind
from .columns import assign, label_column
from .kinds import Task

FEWEST_EXAMPLES = 10
_RANKS = {2: Kind.TABLE, 3: Kind.SEQUENCE, 4: Kind.IMAGE}
_MOST_CLASSES_SHARE = 0.2  # more classes than this share of the rows: numbers, not classes
_SHOWN = 90  # characters of an example on a page
_MOSTLY_NUMBERS = 0.8  # of the cells of a column: the others are mistakes


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read; what is not said is found out."""

    text: str | None = None
    label: str | None = None
    features: Sequence[str] = ()
    split: str | None = None
    weight: str | None = None
    drop: Sequence[str] = ()
    encoding: str = "utf-8"
    delimiter: str | None = None
    decimal: str = "."
    no_header: bool = False
    skip: bool = False
    image_size: int | None = None

    def frame(self, path: Path) -> Any:
        """A table, with what was said about it."""
        return read_frame(path, **self.table_options())

    def table_options(self) -> dict[str, Any]:
        """What `read_frame` is told beyond its defaults."""
        usual = Reading()
        names = ("encoding", "delimiter", "decimal", "no_header", "skip")
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(usual, n)}


@dataclass(frozen=True, eq=False)
class Source:
    """Examples of a file: `x` is a frame of the columns that a model sees, or an array.

    `y` are labels or numbers as the file has them (None without), `names` say where examples are,
    `test` are the rows that the file holds out, `frame` has all columns of a table.
    """

    path: Path
    kind: Kind
    x: Any
    y: Any
    names: tuple[str, ...]
    columns: dict[str, str]
    notes: tuple[str, ...] = ()
    mask: np.ndarray | None = None
    test: np.ndarray | None = None
    weights: np.ndarray | None = None
    frame: Any = None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: np.ndarray) -> "Source":
        """Some of the examples, in this order."""

        def some(values: Any) -> Any:
            return values.iloc[rows] if hasattr(values, "iloc") else values[rows]

        parts = ("x", "y", "mask", "weights", "frame")
        taken = {n: some(v) for n in parts if (v := getattr(self, n)) is not None}
        return replace(self, **taken, names=tuple(self.names[i] for i in rows), test=None)

    def excerpt(self, row: int) -> str:
        """An example in a few words."""
        if self.frame is None:
            return f"{'×'.join(map(str, np.shape(self.x)[1:]))} numbers"
        values = self.x.iloc[row]
        text = self.columns.get("text")
        shown = (
            str(values[text])
            if text is not None
            else ", ".join(f"{name}={_short(value)}" for name, value in values.items())
        )
        return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_source(
    path: Path | str, task: Task, how: Reading | None = None, *, labels_needed: bool = True
) -> Source:
    """Read a table, an `.npz` file or a folder of images together with its labels.

    Without `labels_needed` labels are read where they are, and nothing is asked of them.
    """
    path, how = Path(path), how or Reading()
    if path.is_dir() and any((path / "train" / "pos").glob("*.txt")):
        source = _table(path, load_imdb(path), task, how, labels_needed)
    elif path.is_dir():
        source = _folder(path, task, how)
    elif path.suffix == ".npz":
        source = _npz(path, task, labels_needed)
    else:
        source = _table(path, how.frame(path), task, how, labels_needed)
    if labels_needed:
        if len(source) < FEWEST_EXAMPLES:
            raise DataError(
                f"'{path}' has {len(source)} examples, too few to learn from and to test on.",
                got=f"fewer than {FEWEST_EXAMPLES}",
                remedy="give a file with more rows",
            )
        if task is Task.CLASSIFY:
            _require_classes(source)
    return source


# --- tables ---------------------------------------------------------------------------------------


def _table(path: Path, frame: Any, task: Task, how: Reading, labels_needed: bool) -> Source:
    frame = numeric_columns(frame, path, how, label_column(frame, task, how.label))
    drop = [*how.drop, *([how.weight] if how.weight else [])]
    roles = assign(
        frame,
        path,
        task,
        text=how.text,
        label=how.label,
        features=how.features,
        split=how.split,
        drop=drop,
        labels_needed=labels_needed,
    )
    notes = roles.notes(frame)
    if how.skip:
        whole = complete(frame, [*roles.inputs, *([roles.label] if roles.label else [])])
        if not whole.all():
            notes.append(f"left out: {int((~whole).sum()):,} of {len(frame):,} incomplete rows")
        frame = frame[whole]
        if frame.empty:
            raise DataError(
                f"Every row of '{path}' lacks something.",
                got=f"no row with a value in all of {', '.join(map(repr, roles.inputs))}",
                remedy="keep such rows, so that missing values are filled in, or leave columns out "
                "that are mostly empty",
                option=("skip", "drop"),
            )
    y = None
    if not labels_needed and roles.label is not None:
        y = _few_labels(frame[roles.label])
    if labels_needed:
        assert roles.label is not None  # it is needed here, so it was found
        y = column_labels(frame, roles.label, path, task)
        shown = [*roles.inputs, roles.label]
        leaks = find_leaks(frame[shown], roles.label)
        notes += [f"{leak}: the scores may say nothing" for leak in leaks]
        repeated = int(frame[roles.inputs].astype(str).duplicated().sum())
        if repeated:
            notes.append(
                f"{repeated:,} of {len(frame):,} rows repeat the inputs of another one; where the "
                "noise is chosen, none of them predicts its copies"
            )
    kind = Kind.TABLE if roles.text is None else Kind.MIXED if roles.features else Kind.TEXT
    test = None if roles.split is None else _test_part(frame, roles.split)
    weights = None if how.weight is None else column_numbers(frame, how.weight, path)
    names = tuple(f"row {number}" for number in frame.index)
    return Source(
        path,
        kind,
        frame[roles.inputs],
        y,
        names,
        roles.described(),
        tuple(notes),
        test=test,
        weights=weights,
        frame=frame,
    )


def numeric_columns(frame: Any, path: Path, how: Reading, label: str | None) -> Any:
    """The frame, unless a column of numbers holds something else somewhere.

    Such a cell would make words of all its column. With `skip` it counts as missing.
    """
    for name, column in frame.items():
        if column.dtype.kind in "iufbM" or name in (label, how.text, how.split, *how.drop):
            continue
        there, numbers = column.notna(), finite_numbers(column, how.decimal)
        share = numbers.notna().sum() / max(1, there.sum())
        if not _MOSTLY_NUMBERS <= share < 1:
            continue
        frame[name] = checked_cells(column, numbers, path, how, "most rows have a number")
    return frame


def checked_cells(column: Any, found: Any, path: Path, how: Reading, where: str) -> Any:
    """What was `found` in the cells of a column; others are mistakes, or missing with `skip`."""
    wrong = column.index[column.notna() & found.isna()]
    if len(wrong) and not how.skip:
        raise DataError(
            f"Column {column.name!r} holds {str(column.loc[wrong[0]])[:40]!r} in row {wrong[0]}, "
            f"where {where}.",
            got=f"{len(wrong):,} such rows in '{path}'",
            remedy="correct them, say what the decimal mark is, leave such rows out, or leave the "
            "column out",
            option=("decimal", "skip", "drop"),
        )
    return found


def finite_numbers(column: Any, decimal: str) -> Any:
    """The numbers of a column, also where something else in it made texts of them."""
    pd: Any = importlib.import_module("pandas")

    if decimal != "." and column.dtype.kind not in "iufb":
        column = column.astype(str).str.replace(decimal, ".", regex=False)
    return pd.to_numeric(column, errors="coerce").replace([np.inf, -np.inf], np.nan)


def complete(frame: Any, names: Sequence[str]) -> Any:
    """Which rows have something in all of these columns; blanks are nothing."""
    blank = frame[list(names)].map(lambda value: isinstance(value, str) and not value.strip())
    return (frame[list(names)].notna() & ~blank).all(axis=1)


def _few_labels(column: Any) -> np.ndarray | None:
    """Labels that nobody asked for: where all rows have one, and they are few."""
    most = max(20, _MOST_CLASSES_SHARE * len(column))
    if column.isna().any() or not 1 < column.nunique() <= most:
        return None
    plain = column.dtype.kind in "iufb"
    return column.to_numpy() if plain else column.astype(str).to_numpy(object)


def column_labels(frame: Any, name: str, path: Path, task: Task) -> np.ndarray:
    """Classes or numbers to predict; none may be missing."""
    column = frame[name]
    if column.isna().any():
        row = column.index[column.isna()][0]
        raise DataError(
            f"Column {name!r} is empty in row {row}.",
            got=f"{int(column.isna().sum()):,} empty of {len(column):,} in '{path}'",
            remedy="fill them in, or leave incomplete rows out",
            option="skip",
        )
    if task is Task.REGRESS:
        return column_numbers(frame, name, path)
    nested = [row for row, value in column.items() if isinstance(value, list | dict)]
    if nested:
        raise DataError(
            f"Column {name!r} holds a list or an object in row {nested[0]}.",
            got=f"{str(column.loc[nested[0]])[:60]} in '{path}'",
            remedy="write one label for every example",
            option="label",
        )
    values = column.to_numpy()
    if values.dtype.kind in "iub":
        return values
    return np.array([str(value) for value in values], dtype=object)


def column_numbers(frame: Any, name: str, path: Path) -> np.ndarray:
    """A column of finite numbers."""
    column: Any = frame[name]
    if column.dtype.kind not in "iufb" or column.isna().any():
        pd: Any = importlib.import_module("pandas")

        wrong = column.index[pd.to_numeric(column, errors="coerce").isna()]
        row = wrong[0] if len(wrong) else column.index[0]
        raise DataError(
            f"Column {name!r} holds no number in row {row}.",
            got=f"{column.loc[row]!r} in '{path}'",
            remedy="correct it, name another column, or say what the decimal mark is",
            option=("target", "decimal"),
        )
    return column.to_numpy(np.float64)


def _test_part(frame: Any, split: str) -> np.ndarray:
    parts = frame[split].astype(str).to_numpy()
    if set(parts) != {"train", "test"}:
        raise DataError(
            f"Column {split!r} says something else than 'train' and 'test'.",
            got=", ".join(map(repr, sorted(set(parts))[:5])),
            remedy="correct the column, or name none for a random test part",
            option="split",
        )
    return np.flatnonzero(parts == "test")


# --- arrays and folders ---------------------------------------------------------------------------


def _npz(path: Path, task: Task, labels_needed: bool) -> Source:
    held, notes = read_npz(path), []
    if "x_train" in held:
        data = load_npz_split(path)
        shapes = data.x_train.shape[1:], data.x_test.shape[1:]
        if shapes[0] != shapes[1]:
            raise DataError(
                "Training and test inputs have different shapes.",
                got=f"{shapes[0]} and {shapes[1]} in '{path}'",
                remedy="pad or resize them, and give masks where they are padded",
            )
        without = [name for name in ("mask_train", "mask_test") if name not in held]
        if len(without) == 1:
            notes.append(f"no {without[0]} in the file: all its positions are taken as real")
    elif "y" in held or labels_needed:
        data = load_npz(path)
    else:
        x, mask = read_npz(path, "x")["x"], held.get("mask")
        check_inputs(path, x, mask)
        return array_source(path, x, mask, columns={"label": "y"})
    x, y, mask, test = _whole(data)
    names = data.class_names
    y = _as_task(path, y, names, task) if labels_needed else _named(y, names)
    return array_source(path, x, mask, y=y, columns={"label": "y"}, notes=tuple(notes), test=test)


def _whole(data: Labelled | Dataset) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """Inputs, labels and mask of all examples, and the rows of the test part if there is one."""
    if isinstance(data, Labelled):
        return data.x, data.y, data.mask, None
    x, y, mask = (
        np.concatenate([getattr(part, name) for part in (data.train, data.test)])
        for name in ("x", "y", "real")
    )
    padded = data.mask_train is not None or data.mask_test is not None
    return x, y, mask if padded else None, np.arange(len(data.y_train), len(y))


def array_source(path: Path, x: np.ndarray, mask: np.ndarray | None, **more: Any) -> Source:
    """Rows (N, channels), sequences (N, positions, channels) or images (N, h, w, channels)."""
    if x.ndim not in _RANKS:
        raise DataError(
            f"x has {x.ndim} axes in '{path}'.",
            got=f"shape {x.shape}",
            remedy="save rows (N, channels), sequences (N, positions, channels) or images "
            "(N, height, width, channels)",
        )
    names = tuple(f"row {i}" for i in range(len(x)))
    more = {"y": None, "columns": {}} | more
    return Source(path, _RANKS[x.ndim], x, names=names, mask=mask, **more)


def _named(y: np.ndarray, class_names: tuple[str, ...]) -> np.ndarray:
    return np.array(class_names, dtype=object)[y] if class_names else y


def _as_task(path: Path, y: np.ndarray, class_names: tuple[str, ...], task: Task) -> np.ndarray:
    """Whole numbers may be targets too; fractions are no classes."""
    if task is Task.REGRESS and class_names:
        try:
            return np.array([float(class_names[number]) for number in y])
        except ValueError:
            raise DataError(
                f"y holds {class_names[0]!r} in '{path}', which is no number to predict.",
                got="labels",
                remedy="use 'widelimit classify', or store numbers as y",
            ) from None
    if task is Task.CLASSIFY and not class_names:
        raise DataError(
            f"y holds floating-point numbers in '{path}', which are no classes.",
            got=f"dtype {y.dtype}",
            remedy="use 'widelimit regress', or store y as integers or texts",
        )
    return _named(y, class_names)


def _folder(path: Path, task: Task, how: Reading) -> Source:
    if task is Task.REGRESS:
        raise DataError(
            f"The folder '{path}' names classes, not numbers to predict.",
            got="a folder",
            remedy="use 'widelimit classify', or an .npz file with x and y",
        )
    size = None if how.image_size is None else (how.image_size,) * 2
    held = (path / "train").is_dir() and (path / "test").is_dir()
    load = named_image_folder_split if held else named_image_folder
    data, names = load(path, size=size, skip=how.skip)
    x, y, _, test = _whole(data)
    y = _named(y, data.class_names)
    return Source(path, Kind.IMAGE, x, y, tuple(names), {"label": "folder"}, test=test)


# --- what must hold -------------------------------------------------------------------------------


def _require_classes(source: Source) -> None:
    """Enough examples of every class, and classes that are classes."""
    classes, counts = np.unique(source.y, return_counts=True)
    if len(classes) > max(20, _MOST_CLASSES_SHARE * len(source)):
        raise DataError(
            f"{len(classes)} different labels in {len(source)} examples are no classes.",
            got=f"column {source.columns['label']!r} of '{source.path}'",
            remedy="name another column, or use 'widelimit regress' for numbers",
            option="label",
        )
    if len(classes) < 2:
        raise DataError(
            f"All examples of '{source.path}' have one label.",
            got=f"{classes[0]!r} alone" if len(classes) else "no label",
            remedy="name another column, or add examples of other classes",
            option="label",
        )
    rare = [f"{label!r}" for label, count in zip(classes, counts, strict=True) if count < 2]
    if rare:
        raise DataError(
            f"Class {rare[0]} has one example, where one is needed to learn from and one to test.",
            got=f"{', '.join(rare[:5])} in '{source.path}'",
            remedy="add examples, or remove these classes",
        )
