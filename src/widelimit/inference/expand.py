"""Finite networks replaced by their Taylor series in the weights.

The first-order expansion is what infinitely wide networks train as; comparing a network with its
expansions shows how far from that limit it is.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ..options import whole

Network = Callable[..., Array]
"""A function `f(params, *args, **kwargs)` to an array."""


def linearize(f: Network, params: PyTree) -> Network:
    """`f_lin(θ, x) = f(θ₀, x) + ∂f/∂θ(θ₀, x)·(θ − θ₀)`, a function with the signature of `f`."""
    return taylor_expand(f, params, degree=1)


def taylor_expand(f: Network, params: PyTree, *, degree: int) -> Network:
    """`Σ_{k ≤ degree} (1/k!) d^k/ds^k f(θ₀ + s(θ − θ₀), x)` at `s = 0`, signature as `f`.

    Leaves of `params` that are not floating-point arrays stay as they are. Each derivative is a
    forward-mode derivative of the one before, so the cost doubles with every degree.
    """
    whole("degree", degree, least=0)
    centre, fixed = eqx.partition(params, eqx.is_inexact_array)

    def expanded(moved: PyTree, *args: Any, **kwargs: Any) -> Array:
        step = jax.tree.map(jnp.subtract, eqx.filter(moved, eqx.is_inexact_array), centre)

        def along(s: Array) -> Array:
            shifted = jax.tree.map(lambda c, d: c + s.astype(c.dtype) * d, centre, step)
            return f(eqx.combine(shifted, fixed), *args, **kwargs)

        def derivatives(s: Array, count: int) -> tuple[Array, ...]:
            """`(g, g′, …, g⁽ᵏ⁾)` at s, of g as a function along the way, in one pass."""
            if count == 0:
                return (along(s),)
            tangent = (jnp.ones_like(s),)
            values, slopes = jax.jvp(lambda at: derivatives(at, count - 1), (s,), tangent)
            return (values[0], *slopes)

        first, *others = derivatives(jnp.zeros(()), degree)
        return sum((g / math.factorial(k) for k, g in enumerate(others, 1)), start=first)

    return expanded
