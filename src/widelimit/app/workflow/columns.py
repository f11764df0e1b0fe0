"""Which column of a table is the text, which the label, which are features."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...data import DataError, Holds, column_holds
from .kinds import Reading, Task

TEXT_NAMES = ("text", "sentence", "review", "comment", "content", "body", "message", "document")
LABEL_NAMES = ("label", "class", "sentiment", "category", "target", "y", "species")
TARGET_NAMES = ("target", "y", "score", "rating", "value", "price", "label")
SPLIT_NAMES = ("split", "part", "fold")
USABLE = (Holds.NUMBERS, Holds.CATEGORIES, Holds.DATES)
_COUNTED = 20  # rows from which on numbers 1, 2, 3 … are more likely to count rows than to measure


@dataclass(frozen=True)
class Roles:
    """What each column is for; those that are left out with the reason."""

    label: str | None
    text: str | None
    features: tuple[str, ...]
    split: str | None
    left_out: dict[str, str]

    @property
    def inputs(self) -> list[str]:
        """The columns that a model sees."""
        return [*(() if self.text is None else (self.text,)), *self.features]

    def described(self) -> dict[str, str]:
        """Roles and the columns that have them, in words."""
        features = ", ".join(self.features) or None
        found = {"label": self.label, "text": self.text, "features": features, "split": self.split}
        return {role: name for role, name in found.items() if name is not None}

    def notes(self, frame: Any) -> list[str]:
        """What was decided without being asked, and what is missing."""
        notes = []
        if self.left_out:
            parts = ", ".join(f"{name!r} ({why})" for name, why in self.left_out.items())
            notes.append(f"left out: {parts}")
        notes += [
            f"{name!r} counts the rows one by one: pass --drop {name} if it measures nothing"
            for name in self.features
            if len(frame) >= _COUNTED
            and frame[name].dtype.kind in "iuf"
            and (frame[name].diff()[1:] == 1).all()
        ]
        missing = frame[list(self.features)].isna().sum()
        if gaps := [f"{name!r} {n:,} ({n / len(frame):.1%})" for name, n in missing.items() if n]:
            notes.append(f"missing values: {', '.join(gaps)}")
        return notes


def assign(
    frame: Any, path: Path, task: Task, how: Reading, *, labels_needed: bool = True
) -> Roles:
    """Named columns as they are named, the others by their names and what they hold."""
    names, text, features = list(frame.columns), how.text, tuple(how.features)
    drop = [*how.drop, *([how.weight] if how.weight else [])]
    require_columns(frame, path, (text, how.label, how.split, *features, *drop))
    label = label_column(frame, task, how.label)
    if label is None and labels_needed:
        what = "label" if task is Task.CLASSIFY else "target"
        raise DataError(
            f"No column is called {what!r}, and none is named.",
            got=f"columns {', '.join(map(repr, names))} in '{path}'",
            remedy="name the column to predict",
            option=what,
        )
    counts = Counter((text, label, how.split, *set(features), *set(drop)))
    if twice := [name for name, count in counts.items() if count > 1 and name is not None]:
        raise DataError(
            f"Column {twice[0]!r} has two parts to play.",
            got=f"it is two of label, text, feature, split and drop, with the label {label!r}",
            remedy="name different columns",
            option=("label", "text", "feature", "split", "drop"),
        )
    split = how.split
    if split is None and (guess := _known([n for n in names if n != label], SPLIT_NAMES)):
        split = guess if set(map(str, frame[guess])) == {"train", "test"} else None
    rest = [name for name in names if name not in (label, split, *drop)]
    holds = {name: column_holds(frame[name]) for name in rest}
    if text is None and not features:
        text = _text_column(frame, holds)
    chosen = features or tuple(n for n in rest if n != text and holds[n] in USABLE)
    if text is None and not chosen:
        shown = ", ".join(f"{name!r} ({found})" for name, found in holds.items()) or "no column"
        raise DataError(
            "No column holds texts, numbers, categories or dates.",
            got=f"{shown} beside {label!r} in '{path}'",
            remedy="name the column of texts, or the columns to use",
            option=("text", "feature"),
        )
    for name in (*features, *([label] if labels_needed else [])):
        if column_holds(frame[name]) is Holds.LISTS:
            raise DataError(
                f"Column {name!r} holds lists or objects.",
                got=f"'{path}'",
                remedy="write one number, date or word in every row, or choose other columns",
                option=("label", "feature", "drop"),
            )
    left_out = {name: str(holds[name]) for name in rest if name not in (text, *chosen)}
    for name in left_out:
        if features:
            left_out[name] = "not named with --feature"
        elif holds[name] is Holds.TEXTS:
            left_out[name] = "another text"
    return Roles(label, text, chosen, split, left_out | dict.fromkeys(drop, "--drop"))


def label_column(frame: Any, task: Task, label: str | None) -> str | None:
    """The column that was named, else one with a usual name."""
    usual = LABEL_NAMES if task is Task.CLASSIFY else TARGET_NAMES
    return label or _known(list(frame.columns), usual)


def require_columns(frame: Any, path: Path, wanted: Sequence[str | None]) -> None:
    """Raise for the first name that no column has."""
    for name in wanted:
        if name is not None and name not in frame.columns:
            raise DataError(
                f"There is no column {name!r} in '{path.name}'.",
                got=f"columns {', '.join(map(repr, frame.columns))}",
                remedy="name one of the columns found, or say what separates columns",
                option="delimiter",
            )


def _known(names: list[str], wanted: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _text_column(frame: Any, holds: dict[str, Holds]) -> str | None:
    """The column with a usual name, else the one with the longest texts."""

    def words(name: str) -> float:
        return float(np.mean([len(str(value).split()) for value in frame[name].dropna()] or [0]))

    plain = (Holds.NUMBERS, Holds.DATES, Holds.NOTHING, Holds.LISTS)
    wordy = [name for name, found in holds.items() if found not in plain and words(name) > 1]
    texts = [name for name, found in holds.items() if found is Holds.TEXTS]
    return _known(wordy, TEXT_NAMES) or max(texts, key=words, default=None)
