"""Options that several commands share, spelled once, alone and in records."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ... import data
from ...errors import WidelimitError
from ...inference import KernelKind
from ..workflow import NetworkName, Reading, Settings
from ..workflow.run import IMAGE_SIZE, WORDS

DATA, NETWORK, LEARN, OUTPUT = "The data", "The network", "Learning and testing", "What to write"
T = TypeVar("T")


def option(
    default: Any, help: str, *names: str, panel: str | None = None, shown: Any = True, **limits: Any
) -> Any:
    """An option below the heading `panel`; `shown` is its default in words."""
    known = {"help": help, "rich_help_panel": panel, "show_default": shown}
    return typer.Option(default, *names, **known, **limits)


_data = functools.partial(option, panel=DATA)
_network = functools.partial(option, panel=NETWORK)

File = Annotated[
    Path,
    typer.Argument(help="CSV, TSV or JSONL (also .gz), .npz, or a folder with images by class."),
]
Vectors = Annotated[
    Path | None,
    _data(
        ...,
        "Word vectors: GloVe text or .npz.",
        shown="GloVe in the data directory or beside the file, else a small sample",
    ),
]
DataDir = Annotated[
    Path | None,
    _data(
        ...,
        "Where data sets and GloVe files are (else WIDELIMIT_DATA, else the cache).",
        shown=False,
    ),
]
Workers = Annotated[
    int | None, option(..., "Number of processes that share the kernel.", shown=False, min=1)
]
Seed = Annotated[int, option(..., "Fixes splits, subsets and sampled heads.", min=0, max=2**63 - 1)]
Json = Annotated[
    bool, option(..., "Numbers as JSON on standard output; text on standard error.", "--json")
]
Page = Annotated[
    Path | None, option(..., "Write a page with pictures here.", "--report", panel=OUTPUT)
]
Open = Annotated[bool, option(..., "Open the page when done.", "--open", panel=OUTPUT)]


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How a file is read, as far as every command reads files."""

    text: str | None = _data(None, "Column with the texts.", shown="detected")
    label: str | None = _data(None, "Column to predict.", "--label", "--target", shown="detected")
    encoding: str = _data("utf-8", "Encoding of text files.")
    delimiter: str | None = _data(None, "What separates columns in a CSV file.", shown="detected")
    decimal: str = _data(".", "Decimal mark of numbers, . or ,")
    no_header: bool = _data(
        False, "The first line is a row: columns are 'column 1', 'column 2' …", "--no-header"
    )
    skip: bool = _data(False, "Leave out incomplete rows, and files that are not images.", "--skip")

    def reading(self) -> Reading:
        """The options for the reader."""
        more = {}
        if self.delimiter is not None:
            more["delimiter"] = self.delimiter.replace("\\t", "\t")
            if len(more["delimiter"]) != 1:
                raise WidelimitError(
                    f"The delimiter {self.delimiter!r} is not one character.",
                    got=f"{len(self.delimiter)} characters",
                    remedy="give for instance ';' or '\\t'",
                    option="delimiter",
                )
        return _made(Reading, self, **more)


@dataclass(frozen=True, kw_only=True)
class KernelOptions(FileOptions):
    """How a file is read, how its examples become arrays, which network, which of its kernels."""

    file: File
    features: list[str] | None = _data(
        None, "Column to use, of numbers or categories; repeatable.", "--feature", shown="all"
    )
    drop: list[str] | None = _data(None, "Column to leave out; repeatable.", shown=False)
    vectors: Vectors = None
    length: int = _data(WORDS, "How many words of a text are read.", min=1)
    keep: data.Keep = _data(data.Keep.FIRST, "Which words of a longer text are read.")
    phrase: int | None = _data(
        None,
        "Neighbouring words averaged into one position.",
        shown="enough for most texts to have 60",
        min=1,
    )
    image_size: int = _data(IMAGE_SIZE, "Images are shrunk to this many pixels a side.")
    data_dir: DataDir = None
    network: NetworkName | None = _network(None, "Which network.", shown="by the kind of data")
    depth: int | None = _network(None, "Hidden layers or blocks.", shown="by the network")
    kernel: KernelKind = _network(
        KernelKind.NNGP, "nngp: the Bayesian network; ntk: the trained network."
    )
    samples: int | None = _network(
        None, "Heads to sample for softmax attention at 1/√d.", shown="enough"
    )
    seed: Seed = 0

    def settings(self, **more: Any) -> Settings:
        """The options for a run."""
        return _made(Settings, self, **more)


def _made(kind: Callable[..., T], options: Any, **more: Any) -> T:
    """A record from the options that are called like its fields; None is its own default."""
    names = [one.name for one in fields(kind)]  # pyright: ignore[reportArgumentType]
    given = {name: getattr(options, name, None) for name in names}
    return kind(**{name: value for name, value in given.items() if value is not None} | more)


def taking(kind: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """A command that takes one record of options, as Typer takes it: with the options."""

    def flat(command: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(kind(**given))

        called.__annotations__ = get_type_hints(kind, include_extras=True)
        called.__signature__ = inspect.signature(kind)  # pyright: ignore
        return called

    return flat
