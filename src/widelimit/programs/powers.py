"""Powers of n: which operands count, and which vanish beside them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from .scalars import ZERO, WideScalar
from .steps import Step
from .vectors import WideVector


def leading_power(values: list[Any]) -> Fraction:
    """The largest power among values that are not zero."""
    powers = [value.power for value in values if not value.is_zero]
    return max(powers, default=ZERO)


def vanished(value: Any, power: Fraction = ZERO) -> Any:
    """Zero in place of something of lower order."""
    if isinstance(value, WideVector):
        return replace(
            value, power=power, constant=np.zeros((1, value.size)), form=None, scale=None, parts=()
        )
    return WideScalar(value.shape, np.zeros((1, *value.shape)), power=power, rough=True, fixed=True)


def order_one(step: Step, value: Any) -> Any:
    """The value for a function that is not homogeneous."""
    if value.power == 0:
        return value
    if value.is_zero or value.power < 0:
        return vanished(value)
    raise diverging(step, value.power)


def diverging(step: Step, power: Fraction) -> Exception:
    """Something grows with the width where it must not."""
    return step.refuse(
        "What enters a nonlinear function stays of order one as the width grows.",
        got=f"an argument of '{step.name}' that grows as n^{power}",
        remedy="scale weights by 1/√fan_in, scores of tied weights by 1/n, or normalise before; "
        "audit() shows where the growth begins",
    )
