"""What the inference functions require of the arrays they are given, checked once, at the door."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from ..engine.inputs import is_traced, unmasked
from ..errors import NumericalError, OptionError, ShapeError

Values = ArrayLike | Sequence[Any]
"""Whatever NumPy makes an array of: JAX and NumPy arrays, numbers, nested lists."""

ROWS_PER_BLOCK = 1024


def require_values(*parts: Any) -> None:
    """Refuse what `grad`, `jit` or `vmap` handed over: the solvers are NumPy's and SciPy's."""
    if is_traced(parts):
        raise OptionError(
            "A Gaussian process is fitted by NumPy and cannot be traced by grad, jit or vmap.",
            got="a traced value",
            remedy="differentiate net.kernel, which JAX traces, or choose scales with wl.tune",
        )


def rounding_unit(values: np.ndarray) -> float:
    """Machine epsilon of the precision `values` were computed in.

    A float64 array whose numbers all fit in float32 is taken for what it is, a widened float32
    result; the short floats (float16, bfloat16) count as float32.
    """
    if values.dtype == np.float64:
        sample = values[:64]
        # Overflow to infinity on the way to float32 only means that the numbers do not fit.
        with np.errstate(over="ignore"):
            widened = np.array_equal(sample, sample.astype(np.float32))
        return float(np.finfo(np.float32 if widened else np.float64).eps)
    return float(np.finfo(np.float64 if values.dtype.kind in "iu" else np.float32).eps)


def positive_noise(noise: Values, rows: int, who: str) -> np.ndarray:
    """Noise variances for a solver that cannot do without."""
    found = variances(noise, "The noise", rows)
    if found.min() <= 0:
        raise NumericalError(
            f"{who} need noise in every target.",
            got=f"a noise variance of {found.min():g}",
            remedy="give the data noise, or choose another solver",
        )
    return found


def level(value: float) -> float:
    """The level of an interval."""
    if not 0.0 < value < 1.0:
        raise NumericalError(
            "The level of an interval is a probability between 0 and 1.",
            got=f"{value}",
            remedy="pass 0.9 for ninety per cent",
        )
    return value


def pairs(kernel: Any, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """All pairs of these examples, of a kernel in memory or in a store."""
    return (
        kernel[np.ix_(rows, columns)] if isinstance(kernel, np.ndarray) else kernel[rows, columns]
    )


def real_array(values: Values, name: str) -> np.ndarray:
    """`values` as a NumPy array of finite real numbers, in the precision they came in."""
    array = unmasked(values, name)
    if array.dtype == bool or array.dtype.kind in "cOSUMm":
        raise NumericalError(
            f"{name} must hold real numbers.",
            got=f"an array of dtype {array.dtype}",
            remedy="convert it to float32 or float64 first",
        )
    if array.dtype.kind not in "iuf":  # bfloat16 and relatives, which NumPy only half knows
        array = array.astype(np.float32)
    for start in range(0, len(array) if array.ndim else 0, ROWS_PER_BLOCK):
        finite = np.isfinite(array[start : start + ROWS_PER_BLOCK])
        if not finite.all():
            row = start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
            raise NumericalError(
                f"{name} must be finite.",
                got=f"NaN or infinity, first in row {row}",
                remedy="remove or impute those entries; a NaN in a kernel often starts as a NaN, "
                "an all-zero or an overflowing input",
            )
    return array


def matrix(
    values: Values, name: str, *, rows: int | None = None, columns: int | None = None
) -> Float[np.ndarray, "rows columns"]:
    """A finite two-dimensional array with the expected number of rows and columns."""
    array = real_array(values, name)
    fits = array.ndim == 2 and all(
        wanted in (None, size) for wanted, size in zip((rows, columns), array.shape, strict=True)
    )
    if not fits or 0 in array.shape:
        raise ShapeError(
            f"{name} must be a matrix with rows: {rows or 'any number'}, columns: "
            f"{columns or 'any number'}, none empty.",
            got=f"shape {array.shape}",
            remedy="pool or flatten positions before the readout, and pass (test, train) blocks "
            "with test examples as rows",
        )
    return array


def square(values: Values, name: str, *, rows: int | None = None) -> Float[np.ndarray, "n n"]:
    """A finite, non-empty square matrix, symmetric up to the rounding of its precision."""
    array = matrix(values, name, rows=rows)
    if array.shape[0] != array.shape[1]:
        raise ShapeError(
            f"{name} must be square.",
            got=f"shape {array.shape}",
            remedy="pass the kernel of a set of examples with itself",
        )
    scale = float(np.abs(np.diagonal(array)).max())
    tolerance = np.sqrt(rounding_unit(array)) * scale
    for start in range(0, len(array), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        gap = np.abs(array[block, start:] - array[start:, block].T)
        if gap.max() > tolerance:
            i, j = np.unravel_index(int(gap.argmax()), gap.shape)
            raise NumericalError(
                f"{name} must be symmetric.",
                got=f"entries ({start + i}, {start + j}) and ({start + j}, {start + i}) differ by "
                f"{gap.max():.3g}, with a largest diagonal entry of {scale:.3g}",
                remedy="compute it from one set of examples in one call, or pass (K + K.T) / 2 "
                "if the difference is only noise",
            )
    return array


def targets(values: Values, rows: int) -> tuple[Float[np.ndarray, "rows outputs"], bool]:
    """Targets as float64 (rows, outputs), and whether they came as a plain vector."""
    array = real_array(values, "The targets")
    if array.ndim not in (1, 2) or array.shape[0] != rows or 0 in array.shape:
        raise ShapeError(
            f"The targets must have shape ({rows},) or ({rows}, outputs), one row per example.",
            got=f"shape {array.shape}",
            remedy="pass one row of targets per training example",
        )
    vector = array.ndim == 1
    return np.array(array.reshape(rows, -1), dtype=np.float64), vector


def variances(values: Values, name: str, rows: int) -> Float[np.ndarray, " rows"]:
    """Non-negative float64 numbers, one per example, from a scalar or a vector."""
    array = real_array(np.atleast_1d(unmasked(values, name)), name)
    if array.ndim != 1 or array.shape[0] not in (1, rows):
        raise ShapeError(
            f"{name} must be one variance or {rows} variances, one per example.",
            got=f"shape {array.shape}",
            remedy="pass a number, or a vector with one entry per example",
        )
    if array.min() < 0:
        raise NumericalError(
            f"{name} cannot be negative.",
            got=f"{array.min():.3g}",
            remedy="pass variances (squares of standard deviations), zero or larger",
        )
    return np.array(np.broadcast_to(array.astype(np.float64), (rows,)))


def variances_from_difference(
    values: np.ndarray, *, largest_prior: float, unit: float
) -> Float[np.ndarray, " ..."]:
    """Variances that came out of a subtraction: rounding below zero becomes zero.

    A value further below zero than rounding allows means that the blocks of the kernel do not
    belong to one another, and is an error.
    """
    allowed = 10.0 * np.sqrt(unit) * largest_prior
    if values.size and values.min() < -allowed:
        raise NumericalError(
            "The blocks of the kernel must belong to one positive semi-definite matrix.",
            got=f"a predictive variance of {values.min():.3g} where the prior variance is at most "
            f"{largest_prior:.3g}",
            remedy="compute every block with the same network, hyperparameters and sampled heads, "
            "or give the training data a little noise",
        )
    return np.maximum(values, 0.0)


def class_columns(labels: Values, rows: int, classes: int) -> Int[np.ndarray, " n"]:
    """Labels as column numbers, one per example, refused where they are something else."""
    columns = np.asarray(labels)
    fits = columns.shape == (rows,) and columns.dtype.kind in "iu"
    if not fits or columns.min() < 0 or columns.max() >= classes:
        raise ShapeError(
            f"Labels must be {rows} column numbers from 0 to {classes - 1}, one per example.",
            got=f"shape {columns.shape}, {columns!r:.60}",
            remedy="pass numpy.searchsorted(classes, labels)",
        )
    return columns
