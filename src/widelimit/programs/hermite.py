"""Gaussian expectations of functions of one variable each, by Hermite series.

With `φ(x) = Σ a_k he_k(x)` and `ψ(y) = Σ b_k he_k(y)` in orthonormal Hermite polynomials,
`E[φ(x)ψ(y)] = Σ a_k b_k ρ^k` for standard normals of correlation ρ (Mehler). Functions with kinks
have coefficients that fall only as a power of k; what is left of the series is known at `ρ = ±1`,
where the expectation is one-dimensional, and is carried to other ρ as the tail of such a power law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import special

from ..errors import NumericalError

_FEW = 64  # pairs that are summed over all orders at once, not order by order
_CLOSE = 0.5  # correlations above which a tail is worth adding


@dataclass(frozen=True)
class Grid:
    """Points of a midpoint rule, symmetric about 0, and Hermite orders `0, …, orders − 1`."""

    points: int
    reach: float
    orders: int
    negligible: float
    """The share of a function's square mean beyond the orders that may be left out."""
    most: float
    """The share that the tail of a jump leaves; more is left by functions that turn too fast."""
    offset: float = 0.0
    """The points' distance from their symmetric places, in spacings."""

    @property
    def step(self) -> float:
        """The spacing."""
        return 2 * self.reach / self.points


FINE = Grid(12000, 10.0, 256, 1e-10, 0.1)
COARSE = Grid(400, 8.0, 40, 1e-9, 0.25)
_EDGE = 0.8  # of the reach: square means beyond are those of functions that reach further
FAR_SHARE = 0.01  # of the square mean that may lie beyond
_ONE_POINT = 0.02  # of the square mean at one point: a pole may be near


def no_square_mean(example: str) -> NumericalError:
    """What enters second moments has none."""
    return NumericalError(
        "A function of activations has no square mean within reach of the integration.",
        got=f"a function or an initial law such as {example}",
        remedy="make the argument smaller, clip it, or draw from a law with a variance",
    )


