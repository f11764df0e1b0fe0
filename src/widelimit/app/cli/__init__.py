"""The command line: `widelimit classify reviews.csv`, `predict`, `kernel`, `law`, `reproduce`.

Exit codes: 0 done, 1 a bug (WIDELIMIT_TRACEBACK=1 shows where), 2 a mistake in options or data or
too little memory, 130 interrupted.
"""

from contextvars import copy_context

from ...errors import MissingExtraError

try:
    import typer
    from rich.console import Console  # noqa: F401 - it says early that it is missing
except ImportError as error:
    raise MissingExtraError(error.name or "typer", "cli") from None

from .about import info
from .audit import audit
from .ending import ended_well, keep_programs, prepare_streams
from .law import law
from .learn import classify, regress
from .matrix import estimate, kernel
from .predict import predict
from .studies import reproduce

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
app.command(help="Run a published figure or a published claim as a study.")(reproduce)
for command in (predict, kernel, estimate, law, audit, info):
    app.command()(command)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is a few clear lines, not a traceback."""
    prepare_streams()
    keep_programs()
    with ended_well():
        # What a command chooses, such as the data directory, ends with it.
        copy_context().run(app, arguments, prog_name="widelimit", standalone_mode=True)
