"""`python -m studies [NAME]` in a clone; without a name: the list."""

from pathlib import Path
from typing import Annotated

import typer

from widelimit.app.cli.ending import ended_well, prepare_streams
from widelimit.app.cli.options import DataDir, Json, Open
from widelimit.app.cli.outputs import use_data_dir
from widelimit.app.cli.studies import Out, StudySize, run_studies
from widelimit.app.studies import Size

from . import STUDIES


def run(
    name: Annotated[str | None, typer.Argument(help="A study, or 'all'.")] = None,
    size: StudySize = Size.SMALL,
    out: Out = Path("out"),
    data_dir: DataDir = None,
    open_page: Open = False,
    as_json: Json = False,
) -> None:
    """Run a question of our own as a study."""
    use_data_dir(data_dir)
    size = size.at_most_large
    run_studies(STUDIES, name, size, out, open_page=open_page, as_json=as_json)


if __name__ == "__main__":
    prepare_streams()
    with ended_well():
        typer.run(run)
