"""CIFAR-10: 60,000 photographs of 32×32 pixels in ten classes (Krizhevsky, 2009)."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from .datasets import Dataset
from .download import CIFAR10
from .errors import DataError
from .files import damaged, read_members
from .npz import load_npz_split
from .pickles import unpickle_plain
from .pictures import load_image_folder_split
from .places import locate

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FORMS = (
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    "cifar-10-python.tar.gz",
    "cifar-10-binary.tar.gz",
    "cifar10.npz",
    "cifar10/train",
    "./data_batch_1",
    "./data_batch_1.bin",
    "./train/airplane",
)
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
BATCH = re.compile(r"(data_batch_[1-5]|test_batch)(\.bin)?")
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS  # binary form: one byte of label, then red, green and blue planes

Batch = tuple[np.ndarray, np.ndarray]


def load_cifar10(directory: Path | str | None = None, *, download: bool = False) -> Dataset:
    """CIFAR-10 as `uint8` images `(N, 32, 32, 3)`, from whichever form is found.

    Reads the official python or binary batches (a folder or the archive itself), `cifar10.npz`
    with `x_train`, `y_train`, `x_test`, `y_test`, and folders `train/<class>/`, `test/<class>/` of
    images. `directory` is the folder that holds one of them, or the thing itself; without it the
    environment variable `WIDELIMIT_DATA` and then the cache are searched.
    """
    path = locate("CIFAR-10", FORMS, directory, source=CIFAR10, download=download)
    if path.suffix == ".npz":
        return replace(load_npz_split(path), class_names=CIFAR10_CLASSES)
    if (path / "train").is_dir():
        return load_image_folder_split(path, size=(32, 32))
    return _from_batches(path)


def _from_batches(path: Path) -> Dataset:
    """The five training batches in order, then the test batch."""
    members = read_members(path, BATCH)
    binary = any(name.endswith(".bin") for name in members)
    read, suffix = (_binary_batch, ".bin") if binary else (_python_batch, "")
    batches = []
    for stem in (*TRAIN, "test_batch"):
        name = stem + suffix
        if name not in members:
            raise DataError(
                "CIFAR-10 has five training batches and a test batch.",
                got=f"no {name} in '{path}'",
                remedy=f"unpack or download {CIFAR10.name} again",
            )
        batches.append(read(members[name], path / name))
        if len(batches[-1][1]) != len(batches[0][1]):
            raise damaged(path / name, "the six batches of CIFAR-10 are equally long")
    return Dataset(*_joined(batches[:5]), *_joined(batches[5:]), CIFAR10_CLASSES)


def _python_batch(content: bytes, path: Path) -> Batch:
    batch = unpickle_plain(content, path)
    try:
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except (KeyError, TypeError, IndexError) as error:
        raise _no_batch(path, f"no entry {error}") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
        raise _no_batch(path, f"{pixels.dtype} pixels {pixels.shape}, {len(labels)} labels")
    return _batch(pixels, labels, path)


def _binary_batch(content: bytes, path: Path) -> Batch:
    if not content or len(content) % RECORD:
        raise damaged(path, f"{len(content)} bytes are no whole number of {RECORD}-byte records")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    return _batch(records[:, 1:], records[:, 0], path)


def _batch(pixels: np.ndarray, labels: np.ndarray, path: Path) -> Batch:
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() > 9:
        raise _no_batch(path, "labels outside 0..9")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _joined(batches: Iterable[Batch]) -> Batch:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _no_batch(path: Path, got: str) -> DataError:
    return DataError(
        "A CIFAR-10 batch holds one label 0..9 and 3,072 bytes of pixels per image.",
        got=f"'{path}': {got}",
        remedy=f"use the official files ({CIFAR10.url})",
    )
