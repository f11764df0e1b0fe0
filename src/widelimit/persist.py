"""Save and load fitted models: `save(model, "model.wl")`, `load("model.wl")`.

The file is a zip archive that any program can read:

- `manifest.json`: `{"format": "widelimit model", "version": 1, "library": "0.1.0", "model": tree}`;
- `arrays/0.npy`, `arrays/1.npy`, …: NumPy arrays, each without Python objects.

A node of the tree is null, a boolean, an integer, a string, or an object with one key that says
what it is: `float` (hexadecimal, exact), `list`, `tuple`, `dict` (pairs), `array` (number of a
file), `key` (of random numbers: array and generator), `enum` (class and member), `dtype`,
`function` (a registered name). An instance has its `class` and `fields`; a Cholesky factor also
`lower`, its triangle packed row by row.

Loading runs no code from the file: only classes of this package, and functions and classes that the
program itself has registered under a name, are put together. A saved model predicts the same
numbers, bit for bit, on the same machine and versions.
"""

import dataclasses
import enum
import importlib
import json
import pkgutil
import zipfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .data.arrays import read_member, require_small
from .data.files import reading, writing
from .duals import Series
from .errors import WidelimitError
from .inference.blocked import StoredFactor
from .inference.iterative import Iterative
from .inference.network_kernels import Engine
from .inference.solve import Factor
from .registry import functions, registered

FORMAT, VERSION = "widelimit model", 1
_MANIFEST = "manifest.json"
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

