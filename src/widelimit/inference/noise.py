"""Noise as a variance, or as a share of what the network itself varies."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import OptionError
from ..options import positive, whole
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


@dataclass(frozen=True)
class LeaveOneOutNoise:
    """A noise variance chosen by leave-one-out, and with it the scale of the network's outputs.

    The last weights of the network take the scale where they can (`amplify`); means do not
    depend on it, variances do. At most `examples` training examples, drawn at random, choose.
    """

    examples: int = 2000

    def __post_init__(self):
        whole("examples", self.examples, least=2)


Noise = Values | Relative | LeaveOneOutNoise
"""A variance, one for each example, a share of the prior's variance, or one that is chosen."""


def settled(noise: Noise, diagonal: Callable[[], np.ndarray]) -> Values:
    """The noise as variances; the diagonal of the training kernel is computed if it is needed."""
    if isinstance(noise, LeaveOneOutNoise):
        raise OptionError(
            f"{noise!r} is for models that leave one example out, GP and Classifier.",
            got=f"noise={noise!r}",
            remedy="pass a variance, or fit GP(net, noise=LeaveOneOutNoise()) and take its noise",
        )
    return noise.of(diagonal()) if isinstance(noise, Relative) else noise
