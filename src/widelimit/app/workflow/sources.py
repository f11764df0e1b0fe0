"""A user's file or folder, read: what it holds and what is to be predicted."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data import DataError, find_leaks, load_imdb, read_frame, read_npz
from ...data.arrays import require_arrays
from ...data.labels import class_names
from ...data.npz import checked_arrays
from ...data.pictures import read_classes
from ...sklearn.networks import Kind
from .columns import assign, label_column
from .kinds import Reading, Task

FEWEST_EXAMPLES = 10
_RANKS = {2: Kind.TABLE, 3: Kind.SEQUENCE, 4: Kind.IMAGE}
_MOST_CLASSES_SHARE = 0.2  # more classes than this share of the rows: numbers, not classes
_SHOWN = 90  # characters of an example on a page
_MOSTLY_NUMBERS = 0.8  # of the cells of a column: the others are mistakes


@dataclass(frozen=True, eq=False)
class Source:
    """Examples of a file: `x` is a frame of the columns that a model sees, or an array.

    `y` are labels or numbers as the file has them (None without), `names` say where examples are,
    `test` are the rows that the file holds out, `frame` has all columns of a table, `python` are
    the lines that read X, y and what goes with them.
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
    python: tuple[str, ...] = ()

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
        if (text := self.columns.get("text")) is not None:
            shown = str(values[text])
        else:
            cells = {n: f"{v:.4g}" if isinstance(v, float) else v for n, v in values.items()}
            shown = ", ".join(f"{name}={cell}" for name, cell in cells.items())
        return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def read_source(
    path: Path | str, task: Task, how: Reading | None = None, *, labels_needed: bool = True
) -> Source:
    """Read a table, an `.npz` file or a folder of images together with its labels.

    Without `labels_needed` labels are read where they are, and nothing is asked of them.
    """
    path, how = Path(path), how or Reading()
    if path.is_dir() and not any((path / "train" / "pos").glob("*.txt")):
        source = _folder(path, task, how)
    elif path.suffix == ".npz":
        source = read_arrays(path, task, labels=True if labels_needed else None)
    else:
        source = _table(path, task, how, labels_needed)
    if not labels_needed:
        return source
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


def _table(path: Path, task: Task, how: Reading, labels_needed: bool) -> Source:
    options = how.table_options()
    folder = path.is_dir()
    frame = load_imdb(path) if folder else read_frame(path, **options)
    frame = _numeric_columns(frame, path, how, label_column(frame, task, how.label))
    roles = assign(frame, path, task, how, labels_needed=labels_needed)
    label, notes = roles.label, roles.notes(frame)
    shown = [*roles.inputs, *([label] if label else [])]
    if how.skip:
        frame, more = complete_rows(frame, shown, path)
        notes += more
    y = weights = None
    if labels_needed:
        assert label is not None  # it is needed here, so it was found
        y = column_labels(frame, label, path, task)
        notes += [f"{leak}: the scores may say nothing" for leak in find_leaks(frame[shown], label)]
        if repeated := int(frame[roles.inputs].astype(str).duplicated().sum()):
            notes.append(
                f"{repeated:,} of {len(frame):,} rows repeat the inputs of another one; where the "
                "noise is chosen, none of them predicts its copies"
            )
    elif label is not None and 1 < frame[label].astype(str).nunique() <= _most_classes(frame):
        # Labels that nobody asked for: where all rows have one, and they are few.
        plain = Task.REGRESS if frame[label].dtype.kind == "f" else Task.CLASSIFY
        y = None if frame[label].isna().any() else column_labels(frame, label, path, plain)
    called = ", ".join([repr(str(path)), *(f"{name}={v!r}" for name, v in options.items())])
    lines = [f"frame = data.{'load_imdb' if folder else 'read_frame'}({called})"]
    lines += [f"frame = frame.dropna(subset={shown!r})"] if how.skip else []
    lines.append(f"X, y = frame[{roles.inputs!r}], frame[{label!r}].to_numpy()")
    if how.weight is not None:
        weights = _column_numbers(frame, how.weight, path)
        lines.append(f"weights = frame[{how.weight!r}].to_numpy()")
    return Source(
        path,
        Kind.TABLE if roles.text is None else Kind.MIXED if roles.features else Kind.TEXT,
        frame[roles.inputs],
        y,
        tuple(f"row {number}" for number in frame.index),
        roles.described(),
        tuple(notes),
        test=None if roles.split is None else _test_part(frame, roles.split),
        weights=weights,
        frame=frame,
        python=tuple(lines),
    )


