"""Options that several commands share, spelled once, alone and in groups."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
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
    help: str, *names: str, panel: str | None = None, shown: Any = True, **limits: Any
) -> Any:
    """An option below the heading `panel`; `shown` is its default in words."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=shown, **limits)


_data = functools.partial(option, panel=DATA)
_network = functools.partial(option, panel=NETWORK)

File = Annotated[
    Path,
    typer.Argument(help="CSV, TSV or JSONL (also .gz), .npz, or a folder with images by class."),
]
Vectors = Annotated[
    Path | None,
    _data(
        "Word vectors: GloVe text or .npz.",
        shown="GloVe in the data directory or beside the file, else a small sample",
    ),
]
DataDir = Annotated[
    Path | None,
    _data(
        "Where data sets and GloVe files are (else WIDELIMIT_DATA, else the cache).", shown=False
    ),
]
Workers = Annotated[
    int | None, option("Number of processes that share the kernel.", shown=False, min=1)
]
Seed = Annotated[int, option("Fixes splits, subsets and sampled heads.", min=0, max=2**63 - 1)]
Json = Annotated[
    bool, option("Numbers as JSON on standard output; text on standard error.", "--json")
]
Page = Annotated[Path | None, option("Write a page with pictures here.", "--report", panel=OUTPUT)]
Open = Annotated[bool, option("Open the page when done.", "--open", panel=OUTPUT)]


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How a file is read, as far as every command reads files."""

    text: Annotated[str | None, _data("Column with the texts.", shown="detected")] = None
    label: Annotated[
        str | None, _data("Column to predict.", "--label", "--target", shown="detected")
    ] = None
    encoding: Annotated[str, _data("Encoding of text files.")] = "utf-8"
    delimiter: Annotated[
        str | None, _data("What separates columns in a CSV file.", shown="detected")
    ] = None
    decimal: Annotated[str, _data("Decimal mark of numbers, . or ,")] = "."
    no_header: Annotated[
        bool,
        _data("The first line is a row: columns are 'column 1', 'column 2' …", "--no-header"),
    ] = False
    skip: Annotated[
        bool, _data("Leave out incomplete rows, and files that are not images.", "--skip")
    ] = False

    def reading(self, *groups: Any) -> Reading:
        """The options for the reader, with those of other groups."""
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
        return _made(Reading, (self, *groups), **more)


@dataclass(frozen=True, kw_only=True)
class DataOptions(FileOptions):
    """How a file is read, and how its examples become arrays."""

    features: Annotated[
        list[str] | None,
        _data("Column to use, of numbers or categories; repeatable.", "--feature", shown="all"),
    ] = None
    drop: Annotated[list[str] | None, _data("Column to leave out; repeatable.", shown=False)] = None
    vectors: Vectors = None
    length: Annotated[int, _data("How many words of a text are read.", min=1)] = WORDS
    keep: Annotated[data.Keep, _data("Which words of a longer text are read.")] = data.Keep.FIRST
    phrase: Annotated[
        int | None,
        _data(
            "Neighbouring words averaged into one position.",
            shown="enough for most texts to have 60",
            min=1,
        ),
    ] = None
    image_size: Annotated[int, _data("Images are shrunk to this many pixels a side.")] = IMAGE_SIZE
    data_dir: DataDir = None


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Which network, and which of its kernels."""

    network: Annotated[
        NetworkName | None, _network("Which network.", shown="by the kind of data")
    ] = None
    depth: Annotated[int | None, _network("Hidden layers or blocks.", shown="by the network")] = (
        None
    )
    kernel: Annotated[
        KernelKind, _network("nngp: the Bayesian network; ntk: the trained network.")
    ] = KernelKind.NNGP
    samples: Annotated[
        int | None, _network("Heads to sample for softmax attention at 1/√d.", shown="enough")
    ] = None
    seed: Seed = 0


def settings(*groups: Any, **more: Any) -> Settings:
    """The options of all groups for a run."""
    return _made(Settings, groups, **more)


def _made(kind: Callable[..., T], groups: tuple[Any, ...], **more: Any) -> T:
    """A record from the options that are called like its fields; None is its own default."""
    names = [one.name for one in fields(kind)]  # pyright: ignore[reportArgumentType]
    given = {n: getattr(group, n) for group in groups for n in names if hasattr(group, n)}
    return kind(**{name: value for name, value in given.items() if value is not None} | more)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: in place of a group of options, the options."""
    groups, parameters = {}, []
    for name, parameter in inspect.signature(command).parameters.items():
        group = parameter.annotation
        if not is_dataclass(group):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = group
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=hints[option.name],
            )
            for option in fields(group)
        ]

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # pyright: ignore
    return flat
