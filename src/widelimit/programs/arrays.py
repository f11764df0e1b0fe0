"""Primitives on arrays of numbers, without compiling anything where NumPy knows the operation.

Compiling one small function for every shape costs far more than running it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .steps import Step


def _power(x: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    x, y = np.asarray(x, float), int(params["y"])
    # NumPy takes logarithms for every power but the second.
    return x * x * x if y == 3 else x**y


_BOOLEAN = {
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "xor": np.logical_xor,
}


def is_key(array: Any) -> bool:
    """Whether these are random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def coordinatewise(step: Step, arrays: tuple[Any, ...]) -> Any | None:
    """An elementwise primitive on arrays that broadcast; None if NumPy does not have it."""
    name, params = step.name, step.params[0]
    arrays = tuple(np.asarray(a) for a in arrays)
    with np.errstate(all="ignore"):
        if name == "div":
            if arrays[0].dtype.kind in "iu" and arrays[1].dtype.kind in "iu":
                return None
            return np.divide(*arrays)
        if step.record.arrays is not None:
            return step.record.arrays(*arrays)
        if name == "integer_pow":
            return _power(arrays[0], params)
        if name in _BOOLEAN and all(a.dtype.kind in "bf" for a in arrays):
            return _BOOLEAN[name](*(a.astype(bool) for a in arrays))
        if name == "select_n":
            which = arrays[0]
            if len(arrays) == 3:
                return np.where(which.astype(bool), arrays[2], arrays[1])
            return np.choose(which.astype(int), arrays[1:])
        if name == "convert_element_type":
            target = (
                np.dtype(params["new_dtype"]) if not _is_extended(params["new_dtype"]) else None
            )
            if target is None:
                return None
            return arrays[0].astype(np.float64 if _floating(target) else target)
    return None


def _is_extended(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def _floating(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def run_primitive(step: Step, *arrays: Any) -> Any:
    """The step's primitive itself, in double precision."""
    params = dict(step.params[0])
    if step.name == "convert_element_type" and _floating(params["new_dtype"]):
        params["new_dtype"] = np.dtype(np.float64)
    if params.get("preferred_element_type") is not None:
        wide = _floating(params["preferred_element_type"])
        params["preferred_element_type"] = np.dtype(np.float64) if wide else None
    return step.primitive.bind(*arrays, **params)


def mapped_primitive(step: Step, arrays: list[Any]) -> Any:
    """The primitive for every draw; arrays have a leading draw axis, of length 1 if fixed."""
    if not any(is_key(a) for a in arrays):
        found = coordinatewise(step, tuple(arrays))
        if found is None:
            found = _shaped(step, arrays)
        if found is not None:
            return found
    draws = max((a.shape[0] for a in arrays), default=1)
    arrays = [_double(a) for a in arrays]
    if draws == 1:
        results = run_primitive(step, *(a[0] for a in arrays))
        return jax.tree.map(lambda r: _host(r[None]), results)
    axes = [0 if a.shape[0] > 1 else None for a in arrays]
    arrays = [a if a.shape[0] > 1 else a[0] for a in arrays]
    results = jax.vmap(lambda *xs: run_primitive(step, *xs), in_axes=axes)(*arrays)
    return jax.tree.map(_host, results)


_REDUCTIONS = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
}


def _shaped(step: Step, arrays: list[Any]) -> Any | None:
    """Operations that move or reduce axes behind the draw axis."""
    name, params = step.name, step.params[0]
    if not arrays:
        return None
    first = np.asarray(arrays[0])
    draws = first.shape[0]
    if name in _REDUCTIONS:
        return _REDUCTIONS[name](first, axis=tuple(int(a) + 1 for a in params["axes"]))
    if name == "reshape" and params.get("dimensions") is None:
        return first.reshape(draws, *params["new_sizes"])
    if name == "transpose":
        return first.transpose(0, *(int(p) + 1 for p in params["permutation"]))
    if name == "squeeze":
        return first.reshape(draws, *(int(e) for e in step.results[0].shape))  # pyright: ignore
    if name == "broadcast_in_dim":
        shape = [int(e) for e in params["shape"]]
        lifted = [1] * len(shape)
        for old, new in enumerate(params["broadcast_dimensions"]):
            lifted[int(new)] = first.shape[old + 1]
        return np.broadcast_to(first.reshape(draws, *lifted), (draws, *shape))
    if name == "slice":
        strides = params["strides"] or (1,) * (first.ndim - 1)
        chosen = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return first[(slice(None), *(slice(int(a), int(b), int(s)) for a, b, s in chosen))]
    if name == "concatenate":
        count = max(len(a) for a in arrays)
        spread = [np.broadcast_to(a, (count, *a.shape[1:])) for a in arrays]
        return np.concatenate(spread, axis=int(params["dimension"]) + 1)
    if name == "dot_general":
        return _contracted(params, first, np.asarray(arrays[1]))
    return None


def _contracted(params: dict[str, Any], left: np.ndarray, right: np.ndarray) -> np.ndarray:
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


def _double(array: Any) -> Any:
    if is_key(array):
        return array
    array = jnp.asarray(array)
    return array.astype(jnp.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def _host(array: Any) -> Any:
    return array if is_key(array) else np.asarray(array)
