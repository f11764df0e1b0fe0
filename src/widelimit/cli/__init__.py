"""The command line: `widelimit classify reviews.csv`, `predict`, `kernel`, `law`, `reproduce`.

Exit codes: 0 done, 1 a bug (with a traceback), 2 a mistake in options or data, 130 interrupted.
"""

import sys

from widelimit.errors import MissingExtraError, WidelimitError

try:
    import typer
    from rich.console import Console  # noqa: F401 - it says early that it is missing
except ImportError as error:
    raise MissingExtraError(error.name or "typer", "cli") from None

from widelimit.cli.about import info
from widelimit.cli.audit import audit
from widelimit.cli.law import law
from widelimit.cli.learn import classify, regress
from widelimit.cli.matrix import kernel
from widelimit.cli.predict import predict
from widelimit.cli.screen import Screen
from widelimit.cli.studies import reproduce

app = typer.Typer(
    name="widelimit",
    help="What attention networks become when they are infinitely wide.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    "classify",
    help="Learn classes from a file of your own: accuracy, calibrated probabilities, a page.",
)(classify)
app.command(
    "regress", help="Learn a number from a file of your own: R², predictive deviations, a page."
)(regress)
for command in (predict, kernel, law, audit, reproduce, info):
    app.command()(command)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is a few clear lines, not a traceback."""
    try:
        app(arguments, prog_name="widelimit", standalone_mode=True)
    except (WidelimitError, MissingExtraError) as error:
        Screen().wrong(error)
        sys.exit(2)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as leaving:
        if leaving.code == 130:
            _interrupted()
        raise


def _interrupted() -> None:
    Screen().say(
        "interrupted; files written so far are kept, and the same command goes on with the blocks "
        "of a kernel that are done"
    )
    sys.exit(130)
