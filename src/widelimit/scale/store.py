"""Kernels on disk: one Zarr group, tile by tile, of a symmetric kernel one half.

    kernels/
      zarr.json           the group; its attribute "widelimit" is the manifest
      nngp, ntk           arrays of the tiles, and nngp_error, ntk_error where heads are drawn
      order_rows_0 …      the order in which examples stand

The chunks of the arrays are the tiles. Each carries a CRC-32C and is written whole or not at all.
A tile counts as computed if its chunks are there and their checksums hold: there is no second
record that could say otherwise. What is not there reads as NaN, which no kernel holds.
"""

import errno
import json
import os
import time
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import MissingExtraError
from ..state import Kernels
from .errors import StoreError
from .manifest import FORMAT, VERSION, Manifest
from .matrix import StoredMatrix

try:
    import zarr
    import zarr.errors
    from zarr.abc.store import Store
    from zarr.codecs import Crc32cCodec, ZstdCodec
    from zarr.storage import LocalStore, ZipStore
except ImportError as missing:
    raise MissingExtraError("zarr", "scale") from missing

Place = str | os.PathLike[str] | Store
"""A folder, a .zip file, an address that fsspec knows (s3://…), or a Zarr store of any kind."""

NAMES = ("nngp", "ntk", "nngp_error", "ntk_error")
_ATTRIBUTE = "widelimit"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Remains of a writer that was killed; younger ones may belong to one that lives.
_PARTIAL, _OLD = "*.partial", 3600.0
_READERS = 4


class Survey(NamedTuple):
    """Which tiles of a store are whole, which are not there, and which are there but damaged."""

    whole: list[tuple[int, int]]
    missing: list[tuple[int, int]]
    damaged: list[tuple[int, int]]


