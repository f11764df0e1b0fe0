"""One input on its way through the encode phase."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..errors import NetworkError
from .outline import Need, Outline
from .pair import Pair


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
                "A layer looks at the part of an example's covariance that it says it needs.",
                got="a layer that looks, and whose need_own is Need.NONE",
                remedy="define need_own of that layer: Need.DIAGONAL for variances, Need.FULL for "
                "all pairs of positions",
            )
        return Pair(self.nngp, None, self.rank, self.full)

    def variance(self) -> Float[Array, "*positions"]:
        """κ_aa(x, x)."""
        return self.pair().diagonal().nngp

    def mean_for(self, layer: str) -> Float[Array, "*positions"] | None:
        """The mean over channels for a layer that needs it; None where it is zero."""
        if isinstance(self.mean, UnknownMean):
            raise NetworkError(
                f"{layer} needs the mean over channels of its input.",
                got="a layer below whose mean is not known",
                remedy="define mean(example, memo) of that layer (None where it is zero), or put "
                "Dense or Conv between the two",
            )
        return self.mean

    def mapped_mean(self, function: Callable[[Array], Array]) -> Mean:
        """A linear function of the mean: zero stays zero, unknown stays unknown."""
        if self.mean is None or isinstance(self.mean, UnknownMean):
            return self.mean
        return function(self.mean)

    def ones(self, dtype: Any = float) -> Float[Array, "*positions"]:
        """1 at real positions, 0 at padding."""
        if self.mask is None:
            return jnp.ones(self.outline.positions, dtype)
        return self.mask.astype(dtype)

    def trimmed(self, need: Need) -> "Example":
        """Without the part of the covariance that no later layer looks at."""
        if self.nngp is None or need is Need.FULL or (need is Need.DIAGONAL and not self.full):
            return self
        nngp = None if need is Need.NONE else self.variance()
        return Example(
            nngp, self.mean, self.mask, self.features, self.landmarks, False, self.outline
        )
