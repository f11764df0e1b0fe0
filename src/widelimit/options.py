"""What options may be: one converter for every kind, with one kind of error."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from scipy.special import expit, logit

from .compilation import require_own_jax
from .errors import OptionError

Member = TypeVar("Member", bound=Enum)
Function = TypeVar("Function", bound=Callable[..., Any])

RandomKey = int | Key[Array, ""]
"""What `key=` takes: a non-negative integer, or a JAX key."""


def choice(kind: type[Member], value: Any, name: str) -> Member:
    """A member of an enum, given as itself or by its name ("ntk" and "NTK" alike)."""
    if isinstance(value, kind):
        return value
    known = [str(member.value) for member in kind]
    if isinstance(value, str):
        for member in kind:
            if value.lower() in (str(member.value).lower(), member.name.lower()):
                return member
        close = difflib.get_close_matches(value.lower(), [k.lower() for k in known], n=1)
    else:
        close = []
    room = ".".join(kind.__module__.split(".")[:2])  # where users find the class
    guess = f"perhaps you mean {close[0]!r}; " if close else ""
    raise OptionError(
        f"{name}= is none of {', '.join(map(repr, known))}.",
        got=f"{name}={value!r}",
        remedy=f"{guess}use one of these names, or a member of {room}.{kind.__name__}",
    )


def whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """An integer from `least` to `most` (None: what fits into 64 bits); booleans do not count."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number or not least <= value <= (most or 2**63 - 1):
        kind = {0: "a non-negative integer", 1: "a positive integer"}.get(
            least, f"an integer of at least {least}"
        )
        kind += f" of at most {most:,}" if most else ""
        raise OptionError(
            f"{name}= is not {kind}.", got=f"{name}={value!r}", remedy=f"give {kind}", option=name
        )
    return int(value)


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < float(value) < float("inf"):
        raise OptionError(
            f"{name}= is not a positive number.",
            got=f"{name}={value!r}",
            remedy="give a number above 0",
        )
    return float(value)


def listed(name: str, values: Any) -> list[Any]:
    """Several values, from any collection of them; one alone does not count."""
    alone = isinstance(values, str | bytes) or getattr(values, "ndim", 1) == 0
    if alone or not isinstance(values, Iterable):
        raise OptionError(
            f"{name}= takes several values, not one.",
            got=f"{name}={values!r}",
            remedy=f"put it in a list: {name}=[{values!r}]",
        )
    return list(values)


def not_negative(name: str, value: Any) -> float:
    """A finite number, 0 or larger."""
    return 0.0 if isinstance(value, int | float) and value == 0 else positive(name, value)


def as_key(key: Any, name: str = "key") -> Key[Array, ""]:
    """A JAX key, also from an integer; None is 0."""
    require_own_jax()
    if key is None:
        key = 0
    if isinstance(key, int | np.integer) and not isinstance(key, bool) and 0 <= key < 2**63:
        return jax.random.key(int(key))
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
            return key
        if key.dtype == jnp.uint32 and key.shape == (2,):  # the older form, jax.random.PRNGKey
            return jax.random.wrap_key_data(key)
    raise OptionError(
        f"{name}= is not a non-negative integer, nor one JAX key.",
        got=f"{name}={key!r}",
        remedy=f"pass {name}=0, or {name}=jax.random.key(0)",
    )


def seed_words(key: RandomKey, name: str = "key") -> tuple[int, ...]:
    """The integers behind a key, from which NumPy's generators are seeded."""
    return tuple(int(word) for word in np.ravel(jax.random.key_data(as_key(key, name))))


def generator(key: RandomKey, *stream: int) -> np.random.Generator:
    """A NumPy generator that depends on the key alone; streams of one key are independent."""
    return np.random.default_rng([*seed_words(key), *stream])


def spell_options(target: Callable[..., Any]) -> Callable[[Function], Function]:
    """Help and documentation show `**options: Unpack[Fields]` of a function as these fields.

    They go on to `target`, which has their defaults.
    """

    known = inspect.signature(target).parameters

    def spelled(function: Function) -> Function:
        signature = inspect.signature(function)
        *named, rest = signature.parameters.values()
        (fields,) = get_args(rest.annotation)
        for name, kind in get_type_hints(fields).items():
            default = known[name].default if name in known else ...
            named.append(
                inspect.Parameter(name, rest.KEYWORD_ONLY, default=default, annotation=kind)
            )
        function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        return function

    return spelled


