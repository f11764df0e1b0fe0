"""Duals that hold for some variances only: widened, or refused, where inputs reach further."""

from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import numpy as np

from ..duals import Dual, Series
from ..errors import AccuracyWarning, PrecisionError, warn
from ..layers.activations import Reach

Tree = TypeVar("Tree")


def limited(net: Any) -> list[Series]:
    """The duals of a network that hold up to some variance."""
    found = jax.tree.leaves(net, is_leaf=_is_series)
    return [node for node in found if _is_series(node)]


def _is_series(node: Any) -> bool:
    return isinstance(node, Series)


def reached(encodings: Iterable[Any]) -> tuple[float, float]:
    """The least and the largest variance that such duals met in encoded examples."""
    least, largest = np.inf, 0.0
    for encoding in encodings:
        for node in jax.tree.leaves(encoding, is_leaf=lambda node: isinstance(node, Reach)):
            if isinstance(node, Reach):
                least = min(least, float(np.min(node.least)))
                largest = max(largest, float(np.max(node.largest)))
    return least, largest


def trusted_range(net: Any, dtype: Any) -> tuple[float, float] | None:
    """The variances for which all duals of a network keep their digits; None is all."""
    found = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Dual))
    known = [node.trusted(dtype) for node in found if isinstance(node, Dual) and node.ranged]
    return (max(low for low, _ in known), min(high for _, high in known)) if known else None


def require_digits(net: Any, dtype: Any, least: float, largest: float) -> None:
    """Raise where rounding would be all that is left of an activation's kernel."""
    limits = trusted_range(net, dtype)
    if limits is None or (limits[0] <= least and largest <= limits[1]):
        return
    remedy = "scale the inputs or w_std, or normalise (LayerNorm)"
    raise PrecisionError(
        f"Activations of this network lose their digits in {np.dtype(dtype)} at variances outside "
        f"{limits[0]:.0e} to {limits[1]:.0e}.",
        got=f"variances from {least:.2g} to {largest:.2g}",
        remedy=remedy if np.dtype(dtype) == np.float64 else f"pass dtype=np.float64, or {remedy}",
    )


def covering(net: Tree, variance: float) -> Tree:
    """The same network, its duals as accurate as before up to this variance, or a warning."""

    def wider(node: Any) -> Any:
        new = node.extend_to(variance) if _is_series(node) else node
        if new is not node:
            say_error(new, variance)
        return new

    return jax.tree.map(wider, net, is_leaf=_is_series)


def say_error(dual: Series, variance: float) -> None:
    """Warn where a dual does not reach its accuracy at this variance."""
    error = dual.error(np.asarray([variance]))
    if error > AccuracyWarning.TOLERANCE:
        where = f"variances up to {variance:.3g}"
        warn(AccuracyWarning.of(where, error))