def _most_classes(examples: Any) -> float:
    return max(20, _MOST_CLASSES_SHARE * len(examples))


def _numeric_columns(frame: Any, path: Path, how: Reading, label: str | None) -> Any:
    """The frame, unless a column of numbers holds something else somewhere.

    Such a cell would make words of all its column. With `skip` it counts as missing.
    """
    for name, column in frame.items():
        if column.dtype.kind in "iufbM" or name in (label, how.text, how.split, *how.drop):
            continue
        numbers = finite_numbers(column, how.decimal)
        if _MOSTLY_NUMBERS <= numbers.notna().sum() / max(1, column.notna().sum()) < 1:
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


def complete_rows(frame: Any, names: Sequence[str], path: Path) -> tuple[Any, list[str]]:
    """The rows with something in all of these columns; blanks are nothing."""
    cells = frame[list(names)]
    complete = cells.notna() & ~cells.map(lambda cell: isinstance(cell, str) and not cell.strip())
    kept = frame[complete.all(axis=1)]
    if kept.empty:
        raise DataError(
            f"Every row of '{path}' lacks something.",
            got=f"no row with a value in all of {', '.join(map(repr, names))}",
            remedy="keep such rows, so that missing values are filled in, or leave columns out "
            "that are mostly empty",
            option=("skip", "drop"),
        )
    left = len(frame) - len(kept)
    return kept, [f"left out: {left:,} of {len(frame):,} incomplete rows"] if left else []


def column_labels(frame: Any, name: str, path: Path, task: Task) -> np.ndarray:
    """Classes or numbers to predict; none may be missing."""
    column = frame[name]
    if column.isna().any():
        raise DataError(
            f"Column {name!r} is empty in row {column.index[column.isna()][0]}.",
            got=f"{int(column.isna().sum()):,} empty of {len(column):,} in '{path}'",
            remedy="fill them in, or leave incomplete rows out",
            option="skip",
        )
    if task is Task.REGRESS:
        return _column_numbers(frame, name, path)
    values = column.to_numpy()
    plain = values.dtype.kind in "iub"
    return values if plain else np.array([str(value) for value in values], dtype=object)


def _column_numbers(frame: Any, name: str, path: Path) -> np.ndarray:
    """A column of finite numbers."""
    column: Any = frame[name]
    if column.dtype.kind not in "iufb" or column.isna().any():
        numbers = finite_numbers(column, ".")
        row = column.index[int(numbers.isna().to_numpy().argmax())]
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


