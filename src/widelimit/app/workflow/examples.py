"""Examples as they come from a file, before anything has been fitted to them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .kinds import Kind


@dataclass(frozen=True, eq=False)
class TextsAndColumns:
    """Rows with a text and with columns."""

    texts: tuple[str, ...]
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Examples:
    """What a file holds, one entry per example.

    `content` is a tuple of texts, an array (N, …), the columns of a table by name (numbers, dates
    or words), or texts and columns. `names` say where in the file each example is, and `given` are
    the columns as the file has them.
    """

    kind: Kind
    content: Any
    names: tuple[str, ...]
    mask: np.ndarray | None = None
    given: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> "Examples":
        """The examples at `indices`."""
        return replace(
            self,
            content=_taken(self.content, indices),
            names=_taken(self.names, indices),
            mask=None if self.mask is None else self.mask[indices],
            given=_taken(self.given, indices),
        )

    @property
    def texts(self) -> "Examples":
        """The texts alone, of examples that have columns too."""
        return replace(self, kind=Kind.TEXT, content=self.content.texts)

    @property
    def columns(self) -> "Examples":
        """The columns alone, of examples that have texts too."""
        return replace(self, kind=Kind.TABLE, content=self.content.columns)

    def excerpt(self, index: int, length: int = 160) -> str:
        """One example in a few words, for lists of predictions."""
        if self.kind is Kind.TEXT:
            text = " ".join(self.content[index].split())
            return text if len(text) <= length else text[: length - 1] + "…"
        if isinstance(self.content, dict):
            parts = [f"{name} {_short(column[index])}" for name, column in self.content.items()]
            text = ", ".join(parts)
            return text if len(text) <= length else text[: length - 1] + "…"
        if self.kind is Kind.MIXED:
            words = self.texts.excerpt(index, length)
            return f"{words or '(no text)'} – {self.columns.excerpt(index, length // 2)}"
        return ""  # where it is says it


def _taken(content: Any, indices: np.ndarray) -> Any:
    if isinstance(content, TextsAndColumns):
        return TextsAndColumns(_taken(content.texts, indices), _taken(content.columns, indices))
    if isinstance(content, dict):
        return {name: column[indices] for name, column in content.items()}
    if isinstance(content, tuple):
        return tuple(content[i] for i in indices)
    return content[indices]


def _short(value: Any) -> str:
    if isinstance(value, np.datetime64) and not np.isnat(value):
        return str(value).removesuffix("T00:00:00")
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "missing" if text in ("", "nan", "NaT") else text


@dataclass(frozen=True, eq=False)
class LabelledFile:
    """A file with what is to be predicted.

    `y` holds class numbers (with `class_names`) or real targets (without); it is empty where labels
    are not needed. `test` are the examples the file itself calls its test part. `columns` says
    which column was taken for what, `notes` what the reader decided on its own.
    """

    path: Path
    examples: Examples
    y: np.ndarray
    class_names: tuple[str, ...]
    columns: dict[str, str]
    notes: tuple[str, ...] = ()
    test: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.examples)
