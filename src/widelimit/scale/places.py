"""Where stores are: folders, addresses of object stores, and Zarr's own stores, as named bytes."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import MissingExtraError
from .description import StoreError

try:
    from zarr.abc.store import RangeByteRequest, Store
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync
    from zarr.storage import FsspecStore, LocalStore
except ImportError as missing:
    raise MissingExtraError("zarr", "scale") from missing

Place = str | os.PathLike[str] | Store
"""A folder, an address that fsspec knows (s3://…), or a Zarr store of any kind."""

_FULL = (ENOSPC, EDQUOT, EFBIG)
# Remains of a writer that was killed; younger ones may belong to one that lives.
_PARTIAL, _OLD = "*.partial", 3600.0


def located(place: Any) -> Any:
    """A place as it is known from anywhere: with its full path, or a Zarr store.

    Arrays are read, and workers write, long after the call, wherever their process is then.
    """
    if isinstance(place, Store):
        return place
    path = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise StoreError(
            f"{place!r} is no place for a store.",
            got=type(place).__name__,
            remedy="give a folder, e.g. 'kernels/train', an address such as s3://…, or a Zarr "
            "store",
        )
    if path.startswith(("file://", "local://")):
        path = url2pathname(urlsplit(path).path)
    return path if "://" in path else os.path.abspath(path)


def shared(place: Any) -> bool:
    """Whether several processes can write there at once."""
    if isinstance(place, Store):
        return type(place).__name__ not in ("MemoryStore", "ZipStore")
    return not place.startswith("memory://")


class Files:
    """The bytes of a store by their keys, whatever Zarr keeps them in.

    Nothing is opened as a Zarr group or array: descriptions are read as text and compared, so that
    none of theirs decides what is run or how much memory is taken.
    """

    def __init__(self, place: Any, *, read_only: bool):
        """`place` as `located` gives it; a folder is made when something is written."""
        self.place = place
        self.folder = None if isinstance(place, Store) or "://" in place else Path(place)
        with self._understood():
            if self.folder is not None and self.folder.exists():
                if not self.folder.is_dir():
                    raise StoreError(
                        f"'{place}' is a file, where a store is a folder.",
                        got="a file",
                        remedy="give the path of a store, or one that does not exist yet",
                    )
                if not read_only:
                    _sweep(self.folder)
            self.store = _zarr_store(place, read_only=read_only)

    def read(self, key: str, most: int) -> bytes | None:
        """At most `most + 1` bytes; None where there are none, and for what is no file."""
        with self._understood():
            if self.folder is not None:
                path = self.folder / key
                if not path.is_file():
                    return None  # a pipe would never end
                most = min(most, path.stat().st_size)  # as much memory is taken as is asked for
            wanted = RangeByteRequest(0, most + 1)
            found = sync(self.store.get(key, default_buffer_prototype(), wanted))
            return None if found is None else found.to_bytes()

    def write(self, key: str, content: bytes) -> None:
        """Whole or not at all."""
        with self._understood():
            sync(self.store.set(key, default_buffer_prototype().buffer.from_bytes(content)))

    def delete(self, key: str) -> None:
        """Nothing happens where there is none."""
        with self._understood():
            sync(self.store.delete(key))

    def keys(self, prefix: str = "") -> list[str]:
        """Those that begin with a folder's name."""

        async def collected() -> list[str]:
            return [key async for key in self.store.list_prefix(prefix)]

        with self._understood():
            there = self.folder is None or (self.folder / prefix).is_dir()
            return sync(collected()) if there else []

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn what a disk refuses into an error that names the place."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"'{self.place}' could not be read or written ({error.strerror or error}).",
                got=type(error).__name__,
                remedy="free some space and make the same call again: it goes on"
                if error.errno in _FULL
                else "choose a folder on a disk that you may write to",
            ) from error


def _zarr_store(place: Any, *, read_only: bool) -> Any:
    """What Zarr keeps bytes in at a place."""
    if isinstance(place, Store):
        if place.read_only and not read_only:
            raise StoreError(
                f"'{place}' is a Zarr store that only reads.",
                got="a store to be written",
                remedy="open it with read_only=False",
            )
        return place
    if "://" not in place:
        return LocalStore(place, read_only=read_only)
    try:
        return FsspecStore.from_url(place, read_only=read_only)
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"'{place}' is no address that fsspec knows, with the package it needs.",
            got=str(error),
            remedy="install that package (s3fs for s3://, gcsfs for gs://), or give a folder",
        ) from error


def _sweep(folder: Path) -> None:
    """Remove what writers left that were killed."""
    for path in folder.rglob(_PARTIAL):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _OLD:
                path.unlink(missing_ok=True)


@contextmanager
def alone(place: Any) -> Iterator[None]:
    """One process of this machine at a time begins or extends the store of a folder.

    Others that want the same kernel wait for its manifest, and find it. Where the system has no
    such locks, and in object stores, nobody waits.
    """
    lock = None
    with suppress(ImportError, OSError):
        import fcntl

        if isinstance(place, str) and "://" not in place:
            # The folder around it: a file of its own would be left by calls that are refused.
            lock = os.open(next(p for p in Path(place).parents if p.exists()), os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
