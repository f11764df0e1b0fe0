"""Parameters that are added, and vanish beside what they are added to as the width grows."""

from __future__ import annotations

from enum import Enum

import numpy as np


class Biases(Enum):
    """What becomes of biases whose variance falls as the fan-in grows, as 1/(3·fan-in)."""

    LIMIT = "limit"
    """They are gone where the fan-in is a width; those on raw inputs stay."""
    OWN = "own"
    """They have the variance that they have in this very model."""


_NEAR = 1.5  # times the limit is not worth a line


def apart(ratios: np.ndarray, error: np.ndarray | float = 0.0) -> str | None:
    """In a line, how far second moments are from the limit, if what vanishes outweighs it."""
    sure = (np.abs(ratios - 1) > 4 * np.asarray(error)) & (np.abs(np.log(ratios)) > np.log(_NEAR))
    if not sure.any():
        return None
    low, high = float(ratios.min()), float(ratios.max())
    size = f"{low:.2g}" if high < 1.05 * low else f"{low:.2g} to {high:.2g}"
    return (
        f"outputs have {size} times the second moment of the limit: what vanishes as the width "
        "grows outweighs what stays"
    )
