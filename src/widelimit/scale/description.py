"""What a kernel is the kernel of, in words that a manifest can hold and two runs can compare.

Networks and samplers are described by their classes and leaves, functions and classes of your own
by the names under which they are registered: an error can name the one number that differs. What
has no name is refused, since nobody could tell it from another. Examples are known by digests of a
few hundred of them, so that an error can name the place.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..duals import Series
from ..engine.inputs import Inputs
from ..errors import WidelimitError
from ..registry import name_of

# Arrays with more numbers than this are known by their digest, not by their numbers.
_LARGEST_SHOWN = 8
_MOST_DIFFERENCES = 3

Description = Any  # what JSON can hold


class StoreError(WidelimitError):
    """A store that cannot serve this call."""


class OtherKernelError(StoreError):
    """The store holds another kernel than the one that is wanted."""


def describe(value: Any, place: str = "network") -> Description:
    """A value as JSON: equal for values that give equal kernels, also in another process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [describe(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {str(key): describe(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Series):  # its coefficients follow from its function, up to rounding
        return _instance(value, ("function", "max_variance", "tolerance"), place)
    if isinstance(value, tuple):
        return _instance(value, value._fields, place)  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _instance(value, [field.name for field in dataclasses.fields(value)], place)
    name = name_of(value)
    if name is None:
        label = getattr(value, "__qualname__", None) or type(value).__qualname__
        raise StoreError(
            f"{place} is the function {label}, which has no registered name.",
            got="a network that no store could tell from another one",
            remedy="widelimit.register('my name', function) before this call, and in every "
            "program that uses the store; numbers that change belong to a class with fields",
        )
    return {"function": name}


def _instance(value: Any, names: Any, place: str) -> Description:
    kind = type(value)
    known = kind.__name__ if kind.__module__.startswith("widelimit.") else name_of(kind)
    if known is None:
        raise StoreError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, a class without a registered "
            "name.",
            got="a network that no store could tell from another one",
            remedy=f"widelimit.register('{kind.__name__}', {kind.__name__}) before this call, and "
            "in every program that uses the store",
        )
    return {"class": known} | {n: describe(getattr(value, n), f"{place}.{n}") for n in names}


def _array(value: Any) -> Description:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    array = np.asarray(value)
    if array.size <= _LARGEST_SHOWN and array.dtype.kind in "fiub":
        return array.tolist()
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:24]
    return {"array": digest, "shape": list(array.shape), "dtype": str(array.dtype)}


def differences(one: Description, two: Description) -> str:
    """The first places where two descriptions differ; `one` is asked for, `two` is stored."""
    lines = list(_differences(one, two, ""))
    more = len(lines) - _MOST_DIFFERENCES
    return "; ".join(lines[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _differences(one: Description, two: Description, place: str) -> Iterator[str]:
    if type(one) is type(two) and isinstance(one, dict) and one.get("class") == two.get("class"):
        for key in {**two, **one}:
            yield from _differences(one.get(key), two.get(key), f"{place}.{key}" if place else key)
    elif type(one) is type(two) and isinstance(one, list) and len(one) == len(two):
        for index, pair in enumerate(zip(one, two, strict=True)):
            yield from _differences(*pair, f"{place}[{index}]")
    elif one != two:
        yield f"{place or 'it'} is {_short(one)}, and {_short(two)} in the store"


def _short(value: Description) -> str:
    if isinstance(value, dict):
        value = next((value[key] for key in ("class", "array", "function") if key in value), {})
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def digest(inputs: Inputs, members: Iterable[int]) -> str:
    """Who these examples are, in their order.

    Padding does not count: an example is the same in a batch that is padded further.
    """
    streams = inputs.x if isinstance(inputs.x, tuple) else (inputs.x,)
    masks = inputs.mask if isinstance(inputs.x, tuple) else (inputs.mask,)
    found = hashlib.sha256()
    for x, mask in zip(streams, masks or (None,) * len(streams), strict=True):
        kind = str(x.dtype)  # NumPy takes longer to say it than to hash a picture
        for example in members:
            _add(found, x[example], None if mask is None else mask[example], kind)
    return found.hexdigest()[:24]


def _add(found: Any, x: np.ndarray, mask: np.ndarray | None, kind: str) -> None:
    if mask is not None:
        # The smallest box that holds all real positions.
        box = tuple(slice(int(places.max()) + 1) for places in np.nonzero(mask))
        x, mask = x[box], mask[box]
    found.update(f"{x.shape} {kind}".encode())
    found.update(np.ascontiguousarray(x).data)
    if mask is not None and not mask.all():
        found.update(np.ascontiguousarray(mask).data)
