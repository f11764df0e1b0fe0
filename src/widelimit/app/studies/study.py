"""What a study is: a name, what it shows, and a function that runs it and writes what it found."""

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data import save_figure, write_text
from ...progress import Callback, Progress

Result = Mapping[str, Any]
"""The numbers of a study, by name."""

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Headings and rows."""


class Size(enum.StrEnum):
    """How large a study is run."""

    SMALL = "small"
    """Seconds to a minute: the shape of the result."""

    LARGE = "large"
    """The published setting where a machine at hand reaches it; else what an hour or two allow."""

    PAPER = "paper"
    """The published setting, whatever it costs; the same as LARGE where that is published."""

    @property
    def at_most_large(self) -> "Size":
        """For studies whose large size is the published one."""
        return Size.SMALL if self is Size.SMALL else Size.LARGE


@dataclass(frozen=True)
class Study:
    """One figure or table as a runnable experiment.

    `run(size, out, progress)` writes its data (CSV, JSON) and figures into the folder `out`, calls
    `progress(done, total)` after every step, and returns the numbers of the JSON file; kernels that
    take long are kept in the folder `kernels` beside `out`. The rest is its page: `captions` of the
    figures by the names of their files, sentences that `conclude` from the numbers, and `tables`
    where the numbers as they are would not be read. `cost(size)` measures for a few seconds and
    says how long a run would take; `published` says what is known of the setting that a study
    follows, and where it differs.
    """

    name: str
    title: str
    description: str
    run: Callable[..., dict[str, Any]]
    captions: Mapping[str, str]
    conclude: Callable[[Result], list[str]]
    tables: Callable[[Result], list[Table]] | None = None
    cost: Callable[[Size], str] | None = None
    published: str = ""


def tracked(steps: Sequence[Any], progress: Callback | None) -> Iterable[Any]:
    """The steps of a study, with progress if it is wanted."""
    return steps if progress is None else Progress("", progress).track(steps)


def publish(
    out: Path,
    name: str,
    result: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any] = (),
    figure: Any = None,
) -> None:
    """Write what a study found: `name.json`, with rows `name.csv`, with a figure `name.png`."""
    if rows:
        import pandas as pd

        write_text(out / f"{name}.csv", pd.DataFrame(rows).to_csv(index=False))
    write_text(out / f"{name}.json", json.dumps(result, indent=2, default=float) + "\n")
    if figure is not None:
        save_figure(figure, out / f"{name}.png")
