"""Gaussian vectors: roots of their covariances, quasi-random points, and some given others."""

import numpy as np
import scipy
from jaxtyping import Float
from scipy.special import ndtri

from .errors import NumericalError, ShapeError

ROUNDING = 1e-9  # of the largest eigenvalue: what rounding may do to the smallest

# Points can fall on 0 in floating point, where the normal would be infinite.
_EDGE = 0.5**53


def sobol_normals(
    count: int, dimensions: int, rng: np.random.Generator, *, shifts: int | None = None
) -> Float[np.ndarray, "*shifts count dimensions"]:
    """Standard normals at `count` scrambled Sobol points, a power of two.

    With `shifts`, that many copies of the points, each moved (modulo 1) by a random vector of its
    own: a leading axis.
    """
    uniform = scipy.stats.qmc.Sobol(dimensions, scramble=True, rng=rng).random(count)
    if shifts is not None:
        uniform = (uniform + rng.random((shifts, 1, dimensions))) % 1.0
    return ndtri(np.clip(uniform, _EDGE, 1 - _EDGE))


def psd_root(
    covariance: Float[np.ndarray, "*draws n n"],
    *,
    tolerance: float = ROUNDING,
    scale: Float[np.ndarray, "*draws"] | float | None = None,
    drop: float | None = None,
) -> Float[np.ndarray, "*draws n rank"]:
    """`F` with `F Fᵀ = covariance`, singular ones included.

    Eigenvalues down to `−tolerance·scale` become zero, lower ones are refused; `scale` is the
    largest eigenvalue where none is given. Columns whose eigenvalue is below `drop` of the largest,
    in every draw, are left out; without it F is square.
    """
    values, vectors = np.linalg.eigh(covariance)
    lowest = np.min(values, axis=-1, initial=0.0)
    top = np.max(np.abs(values), axis=-1, initial=0.0) if scale is None else scale
    if not np.all(np.isfinite(values)) or np.any(lowest < -tolerance * top):
        raise NumericalError(
            "A covariance is not finite, or not positive semi-definite.",
            got=f"lowest eigenvalue {np.min(lowest):.3g} against {np.max(top):.3g}",
            remedy="sharpen the integration behind it (smaller step, more points), or check "
            "functions for NaN and overflow",
        )
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    if drop is None:
        return root
    sizes = values.max(axis=tuple(range(values.ndim - 1)))
    return root[..., sizes > drop * max(float(sizes.max(initial=0.0)), 1e-300)]


def covariance_root(
    matrix: np.ndarray, *, tolerance: float, drop: float | None = None
) -> Float[np.ndarray, "n rank"]:
    """`psd_root` of what a user gives as a covariance of positions; raises where it is none."""
    remedy = "pass x @ x.T / channels of an input x, (positions, channels)"
    square = matrix.ndim == 2 and 0 < len(matrix) == matrix.shape[1]
    finite = bool(np.isfinite(matrix).all())
    rounding = 1e-12 * float(np.abs(matrix).max(initial=0.0))
    if not square or (finite and not np.allclose(matrix, matrix.T, rtol=1e-6, atol=rounding)):
        raise ShapeError(
            "The covariance is not square and symmetric.",
            got=f"shape {matrix.shape}",
            remedy=remedy,
        )
    got = "NaN or infinity"
    if finite:
        try:
            return psd_root((matrix + matrix.T) / 2, tolerance=tolerance, drop=drop)
        except NumericalError as error:
            got = error.got
    raise NumericalError(
        "The covariance is not finite, or not positive semi-definite.", got=got, remedy=remedy
    )


def condition(
    own: Float[np.ndarray, "*#draws n n"],
    cross: Float[np.ndarray, "*#draws n m"],
    before: Float[np.ndarray, "*#draws m m"],
    values: Float[np.ndarray, "*#draws m"],
) -> tuple[Float[np.ndarray, "*draws n"], Float[np.ndarray, "*#draws n n"]]:
    """Mean and covariance of centred Gaussians given `values` of others.

    `K_nm K_mm⁺ v` and `K_nn − K_nm K_mm⁺ K_mn`, for n new and m known ones.
    """
    gain = cross @ np.linalg.pinv(before, rcond=1e-10, hermitian=True)
    mean = (gain @ values[..., None])[..., 0]
    return mean, own - gain @ np.swapaxes(cross, -1, -2)