_UNFIT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What goes wrong when objects are put together from parts that do not belong together."""


class ModelFileError(WidelimitError):
    """A model that cannot be saved, or a file that is not a model this version can load."""


def save(model: Any, path: Path | str) -> None:
    """Write a fitted model (or a network); the file appears only once it is complete."""
    arrays: list[np.ndarray] = []
    tree = _encoded(model, arrays, "model")
    manifest = {"format": FORMAT, "version": VERSION, "library": _library(), "model": tree}
    with writing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for index, array in enumerate(arrays):
            with archive.open(_member(index), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        # Last: a file without it was not finished.
        archive.writestr(_MANIFEST, json.dumps(manifest))


def load(path: Path | str) -> Any:
    """Read a model that `save` wrote; no code of the file is run."""
    path = Path(path)
    with reading(path):
        with path.open("rb") as file:
            start = file.read(4)
        if start != b"PK\x03\x04":
            raise _not_a_model(path, "it is another type of file" if start else "it is empty")
        with zipfile.ZipFile(path) as archive:
            if _MANIFEST not in archive.namelist():
                raise _not_a_model(path, "it is another zip archive")
            require_small(archive, path)
            manifest = _manifest(path, archive.read(_MANIFEST))
            try:
                return _decoded(manifest["model"], _Arrays(archive, path))
            except _UNFIT as error:
                if isinstance(error, WidelimitError):
                    raise
                raise _not_a_model(path, f"its parts do not fit: {error!r}") from error


def _library() -> str:
    return version("widelimit")


def _member(index: int) -> str:
    return f"arrays/{index}.npy"


def _not_a_model(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        "A model file is one that widelimit.save wrote, complete and unchanged.",
        got=f"'{path}': {why}",
        remedy="save the model again, or check the path",
    )


def _manifest(path: Path, text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_a_model(path, f"its manifest is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _not_a_model(path, "its manifest is not that of a model")
    if manifest.get("version") != VERSION:
        raise ModelFileError(
            f"This version of widelimit ({_library()}) reads model files of version {VERSION}.",
            got=f"'{path}' of version {manifest.get('version')!r}, "
            f"written by widelimit {manifest.get('library')}",
            remedy="load it with that version of widelimit, or fit the model again",
        )
    return manifest


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


def _estimators() -> dict[str, type]:
    """scikit-learn estimators, known only where scikit-learn is installed and used."""
    from .sklearn import estimators, inputs

    own = (estimators.InfiniteNetworkRegressor, estimators.InfiniteNetworkClassifier, inputs.Scaler)
    return {f"estimators.{cls.__name__}": cls for cls in own}


def _fields(cls: type) -> list[str]:
    """What describes an instance: the fields, or for a series dual what it was built from."""
    if cls is Series:
        return ["function", "max_variance", "tolerance"]
    if issubclass(cls, tuple):
        return list(cls._fields)  # pyright: ignore[reportAttributeAccessIssue]
    return [field.name for field in dataclasses.fields(cls)]


def _class_named(name: str) -> type:
    if name.startswith("estimators."):
        found = _estimators().get(name)
    else:
        found = _classes().get(name) or registered().get(name)
    if not isinstance(found, type):
        raise ModelFileError(
            "A model file names classes of this package, or registered ones.",
            got=f"the class {name!r}",
            remedy="register your own class under this name before loading, or update widelimit",
        )
    return found


def _name_of(thing: Any, known: dict[str, Any]) -> str | None:
    return next((name for name, other in known.items() if other is thing), None)


# --- to the tree ---------------------------------------------------------------------------------


def _encoded(value: Any, arrays: list[np.ndarray], place: str) -> Any:
    """The node of a value; `place` names it in errors."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return {"float": value.hex()}
    if isinstance(value, enum.Enum):
        return {"enum": [_known_class(type(value), place), value.name]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _encoded_array(value, arrays)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": np.dtype(value).str}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        items = [_encoded(v, arrays, f"{place}[{i}]") for i, v in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, dict):
        pairs = [
            [_encoded(k, arrays, place), _encoded(v, arrays, f"{place}[{k!r}]")]
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
            "A saved model is one file, with all it needs.",
            got=f"{place} is on disk elsewhere",
            remedy="save a model with solver=Cholesky() or Nystrom(...), or fit again from the "
            "store, which has the kernel",
        )
    room = type(value).__module__.startswith("widelimit.sklearn.")
    own = room or isinstance(value, eqx.Module) or type(value) in _classes().values()
    if callable(value) and not own:
        return {"function": _known_function(value, place)}
    if room:
        name = _name_of(type(value), _estimators())
        names = list(vars(value))
    else:
        name, names = _known_class(type(value), place), _fields(type(value))
    fields = {n: _encoded(getattr(value, n), arrays, f"{place}.{n}") for n in names}
    return {"class": name, "fields": fields}


def _encoded_array(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _encoded_array(np.asarray(jax.random.key_data(value)), arrays)
        return {"key": [data, str(jax.random.key_impl(value))]}
    array = np.asarray(value)
    if array.dtype == object:  # names of features, labels
        array = array.astype(str)
    arrays.append(array)
    return {"array": len(arrays) - 1}


def _encoded_factor(factor: Factor, arrays: list[np.ndarray]) -> Any:
    """Only the triangle that means something, row by row."""
    packed = factor.storage[np.tril_indices(len(factor))]
    fields = {name: _encoded(getattr(factor, name), arrays, name) for name in _FACTOR_NUMBERS}
    return {"class": "inference.Factor", "fields": fields, "lower": _encoded_array(packed, arrays)}


_FACTOR_NUMBERS = ("jitter", "scale", "unit")


def _known_class(cls: type, place: str) -> str:
    name = _name_of(cls, {**_classes(), **registered()})
    if name is None:
        raise ModelFileError(
            "A saved model is made of classes of this package, or of registered ones.",
            got=f"{place} is a {cls.__module__}.{cls.__qualname__}",
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


class _Arrays:
    """The arrays of an open archive."""

    def __init__(self, archive: zipfile.ZipFile, path: Path):
        self.archive, self.path = archive, path

    def __getitem__(self, index: int) -> np.ndarray:
        return read_member(self.archive, self.archive.getinfo(_member(index)), self.path)


def _decoded(node: Any, arrays: _Arrays) -> Any:
    if node is None or isinstance(node, bool | int | str):
        return node
    if "class" in node:
        return _decoded_class(node, arrays)
    ((kind, content),) = node.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "array":
        return arrays[content]
    if kind == "list":
        return [_decoded(item, arrays) for item in content]
    if kind == "tuple":
        return tuple(_decoded(item, arrays) for item in content)
    if kind == "dict":
        return {_decoded(k, arrays): _decoded(v, arrays) for k, v in content}
    if kind == "enum":
        return _class_named(content[0])[content[1]]  # pyright: ignore[reportIndexIssue]
    if kind == "dtype":
        return np.dtype(content)
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(_decoded(content[0], arrays)), impl=content[1])
    if kind == "function":
        return _function_named(content)
    raise ValueError(f"an unknown kind of node, {kind!r}")


def _function_named(name: str) -> Any:
    known = {**functions(), **registered()}
    if name not in known:
        raise ModelFileError(
            "A model with functions of its own is loaded after these were registered.",
            got=f"the function {name!r}",
            remedy=f"call register({name!r}, function) before load",
        )
    return known[name]


def _decoded_class(node: dict[str, Any], arrays: _Arrays) -> Any:
    """Put an object together from its fields, which were checked when it was first made."""
    cls = _class_named(node["class"])
    fields = {name: _decoded(value, arrays) for name, value in node["fields"].items()}
    if cls is Factor:
        packed = _decoded(node["lower"], arrays)
        rows = int((np.sqrt(8 * len(packed) + 1) - 1) / 2)
        storage = np.zeros((rows, rows), order="F")
        storage[np.tril_indices(rows)] = packed
        storage.flags.writeable = False
        return Factor(storage, **fields)
    if cls is Series:
        return Series(**fields)
    if hasattr(cls, "__sklearn_tags__"):
        made = object.__new__(cls)
        vars(made).update(fields)
        return made
    if set(fields) != set(_fields(cls)):
        raise ValueError(f"{cls.__name__} has other fields than {sorted(fields)}")
    if issubclass(cls, tuple):
        return cls(**fields)
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made