def read_arrays(path: Path, task: Task, *, labels: bool | None = True) -> Source:
    """Rows (N, channels), sequences (N, positions, channels) or images (N, h, w, channels).

    `labels`: those of a task, none, or with None what the file has.
    """
    held = read_npz(path)
    ends = ("_train", "_test") if "x_train" in held else ("",)
    xs, ys, masks = ([f"{name}{end}" for end in ends] for name in ("x", "y", "mask"))
    require_arrays(path, held, *xs, *(ys if labels else ()))
    if labels is False:
        held = {name: array for name, array in held.items() if name not in ys}
    parts = [checked_arrays(path, held, *names) for names in zip(xs, ys, masks, strict=True)]
    shapes = [part.x.shape for part in parts]
    if shapes[0][1:] != shapes[-1][1:]:
        raise DataError(
            "Training and test inputs have different shapes.",
            got=f"{shapes[0][1:]} and {shapes[-1][1:]} in '{path}'",
            remedy="pad or resize them, and give masks where they are padded",
        )
    if len(shapes[0]) not in _RANKS:
        raise DataError(
            f"x has {len(shapes[0])} axes in '{path}'.",
            got=f"shape {shapes[0]}",
            remedy="save rows (N, channels), sequences (N, positions, channels) or images "
            "(N, height, width, channels)",
        )
    notes, lines = [], [f"found = data.read_npz({str(path)!r})"]
    padded = any(part.mask is not None for part in parts)
    for inputs, name in zip(xs, masks, strict=True):
        if padded and name not in held:
            notes.append(f"no {name} in the file: all its positions are taken as real")
            held[name] = np.ones(held[inputs].shape[:-1], bool)
            lines.append(f"found[{name!r}] = np.ones(found[{inputs!r}].shape[:-1], bool)")
    x, mask = _joined(held, xs), _joined(held, masks) if padded else None
    given = [part.y for part in parts if part.y is not None]
    if labels:
        given = [as_task(path, y, task) for y in given]
        y, kind = _as_code(ys), "str" if task is Task.CLASSIFY else "float"
        if parts[0].class_names is not None and all(held[name].dtype.kind in "iu" for name in ys):
            y = f"found['class_names'].astype({kind})[{y}]"
        else:
            y = f"{y}.astype({kind})"
        lines.append(f"X, y = {_as_code(xs)}, {y}")
        lines += [f"mask = {_as_code(masks)}"] if padded else []
    known = len(given) == len(parts) and len({y.dtype.kind for y in given}) == 1
    return Source(
        path,
        _RANKS[x.ndim],
        x,
        np.concatenate(given) if known else None,
        tuple(f"row {i}" for i in range(len(x))),
        {"label": "y"},
        tuple(notes),
        mask,
        np.arange(len(parts[0].x), len(x)) if len(parts) > 1 else None,
        python=tuple(lines),
    )


def _joined(held: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return held[names[0]] if len(names) == 1 else np.concatenate([held[name] for name in names])


def _as_code(names: Sequence[str]) -> str:
    """What `_joined` does, as a line of Python."""
    arrays = [f"found[{name!r}]" for name in names]
    return arrays[0] if len(arrays) == 1 else f"np.r_[{', '.join(arrays)}]"


def as_task(path: Path, y: np.ndarray, task: Task) -> np.ndarray:
    """Whole numbers may be targets too; fractions are no classes."""
    if task is Task.CLASSIFY and y.dtype.kind == "f":
        raise DataError(
            f"y holds floating-point numbers in '{path}', which are no classes.",
            got=f"dtype {y.dtype}",
            remedy="use 'widelimit regress', or store y as integers or texts",
        )
    try:
        return y if task is Task.CLASSIFY else y.astype(np.float64)
    except ValueError:
        raise DataError(
            f"y holds {y[0]!r} in '{path}', which is no number to predict.",
            got="labels",
            remedy="use 'widelimit classify', or store numbers as y",
        ) from None


def _folder(path: Path, task: Task, how: Reading) -> Source:
    if task is Task.REGRESS:
        raise DataError(
            f"The folder '{path}' names classes, not numbers to predict.",
            got="a folder",
            remedy="use 'widelimit classify', or an .npz file with x and y",
        )
    size = None if how.image_size is None else (how.image_size,) * 2
    parts = [path / "train", path / "test"]
    held = all(part.is_dir() for part in parts)
    files, x = read_classes(*(parts if held else [path]), size=size, skip=how.skip)
    y = [file.parent.name for file in files]
    class_names(y)  # two or more
    test = np.flatnonzero([file.parent.parent == parts[1] for file in files])
    options = f"{str(path)!r}, size={size!r}{', skip=True' if how.skip else ''}"
    lines = [f"found = data.load_image_folder{'_split' if held else ''}({options})"]
    inputs, labels = "found.x", "found.y"
    if held:
        inputs, labels = (f"np.r_[found.{name}_train, found.{name}_test]" for name in ("x", "y"))
    lines.append(f"X, y = {inputs}, np.array(found.class_names)[{labels}]")
    return Source(
        path,
        Kind.IMAGE,
        x,
        np.array(y, dtype=object),
        tuple(file.relative_to(path).as_posix() for file in files),
        {"label": "folder"},
        test=test if held else None,
        python=tuple(lines),
    )


# --- what must hold -------------------------------------------------------------------------------


def _require_classes(source: Source) -> None:
    """Enough examples of every class, and classes that are classes."""
    classes, counts = np.unique(source.y, return_counts=True)
    if len(classes) > _most_classes(source):
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
