"""Examples as they come from a file, before anything has been fitted to them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .kinds import Kind

Column = np.ndarray


@dataclass(frozen=True, eq=False)
class Examples:
    """What a file holds, one entry per example.

    `content` is a tuple of texts, an array (N, …), or the columns of a table by name: numbers
    (float64) or texts. `names` say where in the file each example is.
    """

    kind: Kind
    content: Any
    names: tuple[str, ...]
    mask: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> "Examples":
        """The examples at `indices`."""
        names = tuple(self.names[i] for i in indices)
        mask = None if self.mask is None else self.mask[indices]
        if isinstance(self.content, dict):
            content: Any = {name: column[indices] for name, column in self.content.items()}
        elif isinstance(self.content, tuple):
            content = tuple(self.content[i] for i in indices)
        else:
            content = self.content[indices]
        return replace(self, content=content, names=names, mask=mask)

    def excerpt(self, index: int, length: int = 160) -> str:
        """One example in a few words, for lists of predictions."""
        if self.kind is Kind.TEXT:
            text = " ".join(self.content[index].split())
            return text if len(text) <= length else text[: length - 1] + "…"
        if isinstance(self.content, dict):
            parts = [f"{name} {_short(column[index])}" for name, column in self.content.items()]
            text = ", ".join(parts)
            return text if len(text) <= length else text[: length - 1] + "…"
        return self.names[index]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
