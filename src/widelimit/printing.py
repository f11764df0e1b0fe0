"""Descriptions print as a person would write them: the class, and what is not at its default."""

import dataclasses
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_MISSING = object()
_MOST_NUMBERS = 8


class Written:
    """What prints as its constructor is called."""

    def __repr__(self) -> str:
        return written(self)


def written(thing: Any, name: str | None = None, *, hidden: tuple[str, ...] = ()) -> str:
    """`Name(64, w_std=1.5)`: the arguments of the constructor, found in fields of the same names.

    A field may also belong to a part, as `w_std` does to the `weights` of a layer. Arguments at
    their defaults, and those in `hidden`, are left out.
    """
    parameters = inspect.signature(type(thing).__init__).parameters
    words, positional = [], True
    for parameter in list(parameters.values())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            words += [brief(part) for part in getattr(thing, parameter.name, ())]
            continue
        value = _field(thing, parameter.name)
        left_out = parameter.name in hidden or value is _MISSING
        if left_out or _same(value, _default(thing, parameter)):
            positional = False
            continue
        if parameter.kind is parameter.KEYWORD_ONLY or not positional:
            words.append(f"{parameter.name}={brief(value)}")
        else:
            words.append(brief(value))
    return f"{name or type(thing).__name__}({', '.join(words)})"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 example`, `2 examples`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def brief(value: Any) -> str:
    """A value in few characters: numbers without their dtype, options by their names."""
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, Tracer):
        return "traced"
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim == 0:
            return brief(array.item())
        short = array.ndim == 1 and array.size <= _MOST_NUMBERS
        return f"[{', '.join(map(brief, array))}]" if short else f"array of shape {array.shape}"
    if isinstance(value, float):
        return "∞" if value == float("inf") else f"{value:g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Callable) and hasattr(value, "__name__"):
        return value.__name__
    return repr(value)


def _field(thing: Any, name: str) -> Any:
    """The field of this name, of the thing itself or of one of its parts."""
    if hasattr(thing, name):
        return getattr(thing, name)
    for part in vars(thing).values():
        if hasattr(part, "__dataclass_fields__") and name in part.__dataclass_fields__:
            return getattr(part, name)
    return _MISSING


def _default(thing: Any, parameter: inspect.Parameter) -> Any:
    """The default of a parameter, also where a dataclass makes it anew for every object."""
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
    return parameter.default


def _same(value: Any, default: Any) -> bool:
    """Whether a value is the default; traced values never are."""
    if isinstance(value, Tracer) or default is inspect.Parameter.empty:
        return False
    if isinstance(default, int | float) and isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.ndim(value) == 0 and float(value) == default
    if default is None:
        return repr(value) == "None"
    return value is default or (isinstance(value, type(default)) and bool(value == default))
