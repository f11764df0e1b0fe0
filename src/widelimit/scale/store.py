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
from .description import StoreError
from .manifest import FORMAT, NAMES, VERSION, Manifest
from .matrix import StoredMatrix
from .places import Files, Place, located

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
        self.place = located(place)
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
    def begin(cls, place: Place, manifest: Manifest, *, extends: bool = False) -> "KernelStore":
        """A new store without any tile, or one that `extends` what is there by more examples."""
        place = located(place)
        files = Files(place, read_only=False)
        if not extends:
            remains = files.keys()
            strangers = sorted({key.split("/")[0] for key in remains} - {*NAMES, _DIGESTS})
            if strangers:
                raise StoreError(
                    f"'{place}' holds other things: {', '.join(strangers[:3])}.",
                    got="a place for a new store that is not its own",
                    remedy="give another path",
                )
            for key in remains:  # of a store that was never begun, or has lost its manifest
                files.delete(key)
        # Arrays of the right size first, the manifest last: without it nothing counts.
        for name, node in _descriptions(manifest).items():
            files.write(f"{name}/{_GROUP}", json.dumps(node).encode())
        node = manifest.as_json()
        attributes = {_ATTRIBUTE: node | {_DIGEST: _checksum(node)}}
        group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        files.write(_GROUP, json.dumps(group).encode())
        return cls(place, read_only=False)

    def __str__(self) -> str:
        return str(self.place)

    def __repr__(self) -> str:
        size = " × ".join(f"{n:,}" for n in self.shape[:2])
        return f"KernelStore('{self}', {', '.join(self.manifest.names)}, {size})"

    @staticmethod
    def exists(place: Place) -> bool:
        """Whether a store was started there; a folder without a manifest does not count."""
        return Files(located(place), read_only=True).read(_GROUP, 0) is not None

    # --- reading --------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its kernels."""
        return self.manifest.shape

    @cached_property
    def kernels(self) -> Any:
        """All that is stored; arrays that are read when they are indexed."""
        known = self.manifest.names
        return Kernels(*(StoredMatrix(self, name) if name in known else None for name in NAMES))

    @property
    def nngp(self) -> StoredMatrix:
        """The NNGP kernel."""
        return self.kernels.nngp

    @property
    def ntk(self) -> StoredMatrix | None:
        """The tangent kernel, where it was computed."""
        return self.kernels.ntk

    def list_tiles(self) -> list[Tile]:
        """Tiles that are computed: all their files are there. None of them is read."""
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
        self._verified.clear()
        for tile in self.list_tiles():
            try:
                for name in self.manifest.names:
                    self.read(name, tile)
            except StoreError:
                damaged.append(tile)
        for tile in damaged if remove else ():
            for key in reversed(self._keys(tile)):
                self.files.delete(key)
        return damaged

    def read(self, name: str, tile: Tile) -> np.ndarray:
        """One stored tile of one kernel, at its full size, if it is what was written there."""
        size = math.prod(self._chunk) * self._dtype.itemsize
        index = self.manifest.names.index(name)
        key, record = self._keys(tile)[index], self._keys(tile)[-1]
        content = self.files.read(key, size)
        if content is None:
            raise StoreError(
                f"Tile {tile} of {name} in '{self}' is missing.",
                got="a tile to be read",
                remedy="make the call that computed it again: it computes what is missing",
            )
        fits = len(content) == size
        values = np.frombuffer(content if fits else bytes(size), self._dtype).reshape(self._chunk)
        if fits and (name, tile) not in self._verified:
            known = self.files.read(record, _DIGEST_BYTES * len(self.manifest.names)) or b""
            mine = known[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)]
            fits = mine == self._digest(name, tile, content) and bool(np.isfinite(values).all())
        if not fits:
            raise StoreError(
                f"Tile {tile} of {name} in '{self}' is damaged.",
                got="a tile to be read",
                remedy="KernelStore(place, read_only=False).verify(remove=True) removes what is "
                "damaged; then make the call that computed it again",
            )
        self._verified.add((name, tile))
        return values

    @cached_property
    def members(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Indices of the examples in every strip of rows and of columns."""
        sides = [[strip.members for strip in side] for side in self.manifest.sides]
        return sides[0], sides[-1]

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
            self.files.write(key, content)
        self.files.write(record, known)

    # --- what its files are ---------------------------------------------------------------------

    @property
    def _dtype(self) -> np.dtype:
        return self.manifest.dtype.newbyteorder("<")

    @property
    def _chunk(self) -> tuple[int, ...]:
        return _chunk_of(self.manifest)

    def _keys(self, tile: Tile) -> list[str]:
        """Those of a tile of every kernel, and of its digests."""
        place = f"c/{tile[0]}/{tile[1]}"
        inside = "/0" * (len(self._chunk) - 2)
        kernels = [f"{name}/{place}{inside}" for name in self.manifest.names]
        return [*kernels, f"{_DIGESTS}/{place}/0"]

    def _digest(self, name: str, tile: Tile, content: bytes) -> bytes:
        digest = hashlib.sha256(f"{self.manifest.store} {name} {tile[0]} {tile[1]} ".encode())
        digest.update(content)
        return digest.digest()

    def _manifest(self, text: bytes) -> Manifest:
        try:
            group = json.loads(text) if len(text) <= _LARGEST_MANIFEST else {}
            if (group["zarr_format"], group["node_type"]) != (3, "group"):
                raise ValueError("it is no group of Zarr 3")
            node = group["attributes"][_ATTRIBUTE]
            if (node["format"], node["version"]) == (FORMAT, VERSION):
                if node.pop(_DIGEST, None) != _checksum(node):
                    raise ValueError("its digest does not hold")
                return Manifest.from_json(node)
        except _NONSENSE as error:
            raise StoreError(
                f"'{self}' has a damaged manifest, or is no store of kernels "
                f"({type(error).__name__}: {error}).",
                got="a store that is not as it was written, or a Zarr group of something else",
                remedy="give the path of a store that net.kernel_into(place, x) made; restore its "
                "zarr.json files from a copy, or remove it and compute anew",
            ) from error
        raise StoreError(
            f"'{self}' is a store of version {node['version']!r:.20}, with {node['format']!r:.20}.",
            got=f"another version than {VERSION} of {FORMAT}",
            remedy="read it with the version of widelimit that wrote it, or remove it and compute "
            "anew",
        )


def _chunk_of(manifest: Manifest) -> tuple[int, ...]:
    return (manifest.tile, manifest.tile, *manifest.facts["positions"])


def _descriptions(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """What the arrays say of themselves, for programs that read Zarr."""
    strips = [len(manifest.sides[side]) for side in (0, -1)]
    chunk, record = _chunk_of(manifest), _DIGEST_BYTES * len(manifest.names)
    shape = (strips[0] * chunk[0], strips[1] * chunk[1], *chunk[2:])
    arrays = [(name, shape, chunk, manifest.dtype.name, "NaN") for name in manifest.names]
    return {
        name: {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": part}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
        }
        for name, shape, part, dtype, fill in [
            *arrays,
            (_DIGESTS, (*strips, record), (1, 1, record), "uint8", 0),
        ]
    }


def _checksum(node: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
