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
            "Examples to pad are non-empty arrays of numbers (positions..., channels), with "
            "equal channels.",
            got=", ".join(sorted({str(array.shape) for array in arrays})) or "no such example",
            remedy="leave out empty examples and give all the same number of axes and channels",
        )
    shapes = np.array([array.shape for array in arrays])
    x = np.zeros((len(arrays), *shapes.max(axis=0)), dtype=dtype)
    mask = np.zeros(x.shape[:-1], dtype=bool)
    for i, array in enumerate(arrays):
        real = (i, *map(slice, array.shape[:-1]))
        x[real] = array
        mask[real] = True
    return x, mask