class Range(Enum):
    """Where a hyperparameter lives, and the free coordinate u in which it is moved."""

    POSITIVE = "positive"
    """`value = exp(u)`."""

    UNIT = "between 0 and 1"
    """`value = 1/(1 + exp(−u))`."""

    REAL = "any number"
    """`value = u`."""

    def free(self, value: Any) -> np.ndarray:
        """The coordinate u of a value."""
        if self is Range.POSITIVE:
            return np.log(np.asarray(value))
        return logit(np.asarray(value)) if self is Range.UNIT else np.asarray(value)

    def bounded(self, free: Any) -> np.ndarray:
        """The value at a coordinate u."""
        u = np.asarray(free, np.float64)
        value = np.exp(u) if self is Range.POSITIVE else expit(u) if self is Range.UNIT else u
        return np.asarray(value)  # numbers without axes too: leaves are arrays

    def slope(self, value: np.ndarray) -> np.ndarray:
        """`∂value/∂u`, at a value."""
        if self is Range.POSITIVE:
            return value
        return value * (1.0 - value) if self is Range.UNIT else np.ones_like(value)

    def holds(self, value: np.ndarray) -> bool:
        """Whether a value is finite and lies inside, away from the border."""
        low = -np.inf if self is Range.REAL else 0.0
        high = 1.0 if self is Range.UNIT else np.inf
        return bool(((value > low) & (value < high)).all())


# --- hyperparameters: numbers that are differentiated and tuned -----------------------------------


def within(where: Range | Callable[[Any], Range], *, tuned: bool = True) -> dict[str, Any]:
    """The metadata of a field whose hyperparameter lives in this range.

    The range may depend on the object: then it is a function of it. `tuned=False` marks constants
    of a formula, which are tuned only when asked for.
    """
    return {"range": where, "tuned": tuned}


def hyperparameter(value: Any, name: str, *, scalar: bool = True) -> Any:
    """A differentiable leaf: kept in double precision, cast to the dtype of the call.

    One number, or where it is not a `scalar` an array of them.
    """
    if isinstance(value, jax.Array):  # traced ones too, which have no numbers to look at
        good = jnp.issubdtype(value.dtype, jnp.number)
        number = value.astype(float) if jnp.issubdtype(value.dtype, jnp.integer) else value
    else:
        try:
            number = np.asarray(value)
        except ValueError:  # lists of different lengths
            number = np.asarray(None)
        good = number.dtype.kind in "iuf" and bool(np.isfinite(number).all())
        number = number.astype(np.float64) if good else number
    if not good or (scalar and number.shape != ()):
        kind = "a finite real number" if scalar else "an array of finite real numbers"
        raise OptionError(
            f"{name}= is not {kind}.", got=f"{name}={value!r}", remedy=f"give {kind}, such as 1.5"
        )
    return number


def leaf(
    name: str,
    *,
    where: Range | Callable[[Any], Range] = Range.REAL,
    tuned: bool = True,
    scalar: bool = True,
    **field: Any,
) -> Any:
    """A field that holds a hyperparameter: `eps: Any = leaf("eps", where=Range.POSITIVE)`.

    It is checked, converted, and known to `tune` by its name. `where` is its range, or a function
    from the layer to its range. Constants of a formula (`tuned=False`) and numbers of any sign
    (`Range.REAL`, the default) are tuned only where `tune(select=…)` names them.
    """
    converter = functools.partial(hyperparameter, name=name, scalar=scalar)
    metadata = within(where, tuned=tuned)
    return eqx.field(converter=converter, metadata=metadata, **{"kw_only": True} | field)


def option(default: Any = None, **kwargs: Any) -> Any:
    """A keyword-only dataclass field that is part of the network's structure, not tuned."""
    return eqx.field(default=default, static=True, kw_only=True, **kwargs)


def cast(value: Any, like: Array) -> Array:
    """A hyperparameter in the dtype of the arrays it meets."""
    return jnp.asarray(value, like.dtype)
