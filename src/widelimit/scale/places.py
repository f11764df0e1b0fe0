"""Where stores are: folders, zip files, addresses of object stores, and Zarr's own stores."""

import json
import os
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import MissingExtraError, WidelimitError
from .errors import StoreError

try:
    import zarr
    import zarr.errors
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, LocalStore, ZipStore
except ImportError as missing:
    raise MissingExtraError("zarr", "scale") from missing

Place = str | os.PathLike[str] | Store
"""A folder, a .zip file, an address that fsspec knows (s3://…), or a Zarr store of any kind."""

_FULL = (ENOSPC, EDQUOT, EFBIG)
# Remains of a writer that was killed; younger ones may belong to one that lives.
_PARTIAL, _OLD = "*.partial", 3600.0
# What Zarr raises where the description of a group or an array is not one.
NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def located(place: Any) -> Any:
    """A place as it is known from anywhere: with its full path, or a Zarr store.

    Arrays are read, and workers write, long after the call, wherever their process is then.
    """
    if isinstance(place, Store):
        return place
    path = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise StoreError(
            "A store is a folder, a .zip file, an address such as s3://…, or a Zarr store.",
            got=f"{place!r}",
            remedy="give a path, e.g. store='kernels/train'",
        )
    if path.startswith(("file://", "local://")):
        path = url2pathname(urlsplit(path).path)
    return path if "://" in path else os.path.abspath(path)


def shared(place: Any) -> bool:
    """Whether several processes can write there at once."""
    if isinstance(place, Store):
        return not isinstance(place, ZipStore) and type(place).__name__ != "MemoryStore"
    return not place.endswith(".zip") and not place.startswith("memory://")


def opened(place: Any, *, read_only: bool) -> tuple[Any, Any]:
    """What Zarr opens at a place, and the group in it, or None where there is nothing."""
    path = None if isinstance(place, Store) or "://" in place else Path(place)
    if path is not None:
        zipped = path.suffix == ".zip"
        if path.exists() and path.is_dir() == zipped:
            kind = "folder" if zipped else "file"
            raise StoreError(
                "A store is a folder, or a file that ends in .zip.",
                got=f"'{path}', which is a {kind}",
                remedy="give the path of a store, or one that does not exist yet",
            )
        if not path.exists():
            if read_only:
                return None, None
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not zipped and not read_only:
            _sweep(path)
    store = _zarr_store(place, read_only=read_only)
    try:
        # Not every store has a copy that only reads: who was given one that writes has it open.
        mode = "r" if store.read_only else "r+"
        return store, zarr.open_group(store, mode=mode)
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        if path is not None and path.is_dir() and next(path.iterdir(), None) is not None:
            raise StoreError(
                "A store is begun in a place of its own.",
                got=f"'{path}', a folder that holds other things",
                remedy="give another path",
            ) from None
        return store, None
    except NONSENSE as error:
        raise broken(place, f"{type(error).__name__}: {error}") from error


def _zarr_store(place: Any, *, read_only: bool) -> Any:
    """What Zarr opens for a place."""
    if isinstance(place, Store):
        if place.read_only and not read_only:
            raise StoreError(
                "A store is a place that can be read, and written while it is computed.",
                got=f"'{place}', a Zarr store that only reads",
                remedy="open it with read_only=False",
            )
        return place
    if place.endswith(".zip") and "://" not in place:
        return ZipStore(place, mode="r" if read_only else "a")
    if "://" not in place:
        return LocalStore(place, read_only=read_only)
    try:
        return FsspecStore.from_url(place, read_only=read_only)
    except (ImportError, ValueError) as error:
        raise StoreError(
            "The address of a store is one that fsspec knows, with the package it needs.",
            got=f"'{place}' ({error})",
            remedy="install that package (s3fs for s3://, gcsfs for gs://), or give a folder",
        ) from error


def _sweep(folder: Path) -> None:
    """Remove what writers left that were killed."""
    for path in folder.rglob(_PARTIAL):
        try:
            if time.time() - path.stat().st_mtime > _OLD:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue


@contextmanager
def alone(place: Any) -> Iterator[None]:
    """One process of this machine at a time begins or extends the store of a folder.

    Others that want the same kernel wait for its manifest, and find it. Where the system has no
    such locks, and in object stores, nobody waits.
    """
    if isinstance(place, Store) or "://" in place:
        yield
        return
    lock = None
    with suppress(ImportError, OSError):
        import fcntl

        # The folder around it: a file of its own would be left behind by calls that are refused.
        lock = os.open(next(p for p in Path(place).parents if p.exists()), os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def broken(place: Any, why: str) -> StoreError:
    """The error for a store whose description is not whole."""
    return StoreError(
        "The manifest of a store is complete and unchanged.",
        got=f"a damaged one at '{place}' ({why})",
        remedy="restore its zarr.json files from a copy, or remove the store and compute anew",
    )


@contextmanager
def understood(place: Any) -> Iterator[None]:
    """Turn what goes wrong at a place into an error that names it."""
    try:
        with warnings.catch_warnings():
            # A zip file keeps the old version of a file that is written again.
            warnings.filterwarnings("ignore", message="Duplicate name", category=UserWarning)
            yield
    except WidelimitError:
        raise
    except (json.JSONDecodeError, zipfile.BadZipFile) as error:
        raise broken(place, str(error)) from error
    except (zarr.errors.MetadataValidationError, zarr.errors.NodeTypeValidationError) as error:
        raise broken(place, str(error)) from error
    except OSError as error:
        full = error.errno in _FULL
        raise StoreError(
            "A store is a place that can be read, and written while it is computed.",
            got=f"'{place}' ({error.strerror or error}); what was whole is still there",
            remedy="free some space and make the same call again: it goes on"
            if full
            else "choose a folder on a disk that you may write to",
        ) from error
