"""Gaussian expectations of functions in closed form: the library's duals, on NumPy's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import duals
from ..compilation import jitted

_SMALLEST = 16  # numbers that one compiled program takes; others take 16 times as many each


@dataclass(frozen=True)
class ClosedForm:
    """Gaussian expectations of φ for `(u, v) ~ N(0, [[q, c], [c, r]])`.

    `pair(q, c, r) = E[φ(u)φ(v)]`, `mean(q) = E[φ(u)]`, `slope(q) = E[φ'(u)]`.
    """

    pair: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, dual: duals.Dual, slope: Callable[[np.ndarray], np.ndarray]) -> ClosedForm:
        """The values of a dual, which knows everything but the slope."""

        def pair(q: Any, c: Any, r: Any) -> Any:
            return dual(dual.prepare(q), dual.prepare(r), c, need_derivative=False)[0]

        return cls(_few_shapes(pair), _few_shapes(lambda q: dual.mean(q)), slope)


def _few_shapes(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """The compiled function on arrays of any shape: each shape of its own would be compiled."""
    run = functools.cache(lambda: jitted(function))  # to ask for options starts JAX

    def on_arrays(*arrays: np.ndarray) -> np.ndarray:
        arrays = tuple(np.broadcast_arrays(*arrays))
        count, room = arrays[0].size, _SMALLEST
        while room < count:
            room *= 16
        padded = [np.ones(room) for _ in arrays]
        for full, array in zip(padded, arrays, strict=True):
            full[:count] = array.ravel()
        with jax.enable_x64(True):
            return np.asarray(run()(*padded))[:count].reshape(arrays[0].shape)

    return on_arrays


RELU = ClosedForm.of(duals.relu(), lambda q: np.full_like(q, 0.5))
ERF = ClosedForm.of(duals.Erf(), lambda q: 2 / np.sqrt(np.pi * (1 + 2 * q)))
SIN = ClosedForm.of(duals.Sine(), lambda q: np.exp(-q / 2))
COS = ClosedForm.of(duals.cosine(), np.zeros_like)
EXP = ClosedForm.of(duals.Exp(), lambda q: np.exp(q / 2))
SIGN = ClosedForm.of(
    duals.Sign(), lambda q: np.where(q > 0, np.sqrt(2 / np.pi / np.where(q > 0, q, 1.0)), 0.0)
)
