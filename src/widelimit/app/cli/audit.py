"""`widelimit audit`: powers of the width in a model of your own."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import WidelimitError
from ...programs.listing import superscript
from ...trace import Audit
from ...trace.files import audit_file
from ..report import Report
from . import options as o
from .outputs import ready, show
from .screen import harmless


def audit(
    model: Annotated[str, typer.Argument(help="file.py:make, where make(width, key) builds it.")],
    shape: Annotated[
        str | None, typer.Option(help="Shape of one example, such as 8,16.", show_default=False)
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Examples in an .npy file (or x in an .npz file).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Examples are random token ids below this number.", min=1)
    ] = None,
    widths: Annotated[str, typer.Option(help="The three widths it is traced at.")] = "64,96,160",
    examples: Annotated[int, typer.Option(help="How many random examples.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Fixes random examples and parameters.")] = 0,
    report: o.Page = None,
    open_page: o.Open = False,
) -> None:
    """What stays, vanishes or diverges in a model as it is made wider, line by line.

    The file is run, once, and make(width, key) three times: audit only code that you trust.
    """
    path = report or (Path("out") / "audit" / "report.html" if open_page else None)
    ready({"--report": path}, [Path(model.rpartition(":")[0] or model), inputs])
    found = audit_file(
        model,
        shape=None if shape is None else _numbers("--shape", shape),
        inputs=inputs,
        tokens=tokens,
        widths=_numbers("--widths", widths),
        count=examples,
        seed=seed,
    )
    typer.echo(harmless(str(found)))
    if path is not None:
        _page(found).write(path)
        typer.echo(f"report: {path}")
        show(path, open_page)


def _page(audit: Audit) -> Report:
    said = "; ".join(f"the {row.role} of line {row.place.line} {row.said}" for row in audit.moving)
    lead = f"As the width n grows: {said}." if said else "Everything stays of order one."
    page = Report(f"Width audit of {audit.name}", lead)
    page.table(
        ("what", "power of n", "as n grows", "of", "line"),
        [
            (row.role, superscript(row.power), row.said, row.detail, str(row.place))
            for row in audit.rows
        ],
    )
    if audit.stopped is not None:
        page.section("Where it stopped", str(audit.stopped))
    return page.command()


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise WidelimitError(
            f"{name} holds something else than whole numbers between commas.",
            got=f"{name} {text}",
            remedy=f"write {name} 64,96,160",
        ) from None
