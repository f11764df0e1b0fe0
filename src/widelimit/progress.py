"""Progress of long work: a bar on a terminal, silence everywhere else."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

Callback = Callable[[int, int], None]


class Progress:
    """Counts steps done; shows them on a terminal, or tells a callback `(done, total)`."""

    def __init__(self, label: str, callback: Callback | None = None):
        """Without a callback, a bar is drawn on standard error if that is a terminal."""
        self.label, self.callback = label, callback

    @classmethod
    def make(cls, wanted: "bool | Callback | None", label: str) -> "Progress | None":
        """From a user's `progress=` argument; None shows a bar on a terminal only."""
        if wanted is False:
            return None
        if callable(wanted):
            return cls(label, wanted)
        return cls(label) if wanted or sys.stderr.isatty() else None

    def track(self, steps: Iterable[T], total: int | None = None, before: int = 0) -> Iterator[T]:
        """Yield the steps, reporting after each.

        `total` is their number where they do not know it, with `before` that were done before.
        """
        if total is None:
            assert isinstance(steps, Sized)
            total = len(steps)
        begin = time.monotonic()
        last = begin
        for done, step in enumerate(steps, start=before + 1):
            yield step
            now = time.monotonic()
            if self.callback is not None:
                self.callback(done, total)
            elif now - begin > 1 and (now - last > 0.2 or done == total):
                self._draw(done, total, (now - begin) / (done - before) * (total - done))
                last = now

    def _draw(self, done: int, total: int, left: float) -> None:
        filled = round(30 * done / total)
        bar = "█" * filled + "·" * (30 - filled)
        end = "\n" if done == total else ""
        line = f"\r{self.label} {bar} {done}/{total}, {left:.0f} s left "
        print(line, end=end, file=sys.stderr, flush=True)
