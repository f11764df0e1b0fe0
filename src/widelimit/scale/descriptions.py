"""Networks and samplers as JSON: equal where kernels are equal, also in another process.

Numbers stand as they are, so that an error can name the one that differs. Functions are known by
their code and by everything it reaches: what they close over, their defaults, the globals they read
and the functions these call. So are classes that a user wrote. What is part of an installed package
is known by its name and its own code.
"""

import copyreg
import dataclasses
import dis
import enum
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Arrays with more numbers than this are known by their digest, not by their numbers.
_LARGEST_SHOWN = 8
# Packages whose functions and classes do not change while a store is used: the version of this one
# is in the manifest, and others change a kernel by rounding at most.
_INSTALLED = frozenset({"widelimit", "jax", "jaxlib", "numpy", "scipy", "equinox", "optax"})

Description = Any  # what JSON can hold
Path = tuple[Any, ...]  # what is being described, from outside in: functions may call themselves


def described(value: Any) -> Description:
    """A value as JSON: equal for values that give equal kernels, also in another process.

    An object of which nothing is known has its address in its description, and is never taken for
    another.
    """
    return _described(value, ())


def _described(value: Any, path: Path) -> Description:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if any(value is one for one in path):
        return {"again": _name(value) or type(value).__name__}
    path = (*path, value)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [_described(item, path) for item in value]
    if isinstance(value, dict):
        return {str(key): _described(item, path) for key, item in value.items()}
    if isinstance(value, type):
        return {"type": _name(value), **_methods(value, path)}
    if dataclasses.is_dataclass(value):
        return _instance(value, [field.name for field in dataclasses.fields(value)], path)
    if isinstance(value, tuple):
        return _instance(value, value._fields, path)  # pyright: ignore[reportAttributeAccessIssue]
    if callable(value):
        return _function(value, path)
    return _object(value, path)


def _instance(value: Any, names: Any, path: Path) -> Description:
    fields = {name: _described(getattr(value, name), path) for name in names}
    return {"class": type(value).__name__, **_methods(type(value), path), **fields}


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


# --- functions ------------------------------------------------------------------------------------


def _function(function: Callable[..., Any], path: Path) -> Description:
    if isinstance(function, partial):
        inner = (function.func, function.args, function.keywords)
        return {"partial": [_described(part, path) for part in inner]}
    if isinstance(function, MethodType):
        inner = (function.__func__, function.__self__)
        return {"method": [_described(part, path) for part in inner]}
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return _written(function, code, path)
    rules = {  # what jit and custom derivatives wrap, and the derivatives
        name: _described(getattr(function, name), path)
        for name in ("__wrapped__", "jvp", "fwd", "bwd")
        if callable(getattr(function, name, None))
    }
    if "__wrapped__" in rules:
        return rules["__wrapped__"] | {k: v for k, v in rules.items() if k != "__wrapped__"}
    if isinstance(function, BuiltinFunctionType | np.ufunc):  # known by their name
        owner = getattr(function, "__self__", None)
        bound = {} if owner is None or isinstance(owner, ModuleType) else {"self": owner}
        return {"function": _name(function), **_described(bound, path)}
    return _object(function, path)


def _written(function: Any, code: CodeType, path: Path) -> Description:
    """A function of which there is the code."""
    known: dict[str, Any] = {
        "function": _name(function),
        "code": hashlib.sha256(_code(code)).hexdigest()[:24],
        "closure": [_described(_content(cell), path) for cell in function.__closure__ or ()],
        "defaults": _described(function.__defaults__, path),
    }
    if function.__kwdefaults__:
        known["keywords"] = _described(function.__kwdefaults__, path)
    if not _installed(function):
        outside = function.__globals__
        read = {n: _described(outside[n], path) for n in _globals(code) if n in outside}
        if read:
            known["globals"] = read
    return known


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return "unbound"


def _code(code: CodeType) -> bytes:
    """Instructions, names and constants, those of functions inside included."""
    constants = [_code(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return b"|".join([code.co_code, repr(code.co_names).encode(), *constants])


def _constant(value: Any) -> bytes:
    """Sets of words have another order in every process."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()


def _globals(code: CodeType) -> list[str]:
    """The names of globals that a function reads, or a function inside it."""

    def read(code: CodeType) -> Iterator[str]:
        for one in dis.get_instructions(code):
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield str(one.argval)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from read(constant)

    return sorted(set(read(code)))


# --- classes and objects --------------------------------------------------------------------------


def _methods(kind: type, path: Path) -> dict[str, str]:
    """A digest of what a user wrote into a class and its bases; nothing for installed ones."""
    classes = [one for one in kind.__mro__ if not _installed(one)]
    if not classes or any(kind is one for one in path[:-1]):
        return {}
    path = (*path, kind)
    found = {}
    for one in classes:
        for name, member in vars(one).items():
            # What `__init__` does shows in the fields; others of this kind are generated, and
            # Python keeps the subclasses of abstract classes in one.
            if (name.startswith("__") and name != "__call__") or name == "_abc_impl":
                continue
            found[f"{one.__qualname__}.{name}"] = _described(_inner(member), path)
    text = json.dumps(found, sort_keys=True)
    return {"methods": hashlib.sha256(text.encode()).hexdigest()[:24]}


def _inner(member: Any) -> Any:
    """The function in a property, a class method, or what Equinox wraps methods in."""
    for name in ("__func__", "fget", "func", "method", "__wrapped__"):
        inner = getattr(member, name, None)
        if callable(inner):
            return inner
    return member


def _object(value: Any, path: Path) -> Description:
    """Any other object: by what it would be copied with, if it leaves that to Python."""
    kind = type(value)
    usual = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    try:
        copied: Any = value.__reduce_ex__(2) if usual else None
    except Exception:  # an object that cannot be copied, whatever it says
        copied = None
    if copied is None or copied[0] is not copyreg.__newobj__:  # pyright: ignore[reportAttributeAccessIssue]
        return {"object": repr(value)}
    arguments, state, *items = copied[1][1:], *copied[2:]
    inside = [_described(part, path) for part in (arguments, state)]
    inside += [_described(list(part), path) for part in items if part is not None]
    return {"class": kind.__name__, **_methods(kind, path), "state": inside}


def _name(value: Any) -> str:
    parts = (getattr(value, name, None) or "" for name in ("__module__", "__qualname__"))
    return ".".join(map(str, parts)).strip(".")


def _installed(value: Any) -> bool:
    """Whether a function or a class belongs to Python or to a package that does not change."""
    top = str(getattr(value, "__module__", None) or "builtins").partition(".")[0]
    return top in _INSTALLED or (top in sys.stdlib_module_names and top != "__main__")
