"""Models as trees of plain nodes, and back: what may be in a file."""

import dataclasses
import enum
import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..duals import Series
from ..errors import WidelimitError
from ..inference.blocked import StoredFactor
from ..inference.iterative import Iterative
from ..inference.network_kernels import Engine
from ..inference.solve import Factor
from ..registry import functions, registered
from .checks import require_sound

_PRIVATE = {"Fixed"}  # the wrapper of plain functions in series duals
_ROOMS = (
    "layers",
    "layers.attention",
    "duals",
    "engine.inputs",
    "engine.sampling",
    "inference",
    "data",
    "app.workflow",
)
_SKLEARN = {
    "pipeline": ("Pipeline",),
    "compose": ("ColumnTransformer",),
    "impute": ("SimpleImputer", "MissingIndicator"),
    "preprocessing": ("OneHotEncoder", "OrdinalEncoder", "StandardScaler", "MinMaxScaler"),
}
"""What of scikit-learn may be in a model: its fields are numbers, texts and arrays."""


class ModelFileError(WidelimitError):
    """A model that cannot be saved, or a file that is not a model this version can load."""


# --- what may be in a file -----------------------------------------------------------------------


@cache
def _classes() -> dict[str, type]:
    """Classes of this package that models are made of, by room and name."""
    found: dict[str, type] = {}
    for room in _ROOMS:
        package = importlib.import_module(f"widelimit.{room}")
        inner = pkgutil.iter_modules(getattr(package, "__path__", []), f"{package.__name__}.")
        modules = [package, *(importlib.import_module(info.name) for info in inner)]
        for module in modules:
            for thing in vars(module).values():
                if not isinstance(thing, type) or thing.__module__ != module.__name__:
                    continue
                if thing.__name__.startswith("_") and thing.__name__ not in _PRIVATE:
                    continue
                name = f"{room}.{thing.__name__}"
                assert found.setdefault(name, thing) is thing, f"two classes called {name}"
    return found


@cache
def _estimators() -> dict[str, type]:
    """Estimators and transformers of this package, and what they are joined with."""
    from ..sklearn import estimators, inputs, transformers

    own = (
        estimators.InfiniteNetworkRegressor,
        estimators.InfiniteNetworkClassifier,
        inputs.Scaler,
        transformers.WordVectorizer,
        transformers.SequenceScaler,
        transformers.ImageResizer,
        transformers.DateFeatures,
    )
    found = {f"estimators.{cls.__name__}": cls for cls in own}
    for room, names in _SKLEARN.items():
        module = importlib.import_module(f"sklearn.{room}")
        found |= {f"sklearn.{name}": getattr(module, name) for name in names}
    return found


def uses_sklearn(tree: Any) -> bool:
    """Whether classes of scikit-learn are in a tree."""
    if isinstance(tree, dict):
        of_it = str(tree.get("class")).startswith("sklearn.")
        return of_it or any(map(uses_sklearn, tree.values()))
    return isinstance(tree, list) and any(map(uses_sklearn, tree))


def _fields(cls: type) -> list[str]:
    """What describes an instance: the fields, or for a series dual what it was built from."""
    if cls is Series:
        return ["function", "max_variance", "tolerance"]
    if issubclass(cls, tuple):
        return list(cls._fields)  # pyright: ignore[reportAttributeAccessIssue]
    return [field.name for field in dataclasses.fields(cls)]


def _class_named(name: str) -> type:
    if name.startswith(("estimators.", "sklearn.")):
        found = _estimators().get(name)
    else:
        found = _classes().get(name) or registered().get(name)
    if not isinstance(found, type):
        raise ModelFileError(
            f"The model is made of the class {name!r}, which is not known here.",
            got="no class of this package, and no registered one",
            remedy="register your own class under this name before loading, or update widelimit",
        )
    return found


def _name_of(thing: Any, known: dict[str, Any]) -> str | None:
    return next((name for name, other in known.items() if other is thing), None)


# --- to the tree ---------------------------------------------------------------------------------


def encoded(value: Any, arrays: list[np.ndarray], place: str) -> Any:
    """The node of a value; `place` names it in errors."""
    if isinstance(value, enum.Enum):  # before texts, which some are, too
        return {"enum": [_known_class(type(value), place), value.name]}
    if isinstance(value, np.bool_ | np.integer | np.float64):
        value = value.item()
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _encoded_array(value, arrays, place)
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"scalar": np.dtype(value).str}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        items = [encoded(v, arrays, f"{place}[{i}]") for i, v in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, dict):
        pairs = [
            [encoded(k, arrays, place), encoded(v, arrays, f"{place}[{k!r}]")]
            for k, v in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, Engine):  # a cluster belongs to one session
        value = dataclasses.replace(value, store=None, client=None)
    if isinstance(value, Factor):
        return _encoded_factor(value, arrays)
    if isinstance(value, StoredFactor) or (
        isinstance(value, Iterative) and not isinstance(value.kernel, np.ndarray)
    ):
        raise ModelFileError(
            f"{place} is on disk elsewhere and cannot be saved in one file.",
            got=type(value).__name__,
            remedy="save a model with solver=Cholesky() or Nystrom(...), or fit again from the "
            "store, which has the kernel",
        )
    if type(value).__module__.startswith(("widelimit.sklearn.", "sklearn.")):
        # A store and a cluster belong to one session.
        fields = {name: field for name, field in vars(value).items() if name != "_client"}
        fields |= {"store": None} if "store" in fields else {}
    else:
        own = isinstance(value, eqx.Module) or type(value) in _classes().values()
        if callable(value) and not own:
            return {"function": _known_function(value, place)}
        _known_class(type(value), place)
        fields = {name: getattr(value, name) for name in _fields(type(value))}
    nodes = {name: encoded(field, arrays, f"{place}.{name}") for name, field in fields.items()}
    return {"class": _known_class(type(value), place), "fields": nodes}


