"""Progress of work that takes hours: a line on a terminal, a log entry a minute elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..progress import Callback

_LOG_SECONDS, _DRAW_SECONDS, _QUIET_SECONDS = 60.0, 0.5, 1.0
_STATM = Path("/proc/self/statm")

log = logging.getLogger("widelimit.scale")


def resident() -> int | None:
    """Bytes of memory that this process holds; None where the system does not say."""
    if not _STATM.exists():
        return None
    import resource

    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


class Watch:
    """Tells how far a walk over tiles is: tiles, pairs a second, time left, memory.

    On a terminal a line is drawn; elsewhere the logger `widelimit.scale` hears of it once a minute
    (level INFO, which is silent unless logging is set up); a function is called after every tile.
    """

    def __init__(
        self,
        label: str,
        before: int,
        pairs: Sequence[int],
        *,
        callback: Callback | None = None,
        drawing: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`before` tiles are done; `pairs` are those of every tile to come."""
        self.label, self.before, self.pairs = label, before, pairs
        self.callback, self.drawing, self.clock = callback, drawing, clock

    @classmethod
    def make(
        cls, wanted: bool | Callback | None, label: str, before: int, pairs: Sequence[int]
    ) -> "Watch":
        """From a user's `progress=` argument."""
        drawing = wanted is not False and not callable(wanted) and sys.stderr.isatty()
        callback = wanted if callable(wanted) else None
        return cls(label, before, pairs, callback=callback, drawing=bool(drawing or wanted is True))

    def track(self, tiles: Iterable[Any]) -> Iterator[Any]:
        """Yield the tiles, telling after each."""
        total = self.before + len(self.pairs)
        begin = told = drawn = self.clock()
        log.info("%s: %d of %d tiles to compute", self.label, len(self.pairs), total)
        for done, tile in enumerate(tiles, start=1):
            yield tile
            now = self.clock()
            if self.callback is not None:
                self.callback(self.before + done, total)
            last = done == len(self.pairs)
            if (
                self.drawing
                and now - begin > _QUIET_SECONDS
                and (now - drawn > _DRAW_SECONDS or last)
            ):
                print(
                    f"\r{self.line(done, now - begin)} ", end="\n" if last else "", file=sys.stderr
                )
                sys.stderr.flush()
                drawn = now
            elif not self.drawing and now - told > _LOG_SECONDS:
                log.info("%s", self.line(done, now - begin))
                told = now

    def line(self, done: int, seconds: float) -> str:
        """Tiles, rate, time left, memory."""
        computed = sum(self.pairs[:done])
        rate = computed / max(seconds, 1e-9)
        left = (sum(self.pairs) - computed) / rate
        memory = resident()
        held = "" if memory is None else f", {memory / 2**30:.1f} GiB resident"
        return (
            f"{self.label}: {self.before + done}/{self.before + len(self.pairs)} tiles, "
            f"{rate:,.0f} pairs/s, {duration(left)} left{held}"
        )
