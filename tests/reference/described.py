"""neural-tangents layers that know the expression that made them.

`stax.Dense(8, W_std=1.5)` below is neural-tangents' layer together with the text
"Dense(8, W_std=1.5)". The table of cases in README.md is written from these texts, so that the
description of a network cannot drift from the network that was run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from neural_tangents import stax as _stax

# Before any layer is made: some turn their constants into arrays.
jax.config.update("jax_enable_x64", True)


@dataclass(frozen=True)
class Described:
    """A value and the expression that made it."""

    text: str
    value: object


def _show(item: object) -> str:
    if isinstance(item, Described):
        return item.text
    return getattr(item, "__name__", repr(item))


def _value(item: object) -> object:
    return item.value if isinstance(item, Described) else item


def call_text(name: str, *args: object, **kwargs: object) -> str:
    """The source text of the call `name(*args, **kwargs)`."""
    shown = [_show(item) for item in args]
    shown += [f"{key}={_show(item)}" for key, item in kwargs.items()]
    return f"{name}({', '.join(shown)})"


class _DescribedStax:
    """Every layer constructor of `neural_tangents.stax`, returning a `Described` layer."""

    def __getattr__(self, name: str) -> Callable[..., Described]:
        make = getattr(_stax, name)

        def described(*args: object, **kwargs: object) -> Described:
            values = {key: _value(item) for key, item in kwargs.items()}
            return Described(call_text(name, *args, **kwargs), make(*map(_value, args), **values))

        return described


stax = _DescribedStax()


def residual(*branch: Described) -> Described:
    """`f + g(f)`, with `g` the layers of the branch in series."""
    layer = stax.serial(
        stax.FanOut(2), stax.parallel(stax.Identity(), stax.serial(*branch)), stax.FanInSum()
    )
    return Described(call_text("residual", *branch), layer.value)


def weighted_residual(alpha: float, *branch: Described) -> Described:
    """`√α f + √(1−α) g(f)`, with `g` the layers of the branch in series."""
    layer = stax.serial(
        stax.FanOut(2),
        stax.parallel(
            stax.DotGeneral(rhs=alpha**0.5),
            stax.serial(*branch, stax.DotGeneral(rhs=(1 - alpha) ** 0.5)),
        ),
        stax.FanInSum(),
    )
    return Described(call_text("weighted_residual", alpha, *branch), layer.value)