def _encoded_array(value: Any, arrays: list[np.ndarray], place: str = "model") -> Any:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _encoded_array(np.asarray(jax.random.key_data(value)), arrays)
        return {"key": [data, str(jax.random.key_impl(value))]}
    array = np.asarray(value)
    if array.dtype == object:  # names of features, labels, categories
        items = [encoded(item, arrays, f"{place}[{i}]") for i, item in enumerate(array.flat)]
        return {"objects": [list(array.shape), items]}
    arrays.append(array)
    return {"array": len(arrays) - 1}


def _encoded_factor(factor: Factor, arrays: list[np.ndarray]) -> Any:
    """Only the triangle that means something, row by row."""
    packed = factor.storage[np.tril_indices(len(factor))]
    fields = {name: encoded(getattr(factor, name), arrays, name) for name in _FACTOR_NUMBERS}
    return {"class": "inference.Factor", "fields": fields, "lower": _encoded_array(packed, arrays)}


_FACTOR_NUMBERS = ("jitter", "scale", "unit")


def _known_class(cls: type, place: str) -> str:
    known = {**_classes(), **registered()}
    if cls.__module__.startswith(("widelimit.sklearn.", "sklearn.")):
        known = {**known, **_estimators()}
    name = _name_of(cls, known)
    if name is None and cls.__module__.startswith("sklearn."):
        names = ", ".join(name for names in _SKLEARN.values() for name in names)
        raise ModelFileError(
            f"{place} is a {cls.__name__}, which a model file does not hold.",
            got=f"{cls.__module__}.{cls.__name__}",
            remedy=f"of scikit-learn it holds {names}; joblib.dump writes anything, in files that "
            "only those may load who trust their origin",
        )
    if name is None:
        raise ModelFileError(
            f"{place} is of a class that is not registered.",
            got=f"{cls.__module__}.{cls.__qualname__}",
            remedy=f"register('{cls.__name__}', {cls.__name__}) before saving and loading",
        )
    return name


def _known_function(function: Any, place: str) -> str:
    name = _name_of(function, {**functions(), **registered()})
    if name is None:
        label = getattr(function, "__qualname__", type(function).__qualname__)
        raise ModelFileError(
            "A function is saved by a name under which it is registered: its code is not saved.",
            got=f"{place} is the function {label}",
            remedy="register('my name', function) before saving and loading",
        )
    return name


# --- from the tree -------------------------------------------------------------------------------


class Arrays(Protocol):
    """The arrays of a file by number."""

    def __getitem__(self, index: int) -> np.ndarray: ...


def decoded(node: Any, arrays: Arrays) -> Any:
    """The value of a node."""
    if node is None or isinstance(node, bool | int | str):
        return node
    if "class" in node:
        return _decoded_class(node, arrays)
    ((kind, content),) = node.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "array":
        return arrays[content]
    if kind == "slice":
        return slice(*content)
    if kind == "objects":
        shape, items = content
        array = np.empty(len(items), dtype=object)
        array[:] = [decoded(item, arrays) for item in items]
        return array.reshape(shape)
    if kind == "list":
        return [decoded(item, arrays) for item in content]
    if kind == "tuple":
        return tuple(decoded(item, arrays) for item in content)
    if kind == "dict":
        return {decoded(k, arrays): decoded(v, arrays) for k, v in content}
    if kind == "enum":
        return _class_named(content[0])[content[1]]  # pyright: ignore[reportIndexIssue]
    if kind == "dtype":
        return np.dtype(content)
    if kind == "scalar":
        return np.dtype(content).type
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(decoded(content[0], arrays)), impl=content[1])
    if kind == "function":
        return _function_named(content)
    raise ValueError(f"an unknown kind of node, {kind!r}")


def _function_named(name: str) -> Any:
    known = {**functions(), **registered()}
    if name not in known:
        raise ModelFileError(
            f"The model is made of the function {name!r}, which is not registered here.",
            got="no function of this package, and no registered one",
            remedy=f"call register({name!r}, function) before load",
        )
    return known[name]


def _decoded_class(node: dict[str, Any], arrays: Arrays) -> Any:
    """Put an object together from its fields, and check that they fit each other."""
    cls = _class_named(node["class"])
    fields = {name: decoded(value, arrays) for name, value in node["fields"].items()}
    if cls is Factor:
        packed = decoded(node["lower"], arrays)
        rows = int((np.sqrt(8 * packed.size + 1) - 1) / 2)
        if packed.dtype != np.float64 or packed.shape != (rows * (rows + 1) // 2,) or not rows:
            raise ValueError(f"a factor of shape {packed.shape} and dtype {packed.dtype}")
        storage = np.zeros((rows, rows), order="F")
        storage[np.tril_indices(rows)] = packed
        storage.flags.writeable = False
        return require_sound(Factor(storage, **fields))
    if cls is Series:
        return Series(**fields)
    if hasattr(cls, "__sklearn_tags__"):
        made = object.__new__(cls)
        vars(made).update(fields)
        return require_sound(made)
    if set(fields) != set(_fields(cls)):
        raise ValueError(f"{cls.__name__} has other fields than {sorted(fields)}")
    if issubclass(cls, tuple):
        return require_sound(cls(**fields))
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return require_sound(made)
