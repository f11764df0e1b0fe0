"""Kernels of studies, computed once and kept in stores, by what they are kernels of.

A study needs the kernel of n training and m test examples against the n training examples: two
stores, of which one is symmetric. An interrupted run goes on, and studies that share a kernel
share its store.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ...data import Labelled
from ...engine.inputs import as_inputs
from ...layers.base import Layer
from ...progress import Callback
from ...scale.description import describe, digest
from ...state import Kernels, Outline


class KeptKernels:
    """Kernels in a folder, by what they are kernels of: `kernels` beside those of the studies."""

    def __init__(self, folder: Path, *, tile: int | None = None):
        """`tile`: examples on the side of a tile, which is how much work an interruption costs."""
        self.folder, self.tile = Path(folder), tile
        self.client: Any = None  # whose workers compute, while somebody has one

    def get(
        self,
        net: Layer,
        train: Labelled,
        test: Labelled | None = None,
        *,
        progress: Callback | None = None,
        **options: Any,
    ) -> Kernels:
        """NNGP and tangent kernels (n + m, n) in float32, read from disk or computed.

        A network that ends in `Readouts` has kernels (readouts, n + m, n). `progress(done,
        total)` is called after every tile; `options` (such as a `sampler`) go to `net.kernel` and
        are part of what the kernels are known by.
        """
        x, rest = train.x, {"dtype": np.float32, "progress": progress or False, "tile": self.tile}
        rest["client"] = self.client
        positions = net.outline(Outline(x.shape[1:-1], x.shape[-1])).positions
        readouts, size = math.prod(positions), len(x) + (0 if test is None else len(test))
        whole = np.empty((2, readouts, size, len(x)), np.float32)
        place = self.folder / named(net, train, options)
        found = net.kernel_into(place, x, mask=train.mask, **rest, **options)
        _read(found, whole[:, :, : len(x)])
        if test is not None:
            place = self.folder / named(net, train, options, test)
            masks = {"mask": test.mask, "mask2": train.mask}
            found = net.kernel_into(place, test.x, x, **masks, **rest, **options)
            _read(found, whole[:, :, len(x) :])
        return Kernels(*whole) if positions else Kernels(*whole[:, 0])


def named(
    net: Layer, train: Labelled, options: dict[str, Any], test: Labelled | None = None
) -> str:
    """A name that no other kernel has."""
    parts = [train] if test is None else [train, test]
    inputs = [as_inputs(part.x, part.mask, dtype=np.float32) for part in parts]
    known = [digest(side, range(side.size)) for side in inputs]
    text = json.dumps([describe(net), describe(options, "options"), known])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _read(found: Kernels, whole: np.ndarray) -> None:
    """Stored kernels (n, m), or (n, m, readouts, readouts), which are diagonal, by readout."""
    kernels: list[Any] = list(found)  # matrices of a store
    for into, kernel in zip(whole, kernels, strict=True):
        for part in kernel.parts():
            values = part.values if part.values.ndim == 4 else part.values[..., None, None]
            for readout, target in enumerate(into):
                block = values[..., readout, readout]
                target[np.ix_(part.rows, part.columns)] = block
                if part.mirror:
                    target[np.ix_(part.columns, part.rows)] = block.T
