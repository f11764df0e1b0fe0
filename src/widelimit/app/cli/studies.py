"""`widelimit reproduce`: published figures and open questions as studies."""

import itertools
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ...data.locks import alone
from ...errors import WidelimitError
from ..report import Report
from ..studies import STUDIES, Size, Study
from ..studies.explained import EXPLAINED, sample_notice, settings, tables
from . import options as o
from .outputs import ready, show, use_data_dir, use_limits
from .screen import Screen, print_json


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A study, or 'all'; without one: the list.",
            autocompletion=lambda: [*STUDIES, "all"],
        ),
    ] = None,
    size: Annotated[
        Size, typer.Option(help="small: minutes; large: an hour or two; paper: as published.")
    ] = Size.SMALL,
    out: Annotated[Path, typer.Option(help="Folder for data, figures and the page.")] = Path("out"),
    data_dir: o.DataDir = None,
    allow: o.Allow = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start '--size paper' without asking.")
    ] = False,
    open_page: o.Open = False,
    as_json: o.Json = False,
) -> None:
    """Run a published figure or an open question as a study."""
    use_data_dir(data_dir)
    use_limits(allow)
    if name is None:
        _list_studies(as_json)
        return
    screen = Screen()
    chosen = list(STUDIES.values()) if name == "all" else [_study(name)]
    results = {}
    for study in chosen:
        folder = out / study.name
        screen.say(f"{study.title} ({size.value}) – {study.description}")
        if not _agreed(study, size, screen, yes=yes):
            screen.say("not started")
            continue
        ready({"--out": folder / "report.html"}, [])
        begin = time.monotonic()
        progress = screen.tracked if screen.console.is_terminal else None
        with alone(folder / ".lock"):
            results[study.name] = study.run(size, folder, progress)
            seconds = time.monotonic() - begin
            page = _page(study, size, folder, seconds, results[study.name])
        if notice := sample_notice(results[study.name]):
            screen.say(notice)
        screen.say(f"done in {seconds:.0f} s: {page}")
        show(page, open_page)
    if as_json:
        print_json(results if name == "all" else next(iter(results.values()), {}))


def _agreed(study: Study, size: Size, screen: Screen, *, yes: bool) -> bool:
    """A published size may take days: say how long, and ask."""
    if size.value != "paper":
        return True
    if study.published:
        screen.say(study.published)
    cost = study.cost
    if cost is not None:
        screen.say(f"cost: {cost(size)}")
    if yes:
        return True
    if not screen.console.is_terminal:
        raise WidelimitError(
            "A study of published size starts only when it is confirmed.",
            got="--size paper without a terminal to ask on",
            remedy="add --yes",
        )
    return typer.confirm("Start?", err=True)


def _study(name: str) -> Study:
    if name not in STUDIES:
        raise WidelimitError(
            "A study is called by its name.",
            got=f"'{name}'",
            remedy=f"one of {', '.join(STUDIES)}, or 'all'",
        )
    return STUDIES[name]


def _list_studies(as_json: bool) -> None:
    if as_json:
        print_json({study.name: study.description for study in STUDIES.values()})
        return
    table = Table("study", "what it shows", box=None)
    for study in STUDIES.values():
        table.add_row(f"[bold]{study.name}[/bold]", study.description)
    Console().print(table)


def _page(study: Study, size: Size, folder: Path, seconds: float, result: Any) -> Path:
    """A study on one page: what it says, its figures, what it was run with, its tables."""
    explained = EXPLAINED[study.name]
    report = Report(study.title, study.description)
    if notice := sample_notice(result):
        report.warning(notice)
    report.numbers({"size": size.value, "in all": f"{seconds:.0f} s"})
    report.section("Conclusion").bullets(explained.conclude(result))
    report.section("Figures")
    for number, (name, caption) in enumerate(explained.captions.items(), 1):
        report.figure(folder / f"{name}.png", f"Figure {number}. {caption}")
    report.section("Settings").table(("", ""), [("size", size.value), *settings(result)])
    if study.published:
        report.text(study.published)
    report.section("Results")
    written = sorted(folder.glob("*.md"))
    for path in written:
        add_markdown(report, path.read_text(encoding="utf-8"))
    for columns, rows in () if written else tables(result):
        report.table(columns, rows)
    others = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    files = (path for path in others if path.suffix not in (".png", ".html"))
    report.section("Data").text(f"Beside this page: {', '.join(path.name for path in files)}")
    report.heading("The command").command()
    return report.write(folder / "report.html")


def add_markdown(report: Report, text: str) -> None:
    """The tables and lists that studies write, as they would look in Markdown."""
    blocks = itertools.groupby(text.replace("**", "").splitlines(), key=lambda line: line[:1])
    for start, lines in blocks:
        if start == "|":
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            report.table(cells[0], cells[2:])  # the second line is the rule below the heading
        elif start == "-":
            report.bullets([line.removeprefix("- ") for line in lines])
