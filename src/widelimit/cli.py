"""The command line: `widelimit reproduce NAME` runs a study and writes its data and a page."""

import json
import platform
import sys
import time
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from .errors import MissingExtraError, WidelimitError

try:
    import typer
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table
except ImportError as error:
    raise MissingExtraError(error.name or "typer", "cli") from None

from .experiments import STUDIES, Size, Study
from .report import Report

app = typer.Typer(
    help="What attention networks become when they are infinitely wide.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_screen = Console(stderr=True)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A study, or 'all'; without one: the list.")
    ] = None,
    size: Annotated[
        Size, typer.Option(help="small: a minute or so; large: published.")
    ] = Size.SMALL,
    out: Annotated[Path, typer.Option(help="Folder for data, figures and the page.")] = Path("out"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page when done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Run a published figure or an open question as a study."""
    if name is None:
        _list_studies()
        return
    chosen = list(STUDIES.values()) if name == "all" else [_study(name)]
    for study in chosen:
        folder = out / study.name
        _screen.print(f"[bold]{study.title}[/bold] ({size}) – {study.description}")
        begin = time.monotonic()
        result = study.run(size, folder, _tracked if _screen.is_terminal else None)
        page = _page(study, size, folder, time.monotonic() - begin)
        if as_json:
            print(json.dumps(result, default=float))
        _screen.print(f"done in {time.monotonic() - begin:.0f} s: {page}")
        if open_page:
            webbrowser.open(page.resolve().as_uri())


def _study(name: str) -> Study:
    if name not in STUDIES:
        raise WidelimitError(
            "A study is called by its name.",
            got=f"'{name}'",
            remedy=f"one of {', '.join(STUDIES)}, or 'all'",
        )
    return STUDIES[name]


def _list_studies() -> None:
    table = Table("study", "what it shows", box=None)
    for study in STUDIES.values():
        table.add_row(f"[bold]{study.name}[/bold]", study.description)
    Console().print(table)


def _tracked(steps: Iterable[Any]) -> Iterable[Any]:
    return track(list(steps), description="", console=_screen, transient=True)


def _page(study: Study, size: Size, folder: Path, seconds: float) -> Path:
    """All figures of a study's folder on one page."""
    report = Report(study.title, study.description)
    report.numbers({"size": str(size), "seconds": f"{seconds:.0f}"})
    for picture in sorted(folder.glob("*.png")):
        report.figure(picture, picture.stem.replace("_", " "))
    tables = ", ".join(path.name for path in sorted(folder.iterdir()) if path.suffix != ".png")
    report.section("Data", f"Beside this page: {tables}")
    return report.write(folder / "report.html")


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Versions and devices."""
    import jax

    from . import __version__

    facts = {
        "widelimit": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": ", ".join(str(device) for device in jax.devices()),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:10} {value}")


def main() -> None:
    """Run a command; a user's mistake is one clear line, not a traceback."""
    try:
        app()
    except WidelimitError as error:
        _screen.print(f"[red]error[/red]: {error}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        _screen.print("interrupted; what was written so far is kept")
        sys.exit(130)


if __name__ == "__main__":
    main()
