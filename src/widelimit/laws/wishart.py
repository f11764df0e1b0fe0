"""Gaussian matrices without their wide side: Bartlett's factor of a Wishart matrix.

For Z a `rows×dof` matrix of standard normals, `Z = TU` with orthonormal rows of U and a triangular
T of independent entries: `T_jj = χ_{dof−j}` (j from 0), and standard normals below the diagonal. So
`TTᵀ = ZZᵀ` in law, whatever `dof`. With `dof < rows` the Wishart matrix is singular and T has only
`rank = min(rows, dof)` columns; the same entries are exact there, because rows beyond the first
`dof` are rotated by an orthogonal U.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

# --- drawn ---


def chi(
    rng: np.random.Generator, batch: tuple[int, ...], *, dof: int
) -> Float[np.ndarray, "*batch"]:
    """`χ_dof`: the norm of a vector of `dof` standard normals."""
    return np.sqrt(2.0 * rng.standard_gamma(0.5 * dof, batch))


def bartlett(
    rng: np.random.Generator, batch: tuple[int, ...], *, rows: int, dof: int
) -> Float[np.ndarray, "*batch rows rank"]:
    """Draw factors T."""
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


# --- as a function of normals ---

_NODES = np.linspace(-9.5, 9.5, 1025)


def _chi_table(dof: int) -> tuple[np.ndarray, np.ndarray]:
    """`χ_dof` as a function of a normal number (equal probabilities), and its slope."""
    lower = special.gammaincinv(dof / 2, special.ndtr(_NODES))
    upper = special.gammainccinv(dof / 2, special.ndtr(-_NODES))
    chi = np.sqrt(2 * np.where(_NODES < 0, lower, upper))
    # log φ(z) − log f(χ), the constants together.
    constant = (dof / 2 - 1) * math.log(2) + special.gammaln(dof / 2) - 0.5 * math.log(2 * math.pi)
    logs = constant - _NODES**2 / 2 - special.xlogy(dof - 1, chi) + chi**2 / 2
    return chi, np.exp(logs)


def chi_from_normal(z: Float[Array, "*batch r"], dofs: tuple[int, ...]) -> Float[Array, "*batch r"]:
    """Independent `χ` of given degrees of freedom, by cubic interpolation (error below 1e-8)."""
    tables = [_chi_table(dof) for dof in dofs]
    values, slopes = (jnp.asarray(np.stack(part), z.dtype) for part in zip(*tables, strict=True))
    step = float(_NODES[1] - _NODES[0])
    place = (jnp.clip(z, _NODES[0], _NODES[-1]) - _NODES[0]) / step
    left = jnp.clip(place.astype(jnp.int32), 0, len(_NODES) - 2)
    t, column = place - left, jnp.arange(len(dofs))
    y0, y1 = values[column, left], values[column, left + 1]
    m0, m1 = step * slopes[column, left], step * slopes[column, left + 1]
    bend = 2 * (y0 - y1) + m0 + m1
    return y0 + t * (m0 + t * (3 * (y1 - y0) - 2 * m0 - m1 + t * bend))


def factor_size(rows: int, dof: int) -> int:
    """How many normals a factor is made of."""
    return sum(rows - j for j in range(min(rows, dof)))


def bartlett_factor(
    normals: Float[Array, "*batch size"], rows: int, dof: int
) -> Float[Array, "*batch rows rank"]:
    """T from the normals behind its diagonal, then those below it line by line."""
    rank = min(rows, dof)
    diagonal = chi_from_normal(normals[..., :rank], tuple(dof - j for j in range(rank)))
    places = np.full((rows, rank), normals.shape[-1])  # of zeros
    places[np.tril_indices(rows, -1, rank)] = np.arange(rank, normals.shape[-1])
    np.fill_diagonal(places, np.arange(rank))
    zero = jnp.zeros((*normals.shape[:-1], 1), normals.dtype)
    return jnp.concatenate([diagonal, normals[..., rank:], zero], axis=-1)[..., places]
