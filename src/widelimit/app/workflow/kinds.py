"""Kinds of data, tasks, and how a run reports its progress."""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...sklearn.networks import Kind as Kind


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