@lru_cache(maxsize=8)
def nodes(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (P,), weights (P,) and weighted Hermite polynomials (P, orders)."""
    x = -grid.reach + grid.step * (np.arange(grid.points) + 0.5 + grid.offset)
    weights = np.exp(-0.5 * np.square(x))
    weights /= weights.sum()
    table = np.empty((grid.points, grid.orders))
    # Hermite functions, with the root of the weight inside, do not overflow.
    root = np.sqrt(weights)
    previous, current = np.zeros_like(x), root.copy()
    for k in range(grid.orders):
        table[:, k] = current * root
        following = (x * current - np.sqrt(k) * previous) / np.sqrt(k + 1)
        previous, current = current, following
    return x, weights, table


@dataclass(frozen=True)
class HermiteSeries:
    """Values on the grid (draws, P, size), and `E[φ²]` (draws, size)."""

    grid: Grid
    values: np.ndarray
    energy: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, grid: Grid) -> HermiteSeries:
        """The series of functions given by their values on the grid."""
        x, weights, _ = nodes(grid)
        draws, points, size = values.shape
        rows = np.square(np.ascontiguousarray(np.swapaxes(values, 1, 2)).reshape(-1, points))
        far = np.where(np.abs(x) > _EDGE * grid.reach, weights, 0.0)
        energy, beyond = (np.einsum("rp,p->r", rows, each) for each in (weights, far))
        if (beyond > FAR_SHARE * energy).any():
            raise no_square_mean("exp of something large, or a Cauchy law")
        return cls(grid, values, energy.reshape(draws, size))

    @cached_property
    def coefficients(self) -> np.ndarray:
        """(draws, size, orders)."""
        draws, points, size = self.values.shape
        rows = np.ascontiguousarray(np.swapaxes(self.values, 1, 2)).reshape(-1, points)
        return (rows @ nodes(self.grid)[2]).reshape(draws, size, -1)

    def coefficient(self, order: int) -> np.ndarray:
        """One of them, (draws, size): the mean, for order 0."""
        if self.energy.size >= _FEW:  # all are soon asked for
            return self.coefficients[..., order]
        return np.swapaxes(self.values, 1, 2) @ nodes(self.grid)[2][:, order]

    @cached_property
    def share_left(self) -> float:
        """The largest share of a square mean that the orders leave."""
        rest = np.maximum(self.energy - np.square(self.coefficients).sum(axis=-1), 0.0)
        return float((rest / np.maximum(self.energy, 1e-300)).max(initial=0.0))

    def peaks(self) -> list[tuple[float, int]]:
        """Points of the grid that hold much of a square mean, perhaps of a pole: where, and the
        draw in which it is most.
        """
        at, weights, *_ = nodes(self.grid)
        with np.errstate(invalid="ignore"):
            energy = np.maximum(self.energy, 1e-300)[:, None, :]
            top = (np.square(self.values) * weights[None, :, None] / energy).max(axis=2)
        found = np.flatnonzero(top.max(axis=0) > _ONE_POINT)
        return [(float(at[i]), int(top[:, i].argmax())) for i in found]

    def converges(self, rho: np.ndarray) -> bool:
        """Whether the orders suffice for these correlations; those of ±1 need none."""
        size = np.abs(rho)
        return not ((size > _CLOSE) & (size < 1)).any() or self.share_left <= self.grid.most


def mehler(
    left: HermiteSeries,
    right: HermiteSeries,
    rows: np.ndarray,
    columns: np.ndarray,
    rho: np.ndarray,
) -> np.ndarray:
    """`E[φ_i ψ_j]` for members `rows` (c, A) and `columns` (c, B): (draws, c, A, B)."""
    if rho.size < _FEW and (rho == 1).all():  # functions of one variable need no series
        return _along(left, right, rows, columns, 1)
    top = float(np.abs(rho).max(initial=0.0))
    orders = left.grid.orders
    if top < 1:
        orders = min(orders, 2 + int(np.log(1e-17) / np.log(max(top, 1e-17))))
    first, second = left.coefficients[:, rows], right.coefficients[:, columns]
    a = np.ascontiguousarray(np.moveaxis(first, -1, 0))[:orders, ..., :, None]
    b = np.ascontiguousarray(np.moveaxis(second, -1, 0))[:orders, ..., None, :]
    draws = max(a.shape[1], b.shape[1], rho.shape[0])
    total = np.zeros((draws, *rho.shape[1:]))
    if total.size < _FEW:
        powers = np.power.outer(rho, np.arange(orders))
        total += (np.moveaxis(powers, -1, 0) * a * b).sum(axis=0)
    else:
        term = np.empty_like(total)
        for k in reversed(range(orders)):
            total *= rho
            total += np.multiply(a[k], b[k], out=term)
    if top < _CLOSE or max(left.share_left, right.share_left) < left.grid.negligible:
        return total
    # What is left of the series beyond the orders: even and odd ones by themselves.
    plus, minus = (_along(left, right, rows, columns, sign) for sign in (1, -1))
    orders = left.grid.orders
    time = -orders * np.log(np.clip(np.abs(rho), 1e-300, 1.0))
    for parity, whole, sign in ((0, plus + minus, 1.0), (1, plus - minus, np.sign(rho))):
        tail, double = (
            whole / 2 - first[..., parity:end:2] @ np.swapaxes(second[..., parity:end:2], -1, -2)
            for end in (orders, orders // 2)
        )
        # A power law k^{-p-1} of the terms leaves K^{-p}: p from the tails at K/2 and K.
        with np.errstate(divide="ignore", invalid="ignore"):
            p = np.log2(np.abs(double / tail))
        p = np.where(np.isfinite(p), np.clip(p, 0.25, 8.0), 1.5)
        total = total + sign * tail * p * _exponential_integral(p + 1, time)
    return total


def _along(
    left: HermiteSeries, right: HermiteSeries, rows: np.ndarray, columns: np.ndarray, sign: int
) -> np.ndarray:
    """`E[φ_i(x) ψ_j(±x)]`, where ρ is ±1."""
    f = np.moveaxis(left.values[:, :, rows], 1, -1) * nodes(left.grid)[1]  # (draws, c, A, P)
    g = np.moveaxis(right.values[:, ::sign, columns], 1, -1)
    if f[..., 0].size * g.shape[-2] < _FEW:  # BLAS would start its threads for a few numbers
        return np.einsum("...ap,...bp->...ab", f, g)
    return f @ np.swapaxes(g, -1, -2)


def _exponential_integral(order: np.ndarray, t: np.ndarray) -> np.ndarray:
    """`∫_1^∞ e^{−tu} u^{−order} du` for real order > 1."""
    order, t = (np.array(each) for each in np.broadcast_arrays(order, t))
    result, far = np.empty(order.shape), t > 1
    x, weights = special.roots_laguerre(24)
    s, time = order[far][:, None], t[far][:, None]
    # u = 1 + v/(s + t): the integrand is e^{−t} times a smooth function of e^{−v}.
    u = 1 + x / (s + time)
    result[far] = (np.exp(-time * u + x) * u**-s / (s + time)) @ weights
    # E_r(t) = t^{r−1} Γ(1−r, t) for r < 1, and from there (s − 1) E_s(t) = e^{−t} − t E_{s−1}(t).
    s, time = order[~far], np.maximum(t[~far], 1e-300)
    steps = np.ceil(s) - 1
    r = np.minimum(s - steps, 1 - 1e-12)
    found = time ** (r - 1) * special.gamma(1 - r) * special.gammaincc(1 - r, time)
    for k in range(int(steps.max(initial=0))):
        found = np.where(k < steps, (np.exp(-time) - time * found) / (r + k), found)
    result[~far] = found
    return result
