"""What a kernel is the kernel of, in words that a manifest can hold and two runs can compare.

Networks and samplers are described in full (`descriptions`), so that an error can name the one
number that differs. Examples are known by digests of a few hundred of them, so that an error can
name the place.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..engine.inputs import Inputs
from .descriptions import Description

_MOST_DIFFERENCES = 3


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
        return str(
            next(
                (value[key] for key in ("class", "array", "function", "module") if key in value), {}
            )
        )
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
