"""Unpickle plain data and nothing else."""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError
from .files import damaged

NUMBERS = "biuf"  # kinds of arrays: booleans, integers, floating-point numbers


class _Forbidden(pickle.UnpicklingError):
    """The pickle names something that is no plain data."""


class _DType:
    """Stands for `numpy.dtype`: its code and byte order, and none of its inner workings."""

    def __init__(self, code: Any, *_: Any):
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])

    def make(self) -> np.dtype:
        dtype = np.dtype(self.order + self.code)
        if dtype.kind not in NUMBERS:
            raise _Forbidden(f"an array of {dtype}")
        return dtype


class _Array:
    """Stands for an array while it is rebuilt from shape, dtype and bytes."""

    def __init__(self, *_: Any):
        self.values = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, columns_first, content = state
        flat = np.frombuffer(content, dtype.make())
        self.values = flat.reshape(shape, order="F" if columns_first else "C")


def _text(value: bytes | str) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


def _to_bytes(text: str, _encoding: str) -> bytes:
    """What Python 3 writes into old pickles for bytes."""
    return text.encode("latin-1")


# A pickle names functions to call. The few that stand in array pickles get harmless namesakes.
NAMESAKES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "numpy.ndarray",  # only passed along, never called
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _to_bytes,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return NAMESAKES[module, name]
        except KeyError:
            raise _Forbidden(f"it wants to run {module}.{name}") from None


def unpickle_plain(content: bytes, path: Path) -> Any:
    """Data from a pickle made of arrays of numbers, texts, bytes, numbers, lists, dictionaries.

    A pickle that names anything else could run any program, and is refused. Texts of Python 2
    come back as bytes. `path` is for the error.
    """
    try:
        _check_instructions(content)
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        if _count(value, {}) > len(content):
            raise _Forbidden("lists inside lists, more items than it has bytes")
        return _arrays(value)
    except _Forbidden as error:
        raise DataError(
            "A pickle may hold arrays of numbers, texts, numbers, lists and dictionaries only.",
            got=f"'{path}': {error}",
            remedy="do not trust this file; get the official one",
        ) from error
    except Exception as error:  # a damaged pickle fails in any of its many instructions
        raise damaged(path, str(error) or type(error).__name__) from error


def _check_instructions(content: bytes) -> None:
    """Read all instructions without obeying: lengths beyond the end, and numbers of memory cells.

    The unpickler takes memory for what an instruction says before it looks whether it is there.
    """
    for code, argument, _ in pickletools.genops(content):
        if "PUT" in code.name and argument is not None and int(argument) > len(content):
            raise _Forbidden(f"memory cell {argument}")


def _count(value: Any, known: dict[int, int]) -> int:
    """How many items there are, those of lists that stand in several places counted each time.

    A pickle made in the usual way has at least a byte for each of them.
    """
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = 1  # while it is counted: a list may hold itself
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(item, known) for item in inner)
    return known[id(value)]


def _arrays(value: Any) -> Any:
    """The same value with real arrays in place of their stand-ins."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_arrays, value))
    return value
