"""Gram matrices and products of wide Gaussian matrices, drawn without the wide matrices."""

import numpy as np
from jaxtyping import Float


def generator(seed: int, chunk: int) -> np.random.Generator:
    """Return the random stream of one chunk of work: a function of `seed` and `chunk` alone."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(chunk,))))


def chi(
    rng: np.random.Generator, batch: tuple[int, ...], *, dof: int
) -> Float[np.ndarray, "*batch"]:
    """`χ_dof`: the norm of a vector of `dof` standard normals."""
    return np.sqrt(2.0 * rng.standard_gamma(0.5 * dof, batch))


def bartlett(
    rng: np.random.Generator, batch: tuple[int, ...], *, rows: int, dof: int
) -> Float[np.ndarray, "*batch rows rank"]:
    """Bartlett factor `T`, `TTᵀ = ZZᵀ` in law, for `Z` a `rows×dof` matrix of standard normals.

    `T` is the triangular factor in `Z = TU` with orthonormal rows of `U`: independent entries
    `T_ii = χ_{dof−i}` (i from 0) and `T_ij ~ N(0,1)` below the diagonal. With `dof < rows` the
    Wishart matrix is singular and `T` has only `rank = min(rows, dof)` columns; the same entries
    are exact there, because rows beyond the first `dof` are rotated by an orthogonal `U`.
    """
    rank = min(rows, dof)
    factor = np.zeros((*batch, rows, rank))
    for j in range(rank):
        factor[..., j, j] = chi(rng, batch, dof=dof - j)
        factor[..., j + 1 :, j] = rng.standard_normal((*batch, rows - j - 1))
    return factor


def gaussian_product(
    rng: np.random.Generator, batch: tuple[int, ...], *, rows: int, columns: int, inner: int
) -> Float[np.ndarray, "*batch rows columns"]:
    """`Z_1 Z_2ᵀ` in law, for independent standard normal `Z_1` (rows×inner), `Z_2` (columns×inner).

    Given the narrower of the two, `Z_2 = TU`, the product is `(Z_1Uᵀ)Tᵀ`, and `Z_1Uᵀ` is again
    standard normal, with as many columns as `T`: the cost does not depend on `inner`.
    """
    if rows < columns:
        factor = bartlett(rng, batch, rows=rows, dof=inner)
        return factor @ rng.standard_normal((*batch, factor.shape[-1], columns))
    factor = bartlett(rng, batch, rows=columns, dof=inner)
    normals = rng.standard_normal((*batch, rows, factor.shape[-1]))
    return normals @ np.swapaxes(factor, -1, -2)
