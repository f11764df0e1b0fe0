"""How commands speak: text and bars for people on standard error, JSON on standard output."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)

from ...errors import WidelimitError
from ..workflow.kinds import Advance, Listener

# How arguments of functions, which errors speak of, are called on the command line.
_OPTIONS = (
    (re.compile(r"skip_other=True"), "--skip"),
    (re.compile(r"encoding='([^']+)'"), r"--encoding \1"),
    (re.compile(r"delimiter=('[^']+')"), r"--delimiter \1"),
    (re.compile(r"size=\(height, width\)"), "--image-size 16"),
    (re.compile(r"directory=\.\.\."), "--data-dir"),
    (re.compile(r"pass or '"), "pass '"),
)


_LONGEST = 600  # characters of what came instead: a whole array helps nobody


def screen() -> Console:
    """Standard error, for people."""
    return Console(stderr=True, highlight=False)


class Screen(Listener):
    """Says what happens and draws bars on a terminal; bars are silent elsewhere."""

    def __init__(self) -> None:
        """On standard error."""
        self.console = screen()

    def say(self, text: str) -> None:
        """One line; not wrapped where nobody looks."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, label: str) -> Iterator[Advance]:
        """A bar with the time left."""
        if not self.console.is_terminal:
            yield lambda done, total: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(label, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def tracked(self, steps: Iterable[Any]) -> Iterable[Any]:
        """The steps of a study behind a bar."""
        return track(list(steps), description="", console=self.console, transient=True)

    def wrong(self, error: WidelimitError | ImportError) -> None:
        """A user's mistake: rule, what came, what to do; one line each."""
        self.console.print("[red bold]error[/red bold]: ", end="")
        if not isinstance(error, WidelimitError):
            self.say(str(error))
            return
        self.say(error.rule)
        self.say(f"   got: {_shortened(error.got)}")
        self.say(f"remedy: {_spoken(error.remedy)}")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _spoken(remedy: str) -> str:
    for pattern, option in _OPTIONS:
        remedy = pattern.sub(option, remedy)
    return remedy


def print_json(value: Any) -> None:
    """Machine-readable, on standard output."""
    print(json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
