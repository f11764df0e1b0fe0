"""`widelimit reproduce`: what the two papers claim or show, as studies."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ...data.locks import alone
from ...errors import WidelimitError
from ..studies import STUDIES, Size, Study
from ..studies.page import sample_notice, write_page
from . import options as o
from .outputs import ready, show, use_data_dir
from .screen import Screen, print_json


def command_for(studies: Mapping[str, Study], largest: Size = Size.PAPER) -> Callable[..., None]:
    """A command that runs one of the studies, or all, each into a folder of its own."""

    def reproduce(
        name: Annotated[
            str | None,
            typer.Argument(
                help="A study, or 'all'; without one: the list.",
                autocompletion=lambda: [*studies, "all"],
            ),
        ] = None,
        size: Annotated[
            Size, typer.Option(help="small: minutes; large: an hour or two; paper: as published.")
        ] = Size.SMALL,
        out: Annotated[Path, typer.Option(help="Folder for data, figures and the page.")] = Path(
            "out"
        ),
        data_dir: o.DataDir = None,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Start '--size paper' without asking.")
        ] = False,
        open_page: o.Open = False,
        as_json: o.Json = False,
    ) -> None:
        """Run a study, or all: numbers, figures and a page."""
        use_data_dir(data_dir)
        if name is None:
            _list_studies(studies, as_json)
            return
        if name not in (*studies, "all"):
            raise WidelimitError(
                f"There is no study {name!r}.",
                got="another name",
                remedy=f"give one of {', '.join(studies)}, or 'all'",
            )
        screen = Screen()
        results: dict[str, Any] = {}
        size = size if largest is Size.PAPER else size.at_most_large
        for study in studies.values() if name == "all" else [studies[name]]:
            folder = out / study.name
            screen.say(f"{study.title} ({size.value}) – {study.description}")
            if not _agreed(study, size, screen, yes=yes):
                screen.say("not started")
                continue
            ready({"--out": folder / "report.html"}, [])
            begin = time.monotonic()
            with alone(folder / ".lock"):
                with screen.bar(study.name) as advance:
                    results[study.name] = study.run(size, folder, advance)
                seconds = time.monotonic() - begin
                page = write_page(study, size, folder, seconds, results[study.name])
            if notice := sample_notice(results[study.name]):
                screen.say(notice)
            screen.say(f"done in {seconds:.0f} s: {page}")
            show(page, open_page)
        if as_json:
            print_json(results if name == "all" else next(iter(results.values()), {}))

    return reproduce


reproduce = command_for(STUDIES)


def _agreed(study: Study, size: Size, screen: Screen, *, yes: bool) -> bool:
    """A published size may take days: say how long, and ask."""
    if size is not Size.PAPER:
        return True
    if study.published:
        screen.say(study.published)
    if study.cost is not None:
        screen.say(f"cost: {study.cost(size)}")
    if yes:
        return True
    if not screen.console.is_terminal:
        raise WidelimitError(
            "The study of published size was not started: nobody confirmed it.",
            got="no terminal to ask on",
            remedy="confirm it beforehand",
            option="yes",
        )
    return typer.confirm("Start?", err=True)


def _list_studies(studies: Mapping[str, Study], as_json: bool) -> None:
    if as_json:
        print_json({study.name: study.description for study in studies.values()})
        return
    table = Table("study", "what it shows", box=None)
    for study in studies.values():
        table.add_row(f"[bold]{study.name}[/bold]", study.description)
    Console().print(table)
