"""Scale, shrink and whiten inputs; what is fitted on training data is applied to test data."""

from dataclasses import dataclass

import numpy as np

from ..errors import ShapeError


@dataclass(frozen=True, eq=False)
class Standardise:
    """`(x − mean)/std`, with mean and standard deviation of the training data.

    A constant channel or pixel has `std` 1, so that it becomes zero instead of undefined.
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def per_channel(
        cls, x: np.ndarray, *, mask: np.ndarray | None = None, weights: np.ndarray | None = None
    ) -> "Standardise":
        """One mean and deviation for each channel, over examples and real positions.

        `weights` count examples.
        """
        rows = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
        # Column by column in units of the largest: squares of extreme numbers do not fit.
        unit = np.ones(())
        if x.dtype == np.float64:
            unit = np.abs(rows).max(axis=0)
            unit = np.where(unit > 0, unit, 1.0)
            rows = rows / unit
        if weights is None:
            mean = rows.mean(axis=0, dtype=np.float64)
            std = rows.std(axis=0, dtype=np.float64)
        else:
            each = np.broadcast_to(weights.reshape(-1, *[1] * (x.ndim - 2)), x.shape[:-1])
            weights = each.reshape(-1) if mask is None else each[mask]
            mean = np.average(rows, axis=0, weights=weights)
            std = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))
        return cls(mean * unit, np.where(std > 0, std * unit, 1.0))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Standardised `x`, `float32`."""
        if x.ndim <= self.mean.ndim or x.shape[-self.mean.ndim :] != self.mean.shape:
            raise _other_shape(x, self.mean)
        if x.dtype == np.float64:  # numbers that float32 cannot hold are scaled before
            return ((x - self.mean) / self.std).astype(np.float32)
        centred = x.astype(np.float32) - self.mean.astype(np.float32)
        return centred / self.std.astype(np.float32)


@dataclass(frozen=True, eq=False)
class ZCA:
    """Whiten all components of an example together: `W (x − mean)`.

    With the covariance `C = U diag(λ) Uᵀ` of the training data, `W = U diag(1/√(λ + ε)) Uᵀ` and
    `ε = strength · mean(λ)`: directions well above ε get variance one, weaker ones fade.
    """

    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, x: np.ndarray, *, strength: float = 0.1) -> "ZCA":
        """Fit on `x` `(N, …)`, whose examples are flattened."""
        if len(x) < 2 or not strength > 0:
            raise ShapeError(
                "These examples cannot be whitened with that strength.",
                got=f"{len(x)} examples, strength={strength}",
                remedy="give two or more examples, and a positive strength such as 0.1",
            )
        mean = x.mean(axis=0, dtype=np.float64)
        flat = (x - mean).reshape(len(x), -1)
        variances, directions = np.linalg.eigh(flat.T @ flat / len(x))
        variances = np.clip(variances, 0, None)  # rounding makes zeros slightly negative
        ridge = strength * variances.mean()
        if not ridge > 0:
            raise ShapeError(
                "Equal examples cannot be whitened.",
                got=f"{len(x)} equal examples",
                remedy="check the data",
            )
        matrix = (directions / np.sqrt(variances + ridge)) @ directions.T
        return cls(mean, matrix)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Whitened `x`, `float32`, of the same shape."""
        if x.shape[1:] != self.mean.shape:
            raise _other_shape(x, self.mean)
        flat = (x.astype(np.float32) - self.mean.astype(np.float32)).reshape(len(x), -1)
        return (flat @ self.matrix.astype(np.float32)).reshape(x.shape)


def downsample(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Images `(N, height, width, channels)` shrunk to `size` by area averaging, `float32`.

    An output pixel is the mean of the input area it covers, also when the sizes do not divide.
    """
    if x.ndim != 4 or not all(0 < new <= old for new, old in zip(size, x.shape[1:3], strict=True)):
        raise ShapeError(
            "The inputs are no images (N, height, width, channels) that can be made so small.",
            got=f"{x.shape} to {size}",
            remedy="give a (height, width) that is no larger than the images",
        )
    (height, width), (rows, columns) = x.shape[1:3], size
    if height % rows == 0 and width % columns == 0:
        blocks = x.reshape(len(x), rows, height // rows, columns, width // columns, -1)
        return blocks.mean(axis=(2, 4), dtype=np.float32)
    down, across = _area_weights(height, rows), _area_weights(width, columns)
    return np.einsum("ah,nhwc,bw->nabc", down, x.astype(np.float32), across, optimize=True)


def _area_weights(old: int, new: int) -> np.ndarray:
    """The share of each of `old` cells in each of `new` cells; rows sum to one."""
    edges = np.arange(new + 1) * (old / new)
    begin, end = edges[:-1, None], edges[1:, None]
    cells = np.arange(old)[None, :]
    overlap = np.clip(np.minimum(end, cells + 1) - np.maximum(begin, cells), 0, None)
    return (overlap * (new / old)).astype(np.float32)


def _other_shape(x: np.ndarray, mean: np.ndarray) -> ShapeError:
    return ShapeError(
        "Inputs have another shape than the examples that were fitted.",
        got=f"{x.shape} after a fit on (..., {', '.join(map(str, mean.shape))})",
        remedy="fit and apply on arrays of the same size",
    )
