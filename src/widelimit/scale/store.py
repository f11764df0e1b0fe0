"""Kernels on disk: one Zarr group, tile by tile, of a symmetric kernel one half.

    kernels/
      zarr.json           the group; its attribute "widelimit" is the manifest, with its digest
      nngp, ntk           arrays of the tiles, and nngp_error, ntk_error where heads are drawn
      digests             for every tile, the digests of its kernels

The chunks of the arrays are the tiles, raw numbers that any program for Zarr reads. A tile is
written whole or not at all, and its digests after it: it counts as computed when these are there,
which listing them shows. They are of the name of the store, the kernel, the place and the numbers,
and are checked when a tile is first read.

What a file says about itself is never believed: descriptions of arrays are written for others and
never read, shapes follow from the manifest, and no tile takes more memory than its shape.
"""

import hashlib
import json
import math
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import NumericalError
from ..state import Kernels
from .errors import StoreError
from .manifest import FORMAT, NAMES, VERSION, Manifest
from .matrix import StoredMatrix
from .places import Files, Place, located, understood

Tile = tuple[int, int]

_GROUP, _ATTRIBUTE, _DIGESTS, _DIGEST = "zarr.json", "widelimit", "digests", "digest"
_DIGEST_BYTES = 32
# A manifest of a million examples, each with a place of its own, is smaller.
_LARGEST_MANIFEST = 2**26
# What is wrong with a description that is none, found out by using it.
_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class KernelStore:
    """A stored kernel: `store.nngp[rows, columns]`, `store.ntk`, `np.asarray(store.nngp)`.

    Made by `net.kernel_into(place, x)`; opened for reading by `KernelStore(place)`. Tiles are
    verified when they are read, `verify()` reads them all.
    """

    def __init__(self, place: Place, *, read_only: bool = True):
        """Open a store that is there; `read_only=False` allows tiles to be written."""
        self.place, self.read_only = located(place), read_only
        with understood(self):
            self.files = Files(self.place, read_only=read_only)
            text = self.files.read(_GROUP, _LARGEST_MANIFEST)
            if text is None:
                raise StoreError(
                    f"There is no store at '{self}'.",
                    got="nothing, or something else",
                    remedy="compute it: net.kernel_into(place, x)",
                )
            self.manifest = self._manifest(text)
        self._verified: set[tuple[str, Tile]] = set()

    @classmethod
    def begin(cls, place: Place, manifest: Manifest) -> "KernelStore":
        """A new store without any tile; the manifest is written last."""
        store = object.__new__(cls)
        store.place, store.read_only, store.manifest = located(place), False, manifest
        with understood(store):
            store.files = Files(store.place, read_only=False)
            remains = store.files.keys()
            own = (*NAMES, _DIGESTS)
            strangers = sorted({key.split("/")[0] for key in remains} - set(own))
            if strangers:
                raise StoreError(
                    f"'{store}' holds other things: {', '.join(strangers[:3])}.",
                    got="a place for a new store that is not its own",
                    remedy="give another path",
                )
            for key in remains:  # of a store that was never begun, or has lost its manifest
                store.files.delete(key)
            store._write_manifest()
        return cls(place, read_only=False)

    def extend(self, manifest: Manifest) -> "KernelStore":
        """The store with more examples; tiles that are there stay as they are."""
        self.manifest = manifest
        with understood(self):
            self._write_manifest()
        return KernelStore(self.place, read_only=False)

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
            return Files(name, read_only=True).read(_GROUP, 0) is not None

    # --- reading --------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its kernels."""
        return self.manifest.shape

    @property
    def kernels(self) -> Kernels:
        """All that is stored; arrays that are read when they are indexed."""
        return Kernels(*(self._matrix(name) for name in NAMES))

    @cached_property
    def nngp(self) -> StoredMatrix:
        """The NNGP kernel."""
        return StoredMatrix(self, "nngp")

    @cached_property
    def ntk(self) -> StoredMatrix | None:
        """The tangent kernel, where it was computed."""
        return self._matrix("ntk")

    def _matrix(self, name: str) -> Any:
        return StoredMatrix(self, name) if name in self.manifest.names else None

    def list_tiles(self) -> list[Tile]:
        """Tiles that are computed: all their files are there. None of them is read."""
        with understood(self):
            there = [set(self.files.keys(f"{n}/c")) for n in (*self.manifest.names, _DIGESTS)]
        return [
            tile
            for tile in self.manifest.tiles
            if all(key in keys for key, keys in zip(self._keys(tile), there, strict=True))
        ]

    def verify(self, *, remove: bool = False) -> list[Tile]:
        """Read every computed tile, and return those that are damaged.

        `remove` them from a store that was opened with `read_only=False`: the call that made it
        computes them anew.
        """
        damaged = []
        for tile in self.list_tiles():
            try:
                for name in self.manifest.names:
                    self._verified.discard((name, tile))
                    self.read(name, tile)
            except StoreError:
                damaged.append(tile)
        if remove:
            with understood(self):
                for tile in damaged:
                    for key in reversed(self._keys(tile)):
                        self.files.delete(key)
        return damaged

    def read(self, name: str, tile: Tile) -> np.ndarray:
        """One stored tile of one kernel, at its full size, if it is what was written there."""
        shape = self._chunk
        size = math.prod(shape) * np.dtype(self.manifest.dtype).itemsize
        index = self.manifest.names.index(name)
        key, record = self._keys(tile)[index], self._keys(tile)[-1]
        with understood(self):
            content = self.files.read(key, size)
        if content is None or len(content) != size:
            raise self._unfit(name, tile, "missing" if content is None else "damaged")
        values = np.frombuffer(content, self._dtype).reshape(shape)
        if (name, tile) not in self._verified:
            with understood(self):
                known = self.files.read(record, _DIGEST_BYTES * len(self.manifest.names)) or b""
            mine = known[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)]
            if mine != self._digest(name, tile, content) or not np.isfinite(values).all():
                raise self._unfit(name, tile, "damaged")
            self._verified.add((name, tile))
        return values

    def _unfit(self, name: str, tile: Tile, how: str) -> StoreError:
        remedy = "make the call that computed it again: it computes what is missing"
        if how == "damaged":
            remedy = (
                "KernelStore(place, read_only=False).verify(remove=True) removes what is damaged; "
                "then make the call that computed it again"
            )
        return StoreError(
            f"Tile {tile} of {name} in '{self}' is {how}.", got="a tile to be read", remedy=remedy
        )

    @cached_property
    def members(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Indices of the examples in every strip of rows and of columns."""
        sides = [side.members for side in self.manifest.sides]
        return sides[0], sides[-1]

    def counts(self, tile: Tile) -> tuple[int, int]:
        """How many rows and columns of a tile are examples."""
        return len(self.members[0][tile[0]]), len(self.members[1][tile[1]])

    # --- writing --------------------------------------------------------------------------------

    def blank(self) -> Kernels:
        """An empty tile, to be filled."""
        names = self.manifest.names
        return Kernels(
            *(np.zeros(self._chunk, self._dtype) if name in names else None for name in NAMES)
        )

    def write(self, tile: Tile, kernels: Kernels) -> None:
        """Write a tile, at its full size; its digests last."""
        *keys, record = self._keys(tile)
        known = b""
        for name, key in zip(self.manifest.names, keys, strict=True):
            values = np.ascontiguousarray(getattr(kernels, name), self._dtype)
            if not np.isfinite(values).all():
                raise NumericalError(
                    f"Tile {tile} of {name} for '{self}' holds NaN or infinity.",
                    got="a kernel that is not finite",
                    remedy="check the scale of the inputs and of the network's weights",
                )
            content = values.tobytes()
            known += self._digest(name, tile, content)
            with understood(self):
                self.files.write(key, content)
        with understood(self):
            self.files.write(record, known)

    # --- what its files are ---------------------------------------------------------------------

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(self.manifest.dtype).newbyteorder("<")

    @property
    def _chunk(self) -> tuple[int, ...]:
        return (self.manifest.tile, self.manifest.tile, *self.manifest.positions)

    def _keys(self, tile: Tile) -> list[str]:
        """Those of a tile of every kernel, and of its digests."""
        place = f"c/{tile[0]}/{tile[1]}"
        inside = "/0" * len(self.manifest.positions)
        return [
            *(f"{name}/{place}{inside}" for name in self.manifest.names),
            f"{_DIGESTS}/{place}/0",
        ]

    def _digest(self, name: str, tile: Tile, content: bytes) -> bytes:
        digest = hashlib.sha256(f"{self.manifest.store} {name} {tile[0]} {tile[1]} ".encode())
        digest.update(content)
        return digest.digest()

    def _descriptions(self) -> dict[str, dict[str, Any]]:
        """What the arrays say of themselves, for programs that read Zarr."""
        manifest = self.manifest
        sides = (manifest.rows, manifest.columns or manifest.rows)
        strips = [len(side.groups) for side in sides]
        shape = (*(count * manifest.tile for count in strips), *manifest.positions)
        record = _DIGEST_BYTES * len(manifest.names)
        return {
            name: _description(shape, self._chunk, manifest.dtype, "NaN") for name in manifest.names
        } | {_DIGESTS: _description((*strips, record), (1, 1, record), "uint8", 0)}

    def _write_manifest(self) -> None:
        """Arrays of the right size first, the manifest last: without it nothing counts."""
        for name, node in self._descriptions().items():
            self.files.write(f"{name}/{_GROUP}", _text(node))
        node = self.manifest.as_json()
        attributes = {_ATTRIBUTE: node | {_DIGEST: _checksum(node)}}
        group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        self.files.write(_GROUP, _text(group))

    def _manifest(self, text: bytes) -> Manifest:
        try:
            group = json.loads(text) if len(text) <= _LARGEST_MANIFEST else None
        except _NONSENSE as error:
            raise self._broken(f"{_GROUP} is not JSON") from error
        if not isinstance(group, dict):
            raise self._broken(f"{_GROUP} is no description")
        if group.get("zarr_format") != 3 or group.get("node_type") != "group":
            raise self._broken(f"it is no group of Zarr 3 but of {group.get('zarr_format')!r:.20}")
        attributes = group.get("attributes")
        node = attributes.get(_ATTRIBUTE) if isinstance(attributes, dict) else None
        if not isinstance(node, dict) or node.get("format") != FORMAT:
            raise StoreError(
                f"'{self}' is a Zarr group without the manifest of a kernel.",
                got="something else than a store",
                remedy="give the path of a store that net.kernel_into(place, x) made",
            )
        if node.get("version") != VERSION:
            raise StoreError(
                f"'{self}' is a store of version {node.get('version')!r:.20}, written by widelimit "
                f"{node.get('library')!r:.20}.",
                got=f"another version than {VERSION}",
                remedy="read it with that version, or remove it and compute anew",
            )
        if node.pop(_DIGEST, None) != _checksum(node):
            raise self._broken("its digest does not hold")
        try:
            return Manifest.from_json(node)
        except _NONSENSE as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error

    def _broken(self, why: str) -> StoreError:
        return StoreError(
            f"'{self}' has a damaged manifest: {why}.",
            got="a store that is not as it was written",
            remedy="restore its zarr.json files from a copy, or remove the store and compute anew",
        )


def _description(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: str, fill: Any
) -> dict[str, Any]:
    """An array of Zarr 3, with nothing in it that is not needed."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }


def _text(node: dict[str, Any]) -> bytes:
    return json.dumps(node).encode()


def _checksum(node: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
