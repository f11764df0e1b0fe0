"""What is known about a layer's input before any number is: shapes, facts, and who needs what."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import jax


class Need(IntEnum):
    """How much of a covariance over positions later layers will look at."""

    NONE = 0
    DIAGONAL = 1
    FULL = 2


# Not an Equinox module: outlines are made by the dozen in every call, and those take long to make.
@jax.tree_util.register_static
@dataclass(frozen=True)
class Outline:
    """What is known about a layer's input before any number is: a shape and a few facts."""

    positions: tuple[int, ...]
    channels: int
    # In the limit, channels are i.i.d. zero-mean Gaussians (a pre-activation).
    gaussian: bool = False
    # Linear in weights drawn since the last branching: uncorrelated with the branch's input.
    fresh: bool = False
    # Some weights were drawn since the last branching: independent of the branch's input.
    weighted: bool = False
    # All channels have one law; raw inputs, concatenations and flattened positions do not.
    alike: bool = False
    # The channels are the input's own numbers, of which `Example.features` are multiples.
    raw: bool = True
    # Entries were dropped at random: two passes of one input differ.
    noisy: bool = False

    def to(self, **changes: Any) -> "Outline":
        """A copy with the given fields changed."""
        return replace(self, **changes)

    def with_weights(self, **changes: Any) -> "Outline":
        """After fresh Gaussian weights: i.i.d. zero-mean Gaussian channels."""
        facts = {"gaussian": True, "fresh": True, "weighted": True, "alike": True, "raw": False}
        return replace(self, **facts, **changes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: positions, then channels."""
        return (*self.positions, self.channels)
