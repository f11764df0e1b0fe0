"""Named arrays in `.npz` files: read without pickle, written whole or not at all."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError
from .files import damaged, reading, writing


def read_npz(path: Path | str, *needed: str) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file, which must contain those `needed`."""
    path = Path(path)
    with reading(path), path.open("rb") as file:
        if path.stat().st_size and not zipfile.is_zipfile(file):
            raise damaged(path, "not a complete .npz file")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except ValueError as error:
            raise DataError(
                "An .npz file must hold plain arrays of numbers or text.",
                got=f"'{path}' ({error})",
                remedy="write it with numpy.savez and arrays whose dtype is not object",
            ) from error
    if missing := [name for name in needed if name not in arrays]:
        raise DataError(
            f"'{path.name}' must hold the arrays {', '.join(needed)}.",
            got=f"{', '.join(arrays) or 'none'} (no {', '.join(missing)})",
            remedy=f"write it with numpy.savez('{path.name}', {needed[0]}=..., ...)",
        )
    return arrays


def save_npz(path: Path | str, **arrays: Any) -> None:
    """Write a compressed `.npz` file, whole or not at all."""
    with writing(path) as file:
        np.savez_compressed(file, **arrays)
