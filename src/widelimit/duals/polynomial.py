"""Polynomials: finite series in the covariance, smooth everywhere.

With `b_n(q) = E[φ⁽ⁿ⁾(u)]/√n!`, a polynomial in q, Mehler's series ends:
`E[φ(u)φ(v)] = Σ_n b_n(q₁) b_n(q₂) κⁿ`, and its derivative in κ is `E[φ'(u)φ'(v)]`.
"""

from math import factorial, prod, sqrt
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import OptionError
from ..options import cast, hyperparameter, whole
from .base import Dual

Factors = tuple[Float[Array, "..."], ...]


def _moment(order: int) -> int:
    """`E[z^order]` for a standard normal z: (order − 1)!! for even orders."""
    return prod(range(order - 1, 0, -2)) if order % 2 == 0 else 0


class _Powers(Dual):
    """A polynomial, known by what `prepare` gives: `b_n(q)` of every power n up to its degree."""

    def __call__(self, left: Factors, right: Factors, k, *, need_derivative: bool = True):
        """`Σ_n b_n(q₁) b_n(q₂) κⁿ` and its slope in κ, by Horner's rule."""
        products = [a * b for a, b in zip(left, right, strict=True)]
        value = jnp.broadcast_to(products[-1], k.shape)
        slope = jnp.zeros_like(k)
        for product in products[-2::-1]:
            slope = slope * k + value
            value = value * k + product
        return value, slope if need_derivative else None

    def mean(self, q):
        """`b_0(q)`."""
        return self.prepare(q)[0]


class Polynomial(_Powers):
    """`φ(x) = Σ_j p_j x^j`: `b_n(q) = Σ_j p_j j!/(j−n)! E[z^{j−n}] q^{(j−n)/2} / √n!`."""

    coefficients: Float[Array, " powers"]

    def __init__(self, coefficients: Any):
        """`coefficients` of 1, x, x², …"""
        self.coefficients = hyperparameter(coefficients, "coefficients", scalar=False)
        if np.ndim(self.coefficients) != 1 or np.size(self.coefficients) == 0:
            raise OptionError(
                "The polynomial has no list of coefficients, lowest power first.",
                got=f"an array of shape {np.shape(self.coefficients)}",
                remedy="pass a sequence of numbers, e.g. [0, 0, 1] for x²",
            )

    def fn(self, x):
        p = cast(self.coefficients, x)
        total = jnp.broadcast_to(p[-1], x.shape)
        for j in range(p.size - 2, -1, -1):
            total = total * x + p[j]
        return total

    def prepare(self, q) -> Factors:
        """`b_n(q)` for every n up to the degree."""
        return tuple(self._factor(n, q) for n in range(np.size(self.coefficients)))

    def _factor(self, n: int, q: Float[Array, "*p"]) -> Float[Array, "*p"]:
        p = cast(self.coefficients, q)
        highest = n + (p.size - 1 - n) // 2 * 2
        total = jnp.zeros_like(q)
        for j in range(highest, n - 1, -2):
            weight = factorial(j) // factorial(j - n) * _moment(j - n) / sqrt(factorial(n))
            total = total * q + weight * p[j]
        return total


class Hermite(_Powers):
    """The normalised Hermite polynomial `h_m`, for which `E[φ(u)φ(v)] = κ^m` at variance one.

    `b_n(q) = √(m!/n!) /(m−n)! · E[z^{m−n}] (q − 1)^{(m−n)/2}`, exact at `q = 1`.
    """

    degree: int = eqx.field(static=True)

    def __init__(self, degree: int):
        """`degree` is m."""
        self.degree = check_degree(degree)

    def fn(self, x):
        # √j h_j = x h_{j−1} − √(j−1) h_{j−2}
        before, here = jnp.zeros_like(x), jnp.ones_like(x)
        for j in range(1, self.degree + 1):
            before, here = here, (x * here - sqrt(j - 1) * before) / sqrt(j)
        return here

    def prepare(self, q) -> Factors:
        """`b_n(q)` for every n up to m; zero where m − n is odd."""
        return tuple(self._factor(n, q) for n in range(self.degree + 1))

    def _factor(self, n: int, q: Float[Array, "*p"]) -> Float[Array, "*p"]:
        gap = self.degree - n
        weight = sqrt(factorial(self.degree) / factorial(n)) * _moment(gap) / factorial(gap)
        return weight * (q - 1) ** (gap // 2)


# Moments of higher powers leave what double precision holds.
_MOST_DEGREE = 100


def check_degree(degree: int) -> int:
    """The degree of a polynomial."""
    return whole("degree", degree, least=0, most=_MOST_DEGREE)
