"""Primitives on NumPy's arrays, where its functions need a primitive's parameters.

Compiling one small function for every shape costs far more than running it. Each takes the
parameters, and arrays with a leading axis for draws; None: the primitive itself is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Arrays: TypeAlias = list[np.ndarray]
OnArrays: TypeAlias = Callable[[dict[str, Any], Arrays], np.ndarray | None]


def is_floating(dtype: Any) -> bool:
    """Whether these are real numbers of any precision."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def divided(params: dict[str, Any], arrays: Arrays) -> np.ndarray | None:
    """`div`, which rounds integers."""
    return None if all(a.dtype.kind in "iu" for a in arrays) else np.divide(*arrays)


def powered(params: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """`integer_pow`: NumPy takes logarithms for every power but the second."""
    x, y = arrays[0].astype(float), int(params["y"])
    return x * x * x if y == 3 else x**y


def logical(function: Callable[..., np.ndarray]) -> OnArrays:
    """`and`, `or`, `not`, `xor` of truth values."""

    def on_arrays(params: dict[str, Any], arrays: Arrays) -> np.ndarray | None:
        truths = all(a.dtype.kind in "bf" for a in arrays)
        return function(*(a.astype(bool) for a in arrays)) if truths else None

    return on_arrays


def selected(params: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """`select_n`."""
    which, *branches = arrays
    if len(branches) == 2:
        return np.where(which.astype(bool), branches[1], branches[0])
    return np.choose(which.astype(int), branches)


def converted(params: dict[str, Any], arrays: Arrays) -> np.ndarray | None:
    """`convert_element_type`, always in double precision; keys are no numbers."""
    dtype = params["new_dtype"]
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return None
    return arrays[0].astype(np.float64 if is_floating(dtype) else np.dtype(dtype))


def reduced(function: Callable[..., np.ndarray]) -> OnArrays:
    """`reduce_sum` and its like."""
    return lambda params, arrays: function(
        arrays[0], axis=tuple(int(a) + 1 for a in params["axes"])
    )


def mapped(params: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """One component of a function of scalars that came with the program."""
    rows = np.stack(np.broadcast_arrays(*arrays), axis=-1)
    return params["function"].evaluate(rows)[..., params["component"]]


def stacked(params: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """What the rounds of a scan put out."""
    return np.stack(_same_draws(arrays), axis=1 + params["axis"])


def concatenated(params: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """`concatenate`."""
    return np.concatenate(_same_draws(arrays), axis=int(params["dimension"]) + 1)


def _same_draws(arrays: Arrays) -> Arrays:
    draws = max(len(a) for a in arrays)
    return [np.broadcast_to(a, (draws, *a.shape[1:])) for a in arrays]


def contracted(params: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """`dot_general`: results come as (batch, left's, right's)."""
    sides, shape = [], []
    for side, array in enumerate(arrays):
        summed, batch = ([1 + int(a) for a in p[side]] for p in params["dimension_numbers"])
        free = [a for a in range(1, array.ndim) if a not in (*batch, *summed)]
        lengths = [[array.shape[a] for a in axes] for axes in (batch, free, summed)]
        shape += lengths[1] if side else [*lengths[0], *lengths[1]]
        flat = (len(array), *(math.prod(each) for each in lengths))
        sides.append(array.transpose(0, *batch, *free, *summed).reshape(flat))
    found = sides[0] @ np.swapaxes(sides[1], 2, 3)
    return found.reshape(len(found), *shape)
