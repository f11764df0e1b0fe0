"""Kernels that are computed once and kept on disk, a band of rows at a time.

A study needs the kernel of n training and m test examples against the n training examples. It is
cut into bands of rows; the bands of training examples end at the diagonal, since the rest is their
mirror image. Each band is one file, which gets its name only when it is complete, and the name
holds the checksum of what is inside. An interrupted run goes on after the last whole band, and a
file that is cut off or changed is not trusted but computed anew.

Sequences are sorted by length and cut, so that short ones do not pay for long ones; the result is
in the order of the examples.
"""

import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...data import Labelled, writing
from ...engine.inputs import Inputs
from ...engine.kernel import Sink
from ...engine.lengths import groups
from ...layers.base import Layer
from ...state import Kernels, Outline
from ..fingerprint import fingerprint

_NAME = re.compile(r"\d{6}-([0-9a-f]{8})\.npy")

Told = Callable[[int, int], None]


class Piece(NamedTuple):
    """Examples `begin:end`, and the length they are cut to (None: as they are)."""

    begin: int
    end: int
    length: int | None

    def of(self, array: np.ndarray | None) -> np.ndarray | None:
        """The examples of the piece."""
        if array is None:
            return None
        chosen = array[self.begin : self.end]
        return chosen if self.length is None else chosen[:, : self.length]


class Band(NamedTuple):
    """Rows `begin:end` against columns `0:columns`."""

    begin: int
    end: int
    columns: int


def bands(train: int, test: int, height: int) -> list[Band]:
    """Training rows up to the diagonal, then test rows against all training examples."""
    upper = [
        Band(begin, min(begin + height, train), min(begin + height, train))
        for begin in range(0, train, height)
    ]
    lower = [
        Band(begin, min(begin + height, train + test), train)
        for begin in range(train, train + test, height)
    ]
    return upper + lower


def entries(train: int, test: int) -> int:
    """How many kernel entries are computed: half of the symmetric part, all of the rest."""
    return train * (train + 1) // 2 + test * train


class KeptKernels:
    """Kernels in a folder, by what they are kernels of."""

    def __init__(self, folder: Path, *, height: int = 512):
        """`height`: rows of a band, which is how much work an interruption may cost."""
        self.folder, self.height = Path(folder), height

    @classmethod
    def beside(cls, out: Path, *, height: int = 512) -> "KeptKernels":
        """The folder `kernels` beside a study's own, which all studies share."""
        return cls(out.parent / "kernels", height=height)

    def get(
        self,
        net: Layer,
        train: Labelled,
        test: Labelled | None = None,
        *,
        told: Told | None = None,
        **options: Any,
    ) -> Kernels:
        """NNGP and tangent kernels (n + m, n) in float32, read from disk or computed.

        A network that ends in `Readouts` has kernels (readouts, n + m, n). `told(done, total)`
        hears of every finished band; `options` (such as a `sampler`) go to `net.kernel` and are
        part of what the kernels are known by.
        """
        x, mask = _joined(train, test)
        order, pieces = _by_length(net, x, mask, len(train))
        x, mask = x[order], None if mask is None else mask[order]
        positions = net.outline(Outline(x.shape[1:-1], x.shape[-1])).positions
        readouts = math.prod(positions)
        work = bands(len(train), len(x) - len(train), self.height)
        place = self.folder / fingerprint(net, x, mask, len(train), self.height, options)
        whole = np.empty((2, readouts, len(x), len(train)), np.float32)
        for done, band in enumerate(work, start=1):
            shape = (2, readouts, band.end - band.begin, band.columns)
            part = _trusted(place, band, shape)
            if part is None:
                part = _computed(net, x, mask, pieces, band, shape, options)
                _keep(place, band, part)
            whole[:, :, band.begin : band.end, : band.columns] = part
            if band.end <= len(train):
                left = part[..., : band.begin]
                whole[:, :, : band.begin, band.begin : band.end] = left.swapaxes(2, 3)
            if told is not None:
                told(done, len(work))
        if mask is not None:
            back = np.argsort(order)
            whole = whole[:, :, back[:, None], back[: len(train)]]
        return Kernels(*whole) if positions else Kernels(*whole[:, 0])


