"""`python -m studies [NAME]` in a clone; without a name: the list."""

import typer

from widelimit.app.cli.ending import ended_well, prepare_streams
from widelimit.app.cli.studies import command_for
from widelimit.app.studies import Size

from . import STUDIES

if __name__ == "__main__":
    prepare_streams()
    with ended_well():
        typer.run(command_for(STUDIES, Size.LARGE))
