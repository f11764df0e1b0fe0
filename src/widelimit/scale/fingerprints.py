"""What a kernel is the kernel of, in words that a manifest can hold and two runs can compare.

Networks and samplers are described in full, so that an error can name the one number that differs.
Examples are known by digests of a few hundred of them, so that an error can name the place.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.inputs import Inputs

# Arrays with more numbers than this are known by their digest, not by their numbers.
_LARGEST_SHOWN = 8
_MOST_DIFFERENCES = 3

Description = Any  # what JSON can hold


def described(value: Any) -> Description:
    """A value as JSON: equal for values that give equal kernels, also in another process.

    Functions are known by their code and by what they close over. An object of which nothing is
    known has its address in its description, and is never taken for another.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {str(key): described(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _instance(value, names)
    if isinstance(value, tuple):
        return _instance(value, value._fields)  # pyright: ignore[reportAttributeAccessIssue]
    if callable(value):
        return _function(value)
    return {"object": repr(value)}


def _instance(value: Any, names: Any) -> Description:
    return {"class": type(value).__name__} | {n: described(getattr(value, n)) for n in names}


def _array(value: Any) -> Description:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "fiub":
        return array.item()
    if array.size <= _LARGEST_SHOWN and array.dtype.kind in "fiub":
        return array.tolist()
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:24]
    return {"array": digest, "shape": list(array.shape), "dtype": str(array.dtype)}


def _function(function: Callable[..., Any]) -> Description:
    if isinstance(function, partial):
        inner = (function.func, function.args, function.keywords)
        return {"partial": [described(part) for part in inner]}
    inner = getattr(function, "__wrapped__", function)  # what jit and its relatives wrap
    code = getattr(inner, "__code__", None)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', '')}"
    if code is None:  # built-in and compiled functions are known by their name
        return {"function": name} if name != "." else {"object": repr(function)}
    cells = [cell.cell_contents for cell in inner.__closure__ or ()]
    return {
        "function": name,
        "code": hashlib.sha256(_code(code)).hexdigest()[:24],
        "closure": [described(content) for content in cells],
        "defaults": described(inner.__defaults__),
    }


def _code(code: Any) -> bytes:
    """Instructions, names and constants, those of functions inside included."""
    constants = [_code(c) if hasattr(c, "co_code") else repr(c).encode() for c in code.co_consts]
    return b"|".join([code.co_code, repr(code.co_names).encode(), *constants])


def differences(one: Description, two: Description, place: str = "") -> Iterator[str]:
    """Where two descriptions differ, in words; `one` is what is asked for, `two` what is stored."""
    if type(one) is type(two) and isinstance(one, dict):
        if one.get("class") != two.get("class"):
            yield f"{place or 'it'} is {_short(one)}, and {_short(two)} in the store"
            return
        for key in {**two, **one}:
            where = f"{place}.{key}" if place else key
            yield from differences(one.get(key), two.get(key), where)
    elif type(one) is type(two) and isinstance(one, list) and len(one) == len(two):
        for index, pair in enumerate(zip(one, two, strict=True)):
            yield from differences(*pair, f"{place}[{index}]")
    elif one != two:
        yield f"{place} is {_short(one)}, and {_short(two)} in the store"


def _short(value: Description) -> str:
    if isinstance(value, dict):
        return str(next((value[key] for key in ("class", "array", "function") if key in value), {}))
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def listed(found: Iterator[str]) -> str:
    """The first differences, and how many more there are."""
    lines = list(found)
    more = len(lines) - _MOST_DIFFERENCES
    return "; ".join(lines[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def digests(inputs: Inputs, height: int) -> list[str]:
    """One digest for every `height` examples in their order.

    Padding does not count: an example has the same digest in a batch that is padded further.
    """
    streams = inputs.x if isinstance(inputs.x, tuple) else (inputs.x,)
    masks = inputs.mask if isinstance(inputs.x, tuple) else (inputs.mask,)
    masks = masks or (None,) * len(streams)
    found = []
    for begin in range(0, inputs.size, height):
        digest = hashlib.sha256()
        for x, mask in zip(streams, masks, strict=True):
            for example in range(begin, min(begin + height, inputs.size)):
                _add(digest, x[example], None if mask is None else mask[example])
        found.append(digest.hexdigest()[:24])
    return found


def _add(digest: Any, x: np.ndarray, mask: np.ndarray | None) -> None:
    if mask is not None:
        ends = [int(np.flatnonzero(_any_but(mask, axis))[-1]) + 1 for axis in range(mask.ndim)]
        box = tuple(slice(end) for end in ends)
        x, mask = x[box], mask[box]
    digest.update(f"{x.shape} {x.dtype}".encode())
    digest.update(np.ascontiguousarray(x).data)
    if mask is not None and not mask.all():
        digest.update(np.ascontiguousarray(mask).data)


def _any_but(mask: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis)))
