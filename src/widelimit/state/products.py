"""Matrix products of pairs, for tiles of pairs.

In a tile `A κ` has one `A` for every row of pairs. Mapped as usual, all κ of that row become one
wide matrix, which takes a transposed copy of κ before the product and another one after it. On a
processor it is twice as fast to repeat `A`, which is small, and to multiply pair by pair.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

Product = Callable[[Array, Array], Array]


def _pairwise(contracted: int) -> Product:
    """The product over the last axis of one matrix and an axis of the other (−2 or −1)."""

    def plain(a: Array, b: Array) -> Array:
        lead = tuple(range(a.ndim - 2))
        axes = (a.ndim - 1,), (b.ndim + contracted,)
        return jax.lax.dot_general(a, b, (axes, (lead, lead)))

    @custom_vmap
    def repeated(a: Array, b: Array) -> Array:
        return plain(a, b)

    @repeated.def_vmap
    def _(size: int, batched: list[bool], a: Array, b: Array) -> tuple[Array, bool]:
        a, b = (
            x if already else jnp.broadcast_to(x, (size, *x.shape))
            for x, already in zip((a, b), batched, strict=True)
        )
        return repeated(a, b), True

    @jax.custom_jvp
    def product(a: Array, b: Array) -> Array:
        if a.shape[-2] == 1:  # vectors have nothing to transpose
            return plain(a, b)
        # Accelerators like wide matrices. Which one it is, is known when the program is lowered.
        return jax.lax.platform_dependent(a, b, cpu=repeated, default=plain)

    @product.defjvp
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, b), (da, db) = primals, tangents
        return product(a, b), plain(da, b) + plain(a, db)

    return product


_times: Product = _pairwise(-2)
_times_transposed: Product = _pairwise(-1)


def sandwich(
    left: Float[Array, "a s"] | None, kernel: Float[Array, "s t"], right: Float[Array, "b t"] | None
) -> Array:
    """`L κ Rᵀ`, the smaller side first; None is the identity."""
    if left is None:
        return kernel if right is None else _times_transposed(kernel, right)
    if right is None:
        return _times(left, kernel)
    if left.shape[0] > right.shape[0]:
        return _times(left, _times_transposed(kernel, right))
    return _times_transposed(_times(left, kernel), right)
