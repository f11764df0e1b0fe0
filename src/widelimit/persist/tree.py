"""Models as trees of plain nodes, and back: what may be in a file."""

import dataclasses
import enum
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

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
    "sklearn.pipeline": ("Pipeline",),
    "sklearn.compose": ("ColumnTransformer",),
    "sklearn.impute": ("SimpleImputer", "MissingIndicator"),
    "sklearn.preprocessing": ("OneHotEncoder", "OrdinalEncoder", "StandardScaler", "MinMaxScaler"),
    "widelimit.sklearn.estimators": ("InfiniteNetworkRegressor", "InfiniteNetworkClassifier"),
    "widelimit.sklearn.inputs": ("Scaler",),
    "widelimit.sklearn.transformers": (
        "WordVectorizer", "SequenceScaler", "ImageResizer", "DateFeatures",
    ),
}  # fmt: skip
"""What of scikit-learn and for it may be in a model: its fields are numbers, texts and arrays."""


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
    return {
        f"{'estimators' if 'widelimit' in module else 'sklearn'}.{name}": getattr(
            importlib.import_module(module), name
        )
        for module, names in _SKLEARN.items()
        for name in names
    }


def _of_sklearn(cls: type) -> bool:
    return cls.__module__.startswith(("widelimit.sklearn.", "sklearn."))


def _named(name: str, what: str = "class") -> Any:
    """The class or function of this package, or a registered one."""
    if name.startswith(("sklearn.", "estimators.")):
        found = _estimators().get(name)
    else:
        found = {**_classes(), **functions(), **registered()}.get(name)
    if found is None or isinstance(found, type) != (what == "class"):
        raise ModelFileError(
            f"The model is made of the {what} {name!r}, which is not known here.",
            got=f"no {what} of this package, and no registered one",
            remedy=f"register your own {what} under this name before loading, or update widelimit",
        )
    return found


def _name_of(thing: Any, place: str) -> str:
    """The name by which a class or function is found again."""
    if not isinstance(thing, type):
        known: dict[str, Any] = {**functions(), **registered()}
    else:
        known = _estimators() if _of_sklearn(thing) else {**_classes(), **registered()}
    for name, other in known.items():
        if other is thing:
            return name
    label = getattr(thing, "__qualname__", type(thing).__qualname__)
    if not isinstance(thing, type):
        raise ModelFileError(
            "A function is saved by a name under which it is registered: its code is not saved.",
            got=f"{place} is the function {label}",
            remedy="register('my name', function) before saving and loading",
        )
    if _of_sklearn(thing):
        raise ModelFileError(
            f"{place} is a {label}, which a model file does not hold.",
            got=f"{thing.__module__}.{label}",
            remedy=f"it holds {', '.join(name for names in _SKLEARN.values() for name in names)}; "
            "joblib.dump writes anything, in files that only those may load who trust their origin",
        )
    raise ModelFileError(
        f"{place} is of a class that is not registered.",
        got=f"{thing.__module__}.{label}",
        remedy=f"register('{label}', {label}) before saving and loading",
    )


def _field_names(cls: type) -> list[str]:
    """What describes an instance: the fields, or for a series dual what it was built from."""
    if cls is Series:
        return ["function", "max_variance", "tolerance"]
    if issubclass(cls, tuple):
        return list(cls._fields)  # pyright: ignore[reportAttributeAccessIssue]
    return [field.name for field in dataclasses.fields(cls)]


# --- to the tree ---------------------------------------------------------------------------------


