"""Options that several commands share, spelled once, alone and in groups."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ... import data
from ...data.limits import LIMITS
from ...errors import WidelimitError
from ...inference import KernelKind
from ..workflow import NetworkName, Reading, Settings
from ..workflow.run import IMAGE_SIZE, WORDS
from .outputs import use_data_dir, use_limits

DATA, NETWORK, LEARN, OUTPUT = "The data", "The network", "Learning and testing", "What to write"


def option(
    help: str, *names: str, panel: str | None = None, shown: Any = True, **limits: Any
) -> Any:
    """An option below the heading `panel`; `shown` is its default in words."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=shown, **limits)


File = Annotated[
    Path,
    typer.Argument(help="CSV, TSV or JSONL (also .gz), .npz, or a folder with images by class."),
]
Text = Annotated[str | None, option("Column with the texts.", panel=DATA, shown="detected")]
Label = Annotated[
    str | None, option("Column to predict.", "--label", "--target", panel=DATA, shown="detected")
]
Features = Annotated[
    list[str] | None,
    option(
        "Column to use, of numbers or categories; repeatable.", "--feature", panel=DATA, shown="all"
    ),
]
Split = Annotated[
    str | None, option("Column that says 'train' or 'test'.", panel=DATA, shown="detected")
]
Encoding = Annotated[str, option("Encoding of text files.", panel=DATA)]
Delimiter = Annotated[
    str | None,
    option("What separates columns in a CSV file.", panel=DATA, shown="detected"),
]
Decimal = Annotated[str, option("Decimal mark of numbers, . or ,", panel=DATA)]
NoHeader = Annotated[
    bool, option("The first line is a row: columns are 'column 1', 'column 2' …", panel=DATA)
]
Drop = Annotated[
    list[str] | None, option("Column to leave out; repeatable.", panel=DATA, shown=False)
]
Skip = Annotated[
    bool,
    option("Leave out incomplete rows, and files that are not images.", "--skip", panel=DATA),
]
Vectors = Annotated[
    Path | None,
    option(
        "Word vectors: GloVe text or .npz.",
        panel=DATA,
        shown="GloVe in the data directory or beside the file, else a small sample",
    ),
]
Length = Annotated[int, option("How many words of a text are read.", panel=DATA, min=1)]
Keep = Annotated[data.Keep, option("Which words of a longer text are read.", panel=DATA)]
Phrase = Annotated[
    int | None,
    option(
        "Neighbouring words averaged into one position.",
        panel=DATA,
        shown="enough for most texts to have 60",
        min=1,
    ),
]
ImageSize = Annotated[int, option("Images are shrunk to this many pixels a side.", panel=DATA)]
DataDir = Annotated[
    Path | None,
    option(
        "Where data sets and GloVe files are (else WIDELIMIT_DATA, else the cache).",
        panel=DATA,
        shown=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    option(
        f"Raise a limit on the size of files, such as bytes=8GB ({', '.join(LIMITS)}).",
        panel=DATA,
        shown=False,
    ),
]
Network = Annotated[
    NetworkName | None, option("Which network.", panel=NETWORK, shown="by the kind of data")
]
Depth = Annotated[
    int | None, option("Hidden layers or blocks.", panel=NETWORK, shown="by the network")
]
Kernel = Annotated[
    KernelKind, option("nngp: the Bayesian network; ntk: the trained network.", panel=NETWORK)
]
Samples = Annotated[
    int | None,
    option("Heads to sample for softmax attention at 1/√d.", panel=NETWORK, shown="enough"),
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

    text: Text = None
    label: Label = None
    encoding: Encoding = "utf-8"
    delimiter: Delimiter = None
    decimal: Decimal = "."
    no_header: NoHeader = False
    skip: Skip = False
    allow: Allow = None

    def take_effect(self) -> None:
        """Raise limits on files, in this process."""
        use_limits(self.allow)

    def reading(self, **more: Any) -> Reading:
        """The options for the reader."""
        delimiter = self.delimiter
        if delimiter is not None:
            delimiter = delimiter.replace("\\t", "\t")
            if len(delimiter) != 1:
                raise WidelimitError(
                    "A delimiter is one character.",
                    got=f"--delimiter {delimiter!r}",
                    remedy="give for instance --delimiter ';' or --delimiter '\\t'",
                )
        return Reading(
            text=self.text,
            label=self.label,
            encoding=self.encoding,
            delimiter=delimiter,
            decimal=self.decimal,
            no_header=self.no_header,
            skip=self.skip,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class DataOptions(FileOptions):
    """How a file is read, and how its examples become arrays."""

    feature: Features = None
    drop: Drop = None
    vectors: Vectors = None
    length: Length = WORDS
    keep: Keep = data.Keep.FIRST
    phrase: Phrase = None
    image_size: ImageSize = IMAGE_SIZE
    data_dir: DataDir = None

    def take_effect(self) -> None:
        """Look for data in the folder and raise limits on files, in this process."""
        super().take_effect()
        use_data_dir(self.data_dir)

    def reading(self, **more: Any) -> Reading:
        """The options for the reader."""
        columns = {"features": tuple(self.feature or ()), "drop": tuple(self.drop or ())}
        return super().reading(**columns, **more)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Which network, and which of its kernels."""

    network: Network = None
    depth: Depth = None
    kernel: Kernel = KernelKind.NNGP
    samples: Samples = None
    seed: Seed = 0


def settings(examples: DataOptions, net: NetworkOptions, **more: Any) -> Settings:
    """The options of both groups for a run."""
    given = {one.name: getattr(net, one.name) for one in fields(net)}
    names = ("vectors", "length", "keep", "phrase", "image_size")
    return Settings(**given, **{name: getattr(examples, name) for name in names}, **more)


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
