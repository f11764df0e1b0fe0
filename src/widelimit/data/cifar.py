"""CIFAR-10: 60,000 photographs of 32×32 pixels in ten classes (Krizhevsky, 2009)."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from .datasets import Dataset
from .download import CIFAR10
from .errors import DataError
from .files import damaged, read_members
from .npz import load_npz_split
from .places import locate

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FORMS = ("cifar-10-batches-bin", CIFAR10.name, "cifar10.npz", "./data_batch_1.bin")
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
BATCH = re.compile(r"(data_batch_[1-5]|test_batch)\.bin")
RECORD = 1 + 3 * 32 * 32  # one byte of label, then red, green and blue planes


def load_cifar10(directory: Path | str | None = None, *, download: bool = False) -> Dataset:
    """CIFAR-10 as `uint8` images `(N, 32, 32, 3)`, from whichever form is found.

    Reads the official binary batches (a folder or the archive itself), and `cifar10.npz` with
    `x_train`, `y_train`, `x_test`, `y_test`. `directory` is the folder that holds one of them, or
    the thing itself; without it the environment variable `WIDELIMIT_DATA` and then the cache are
    searched.
    """
    path = locate("CIFAR-10", FORMS, directory, source=CIFAR10, download=download)
    if path.suffix == ".npz":
        return replace(load_npz_split(path), class_names=CIFAR10_CLASSES)
    members = read_members(path, BATCH)
    for name in BATCHES:
        if name not in members:
            raise DataError(
                f"'{path}' has no {name}.",
                got=f"{', '.join(sorted(members)) or 'none'} of its six batches",
                remedy=f"unpack or download {CIFAR10.name} again; python batches must be converted",
            )
        size = len(members[name])
        if not size or size % RECORD or size != len(members[BATCHES[0]]):
            raise damaged(
                path / name, f"{size} bytes, where six batches have one whole number of records"
            )
    records = np.frombuffer(b"".join(members[name] for name in BATCHES), np.uint8)
    records = records.reshape(-1, RECORD)
    y = records[:, 0].astype(np.int64)
    if y.max() > 9:
        raise DataError(
            f"'{path}' is no batch of CIFAR-10.",
            got=f"the label {y.max()}, where they are 0 to 9",
            remedy=f"use the official files ({CIFAR10.url})",
        )
    x = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    cut = len(x) // 6 * 5
    return Dataset(x[:cut], y[:cut], x[cut:], y[cut:], CIFAR10_CLASSES)
