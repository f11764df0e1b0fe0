"""Noise as a variance, or as a share of what the network itself varies."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..options import positive
from .checks import Values


@dataclass(frozen=True)
class Relative:
    """A noise variance of `share · mean_i k(x_i, x_i)` over the training examples.

    It does not change when inputs or readouts are scaled; neural-tangents calls it `diag_reg`.
    """

    share: float

    def __post_init__(self):
        object.__setattr__(self, "share", positive("share", self.share))

    def of(self, diagonal: np.ndarray) -> float:
        """The variance, from the kernel's diagonal."""
        return self.share * float(np.mean(diagonal, dtype=np.float64))


Noise = Values | Relative
"""A variance, one for each training example, or a share of the prior's variance."""


def settled(noise: Noise, diagonal: Callable[[], np.ndarray]) -> Values:
    """The noise as variances; the diagonal of the training kernel is computed if it is needed."""
    return noise.of(diagonal()) if isinstance(noise, Relative) else noise
