"""What diagrams and listings say about layers."""

from enum import Enum
from typing import NamedTuple


class Arrangement(Enum):
    """How the layers inside a layer stand to each other."""

    SINGLE = "single"
    """There are none, or they are internal."""
    CHAIN = "chain"
    """One after another."""
    BRANCHES = "branches"
    """Side by side on the same input, and merged."""
    STREAMS = "streams"
    """Side by side, each on an input of its own."""
    SKIP = "skip"
    """The last of them, with a way around it."""


class Family(Enum):
    """What kind of layer it is, for colours."""

    WEIGHTS = "weights"
    ACTIVATION = "activation"
    ATTENTION = "attention"
    NORM = "norm"
    POOL = "pool"
    OTHER = "other"


class Label(NamedTuple):
    """A layer in a few words; of branches, the title is what joins them."""

    title: str
    details: str
    family: Family
