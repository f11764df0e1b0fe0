"""Which column of a table is the text, which the label, which are features."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...data import Column, DataError, Holds, Table
from ...data.columns import USABLE
from ...data.dates import DateOrder
from .kinds import Task

TEXT_NAMES = ("text", "sentence", "review", "comment", "content", "body", "message", "document")
LABEL_NAMES = ("label", "class", "sentiment", "category", "target", "y", "species")
TARGET_NAMES = ("target", "y", "score", "rating", "value", "price", "label")
SPLIT_NAMES = ("split", "part", "fold")
_COUNTED = 20  # rows from which on numbers 1, 2, 3 … are more likely to count rows than to measure


@dataclass(frozen=True)
class Roles:
    """What each column is for; those that are left out with the reason."""

    label: str | None
    text: str | None
    features: tuple[str, ...]
    split: str | None
    left_out: dict[str, str]

    def notes(self, table: Table) -> list[str]:
        """What was decided without being asked."""
        notes = []
        if self.left_out:
            parts = ", ".join(f"{name!r} ({why})" for name, why in self.left_out.items())
            notes.append(f"left out: {parts}")
        notes += [
            f"{name!r} counts the rows one by one: pass --drop {name} if it measures nothing"
            for name in self.features
            if _counts(table.column(name))
        ]
        notes += [
            f"{name!r}: dates such as {next(filter(None, table.column(name).words))!r} are read "
            f"with the month first"
            for name in self.features
            if table.column(name).holds is Holds.DATES and not table.column(name).date_order.sure
        ]
        if copies := copies_of_label(table, self):
            notes.append(
                f"{', '.join(map(repr, copies))} holds the same as the label {self.label!r} in "
                "every row: the scores below say nothing of rows without it (--drop leaves it out)"
            )
        return notes


def assign(
    table: Table,
    task: Task,
    *,
    text: str | None = None,
    label: str | None = None,
    features: Sequence[str] = (),
    split: str | None = None,
    drop: Sequence[str] = (),
    labels_needed: bool = True,
) -> Roles:
    """Named columns as they are named, the others by their names and what they hold."""
    names = table.names
    for name in (text, label, split, *features, *drop):
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
    _require_distinct(text, label, split, features, drop)
    split = split or _split_column(table, [name for name in names if name != label])
    rest = [name for name in names if name not in (label, split, *drop)]
    if text is None and not features:
        text = _text_column(table, rest)
    chosen = tuple(features) or tuple(
        name for name in rest if name != text and table.column(name).holds in USABLE
    )
    if text is None and not chosen:
        raise DataError(
            "A table must have a column of texts, or columns of numbers or categories.",
            got=f"{_described(table, rest)} beside {label!r} in '{table.path}'",
            remedy="name the text column with --text, or the columns to use with --feature",
        )
    used = {text, *chosen}
    left_out = {name: _why(table.column(name), features) for name in rest if name not in used}
    left_out |= dict.fromkeys(drop, "--drop")
    return Roles(label, text, chosen, split, left_out)


def _described(table: Table, names: list[str]) -> str:
    return ", ".join(f"{name!r} ({table.column(name).holds})" for name in names) or "no column"


def _why(column: Column, features: Sequence[str]) -> str:
    if features:
        return "not named with --feature"
    return "another text" if column.holds is Holds.TEXTS else str(column.holds)


def _require_distinct(
    text: str | None,
    label: str | None,
    split: str | None,
    features: Sequence[str],
    drop: Sequence[str],
) -> None:
    """The label is no input, and a column has one part to play."""
    named = (text, label, split, *set(features), *set(drop))
    counts = Counter(name for name in named if name is not None)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise DataError(
            "The column to predict, the inputs and the split are different columns.",
            got=f"{twice[0]!r} for two of them, with the label {label!r}",
            remedy="name other columns with --label, --text, --feature, --split or --drop",
        )


def copies_of_label(table: Table, roles: Roles) -> list[str]:
    """Features that hold the very same values as the column to predict."""
    if roles.label is None:
        return []
    wanted = table.column(roles.label).values
    pairs = {name: zip(table.column(name).values, wanted, strict=True) for name in roles.features}
    return [name for name, both in pairs.items() if all(str(a) == str(b) for a, b in both)]


def feature(table: Table, name: str, order: DateOrder | None = None) -> np.ndarray:
    """One column as numbers (not a number: missing), dates (`NaT`), or words (empty)."""
    column = table.column(name)
    holds = column.holds
    if holds is Holds.LISTS:
        raise DataError(
            "A column of a table holds one number, date or word in a row.",
            got=f"lists or objects in {name!r} of '{table.path}'",
            remedy=f"leave it out with --drop {name}, or write their parts as columns",
        )
    if order is not None or holds is Holds.DATES:
        dates = column.dates(order)
        table.check(
            ~np.isnat(dates) | column.missing,
            f"Column {name!r} must hold dates such as 2024-05-31.",
            "something else",
            "correct these rows, or pass skip=True to leave them out",
        )
        return dates
    if holds is Holds.FLAGS:
        return table.flags(name)
    return numbers(table, name) if is_numeric(column) else column.words.astype(str)


def numbers(table: Table, name: str) -> np.ndarray:
    """A column of numbers, or of yes and no; not a number where a value is missing."""
    column = table.column(name)
    if np.array_equal(np.isnan(column.flags), column.missing) and not column.missing.all():
        return column.flags
    return table.numbers(name, gaps=True)[:, 0]


def is_numeric(column: Column) -> bool:
    """Whether a column is one of numbers, also if these are all equal or all different."""
    numeric = column.holds in (Holds.ONE_VALUE, Holds.NAMES) and np.isfinite(column.numbers).all()
    return column.holds is Holds.NUMBERS or bool(numeric)


def known(column: Column) -> np.ndarray:
    """Which rows of a feature hold what the column holds, neither nothing nor a mistake."""
    if column.holds is Holds.DATES:
        return ~np.isnat(column.dates())
    if column.holds is Holds.FLAGS:
        return np.isfinite(column.flags)
    return np.isfinite(column.numbers) if is_numeric(column) else ~column.missing


def _counts(column: Column) -> bool:
    """Whether numbers go up by one from row to row."""
    if column.holds is not Holds.NUMBERS or len(column) < _COUNTED:
        return False
    return bool((np.diff(column.numbers) == 1).all())


def _known(names: list[str], wanted: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _split_column(table: Table, names: list[str]) -> str | None:
    name = _known(names, SPLIT_NAMES)
    if name is None:
        return None
    return name if {str(v) for v in table.column(name).values} == {"train", "test"} else None


def _text_column(table: Table, names: list[str]) -> str | None:
    """The column with a usual name, else the one with the longest texts."""
    columns = [table.column(name) for name in names]
    plain = (Holds.NUMBERS, Holds.DATES)
    wordy = [c.name for c in columns if c.holds not in plain and c.mean_words > 1.0]
    if usual := _known(wordy, TEXT_NAMES):
        return usual
    texts = [column for column in columns if column.holds is Holds.TEXTS]
    return max(texts, key=lambda column: column.mean_words).name if texts else None
