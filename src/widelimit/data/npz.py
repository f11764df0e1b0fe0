"""Datasets in `.npz` files."""

from pathlib import Path

import numpy as np

from .arrays import read_npz
from .datasets import Dataset, Labelled
from .errors import DataError
from .labels import class_names as names_of
from .labels import class_numbers


def load_npz(path: Path | str, *, x: str = "x", y: str = "y") -> Labelled:
    """Inputs and labels from arrays called `x` and `y` (other names as given).

    Whole numbers and texts in `y` are class labels; floating-point numbers are the targets of a
    regression. Optional arrays: `mask`, boolean like `x` without its last axis, and `class_names`.
    With `class_names`, whole numbers in `y` are their indices.
    """
    path = Path(path)
    arrays = read_npz(path, x, y)
    _check(path, arrays[x], arrays[y], arrays.get("mask"))
    numbers, names = _labels(path, arrays[y], arrays.get("class_names"))
    return Labelled(arrays[x], numbers, names, arrays.get("mask"))


def load_npz_split(path: Path | str) -> Dataset:
    """A dataset from `x_train`, `y_train`, `x_test`, `y_test`.

    Optional arrays: `class_names`, `mask_train` and `mask_test`. `y` as in `load_npz`.
    """
    path = Path(path)
    arrays = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    for part in ("train", "test"):
        _check(path, arrays[f"x_{part}"], arrays[f"y_{part}"], arrays.get(f"mask_{part}"))
    x_train, x_test, cut = arrays["x_train"], arrays["x_test"], len(arrays["y_train"])
    if x_train.shape[-1] != x_test.shape[-1] or x_train.ndim != x_test.ndim:
        raise _wrong(path, f"x_train {x_train.shape} and x_test {x_test.shape}")
    # Both parts are numbered at once, so that they share their names.
    y, names = _labels(
        path, np.concatenate([arrays["y_train"], arrays["y_test"]]), arrays.get("class_names")
    )
    masks = arrays.get("mask_train"), arrays.get("mask_test")
    return Dataset(x_train, y[:cut], x_test, y[cut:], names, *masks)


def check_inputs(path: Path, x: np.ndarray, mask: np.ndarray | None) -> None:
    """Raise unless inputs are finite numbers, and a mask is one of their positions."""
    if x.ndim < 2 or not x.size:
        raise _wrong(path, f"inputs {x.shape}")
    if x.dtype.kind not in "biuf" or not np.isfinite(x).all():
        raise _wrong(path, f"inputs of dtype {x.dtype} that are not all finite numbers")
    if mask is not None and (mask.shape != x.shape[:-1] or mask.ndim < 2 or mask.dtype != bool):
        raise _wrong(path, f"a {mask.dtype} mask {mask.shape} for inputs {x.shape}")
    if mask is not None and (gone := ~mask.reshape(len(mask), -1).any(axis=1)).any():
        raise DataError(
            f"Example {int(gone.argmax())} of '{path}' has no real position.",
            got=f"{int(gone.sum())} of {len(mask)} examples whose mask is False everywhere",
            remedy="leave these examples out",
        )


def _check(path: Path, x: np.ndarray, y: np.ndarray, mask: np.ndarray | None) -> None:
    check_inputs(path, x, mask)
    if y.shape != (len(x),):
        raise _wrong(path, f"inputs {x.shape} and labels {y.shape}")
    if y.dtype.kind not in "biufSU":
        raise _wrong(path, f"labels of dtype {y.dtype}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise _wrong(path, "targets that are not all finite")


def _labels(
    path: Path, y: np.ndarray, class_names: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers and names; real targets have no names."""
    if y.dtype.kind == "f":
        return y.astype(np.float64), ()
    if class_names is None or y.dtype.kind not in "iu":
        values, numbers = np.unique(y, return_inverse=True)  # texts of the different ones alone
        texts = values.astype(str).tolist()
        names = names_of(texts) if class_names is None else _names(path, class_names)
        return class_numbers(texts, names)[numbers], names
    names = _names(path, class_names)
    if y.min() < 0 or y.max() >= len(names):
        raise _wrong(path, f"labels {y.min()}..{y.max()} for {len(names)} class names")
    return y.astype(np.int64), names


def _names(path: Path, class_names: np.ndarray) -> tuple[str, ...]:
    names = tuple(class_names.astype(str).ravel().tolist())
    if class_names.ndim != 1 or len(set(names)) < len(names):
        raise _wrong(path, f"class names {class_names.shape} that are not a list of different ones")
    return names


def _wrong(path: Path, got: str) -> DataError:
    return DataError(
        f"The arrays of '{path}' are no examples with their labels.",
        got=got,
        remedy="save inputs as finite numbers (N, ..., channels), labels (N,) as classes or finite "
        "numbers, masks as booleans (N, positions...)",
    )
