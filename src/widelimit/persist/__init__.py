"""Save and load fitted models: `save(model, "model.wl")`, `load("model.wl")`.

The file is a zip archive that any program can read:

- `manifest.json`: `{"format": "widelimit model", "version": 2, "library": "0.1.0", "model": tree}`;
- `arrays/0.npy`, `arrays/1.npy`, …: NumPy arrays, each without Python objects.

A node of the tree is null, a boolean, an integer, a string, or an object with one key that says
what it is: `float` (hexadecimal, exact), `list`, `tuple`, `dict` (pairs), `array` (number of a
file), `key` (of random numbers: array and generator), `enum` (class and member), `dtype`,
`scalar` (the type of its numbers),
`function` (a registered name), `slice`, `objects` (shape and items of an array of names). An
instance has its `class` and `fields`; of a Cholesky factor the triangle, packed row by row.

Loading runs no code from the file: only classes of this package, a short list of scikit-learn's,
and functions and classes that the program itself has registered under a name, are put together,
and what they hold is checked. What cannot be loaded is not saved. A saved model predicts the same
numbers, bit for bit, on the same machine and versions.
"""

import json
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..data.arrays import read_member, require_small
from ..data.files import reading, require_file, writing
from ..errors import WidelimitError
from .tree import ModelFileError, decoded, encoded

__all__ = ["ModelFileError", "load", "save"]

FORMAT, VERSION = "widelimit model", 2
_MANIFEST = "manifest.json"

_UNFIT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What goes wrong when objects are put together from parts that do not belong together."""


def save(model: Any, path: Path | str) -> None:
    """Write a fitted model, a Pipeline or a network; the file appears only once it is complete."""
    arrays: list[np.ndarray] = []
    tree = encoded(model, arrays, "model")
    manifest = {"format": FORMAT, "version": VERSION, "library": version("widelimit")}
    if '"class": "sklearn.' in json.dumps(tree):
        manifest["scikit-learn"] = version("scikit-learn")
    with writing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for index, array in enumerate(arrays):
            with archive.open(f"arrays/{index}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        # Last: a file without it was not finished.
        archive.writestr(_MANIFEST, json.dumps({**manifest, "model": tree}))


def load(path: Path | str) -> Any:
    """Read a model that `save` wrote; no code of the file is run."""
    path = Path(path)
    require_file(path)
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
            infos = [info for info in archive.infolist() if info.filename != _MANIFEST]
            arrays = {info.filename: read_member(archive, info, path) for info in infos}
    try:
        return decoded(manifest["model"], arrays)
    except ModelFileError:
        raise
    except _UNFIT as error:
        said = error.rule if isinstance(error, WidelimitError) else repr(error)
        raise _not_a_model(path, f"its parts do not fit: {said[:300]}") from error


def _not_a_model(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"'{path}' is no model that widelimit.save wrote, complete and unchanged.",
        got=why,
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
            f"'{path}' is a model file of version {manifest.get('version')!r}.",
            got=f"written by widelimit {manifest.get('library')}, where this one "
            f"({version('widelimit')}) reads version {VERSION}",
            remedy="load it with that version of widelimit, or fit the model again",
        )
    made = manifest.get("scikit-learn")
    if made is not None and _minor(made) != _minor(version("scikit-learn")):
        raise ModelFileError(
            f"'{path}' holds a Pipeline of scikit-learn {made}.",
            got=f"scikit-learn {version('scikit-learn')}, which may have other fields",
            remedy="load it with that version of scikit-learn, or fit the model again",
        )
    return manifest


def _minor(version: Any) -> list[str]:
    return str(version).split(".")[:2]
