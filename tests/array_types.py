"""Shapes and types of arrays in signatures are checked while tests run.

beartype alone would check every annotation; what other annotations promise is pyright's to check.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jaxtyping
from beartype import BeartypeConf, beartype

Thing = TypeVar("Thing", bound=Callable[..., Any])

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Check what is imported from now on."""
    # The hook decorates everything. Where no array is named there is nothing to check, and a sixth
    # of the time of all tests went into not checking it.
    jaxtyping.jaxtyped = _jaxtyped_arrays
    jaxtyping.install_import_hook("widelimit", "array_types.check")


def check(function: Thing) -> Thing:
    """The function with those of its annotations checked that speak of arrays."""
    kept = {name: hint for name, hint in _annotations(function).items() if _of_arrays(hint)}
    if not kept:
        return function
    function.__annotations__ = kept
    return _checked(function)


def _jaxtyped_arrays(*, typechecker: Callable[..., Any]) -> Callable[[Thing], Thing]:
    whole = _jaxtyped(typechecker=typechecker)

    def decorate(thing: Thing) -> Thing:
        return whole(thing) if any(map(_of_arrays, _annotations(thing).values())) else thing

    return decorate


def _annotations(thing: Any) -> dict[str, Any]:
    while isinstance(thing, classmethod | staticmethod | property):
        thing = thing.fget if isinstance(thing, property) else thing.__func__
    return getattr(thing, "__annotations__", {})


def _of_arrays(hint: Any) -> bool:
    if "Key[" in str(hint):  # what users give as a key is for `options.as_key` to refuse
        return False
    if isinstance(hint, str):
        return "[Array" in hint or "[np.ndarray" in hint
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_of_arrays, getattr(hint, "__args__", ())))
