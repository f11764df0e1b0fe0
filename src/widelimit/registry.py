"""Names of functions and classes, by which files refer to what they never hold the code of."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .errors import OptionError

T = TypeVar("T")

_registered: dict[str, Any] = {}


def register(name: str, thing: T) -> T:
    """Give a function or class of your own a name under which models and stores refer to it.

    A network with `Elementwise(fn)` or with a layer class of your own is known by that name; the
    program that reads the file registers the same thing under the same name first.
    """
    known = {**functions(), **_registered}
    if not callable(thing) or known.get(name, thing) is not thing:
        raise OptionError(
            f"{name!r} cannot be registered for {thing!r}.",
            got="something that is no function or class, or a name that stands for another one",
            remedy="a name is registered once, for one function or class: choose another name",
        )
    _registered[name] = thing
    return thing


def registered() -> dict[str, Any]:
    """What the program has registered."""
    return _registered


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """Functions that activations of this package are made of."""
    numpy = {
        f"jax.numpy.{n}": getattr(jnp, n) for n in ("tanh", "sin", "cos", "exp", "abs", "sign")
    }
    names = ("sigmoid", "silu", "softplus", "gelu", "relu", "elu", "selu", "soft_sign", "mish")
    return numpy | {f"jax.nn.{n}": getattr(jax.nn, n) for n in names}


def name_of(thing: Any) -> str | None:
    """The name of a function or class; None where it has none."""
    known = {**functions(), **_registered}
    return next((name for name, other in known.items() if other is thing), None)
