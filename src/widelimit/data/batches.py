"""Examples of different sizes in one array, with a mask."""

from collections.abc import Sequence

import numpy as np

from ..errors import ShapeError


def pad(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Arrays `(positions…, channels)` of different lengths as one batch `x` and its mask.

    `x` is `(N, positions…, channels)` with zeros after the end of each example, the mask is
    boolean `(N, positions…)`, True where a position is real.
    """
    try:
        arrays = [np.asarray(array) for array in arrays]
        dtype = np.result_type(*arrays)
    except (TypeError, ValueError):  # lists of different lengths, or nothing that is a number
        arrays, dtype = [], np.dtype(float)
    kinds = {(array.ndim, array.shape[-1:]) for array in arrays}
    odd = any(array.ndim < 2 or not array.size for array in arrays)
    if len(kinds) != 1 or odd or dtype.kind not in "biuf":
        raise ShapeError(
            "The examples cannot be padded: they are no non-empty arrays of numbers (positions..., "
            "channels) with equal channels.",
            got=", ".join(sorted({str(array.shape) for array in arrays})) or "no such example",
            remedy="leave out empty examples and give all the same number of axes and channels",
        )
    return padded(arrays, arrays[0].ndim - 1)


def padded(arrays: Sequence[np.ndarray], axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrays that differ in their first `axes` extents only, as one array, and its mask."""
    longest = np.max([array.shape[:axes] for array in arrays], axis=0)
    shape = (len(arrays), *longest, *arrays[0].shape[axes:])
    x, mask = np.zeros(shape, np.result_type(*arrays)), np.zeros((len(arrays), *longest), bool)
    for i, array in enumerate(arrays):
        real = (i, *map(slice, array.shape[:axes]))
        x[real], mask[real] = array, True
    return x, mask
