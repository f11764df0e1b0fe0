"""Factorisations of small matrices inside compiled programs: on a processor, one after the other.

`jaxlib` before 0.11 gives the parts of a *batch* of matrices to XLA's threads, and waits for them
in one of these threads. Where as many batches meet as there are threads, in one program or in
several, all of them wait and nothing ever ends: two batches of 90 × 90 Cholesky factors on two
cores do so within a second. A single matrix is never divided. So batches, also those that `vmap`
makes, become loops here on processors; other devices have kernels for batches, and use them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _one_by_one(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """The function of one matrix, mapped in a loop where `vmap` would make a batch."""
    single = jax.custom_batching.custom_vmap(function)

    @single.def_vmap
    def several(size: int, batched: Any, matrices: Array) -> tuple[Any, Any]:
        found = jax.lax.platform_dependent(
            matrices, cpu=lambda m: jax.lax.map(single, m), default=jax.vmap(function)
        )
        return found, jax.tree.map(lambda _: True, found)

    return single


_qr = _one_by_one(lambda matrix: tuple(jnp.linalg.qr(matrix)))
_eigh = _one_by_one(lambda matrix: tuple(jnp.linalg.eigh(matrix)))
_cholesky = _one_by_one(jnp.linalg.cholesky)
_inverse = _one_by_one(
    lambda lower: jax.scipy.linalg.solve_triangular(
        lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True
    )
)


def qr(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """`A = QR`; without derivatives."""
    return _qr(matrix)


@jax.custom_jvp
def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`A = LLᵀ`, with `dL = L Φ(L⁻¹ dA L⁻ᵀ)`; Φ keeps the lower half, and half of the diagonal."""
    return _cholesky(matrix)


@cholesky.defjvp
def _cholesky_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (matrix,), (change,) = primals, tangents
    lower = cholesky(matrix)
    inverse = lower_inverse(lower)
    change = (change + change.T) / 2
    inner = jnp.tril(inverse @ change @ inverse.T)
    return lower, lower @ (inner - jnp.diag(jnp.diagonal(inner)) / 2)


@jax.custom_jvp
def lower_inverse(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`L⁻¹` of a lower triangle, with `dL⁻¹ = −L⁻¹ dL L⁻¹`."""
    return _inverse(lower)


@lower_inverse.defjvp
def _lower_inverse_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (lower,), (change,) = primals, tangents
    inverse = lower_inverse(lower)
    return inverse, -inverse @ jnp.tril(change) @ inverse


@jax.custom_jvp
def eigh(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """`A = V diag(λ) Vᵀ`, with `dλ = diag(VᵀdAV)` and `dV = V(F ∘ VᵀdAV)`, `Fᵢⱼ = 1/(λⱼ − λᵢ)`."""
    return _eigh(matrix)


@eigh.defjvp
def _eigh_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (matrix,), (change,) = primals, tangents
    values, vectors = eigh(matrix)
    turned = vectors.T @ ((change + change.T) / 2) @ vectors
    gaps = values[None, :] - values[:, None]
    apart = jnp.where(jnp.eye(len(values), dtype=bool), 0, 1 / (gaps + jnp.eye(len(values))))
    return (values, vectors), (jnp.diagonal(turned), vectors @ (apart * turned))
