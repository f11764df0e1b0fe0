"""Options that several commands share, spelled once."""

from pathlib import Path
from typing import Annotated

import typer

from ... import data
from ...data.limits import LIMITS
from ...errors import WidelimitError
from ...inference import KernelKind
from ..workflow import NetworkName, Reading

_DATA, _NETWORK, _OUTPUT = "The data", "The network", "What to write"

Text = Annotated[
    str | None,
    typer.Option(help="Column with the texts.", rich_help_panel=_DATA, show_default="found"),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        "--target",
        help="Column to predict.",
        rich_help_panel=_DATA,
        show_default="found",
    ),
]
Features = Annotated[
    list[str] | None,
    typer.Option(
        "--feature",
        help="Column of numbers or categories to use; give it several times.",
        rich_help_panel=_DATA,
        show_default="all",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Column that says 'train' or 'test'.", rich_help_panel=_DATA, show_default="found"
    ),
]
Encoding = Annotated[str, typer.Option(help="Encoding of text files.", rich_help_panel=_DATA)]
Delimiter = Annotated[
    str | None,
    typer.Option(
        help="What separates columns in a CSV file.",
        rich_help_panel=_DATA,
        show_default="comma, or tab in .tsv",
    ),
]
Skip = Annotated[
    bool,
    typer.Option(
        "--skip",
        help="Leave out empty texts and files that are no images instead of stopping.",
        rich_help_panel=_DATA,
    ),
]
Vectors = Annotated[
    Path | None,
    typer.Option(
        help="Word vectors: GloVe text or .npz.",
        rich_help_panel=_DATA,
        show_default="GloVe in the data directory or beside the file, else a small sample",
    ),
]
Length = Annotated[
    int, typer.Option(help="Words of a text that are read.", rich_help_panel=_DATA, min=1)
]
Keep = Annotated[
    data.Keep,
    typer.Option(help="Which words of a longer text are read.", rich_help_panel=_DATA),
]
ImageSize = Annotated[
    int,
    typer.Option(help="Images are shrunk to this many pixels a side.", rich_help_panel=_DATA),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Where data sets and GloVe files lie (else WIDELIMIT_DATA, else the cache).",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Raise a limit on what a file may ask for, such as bytes=8GB ({', '.join(LIMITS)}).",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
Network = Annotated[
    NetworkName | None,
    typer.Option(
        help="Which network.", rich_help_panel=_NETWORK, show_default="by the kind of data"
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        help="Hidden layers or blocks.", rich_help_panel=_NETWORK, show_default="by the network"
    ),
]
Kernel = Annotated[
    KernelKind,
    typer.Option(
        help="nngp: the Bayesian network; ntk: the trained network.", rich_help_panel=_NETWORK
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        help="Heads to sample for softmax attention at 1/√d.",
        rich_help_panel=_NETWORK,
        show_default="enough",
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="So many processes share the kernel.", min=1, show_default=False)
]
Seed = Annotated[
    int,
    typer.Option(help="Fixes splits, subsets and sampled heads.", min=0, max=2**63 - 1),
]
Json = Annotated[
    bool, typer.Option("--json", help="Numbers as JSON on standard output; text on standard error.")
]
Page = Annotated[
    Path | None,
    typer.Option("--report", help="Write a page with pictures here.", rich_help_panel=_OUTPUT),
]
Open = Annotated[
    bool, typer.Option("--open", help="Open the page when done.", rich_help_panel=_OUTPUT)
]


def reading(
    text: str | None,
    label: str | None,
    features: list[str] | None,
    split: str | None,
    encoding: str,
    delimiter: str | None,
    skip: bool,
) -> Reading:
    """The options on data, in one object."""
    if delimiter is not None:
        delimiter = delimiter.replace("\\t", "\t")
        if len(delimiter) != 1:
            raise WidelimitError(
                "A delimiter is one character.",
                got=f"--delimiter {delimiter!r}",
                remedy="give for instance --delimiter ';' or --delimiter '\\t'",
            )
    return Reading(
        text=text,
        label=label,
        features=tuple(features or ()),
        split=split,
        encoding=encoding,
        delimiter=delimiter,
        skip=skip,
    )
