"""Tasks, how files are read and divided, and how a run reports its progress."""

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...progress import Callback


class Task(enum.Enum):
    """What is predicted."""

    CLASSIFY = "classify"
    REGRESS = "regress"

    def __str__(self) -> str:
        return self.value


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

    def table_options(self) -> dict[str, Any]:
        """What `read_frame` is told beyond its defaults."""
        names = ("encoding", "delimiter", "decimal", "no_header", "skip")
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(Reading, n)}


class Listener:
    """Receives messages and progress of a run. This one ignores them; that of commands does not."""

    def say(self, text: str) -> None:
        """Something the user should know."""

    @contextmanager
    def bar(self, label: str) -> Iterator[Callback]:
        """Long work: it reports its progress to the function that this yields."""
        yield lambda done, total: None


SILENT = Listener()


def split(
    rows: np.ndarray, y: Any, task: Task, seed: int, train: int, test: int
) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's `train_test_split`; classes keep their shares where they are not too few."""
    from sklearn.model_selection import train_test_split

    keeps = stratified(y[rows], task, train, test)
    parts: list[Any] = train_test_split(
        rows,
        train_size=train,
        test_size=test,
        random_state=seed,
        stratify=y[rows] if keeps else None,
    )
    return parts[0], parts[1]


def stratified(y: np.ndarray, task: Task, train: int, test: int) -> bool:
    """Whether every class can be in both parts."""
    if task is Task.REGRESS:
        return False
    counts = np.unique(y, return_counts=True)[1]
    return bool(counts.min() >= 2) and min(train, test) >= len(counts)
