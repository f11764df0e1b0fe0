"""What flows through an infinitely wide network: one example's covariance, one pair's kernels.

Two small immutable states carry the whole computation:

- `Example` – what a layer knows about *one* input while it is being encoded: its own covariance
  `κ(x, x)`, the mean over channels, which positions are real.
- `Pair` – the covariance `κ(x, x')` and tangent kernel `Θ(x, x')` of *two* inputs. Linear maps over
  positions (attention weights, pooling) are kept beside the kernels and applied only when someone
  needs the numbers, so that attention followed by pooling costs `O(S²)` instead of `O(S³)`.
"""

from .example import UNKNOWN, Example, Mean, Need, Outline, UnknownMean
from .kernels import Kernels
from .pair import Pair, require_equal_positions, total

__all__ = [
    "UNKNOWN",
    "Example",
    "Kernels",
    "Mean",
    "Need",
    "Outline",
    "Pair",
    "UnknownMean",
    "require_equal_positions",
    "total",
]
