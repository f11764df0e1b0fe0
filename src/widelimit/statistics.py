"""Numbers with an uncertainty: a value and its standard error, and the interval of a share."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

Shares = Float[np.ndarray | np.floating, "*shape"]
"""One number, or an array of them."""

# Arrays of up to this many entries are printed entry by entry.
_MOST_SHOWN = 8


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """A value and its standard error: two numbers, or two arrays of one shape.

    Used as a number or an array, it is its value: `float(estimate)`, `np.sqrt(estimate)`. It prints
    as `0.532 ± 0.004`.
    """

    value: np.ndarray | Any
    error: np.ndarray | Any

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype=dtype)

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        """The value in this format, as for a number; without one, value ± error."""
        return format(float(self.value), spec) if spec else str(self)

    def __repr__(self) -> str:
        value, error = np.asarray(self.value, float), np.asarray(self.error, float)
        if value.ndim == 0:
            return _shown(float(value), float(error))
        if value.size > _MOST_SHOWN:
            return f"Estimate of shape {value.shape}, errors up to {error.max():.2g}"
        errors = np.broadcast_to(error, value.shape).ravel()
        parts = [_shown(v, e) for v, e in zip(value.ravel(), errors, strict=True)]
        shape = "" if value.ndim == 1 else f" of shape {value.shape}"
        return f"[{', '.join(parts)}]{shape}"


def _shown(value: float, error: float) -> str:
    """A value to the last digit of its error, which has one, or two if it starts with 1 or 2."""
    if not (math.isfinite(error) and error > 0 and math.isfinite(value)):
        return f"{value:.6g} ± {error:.1g}"
    place = math.floor(math.log10(error))
    digits = 1 - place if error < 3 * 10.0**place else -place
    if not -4 <= place <= 4 or abs(value) >= 1e6:
        size = math.floor(math.log10(abs(value))) if value else place
        return f"{value:.{max(size - place, 0)}e} ± {error:.0e}"
    return f"{value:.{max(digits, 0)}f} ± {error:.{max(digits, 0)}f}"


def wilson_interval(correct: Any, total: Any, *, level: float = 0.95) -> tuple[Shares, Shares]:
    """Wilson's interval of a share `p = correct/total`: the p' with `|p − p'| ≤ z √(p'(1−p')/n)`.

    It stays between 0 and 1 and has a width also where all or none are correct.
    """
    count = np.asarray(total, float)
    share = np.asarray(correct, float) / count
    z2 = float(ndtri(0.5 + level / 2.0)) ** 2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    inner = share * (1 - share) / count + z2 / (4 * count**2)
    half = np.sqrt(z2 * inner) / (1 + z2 / count)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)
