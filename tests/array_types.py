"""Shapes and types of arrays in signatures are checked while tests run.

beartype alone would check every annotation; what other annotations promise is pyright's to check.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

Function = TypeVar("Function", bound=Callable[..., Any])

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Function) -> Function:
    """The function with those of its annotations checked that speak of arrays."""
    if not hasattr(function, "__annotations__"):
        return function
    kept = {name: hint for name, hint in function.__annotations__.items() if _of_arrays(hint)}
    if not kept:
        return function
    function.__annotations__ = kept
    return _checked(function)


def _of_arrays(hint: Any) -> bool:
    if "Key[" in str(hint):  # what users give as a key is for `options.as_key` to refuse
        return False
    if isinstance(hint, str):
        return "[Array" in hint or "[np.ndarray" in hint
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(_of_arrays, getattr(hint, "__args__", ())))
