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
from .pictures import load_image_folder_split
from .places import locate

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FORMS = (
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    "cifar10.npz",
    "cifar10/train",
    "./data_batch_1.bin",
    "./train/airplane",
)
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
BATCH = re.compile(r"(data_batch_[1-5]|test_batch)\.bin")
RECORD = 1 + 3 * 32 * 32  # one byte of label, then red, green and blue planes

Batch = tuple[np.ndarray, np.ndarray]


def load_cifar10(directory: Path | str | None = None, *, download: bool = False) -> Dataset:
    """CIFAR-10 as `uint8` images `(N, 32, 32, 3)`, from whichever form is found.

    Reads the official binary batches (a folder or the archive itself), `cifar10.npz`
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
    batches = []
    for name in BATCHES:
        if name not in members:
            raise DataError(
                f"'{path}' has no {name}.",
                got=f"{', '.join(sorted(members)) or 'none'} of its six batches",
                remedy=f"unpack or download {CIFAR10.name} again; python batches must be converted",
            )
        batches.append(_batch(members[name], path / name))
        if len(batches[-1][1]) != len(batches[0][1]):
            raise damaged(path / name, "the six batches of CIFAR-10 are equally long")
    return Dataset(*_joined(batches[:5]), *_joined(batches[5:]), CIFAR10_CLASSES)


def _batch(content: bytes, path: Path) -> Batch:
    if not content or len(content) % RECORD:
        raise damaged(path, f"{len(content)} bytes are no whole number of {RECORD}-byte records")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise DataError(
            f"'{path}' is no batch of CIFAR-10.",
            got=f"the label {labels.max()}, where they are 0 to 9",
            remedy=f"use the official files ({CIFAR10.url})",
        )
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _joined(batches: Iterable[Batch]) -> Batch:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)
