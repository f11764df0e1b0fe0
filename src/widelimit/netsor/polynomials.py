"""Vectors as polynomials: numbers (or one per draw of the scalars) times products of atoms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from .nodes import Operation

Monomial: TypeAlias = tuple[int, ...]
"""Sorted indices of atoms, with repetition; the empty one stands for 1."""
Polynomial: TypeAlias = dict[Monomial, np.ndarray]


def add(first: Polynomial, second: Polynomial) -> Polynomial:
    """The sum of two polynomials."""
    result = dict(first)
    for monomial, coefficient in second.items():
        result[monomial] = result[monomial] + coefficient if monomial in result else coefficient
    return result


def multiply(first: Polynomial, second: Polynomial) -> Polynomial:
    """The product of two polynomials."""
    result: Polynomial = {}
    for a, x in first.items():
        for b, y in second.items():
            key = tuple(sorted(a + b))
            result[key] = result[key] + x * y if key in result else x * y
    return result


def combine(operation: Operation, parts: Sequence[np.ndarray | float]) -> np.ndarray:
    """The sum or product of arrays and numbers."""
    total = sum(parts[1:], parts[0]) if operation is Operation.SUM else math.prod(parts)
    return np.asarray(total)
