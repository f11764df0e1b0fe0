"""Datasets in `.npz` files."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .arrays import read_npz
from .datasets import Dataset, Labelled
from .errors import DataError
from .labels import class_names, class_numbers


class Arrays(NamedTuple):
    """Examples of a file: labels are texts, or floating-point numbers for a regression."""

    x: np.ndarray
    y: np.ndarray | None
    mask: np.ndarray | None
    class_names: tuple[str, ...] | None


def load_npz(path: Path | str, *, x: str = "x", y: str = "y") -> Labelled:
    """Inputs and labels from arrays called `x` and `y` (other names as given).

    Whole numbers and texts in `y` are class labels; floating-point numbers are the targets of a
    regression. Optional arrays: `mask`, boolean like `x` without its last axis, and `class_names`.
    With `class_names`, whole numbers in `y` are their indices.
    """
    path = Path(path)
    return _labelled([checked_arrays(path, read_npz(path, x, y), x, y, "mask")])[0]


def load_npz_split(path: Path | str) -> Dataset:
    """A dataset from `x_train`, `y_train`, `x_test`, `y_test`.

    Optional arrays: `class_names`, `mask_train` and `mask_test`. `y` as in `load_npz`.
    """
    path = Path(path)
    held = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    parts = [checked_arrays(path, held, f"x_{p}", f"y_{p}", f"mask_{p}") for p in ("train", "test")]
    shapes = [part.x.shape for part in parts]
    if shapes[0][-1] != shapes[1][-1] or len(shapes[0]) != len(shapes[1]):
        raise _wrong(path, f"x_train {shapes[0]} and x_test {shapes[1]}")
    return Dataset.join(*_labelled(parts))


def _labelled(parts: Sequence[Arrays]) -> list[Labelled]:
    """Parts whose classes are numbered alike; real targets have no classes."""
    targets = [part.y for part in parts if part.y is not None]
    names = ()
    if any(y.dtype.kind != "f" for y in targets):
        texts = [[str(label) for label in y] for y in targets]
        names = parts[0].class_names or class_names(chain.from_iterable(texts))
        targets = [class_numbers(labels, names) for labels in texts]
    return [Labelled(part.x, y, names, part.mask) for part, y in zip(parts, targets, strict=True)]


def checked_arrays(
    path: Path, held: dict[str, np.ndarray], x: str = "x", y: str = "y", mask: str = "mask"
) -> Arrays:
    """What a file holds under these names, if inputs are finite numbers and all fit each other."""
    inputs, labels, real = held[x], held.get(y), held.get(mask)
    if inputs.ndim < 2 or not inputs.size:
        raise _wrong(path, f"inputs {inputs.shape}")
    if inputs.dtype.kind not in "biuf" or not np.isfinite(inputs).all():
        raise _wrong(path, f"inputs of dtype {inputs.dtype} that are not all finite numbers")
    if real is not None:
        if real.shape != inputs.shape[:-1] or real.ndim < 2 or real.dtype != bool:
            raise _wrong(path, f"a {real.dtype} mask {real.shape} for inputs {inputs.shape}")
        if (gone := ~real.reshape(len(real), -1).any(axis=1)).any():
            raise DataError(
                f"Example {int(gone.argmax())} of '{path}' has no real position.",
                got=f"{int(gone.sum())} of {len(real)} examples whose mask is False everywhere",
                remedy="leave these examples out",
            )
    names = None
    if (given := held.get("class_names")) is not None:
        names = tuple(given.astype(str).ravel().tolist())
        if given.ndim != 1 or len(set(names)) < len(names):
            raise _wrong(path, f"class names {given.shape} that are no list of different ones")
    if labels is None:
        return Arrays(inputs, None, real, names)
    if labels.shape != (len(inputs),):
        raise _wrong(path, f"inputs {inputs.shape} and labels {labels.shape}")
    if labels.dtype.kind not in "biufSU":
        raise _wrong(path, f"labels of dtype {labels.dtype}")
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise _wrong(path, "targets that are not all finite")
        return Arrays(inputs, labels.astype(np.float64), real, names)
    if names is not None and labels.dtype.kind in "iu":
        if labels.min() < 0 or labels.max() >= len(names):
            raise _wrong(path, f"labels {labels.min()}..{labels.max()} for {len(names)} names")
        return Arrays(inputs, np.array(names, dtype=object)[labels], real, names)
    values, rows = np.unique(labels, return_inverse=True)  # texts of the different ones alone
    return Arrays(inputs, values.astype(str).astype(object)[rows], real, names)


def _wrong(path: Path, got: str) -> DataError:
    return DataError(
        f"The arrays of '{path}' are no examples with their labels.",
        got=got,
        remedy="save inputs as finite numbers (N, ..., channels), labels (N,) as classes or finite "
        "numbers, masks as booleans (N, positions...)",
    )
