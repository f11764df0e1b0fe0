"""Kernels on disk: one Zarr group, tile by tile, of a symmetric kernel one half.

    kernels/
      zarr.json           the group; its attribute "widelimit" is the manifest
      nngp, ntk           arrays of the tiles, and nngp_error, ntk_error where heads are drawn
      order_rows_0 …      the order in which examples stand

The chunks of the arrays are the tiles. Each carries a CRC-32C and is written whole or not at all.
The manifest has a digest. A tile counts as computed if its chunks are there and their checksums
hold: there is no second record that could say otherwise. What is not there reads as NaN, which no
kernel holds.
"""

import hashlib
import json
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import MissingExtraError
from ..state import Kernels
from .errors import StoreError
from .manifest import FORMAT, VERSION, Manifest
from .matrix import StoredMatrix
from .places import NONSENSE, Place, broken, located, opened, understood

try:
    import zarr
    from zarr.abc.store import Store
    from zarr.codecs import Crc32cCodec, ZstdCodec
    from zarr.storage import ZipStore
except ImportError as missing:
    raise MissingExtraError("zarr", "scale") from missing

NAMES = ("nngp", "ntk", "nngp_error", "ntk_error")
_ATTRIBUTE, _DIGEST = "widelimit", "digest"
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
        self.place = located(place)
        self.read_only = read_only
        with understood(self):
            _, group = opened(self.place, read_only=read_only)
            if group is None:
                raise StoreError(
                    "A store is read where there is one.",
                    got=f"nothing at '{self}'",
                    remedy="compute it: net.kernel(x, store=...)",
                )
            self.group, self.manifest = group, _manifest(group, self)
            self._arrays = _arrays(group, self.manifest, self)

    @classmethod
    def begin(cls, place: Place, manifest: Manifest) -> "KernelStore":
        """A new store without any tile; the manifest is written last."""
        store = object.__new__(cls)
        store.place = located(place)
        with understood(store):
            target, group = opened(store.place, read_only=False)
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
        with understood(self):
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
        name = located(place)
        with understood(name):
            _, group = opened(name, read_only=True)
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
        with understood(self), ThreadPoolExecutor(_READERS) as pool:
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
        with understood(self):
            for name in self.manifest.names:
                self._arrays[name].set_block_selection(tile, getattr(kernels, name))

    def pack(self, path: str | os.PathLike[str]) -> "KernelStore":
        """A copy in one .zip file, which is read like the store itself."""
        path = Path(located(path))
        if path.suffix != ".zip":
            raise StoreError(
                "A packed store is a file that ends in .zip.",
                got=f"'{path}'",
                remedy=f"give '{path.name}.zip'",
            )
        part = path.with_name(f".{path.name}.part")
        try:
            with understood(path):
                target = ZipStore(part, mode="w")
                new = object.__new__(KernelStore)
                new.place = os.fspath(path)
                new._write_manifest(zarr.create_group(target), self.manifest)
                copy = KernelStore(target, read_only=False)
                for tile in self.manifest.tiles:
                    for name in self.manifest.names:
                        values = getattr(self, name).stored(tile)
                        copy._arrays[name].set_block_selection(tile, values)
                target.close()
                part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return KernelStore(path)

    def close(self) -> None:
        """Finish a .zip file; other stores need no closing."""
        if not isinstance(self.place, Store):
            self.group.store.close()

    def _write_manifest(self, group: Any, manifest: Manifest) -> None:
        """Arrays of the right size first, the manifest last: without it nothing counts."""
        kept = group.attrs.get(_ATTRIBUTE) or {}
        sides = (manifest.rows, manifest.columns or manifest.rows)
        strips = [len(side.groups) * manifest.tile for side in sides]
        for name in manifest.names:
            shape = (*strips, *manifest.positions)
            if kept:
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
            # What the manifest does not know was left by an extension that was stopped.
            known = len(kept.get(side_name) or ())
            for index, segment in enumerate(side.segments[known:], start=known):
                name, order = f"order_{side_name}_{index}", segment.order.astype(np.int64)
                if name in group and not group.store.supports_deletes:  # a zip file
                    group[name].resize(order.shape)
                    group[name][:] = order
                    continue
                group.create_array(
                    name,
                    data=order,
                    chunks=order.shape,
                    compressors=Crc32cCodec(),
                    overwrite=True,
                )
        node = manifest.as_json()
        group.update_attributes({_ATTRIBUTE: node | {_DIGEST: _digest(node)}})


def _arrays(group: Any, manifest: Manifest, place: Any) -> dict[str, Any]:
    """The arrays of the tiles, if they are what the manifest says."""
    chunks = (manifest.tile, manifest.tile, *manifest.positions)
    try:
        found: dict[str, Any] = {name: group[name] for name in manifest.names}
        facts = {(array.chunks, str(array.dtype)) for array in found.values()}
    except NONSENSE as error:
        raise broken(place, f"{type(error).__name__}: {error}") from error
    if facts != {(chunks, manifest.dtype)}:
        raise broken(place, f"arrays of {sorted(facts)}, and not {(chunks, manifest.dtype)}")
    return found


def _digest(node: dict[str, Any]) -> str:
    """Of all that a manifest says: a tile has its checksum, and is computed by what stands here."""
    text = json.dumps({key: node[key] for key in sorted(node) if key != _DIGEST}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


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
    # Stores that were begun before there was a digest have none.
    if _DIGEST in node and node[_DIGEST] != _digest(node):
        raise broken(place, "its digest does not hold")
    try:
        orders = []
        for name in ("rows", "columns"):
            if node[name] is not None:
                arrays = [group[f"order_{name}_{index}"] for index in range(len(node[name]))]
                orders.append([np.asarray(array[:]) for array in arrays])
        return Manifest.from_json(node, orders)
    except NONSENSE as error:
        raise broken(place, f"{type(error).__name__}: {error}") from error
