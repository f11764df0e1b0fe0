"""Which activation an elementwise function is: recognised by its values, whatever its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from .. import duals, layers

# No symmetric grid: functions that agree on one side alone are told apart.
_GRID = np.concatenate([np.linspace(-7.3, 6.7, 241), [0.0, 1.0]])
_CLOSE = 2e-6
# Large activations meet caps that the grid does not; what overflows there says nothing.
_FAR = np.array([-60.0, -30.0, -20.0, -12.0, 12.0, 20.0, 30.0, 60.0])


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * special.ndtr(x)


def _tanh_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_KNOWN: tuple[tuple[Callable[[np.ndarray], np.ndarray], Callable[[], layers.Activation]], ...] = (
    (lambda x: np.maximum(x, 0), layers.Relu),
    (_gelu, layers.Gelu),
    (_tanh_gelu, lambda: layers.Activation(duals.tanh_gelu())),
    (np.tanh, layers.Tanh),
    (special.expit, layers.Sigmoid),
    (lambda x: x * special.expit(x), layers.Silu),
    (lambda x: np.logaddexp(x, 0), layers.Softplus),
    (special.erf, layers.Erf),
    (np.abs, layers.Abs),
    (np.sin, layers.Sin),
    (np.cos, layers.Cos),
    (np.square, lambda: layers.Monomial(2)),
)


def values(function: Callable[[Any], Any]) -> np.ndarray:
    """The function on the grid."""
    return np.asarray(function(_GRID), np.float64)


def factor(function: Callable[[Any], Any]) -> float | None:
    """c where the function is `c·x`, otherwise None."""
    found = values(function)
    slope = float(found[-1])
    scale = max(abs(slope), 1e-300) * np.abs(_GRID).max()
    close = np.abs(found - slope * _GRID).max() <= _CLOSE * scale
    return slope if close and _agree_far(function, lambda x: slope * x) else None


def recognised(function: Callable[[Any], Any]) -> layers.Activation | None:
    """The activation with a dual of its own that has these values, if there is one."""
    found = values(function)
    for known, make in _KNOWN:
        if _agree(found, known(_GRID)) and _agree_far(function, known):
            return make()
    ends = found[[0, 240]] / _GRID[[0, 240]]

    def lines(x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, ends[0], ends[1]) * x

    if _agree(found, lines(_GRID)) and _agree_far(function, lines):
        return layers.ABRelu(negative=float(ends[0]), positive=float(ends[1]))
    return None


def activation(function: Callable[[Any], Any]) -> layers.Activation:
    """The activation with these values; its dual is summed by quadrature if it is not known."""
    return recognised(function) or layers.Elementwise(function)


def _agree(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= _CLOSE * max(1.0, np.abs(expected).max()))


def _agree_far(function: Callable[[Any], Any], known: Callable[[np.ndarray], np.ndarray]) -> bool:
    with np.errstate(all="ignore"):
        found, expected = np.asarray(function(_FAR), np.float64), known(_FAR)
    off = np.abs(found - expected) > 1e-4 * np.maximum(1.0, np.abs(expected))
    return not (off & np.isfinite(found)).any()
