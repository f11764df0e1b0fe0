"""Which column of a table is the text, which the label, which are features."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data import DataError, Table
from .kinds import Task

TEXT_NAMES = ("text", "sentence", "review", "comment", "content", "body", "message", "document")
LABEL_NAMES = ("label", "class", "sentiment", "category", "target", "y", "species")
TARGET_NAMES = ("target", "y", "score", "rating", "value", "price", "label")
SPLIT_NAMES = ("split", "part", "fold")
_WORDS_OF_A_TEXT = 3.0  # on average; names and categories have fewer
_MOST_CATEGORIES = 20
_NUMERIC_SHARE = 0.8  # from which on other values in a column are mistakes, not categories


@dataclass(frozen=True)
class Roles:
    """What each column is for."""

    label: str | None
    text: str | None
    features: tuple[str, ...]
    split: str | None
    left_out: tuple[str, ...]


def assign(
    table: Table,
    task: Task,
    *,
    text: str | None = None,
    label: str | None = None,
    features: Sequence[str] = (),
    split: str | None = None,
    labels_needed: bool = True,
) -> Roles:
    """Named columns as they are named, the others by their names and what they hold."""
    names = list(table.rows[0])
    for name in (text, label, split, *features):
        if name is not None:
            table.column(name)
    label = label or _known(names, LABEL_NAMES if task is Task.CLASSIFY else TARGET_NAMES)
    if label is None and labels_needed:
        what = "label" if task is Task.CLASSIFY else "target"
        raise DataError(
            f"The column to predict must be named, or called {what!r}.",
            got=f"columns {', '.join(map(repr, names))} in '{table.path}'",
            remedy=f"pass --{what} with one of these names",
        )
    if label is not None:
        table.column(label)
    _require_distinct(text, label, split, features)
    split = split or _split_column(table, [name for name in names if name != label])
    rest = [name for name in names if name not in (label, split)]
    if text is None and not features:
        text = _text_column(table, rest)
    if text is not None:
        return Roles(label, text, (), split, tuple(n for n in rest if n != text))
    chosen = tuple(features) or tuple(n for n in rest if _usable(table, n))
    if not chosen:
        raise DataError(
            "A table must have a column of texts, or columns of numbers or categories.",
            got=f"columns {', '.join(map(repr, rest)) or 'none'} beside {label!r}",
            remedy="name the text column with --text, or the columns to use with --feature",
        )
    used = set(chosen)
    return Roles(label, None, chosen, split, tuple(n for n in rest if n not in used))


def _require_distinct(
    text: str | None, label: str | None, split: str | None, features: Sequence[str]
) -> None:
    """The label is no input, and a column has one part to play."""
    counts = Counter(name for name in (text, label, split, *set(features)) if name is not None)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise DataError(
            "The column to predict, the inputs and the split are different columns.",
            got=f"{twice[0]!r} for two of them, with the label {label!r}",
            remedy="name other columns with --label, --text, --feature or --split",
        )


def copies_of_label(table: Table, roles: Roles) -> list[str]:
    """Features that hold the very same values as the column to predict."""
    wanted = [str(row[roles.label]) for row in table.rows] if roles.label else []
    return [
        name for name in roles.features if [str(value) for value in table.column(name)] == wanted
    ]


def feature(table: Table, name: str) -> np.ndarray:
    """One column as numbers or, where it holds words, as texts."""
    if _numeric_share(table, name) >= _NUMERIC_SHARE:
        return table.numbers(name)[:, 0]
    return np.array(table.labels(name))


def _known(names: list[str], wanted: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _split_column(table: Table, names: list[str]) -> str | None:
    name = _known(names, SPLIT_NAMES)
    if name is None:
        return None
    return name if {str(value) for value in table.column(name)} == {"train", "test"} else None


def _text_column(table: Table, names: list[str]) -> str | None:
    """The column with a usual name, else the one with the longest texts."""
    words = {name: _mean_words(table, name) for name in names}
    usual = _known([name for name in names if words[name] > 1.0], TEXT_NAMES)
    longest = max(words, key=lambda name: words[name], default=None)
    if usual is not None or longest is None:
        return usual
    return longest if words[longest] >= _WORDS_OF_A_TEXT else None


def _mean_words(table: Table, name: str) -> float:
    values = _values(table, name)
    return float(np.mean([len(v.split()) if isinstance(v, str) else 0 for v in values] or [0]))


def _values(table: Table, name: str) -> list[Any]:
    return [row.get(name) for row in table.rows]


def _numeric_share(table: Table, name: str) -> float:
    def numeric(value: Any) -> bool:
        try:
            return np.isfinite(float(value))
        except (TypeError, ValueError, OverflowError):
            return False

    return float(np.mean([numeric(value) for value in _values(table, name)]))


def _usable(table: Table, name: str) -> bool:
    """Numbers, or words of which there are few different ones."""
    if _numeric_share(table, name) >= _NUMERIC_SHARE:
        return True
    values = _values(table, name)
    hashable = all(isinstance(value, str | int | float | bool) for value in values)
    return hashable and len(set(values)) <= min(_MOST_CATEGORIES, len(values) // 2)
