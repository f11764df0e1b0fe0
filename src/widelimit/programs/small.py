"""What vanishes as the width grows, where zero in its place would lose it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .scalars import WideScalar
from .steps import Step
from .vectors import WideVector


def followed(step: Step, operands: list[Any]) -> Any | None:
    """What a step makes of a vanishing operand, if it is of the operand's own order.

    `√n·tanh(z/√n)` is z: near 0 a function is its slope there, and clipping does nothing.
    """
    name, value = step.name, operands[1 if step.name == "clamp" else 0]
    if name in ("floor", "ceil") and value.power < 0 and not value.is_zero:
        raise step.refuse(
            "What vanishes as the width grows does not enter a function that jumps at 0.",
            got=f"an argument of '{name}' that vanishes as n^{value.power}",
            remedy="rescale the argument, so that it stays of order one",
        )
    slope = step.record.slope
    if slope is not None and value.power < 0 and not value.is_zero:
        return _multiplied(value, slope)
    if name not in ("max", "min", "clamp"):
        return None
    shape = np.broadcast_shapes(*(v.shape for v in operands))
    for k, value in enumerate(operands):
        others = operands[:k] + operands[k + 1 :]
        if value.power >= 0 or value.is_zero or value.shape != shape:
            continue
        signs = [_sign(other) for other in others]
        inside = {"max": [-1.0], "min": [1.0], "clamp": [-1.0, 1.0]}[name]
        if signs == inside and (name != "clamp" or k == 1):
            return value
    return None


def _sign(value: Any) -> float | None:
    """The sign of constants of order one, if they have one."""
    fixed = value.fixed if isinstance(value, WideScalar) else value.is_constant
    if value.power != 0 or not fixed:
        return None
    numbers = value.base if isinstance(value, WideScalar) else value.constant
    signs = np.unique(np.sign(np.asarray(numbers)))
    return float(signs[0]) if signs.size == 1 else None


def _multiplied(value: Any, factor: float) -> Any:
    if isinstance(value, WideVector):
        return value.times(np.full((1, value.size), factor))
    return WideScalar(
        value.shape,
        functools.cache(lambda: factor * value.base),
        power=value.power,
        rough=value.rough,
        fixed=value.fixed,
        pending=tuple((group, factor * weights) for group, weights in value.pending),
    )
