"""Tasks, and how a run reports its progress."""

import enum
from collections.abc import Iterator
from contextlib import contextmanager

from ...progress import Callback


class Task(enum.Enum):
    """What is predicted."""

    CLASSIFY = "classify"
    REGRESS = "regress"

    def __str__(self) -> str:
        return self.value


class Listener:
    """Receives messages and progress of a run. This one ignores them; that of commands does not."""

    def say(self, text: str) -> None:
        """Something the user should know."""

    @contextmanager
    def bar(self, label: str) -> Iterator[Callback]:
        """Long work: it reports its progress to the function that this yields."""
        yield lambda done, total: None


SILENT = Listener()
