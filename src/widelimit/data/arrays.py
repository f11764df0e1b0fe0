"""Named arrays in `.npz` files: read without pickle, written whole or not at all."""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError
from .files import damaged, reading, require_file, writing
from .limits import require

_NO_ARRAY = (
    ValueError,
    TypeError,
    SyntaxError,
    LookupError,
    ArithmeticError,
    RecursionError,  # brackets inside brackets in a header
    MemoryError,
)


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path | str, *needed: str) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file, which must contain those `needed`."""
    path = Path(path)
    require_file(path)
    with reading(path), path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise damaged(path, "not a complete .npz file")
        with zipfile.ZipFile(file) as archive:
            require_small(archive, path)
            entries = {info.filename: info for info in archive.infolist()}
            arrays = {
                name.removesuffix(".npy"): read_member(archive, info, path)
                for name, info in entries.items()
            }
    require_arrays(path, arrays, *needed)
    return arrays


def require_arrays(path: Path, arrays: Mapping[str, np.ndarray], *needed: str) -> None:
    """Raise where an array is missing."""
    if missing := [name for name in needed if name not in arrays]:
        raise DataError(
            f"'{path.name}' lacks the arrays {', '.join(missing)}.",
            got=", ".join(arrays) or "none",
            remedy=f"write it with numpy.savez('{path.name}', {needed[0]}=..., ...)",
        )


def require_small(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive that unpacks to more than is allowed, or in an unusual way."""
    total = sum(info.file_size for info in archive.infolist())
    require("bytes", total, f"the members of '{path}'")
    usual = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if odd := [info.filename for info in archive.infolist() if info.compress_type not in usual]:
        raise damaged(path, f"the member {odd[0]!r} is packed in an unusual way")


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """One array of an archive: plain numbers or text, exactly as long as it says."""
    try:
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the array format")
            shape, _, dtype = _HEADERS[version](member)
            if dtype.hasobject:
                raise ValueError("Python objects")
            if not dtype.itemsize and math.prod(shape):
                raise ValueError("texts without characters")
            require("rows", shape[0] if shape else 1, f"{info.filename!r} in '{path}'")
            length = math.prod(shape) * dtype.itemsize
            if length + member.tell() != info.file_size:
                raise ValueError(f"{shape} of {dtype} in {info.file_size:,} bytes")
            member.seek(0)
            array = np.lib.format.read_array(member, allow_pickle=False)
            member.read()  # to the end, so that the checksum is compared
            return array
    except DataError:
        raise
    except _NO_ARRAY as error:
        raise DataError(
            f"{info.filename!r} in '{path}' is no plain array of numbers or text.",
            got=str(error)[:200] or type(error).__name__,
            remedy="write it with numpy.savez and arrays whose dtype is not object",
        ) from error


def save_npz(path: Path | str, **arrays: Any) -> None:
    """Write a compressed `.npz` file, whole or not at all."""
    with writing(path) as file:
        np.savez_compressed(file, **arrays)