class KernelStore:
    """A stored kernel: `store.nngp[rows, columns]`, `store.ntk`, `np.asarray(store.nngp)`.

    Made by `net.kernel(x, store=place)`; opened for reading by `KernelStore(place)`.
    """

    def __init__(self, place: Place, *, read_only: bool = True):
        """Open a store that is there; `read_only=False` allows tiles to be written."""
        self.place = place if isinstance(place, Store) else os.fspath(place)
        self.read_only = read_only
        with _understood(self):
            _, group = _opened(self.place, read_only=read_only)
            if group is None:
                raise StoreError(
                    "A store is read where there is one.",
                    got=f"nothing at '{self}'",
                    remedy="compute it: net.kernel(x, store=...)",
                )
            self.group, self.manifest = group, _manifest(group, self)
            self._arrays: dict[str, Any] = {name: group[name] for name in self.manifest.names}

    @classmethod
    def begin(cls, place: Place, manifest: Manifest) -> "KernelStore":
        """A new store without any tile; the manifest is written last."""
        store = object.__new__(cls)
        store.place = place if isinstance(place, Store) else os.fspath(place)
        with _understood(store):
            target, group = _opened(store.place, read_only=False)
            group = zarr.create_group(target) if group is None else group
            with warnings.catch_warnings():
                # Who was stopped while making an array left its folder without a description.
                warnings.filterwarnings("ignore", f"Object at (order_|{'|'.join(NAMES)})")
                strangers = [n for n in group if n not in NAMES and not n.startswith("order_")]
            if strangers or _ATTRIBUTE in group.attrs:
                raise StoreError(
                    "A store is begun in a place of its own.",
                    got=f"'{store}', which holds {', '.join(strangers) or 'a store'}",
                    remedy="give another path",
                )
            store._write_manifest(group, manifest)
        return cls(group.store, read_only=False)._known_as(store.place)

    def extend(self, manifest: Manifest) -> "KernelStore":
        """The store with more examples; tiles that are there stay as they are."""
        with _understood(self):
            self._write_manifest(self.group, manifest)
        return KernelStore(self.group.store, read_only=False)._known_as(self.place)

    def _known_as(self, place: Any) -> "KernelStore":
        self.place = place
        return self

    def __str__(self) -> str:
        return str(self.place)

    def __repr__(self) -> str:
        size = " × ".join(f"{n:,}" for n in self.shape[:2])
        return f"KernelStore('{self}', {', '.join(self.manifest.names)}, {size})"

    @staticmethod
    def exists(place: Place) -> bool:
        """Whether a store was started there; a folder without a manifest does not count."""
        name = place if isinstance(place, Store) else os.fspath(place)
        with _understood(name):
            _, group = _opened(name, read_only=True)
            return group is not None and _ATTRIBUTE in group.attrs

    # --- reading --------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its kernels."""
        return self.manifest.shape

    @property
    def kernels(self) -> Kernels:
        """All that is stored; arrays that are read when they are indexed."""
        return Kernels(*(getattr(self, name) for name in NAMES))

    @cached_property
    def nngp(self) -> StoredMatrix:
        """The NNGP kernel."""
        found = self._matrix("nngp")
        assert found is not None
        return found

    @cached_property
    def ntk(self) -> StoredMatrix | None:
        """The tangent kernel, where it was computed."""
        return self._matrix("ntk")

    @cached_property
    def nngp_error(self) -> StoredMatrix | None:
        """Standard errors of the NNGP kernel, where heads were drawn."""
        return self._matrix("nngp_error")

    @cached_property
    def ntk_error(self) -> StoredMatrix | None:
        """Standard errors of the tangent kernel, where heads were drawn."""
        return self._matrix("ntk_error")

    def _matrix(self, name: str) -> StoredMatrix | None:
        return StoredMatrix(self, name) if name in self.manifest.names else None

    def read(self, name: str, tile: tuple[int, int]) -> np.ndarray:
        """One stored tile of one kernel, at its full size; NaN where it is not there.

        Raises `ValueError` where the checksum does not hold.
        """
        return np.asarray(self._arrays[name].get_block_selection(tile))

    def survey(self) -> Survey:
        """Check every tile against its checksum: which are whole, missing, or damaged."""

        def look(tile: tuple[int, int]) -> int:
            rows, columns = self.counts(tile)
            found = 0
            for name in self.manifest.names:
                try:
                    part = self.read(name, tile)[:rows, :columns]
                except (ValueError, TypeError, IndexError, EOFError):
                    return 2
                found = max(found, int(np.isnan(part).any()))
            return found

        tiles = self.manifest.tiles
        with _understood(self), ThreadPoolExecutor(_READERS) as pool:
            states = list(pool.map(look, tiles))
        parts = ([t for t, s in zip(tiles, states, strict=True) if s == kind] for kind in range(3))
        return Survey(*parts)

    @cached_property
    def members(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Indices of the examples in every strip of rows and of columns."""
        sides = [side.members for side in self.manifest.sides]
        return sides[0], sides[-1]

    def counts(self, tile: tuple[int, int]) -> tuple[int, int]:
        """How many rows and columns of a tile are examples."""
        return len(self.members[0][tile[0]]), len(self.members[1][tile[1]])

    # --- writing --------------------------------------------------------------------------------

    def blank(self) -> Kernels:
        """An empty tile, to be filled."""
        height, manifest = self.manifest.tile, self.manifest
        shape = (height, height, *manifest.positions)
        return Kernels(
            *(np.zeros(shape, manifest.dtype) if n in manifest.names else None for n in NAMES)
        )

    def write(self, tile: tuple[int, int], kernels: Kernels) -> None:
        """Write a tile, at its full size."""
        with _understood(self):
            for name in self.manifest.names:
                self._arrays[name].set_block_selection(tile, getattr(kernels, name))

    def pack(self, path: str | os.PathLike[str]) -> "KernelStore":
        """A copy in one .zip file, which is read like the store itself."""
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        with _understood(path):
            target = ZipStore(part, mode="w")
            new = object.__new__(KernelStore)
            new.place = os.fspath(path)
            new._write_manifest(zarr.create_group(target), self.manifest)
            copy = KernelStore(target, read_only=False)
            for tile in self.manifest.tiles:
                for name in self.manifest.names:
                    copy._arrays[name].set_block_selection(tile, self.read(name, tile))
            target.close()
            part.replace(path)
        return KernelStore(path)

    def close(self) -> None:
        """Finish a .zip file; other stores need no closing."""
        if not isinstance(self.place, Store):
            self.group.store.close()

    def _write_manifest(self, group: Any, manifest: Manifest) -> None:
        """Arrays of the right size first, the manifest last: without it nothing counts."""
        sides = (manifest.rows, manifest.columns or manifest.rows)
        strips = [len(side.groups) * manifest.tile for side in sides]
        for name in manifest.names:
            shape = (*strips, *manifest.positions)
            if name in group and _ATTRIBUTE in group.attrs:
                group[name].resize(shape)
                continue
            group.create_array(
                name,
                shape=shape,
                chunks=(manifest.tile, manifest.tile, *manifest.positions),
                dtype=manifest.dtype,
                fill_value=np.nan,
                # Kernels of several readouts are mostly zeros; others are not worth packing.
                compressors=[ZstdCodec(level=1)] * bool(manifest.positions) + [Crc32cCodec()],
                config={"write_empty_chunks": True},
                overwrite=True,
            )
        for side_name, side in zip(("rows", "columns"), manifest.sides, strict=False):
            for index, segment in enumerate(side.segments):
                name = f"order_{side_name}_{index}"
                if name in group and _ATTRIBUTE in group.attrs:
                    continue
                group.create_array(
                    name,
                    data=segment.order.astype(np.int64),
                    chunks=(len(segment.order),),
                    compressors=Crc32cCodec(),
                    overwrite=True,
                )
        group.update_attributes({_ATTRIBUTE: manifest.as_json()})


# --- places --------------------------------------------------------------------------------------


def shared(place: Any) -> bool:
    """Whether several processes can write there at once."""
    if isinstance(place, Store):
        return not isinstance(place, ZipStore) and type(place).__name__ != "MemoryStore"
    return not str(place).endswith(".zip")


def _zarr_store(place: Any, *, read_only: bool) -> Any:
    """What Zarr opens for a place."""
    if isinstance(place, Store) or "://" in place:
        return place
    if place.endswith(".zip"):
        return ZipStore(place, mode="r" if read_only else "a")
    return LocalStore(place, read_only=read_only)


def _opened(place: Any, *, read_only: bool) -> tuple[Any, Any]:
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
        return store, zarr.open_group(store, mode="r" if read_only else "r+")
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        if path is not None and path.is_dir() and next(path.iterdir(), None) is not None:
            raise StoreError(
                "A store is begun in a place of its own.",
                got=f"'{path}', a folder that holds other things",
                remedy="give another path",
            ) from None
        return store, None


def _sweep(folder: Path) -> None:
    """Remove what killed writers left behind."""
    for path in folder.rglob(_PARTIAL):
        try:
            if time.time() - path.stat().st_mtime > _OLD:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue


def _manifest(group: Any, place: Any) -> Manifest:
    node = group.attrs.get(_ATTRIBUTE)
    if not isinstance(node, dict) or node.get("format") != FORMAT:
        raise StoreError(
            "A store has the manifest of a widelimit kernel.",
            got=f"'{place}', a Zarr group without one",
            remedy="give the path of a store that net.kernel(x, store=...) made",
        )
    if node.get("version") != VERSION:
        raise StoreError(
            f"This version of widelimit reads stores of version {VERSION}.",
            got=f"'{place}' of version {node.get('version')!r}, written by widelimit "
            f"{node.get('library')}",
            remedy="read it with that version, or remove it and compute anew",
        )
    try:
        orders = []
        for name in ("rows", "columns"):
            if node[name] is not None:
                arrays = [group[f"order_{name}_{index}"] for index in range(len(node[name]))]
                orders.append([np.asarray(array[:]) for array in arrays])
        return Manifest.from_json(node, orders)
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(place, f"{type(error).__name__}: {error}") from error


def _broken(place: Any, why: str) -> StoreError:
    return StoreError(
        "The manifest of a store is complete and unchanged.",
        got=f"a damaged one at '{place}' ({why})",
        remedy="restore zarr.json from a copy, or remove the store and compute anew",
    )


@contextmanager
def _understood(place: Any) -> Iterator[None]:
    """Turn what goes wrong at a place into an error that names it."""
    try:
        with warnings.catch_warnings():
            # A zip file keeps the old version of a file that is written again.
            warnings.filterwarnings("ignore", message="Duplicate name", category=UserWarning)
            yield
    except (json.JSONDecodeError, zipfile.BadZipFile) as error:
        raise _broken(place, str(error)) from error
    except (zarr.errors.MetadataValidationError, zarr.errors.NodeTypeValidationError) as error:
        raise _broken(place, str(error)) from error
    except OSError as error:
        full = error.errno in _FULL
        raise StoreError(
            "A store is a place that can be read, and written while it is computed.",
            got=f"'{place}' ({error.strerror or error}); what was whole is still there",
            remedy="free some space and make the same call again: it goes on"
            if full
            else "choose a folder on a disk that you may write to",
        ) from error