def encoded(value: Any, arrays: list[np.ndarray], place: str) -> Any:
    """The node of a value; `place` names it in errors."""
    if isinstance(value, enum.Enum):  # before texts, which some are, too
        return {"enum": [_name_of(type(value), place), value.name]}
    if isinstance(value, np.bool_ | np.integer | np.float64):
        value = value.item()
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = encoded(np.asarray(jax.random.key_data(value)), arrays, place)
        return {"key": [data, str(jax.random.key_impl(value))]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        if array.dtype == object:  # names of features, labels, categories
            items = [encoded(item, arrays, f"{place}[{i}]") for i, item in enumerate(array.flat)]
            return {"objects": [list(array.shape), items]}
        arrays.append(array)
        return {"array": len(arrays) - 1}
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
    own = isinstance(value, eqx.Module) or type(value) in _classes().values()
    if callable(value) and not own and not _of_sklearn(type(value)):
        return {"function": _name_of(value, place)}
    name = _name_of(type(value), place)
    nodes = {k: encoded(v, arrays, f"{place}.{k}") for k, v in _fields(value, place).items()}
    return {"class": name, "fields": nodes}


def _fields(value: Any, place: str) -> dict[str, Any]:
    """What an instance holds, without what belongs to one session: stores and clusters."""
    if isinstance(value, StoredFactor) or (
        isinstance(value, Iterative) and not isinstance(value.kernel, np.ndarray)
    ):
        raise ModelFileError(
            f"{place} is on disk elsewhere and cannot be saved in one file.",
            got=type(value).__name__,
            remedy="save a model with solver=Cholesky() or Nystrom(...), or fit again from the "
            "store, which has the kernel",
        )
    if _of_sklearn(type(value)):
        fields = {name: field for name, field in vars(value).items() if name != "_client"}
    else:
        fields = {name: getattr(value, name) for name in _field_names(type(value))}
    if isinstance(value, Factor):  # only the triangle that means something, row by row
        fields["storage"] = value.storage[np.tril_indices(len(value))]
    if isinstance(value, Engine):
        fields["client"] = None
    return fields | ({"store": None} if "store" in fields else {})


# --- from the tree -------------------------------------------------------------------------------


def decoded(node: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The value of a node; `arrays` are those of the file by name."""
    if node is None or isinstance(node, bool | int | str):
        return node
    if "class" in node:
        fields = {name: decoded(value, arrays) for name, value in node["fields"].items()}
        return _built(_named(node["class"]), fields)
    ((kind, content),) = node.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "array":
        return arrays[f"arrays/{content}.npy"]
    if kind == "slice":
        return slice(*content)
    if kind == "objects":
        shape, items = content
        array = np.empty(len(items), dtype=object)
        array[:] = [decoded(item, arrays) for item in items]
        return array.reshape(shape)
    if kind in ("list", "tuple"):
        items = [decoded(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {decoded(k, arrays): decoded(v, arrays) for k, v in content}
    if kind == "enum":
        return _named(content[0])[content[1]]
    if kind == "dtype":
        return np.dtype(content)
    if kind == "scalar":
        return np.dtype(content).type
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(decoded(content[0], arrays)), impl=content[1])
    if kind == "function":
        return _named(content, "function")
    raise ValueError(f"an unknown kind of node, {kind!r}")


def _built(cls: type, fields: dict[str, Any]) -> Any:
    """An object put together from its fields, which are checked to fit each other."""
    if cls is Series:
        return Series(**fields)
    if not _of_sklearn(cls) and set(fields) != set(_field_names(cls)):
        raise ValueError(f"{cls.__name__} has other fields than {sorted(fields)}")
    if cls is Factor:
        fields["storage"] = _triangle(fields["storage"])
    if issubclass(cls, tuple):
        return require_sound(cls(**fields))
    made = object.__new__(cls)
    vars(made).update(fields)
    return require_sound(made)


def _triangle(packed: np.ndarray) -> np.ndarray:
    rows = int((np.sqrt(8 * packed.size + 1) - 1) / 2)
    if packed.dtype != np.float64 or packed.shape != (rows * (rows + 1) // 2,) or not rows:
        raise ValueError(f"a factor of shape {packed.shape} and dtype {packed.dtype}")
    storage = np.zeros((rows, rows), order="F")
    storage[np.tril_indices(rows)] = packed
    storage.flags.writeable = False
    return storage
