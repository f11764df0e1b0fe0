"""`widelimit reproduce`: what the two papers claim or show, as studies."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

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

StudySize = Annotated[
    Size, typer.Option(help="small: minutes; large: an hour or two; paper: as published.")
]
Out = Annotated[Path, typer.Option(help="Folder for data, figures and the page.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start '--size paper' without asking.")]


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A study, or 'all'; without one: the list.",
            autocompletion=lambda: [*STUDIES, "all"],
        ),
    ] = None,
    size: StudySize = Size.SMALL,
    out: Out = Path("out"),
    data_dir: o.DataDir = None,
    yes: Yes = False,
    open_page: o.Open = False,
    as_json: o.Json = False,
) -> None:
    """Run a published figure or a published claim as a study."""
    use_data_dir(data_dir)
    run_studies(STUDIES, name, size, out, yes=yes, open_page=open_page, as_json=as_json)


def run_studies(
    studies: Mapping[str, Study],
    name: str | None,
    size: Size,
    out: Path,
    *,
    yes: bool = False,
    open_page: bool = False,
    as_json: bool = False,
) -> None:
    """Run one of the studies, or 'all', each into a folder of its own; without a name list them."""
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
    results = {}
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
