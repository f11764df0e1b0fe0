"""Duals by quadrature hold for variances up to a limit: widen them where inputs need more."""

import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import numpy as np

from ..duals import Series
from ..errors import AccuracyWarning
from ..layers.activations import Reach

Tree = TypeVar("Tree")


def limited(net: Any) -> list[Series]:
    """The duals of a network that hold up to some variance."""
    found = jax.tree.leaves(net, is_leaf=_is_series)
    return [node for node in found if _is_series(node)]


def _is_series(node: Any) -> bool:
    return isinstance(node, Series)


def largest_variance(encodings: Iterable[Any]) -> float:
    """The largest variance that such a dual met in encoded examples."""
    largest = 0.0
    for encoding in encodings:
        for node in jax.tree.leaves(encoding, is_leaf=lambda node: isinstance(node, Reach)):
            if isinstance(node, Reach):
                largest = max(largest, float(np.max(node.variance)))
    return largest


def covering(net: Tree, variance: float) -> Tree:
    """The same network, its duals as accurate as before up to this variance, or a warning."""

    def wider(node: Any) -> Any:
        new = node.covering(variance) if _is_series(node) else node
        if new is not node:
            say_error(new, variance)
        return new

    return jax.tree.map(wider, net, is_leaf=_is_series)


def say_error(dual: Series, variance: float) -> None:
    """Warn where a dual does not reach its accuracy at this variance."""
    error = dual.error(np.asarray([variance]))
    if error > AccuracyWarning.TOLERANCE:
        where = f"variances up to {variance:.3g}"
        warnings.warn(AccuracyWarning.of(where, error), stacklevel=2)
