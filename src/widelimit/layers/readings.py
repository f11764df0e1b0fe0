"""The public readings of a network, declared here and filled in by the rooms above.

A layer knows its rules; what is computed from them – a finite network, kernels, a law – lives in
rooms that are built on layers. Each such function announces itself with `@reading`, and the methods
of `Layer` find it here, so that no import points upwards.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_READINGS: dict[str, Callable[..., Any]] = {}


def reading(function: Function) -> Function:
    """Make a function of (network, …) the method of its name of every layer."""
    _READINGS[function.__name__] = function
    return function


def read(name: str, *args: Any, **options: Any) -> Any:
    """Call a reading by its name."""
    return _READINGS[name](*args, **options)