def _joined(train: Labelled, test: Labelled | None) -> tuple[np.ndarray, np.ndarray | None]:
    """All examples, padded to one length."""
    parts = [train] if test is None else [train, test]
    if all(part.mask is None for part in parts):
        return np.concatenate([part.x for part in parts]).astype(np.float32), None
    length = max(part.x.shape[1] for part in parts)

    def longer(array: np.ndarray) -> np.ndarray:
        gap = length - array.shape[1]
        return np.pad(array, [(0, 0), (0, gap), *[(0, 0)] * (array.ndim - 2)])

    x = np.concatenate([longer(part.x) for part in parts]).astype(np.float32)
    return x, np.concatenate([longer(part.real) for part in parts])


def _by_length(
    net: Layer, x: np.ndarray, mask: np.ndarray | None, train: int
) -> tuple[np.ndarray, list[Piece]]:
    """Training examples by length, then test examples by length; and their pieces in this order.

    Both are cut to the same lengths: fewer compilations.
    """
    cut = groups(net, Inputs(x, mask, False))
    parts = [(g.members[g.members < train], g.length) for g in cut]
    parts += [(g.members[g.members >= train], g.length) for g in cut]
    ends = np.cumsum([len(members) for members, _ in parts]).tolist()
    pieces = [
        Piece(end - len(members), end, length)
        for end, (members, length) in zip(ends, parts, strict=True)
    ]
    return np.concatenate([members for members, _ in parts]), pieces


def _within(pieces: list[Piece], begin: int, end: int) -> list[Piece]:
    """What lies between two examples."""
    clipped = [
        piece._replace(begin=max(begin, piece.begin), end=min(end, piece.end)) for piece in pieces
    ]
    return [piece for piece in clipped if piece.begin < piece.end]


def _computed(
    net: Layer,
    x: np.ndarray,
    mask: np.ndarray | None,
    pieces: list[Piece],
    band: Band,
    shape: tuple[int, ...],
    options: dict[str, Any],
) -> np.ndarray:
    """One band; of a diagonal block only one half is computed."""
    result = np.empty(shape, np.float32)
    diagonal = band.columns == band.end

    def sink(into: np.ndarray, mirrored: np.ndarray | None) -> Sink:
        def take(one: slice, two: slice, nngp: np.ndarray, ntk: np.ndarray | None) -> None:
            assert ntk is not None
            tiles = np.stack([_by_readout(nngp), _by_readout(ntk)])
            into[:, :, one, two] = tiles
            if mirrored is not None and not (into is mirrored and one == two):
                mirrored[:, :, two, one] = tiles.swapaxes(2, 3)

        return take

    def block(one: Piece, two: Piece) -> np.ndarray:
        return result[:, :, one.begin - band.begin : one.end - band.begin, two.begin : two.end]

    rows = _within(pieces, band.begin, band.end)
    across = _within(pieces, 0, band.begin if diagonal else band.columns)
    for i, one in enumerate(rows):
        mine = {"mask": one.of(mask), "progress": False, **options}
        others = [(two, None) for two in across]
        others += [(two, block(two, one)) for two in rows[:i] if diagonal]
        for two, mirrored in others:
            take = sink(block(one, two), mirrored)
            net.kernel(one.of(x), two.of(x), mask2=two.of(mask), sink=take, **mine)
        if diagonal:
            own = block(one, one)
            net.kernel(one.of(x), sink=sink(own, own), **mine)
    return result


def _by_readout(kernel: np.ndarray) -> np.ndarray:
    """(readouts, n, m) from (n, m), or from (n, m, readouts, readouts), which is diagonal."""
    if kernel.ndim == 2:
        return kernel[None]
    return np.moveaxis(np.diagonal(kernel, axis1=2, axis2=3), -1, 0)


def _checksum(array: np.ndarray) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).data):08x}"


def _keep(place: Path, band: Band, part: np.ndarray) -> None:
    with writing(place / f"{band.begin:06d}-{_checksum(part)}.npy") as file:
        np.save(file, part)


def _trusted(place: Path, band: Band, shape: tuple[int, ...]) -> np.ndarray | None:
    """The band as it was kept, if it is whole."""
    for path in sorted(place.glob(f"{band.begin:06d}-*.npy")):
        named = _NAME.fullmatch(path.name)
        try:
            part = np.load(path)  # not mapped: a file cut off later must not stop the process
        except (OSError, ValueError, EOFError):
            continue
        if named and part.shape == shape and _checksum(part) == named[1]:
            return part
    return None
