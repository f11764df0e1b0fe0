"""Kinds of data, tasks, and how a run reports its progress."""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Kind(enum.Enum):
    """What one example is."""

    TABLE = "table"  # a row of numbers and categories
    TEXT = "text"  # words
    MIXED = "mixed"  # words beside numbers and categories
    SEQUENCE = "sequence"  # positions with channels
    IMAGE = "image"  # height, width and channels

    def __str__(self) -> str:
        return self.value


class Task(enum.Enum):
    """What is predicted."""

    CLASSIFY = "classify"
    REGRESS = "regress"

    def __str__(self) -> str:
        return self.value


Advance = Callable[[int, int], None]
"""Called with what is done and how much there is."""


class Listener:
    """Receives messages and progress of a run. This one ignores them; that of commands does not."""

    def say(self, text: str) -> None:
        """Something the user should know."""

    @contextmanager
    def bar(self, label: str) -> Iterator[Advance]:
        """Long work: it reports its progress to the function that this yields."""
        yield lambda done, total: None


SILENT = Listener()
