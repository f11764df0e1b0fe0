"""How sizes and numbers depend on the width, read off three widths.

An extent is `a·n` or constant; a number is `c·n^γ`. Two widths would fit anything; the third must
agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

_TOLERANCE = 2e-5  # of numbers that went through single precision


@dataclass(frozen=True)
class Wide:
    """An extent `share·n`."""

    share: Fraction

    def __str__(self) -> str:
        return "n" if self.share == 1 else f"{self.share}·n"


Extent = int | Wide


def shown(shape: tuple[Extent, ...]) -> str:
    """A shape in words, such as (3, n)."""
    return f"({', '.join(map(str, shape))})"


def fit_extent(sizes: tuple[int, ...], widths: tuple[int, ...]) -> Extent | None:
    """`a·n + b`, in the limit `a·n`, or a constant; None if the sizes are neither."""
    if len(set(sizes)) == 1:
        return int(sizes[0])
    share = Fraction(int(sizes[-1] - sizes[0]), widths[-1] - widths[0])
    rest = {size - share * width for size, width in zip(sizes, widths, strict=True)}
    # What is added is less than any of them, and they grow.
    return Wide(share) if share > 0 and len(rest) == 1 and abs(rest.pop()) < min(sizes) else None


@dataclass(frozen=True)
class Power:
    """Numbers `value·n^exponent`."""

    value: np.ndarray
    exponent: Fraction


def fit_power(values: tuple[Any, ...], widths: tuple[int, ...]) -> Power | None:
    """`c·n^γ` with one γ, a multiple of 1/4, for the whole array; None if the numbers disagree."""
    arrays = [np.asarray(value) for value in values]
    first = arrays[0]
    if all(np.array_equal(first, other, equal_nan=first.dtype.kind == "f") for other in arrays):
        return Power(first, Fraction(0))
    if first.dtype.kind not in "iuf" or any(a.shape != first.shape for a in arrays):
        return None
    floats = [np.asarray(a, np.float64) for a in arrays]
    zero = floats[0] == 0
    if any(not np.array_equal(f == 0, zero) for f in floats) or zero.all():
        return None
    scale = [float(np.sqrt(np.mean(np.square(f[~zero])))) for f in floats]
    if not all(math.isfinite(s) for s in scale):
        return None
    slope = math.log(scale[-1] / scale[0]) / math.log(widths[-1] / widths[0])
    exponent = Fraction(round(4 * slope), 4)
    return _rescaled(floats, exponent, widths) or _shifted(floats, scale, widths)


def _rescaled(floats: list[np.ndarray], exponent: Fraction, widths: Any) -> Power | None:
    """The numbers at width 1, if they are alike from every width."""
    rescaled = [f / w ** float(exponent) for f, w in zip(floats, widths, strict=True)]
    alike = all(np.allclose(r, rescaled[-1], rtol=_TOLERANCE, atol=0) for r in rescaled)
    return Power(rescaled[-1], exponent) if alike else None


def _shifted(floats: list[np.ndarray], scale: list[float], widths: tuple[int, ...]) -> Power | None:
    """`c·(n + b)^γ`, in the limit `c·n^γ`: Glorot's 2/(n + d), weights on n + d channels."""
    for exponent in (Fraction(k, 2) for k in (-1, -2, 1, 2)):
        with np.errstate(all="ignore"):
            base = np.power(scale, float(1 / exponent))
            slope = (base[-1] - base[0]) / (widths[-1] - widths[0])
        if not (np.isfinite(base).all() and slope > 0 and np.isfinite(base[0] / slope)):
            continue
        shift = Fraction(round(8 * float(base[0] / slope - widths[0])), 8)
        if abs(shift) < min(widths):
            found = _rescaled(floats, exponent, [float(w + shift) for w in widths])
            if found is not None:
                return found
    return None
