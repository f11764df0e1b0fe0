"""What is known about a layer's input: before any number is, an outline; then an example."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..errors import NetworkError
from .pair import Pair


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


class UnknownMean(eqx.Module):
    """Stands for a channel mean that a layer did not say."""


UNKNOWN = UnknownMean()
Mean = Float[Array, "*positions"] | UnknownMean | None
"""The mean over channels; None where it is zero."""


class Example(eqx.Module):
    """One input on its way through the encode phase."""

    nngp: Array | None  # (positions…, positions…), (positions…), or None, as the plan needs
    mean: Mean
    mask: Bool[Array, "*positions"] | None
    # Rows φ_a with κ_ab = φ_a·φ'_b exactly for all inputs, while such rows of fixed size exist.
    features: Float[Array, "*positions rank"] | None
    # Kernels with the landmark inputs (leading axis), where a sampled layer ahead needs them.
    landmarks: Pair | None
    full: bool = eqx.field(static=True)
    outline: Outline
    # Weights between positions, (positions…, positions…, kinds), where inputs are graphs.
    edges: Array | None = None

    @property
    def rank(self) -> int:
        """How many position axes there are."""
        return len(self.outline.positions)

    @property
    def size(self) -> int:
        """How many positions there are."""
        return math.prod(self.outline.positions)

    def pair(self) -> Pair:
        """This example with itself."""
        if self.nngp is None:
            raise NetworkError(
                "A layer asks for an example's own covariance and does not say that it needs it.",
                got="a layer whose facts have need_own=Need.NONE",
                remedy="give that layer Facts(need_own=…): Need.DIAGONAL for variances, "
                "Need.FULL for all pairs of positions",
            )
        return Pair(self.nngp, None, self.rank, self.full)

    def variance(self) -> Float[Array, "*positions"]:
        """κ_aa(x, x)."""
        return self.pair().diagonal().nngp

    def mean_for(self, layer: str) -> Float[Array, "*positions"] | None:
        """The mean over channels for a layer that needs it; None where it is zero."""
        if isinstance(self.mean, UnknownMean):
            raise NetworkError(
                f"{layer} needs the mean over channels of its input, which is not known.",
                got="a layer below that does not say it",
                remedy="define mean(example, memo) of that layer (None where it is zero), or put "
                "Dense or Conv between the two",
            )
        return self.mean

    def map_mean(self, function: Callable[[Array], Array]) -> Mean:
        """A linear function of the mean: zero stays zero, unknown stays unknown."""
        if self.mean is None or isinstance(self.mean, UnknownMean):
            return self.mean
        return function(self.mean)

    def ones(self, dtype: Any = float) -> Float[Array, "*positions"]:
        """1 at real positions, 0 at padding."""
        if self.mask is None:
            return jnp.ones(self.outline.positions, dtype)
        return self.mask.astype(dtype)

    def trim(self, need: Need) -> "Example":
        """Without the part of the covariance that no later layer looks at."""
        if self.nngp is None or need is Need.FULL or (need is Need.DIAGONAL and not self.full):
            return self
        nngp = None if need is Need.NONE else self.variance()
        return replace(self, nngp=nngp, full=False)
