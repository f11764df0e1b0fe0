"""Primitives on NumPy's arrays, where its functions need a primitive's parameters.

Compiling one small function for every shape costs far more than running it. Each takes the
parameters, and arrays with a leading axis for draws; None: the primitive itself is run.
"""

from __future__ import annotations

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
    """`dot_general`."""
    left, right = arrays
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    names = iter(range(1, 52))
    a: list[int] = [0] * (left.ndim - 1)
    b: list[int] = [0] * (right.ndim - 1)
    for i, j in (*zip(lb, rb, strict=True), *zip(lc, rc, strict=True)):
        a[i] = b[j] = next(names)
    for axes in (a, b):
        for k, name in enumerate(axes):
            if name == 0:
                axes[k] = next(names)
    out = [a[i] for i in lb]
    out += [n for i, n in enumerate(a) if i not in (*lb, *lc)]
    out += [n for j, n in enumerate(b) if j not in (*rb, *rc)]
    draws = max(len(left), len(right))
    lead_a, lead_b = ([0] if len(m) > 1 else [] for m in (left, right))
    left = left if lead_a else left[0]
    right = right if lead_b else right[0]
    target = [0, *out] if draws > 1 else out
    found = np.einsum(left, [*lead_a, *a], right, [*lead_b, *b], target, optimize=True)
    return found if draws > 1 else found[None]
