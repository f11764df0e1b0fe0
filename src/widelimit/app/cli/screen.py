"""How commands speak: text and bars for people on standard error, JSON on standard output."""

import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ...errors import WidelimitError
from ...progress import Callback
from ..workflow.kinds import Listener

_LONGEST = 600  # characters of what came instead: a whole array helps nobody


class Screen(Listener):
    """Says what happens and draws bars on a terminal; bars are silent elsewhere."""

    def __init__(self) -> None:
        """On standard error."""
        self.console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """One line; not wrapped where nobody looks."""
        self.console.print(harmless(text), markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, label: str) -> Iterator[Callback]:
        """A bar with the time left."""
        if not self.console.is_terminal:
            yield lambda done, total: None
            return
        with Progress(console=self.console, transient=True) as progress:
            task = progress.add_task(label, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def wrong(self, error: WidelimitError | ImportError) -> None:
        """A user's mistake: rule, what came, what to do; one line each."""
        self.console.print("[red bold]error[/red bold]: ", end="")
        if not isinstance(error, WidelimitError):
            self.say(str(error))
            return
        self.say(error.rule)
        self.say(f"   got: {_shortened(error.got)}")
        self.say(f"remedy: {error.advice(command_line=True)}")


_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """The text with everything a terminal might obey, such as `\\x1b`, written out."""
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def print_json(value: Any) -> None:
    """Machine-readable, on standard output; what is not a number (or infinite) is null."""
    unicode = (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")
    text = json.dumps(_finite(value), default=str, ensure_ascii=not unicode, allow_nan=False)
    print(_COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _finite(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
