"""Which powers of the correlation a dual needs, and how to get their coefficients.

With `h_j` the normalised Hermite polynomials and `e_j(q) = E[φ'(√q z) h_j(z)]`, Mehler's formula is

    E[φ'(u)φ'(v)] = Σ_j e_j(q₁) e_j(q₂) c^j.

Near `c = ±1` it may take hundreds of powers, but they need not all be summed: as a function of j,
`c^j` is smooth, so most high powers are interpolated between a few kept ones, `c^j ≈ Σ_r A_jr c^r`
(Lagrange, even and odd orders apart). The weight of a kept power, `S_r(q₁, q₂) = Σ_j A_jr e_j e_j`,
is split into factors of one position each by a landmark variance q*, the largest one planned for:
`S_r(q₁, q₂) ≈ ε_r(q₁) ε_r(q₂)` with `ε_r(q) = S_r(q, q*)/√S_r(q*, q*)`, exact when either is q*.
Hence `ε_r(q) = Σ_j T_jr e_j(q)`: linear in φ', a small matrix applied to samples of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

_REACH = 14.0  # h_j(z) times the normal density is below 1e-21 from here on
_FINEST = 1 / 20
_SPACINGS = (0.4, 0.32, 0.25, 0.2, 0.16, 0.125, 0.1, 0.08, 0.0625, _FINEST)
_MOST_ORDERS = 400
_MOST_ORDERS_WITH_JUMPS = 100
_REACHED_WITH_JUMPS = 1e-4  # a jump of φ' leaves more than this beyond all orders
_DECADES = np.concatenate([[0.0], np.geomspace(1e-4, 8, 48)])  # −log c where errors are looked at

Samples = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""`x ↦ (φ(x), φ'(x))`."""


def _nodes(spacing: float) -> np.ndarray:
    """Equally spaced: for smooth functions as good as Gauss–Hermite, at any spacing."""
    half = np.arange(spacing / 2, _REACH, spacing)
    return np.concatenate([-half[::-1], half])


def _normal_weights(z: np.ndarray) -> np.ndarray:
    weights = np.exp(-(z**2) / 2)
    return weights / weights.sum()


def _hermite(z: np.ndarray, orders: int) -> np.ndarray:
    """`h_j(z)`, shape (nodes, orders), by the three-term recurrence."""
    table = np.ones((orders, z.size))
    for j in range(1, orders):
        below = np.sqrt(j - 1) * table[j - 2] if j > 1 else 0.0
        table[j] = (z * table[j - 1] - below) / np.sqrt(j)
    return table.T


@cache
def _finest_rule() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    z = _nodes(_FINEST)
    weights = _normal_weights(z)
    return z, weights, weights[:, None] * _hermite(z, _MOST_ORDERS)


@dataclass(frozen=True, eq=False)
class SeriesPlan:
    """The kept powers, the nodes, and the matrix T from Hermite orders to kept powers.

    Smooth functions are sampled by their slope: `ε_r = E[φ'(√q z) Σ_j T_jr h_j(z)]`. If φ' jumps,
    values are sampled, `√q ε_r = E[φ(√q z) Σ_j √(j+1) T_jr h_{j+1}(z)]`, and `transform` has the
    factors `√(j+1)` and the shift of the order in it. An even and an odd power, `tail`, carry what
    is beyond all orders if that is too much to leave out.
    """

    powers: tuple[int, ...]
    tail: tuple[int, int] | None
    by_slope: bool
    nodes: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    transform: np.ndarray = field(repr=False)

    def matrix(self, times: int = 0, *, of_mean: bool = False) -> np.ndarray:
        """Maps samples to `(2q d/dq)^times` of their coefficients, shape (nodes, powers).

        Because `e_j = E[f(√q z) h_j(z)]` has `2q de_j/dq = j e_j + √((j+1)(j+2)) e_{j+2}` for every
        f, which needs no derivative of it. `of_mean`: of E[φ] alone, shape (nodes, 1).
        """
        transform = np.ones((1, 1)) if of_mean else self.transform
        for _ in range(times):
            orders, powers = transform.shape
            j = np.arange(orders)[:, None]
            raised = np.zeros((orders + 2, powers))
            raised[:orders] = j * transform
            raised[2:] += np.sqrt((j + 1) * (j + 2)) * transform
            transform = raised
        return self.weights[:, None] * (_hermite(self.nodes, len(transform)) @ transform)

    def tail_squares(self, q: Any, value: Any, derivative: Any, factors: Any) -> tuple[Any, Any]:
        """Squared factors of the tail: what the powers leave of the expectations at `c = ±1`.

        Of `E[φ'(u)φ'(±u)]`, or of `E[φ(u)φ(±u)]` where φ' jumps and only values can be trusted.
        From samples (…, nodes) and factors (…, powers), numpy or jax alike.
        """
        powers = np.asarray(self.powers)
        weights = self.weights.astype(value.dtype)
        samples, shares, orders = derivative, factors**2, (0, 0)
        if not self.by_slope:
            centred = value - (value @ weights)[..., None]
            samples = centred / q[..., None] ** 0.5
            # A power r of the derivative is a power r + 1 of the value: the parities change places.
            shares = shares / (powers + 1).astype(value.dtype)
            orders = self.tail or orders
        square = samples**2 @ weights
        mirrored = (samples * samples[..., ::-1]) @ weights
        if not self.by_slope:
            mirrored = -mirrored
        even = powers % 2 == 0
        rest = (
            (square + mirrored) / 2 - shares[..., even].sum(-1),
            (square - mirrored) / 2 - shares[..., ~even].sum(-1),
        )
        even_tail, odd_tail = ((r + 1) * x * (x > 0) for r, x in zip(orders, rest, strict=True))
        return even_tail, odd_tail

    def coefficients(self, samples: Samples, variances: np.ndarray):
        """In float64: all powers, the means `E[φ]`, and the factors of every power."""
        value, derivative = samples(np.sqrt(variances)[:, None] * self.nodes)
        powers, mean = np.asarray(self.powers), value @ self.weights
        if self.by_slope:
            factors = derivative @ self.matrix()
        else:
            factors = value @ self.matrix() / np.sqrt(variances)[:, None]
        if self.tail is not None:
            rest = np.stack(self.tail_squares(variances, value, derivative, factors), axis=-1)
            powers = np.concatenate([powers, self.tail])
            factors = np.concatenate([factors, np.sqrt(rest)], axis=-1)
        return powers, mean, factors

    @cached_property
    def _key(self) -> tuple:
        arrays = (self.nodes, self.weights, self.transform)
        return self.powers, self.tail, self.by_slope, *(array.tobytes() for array in arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeriesPlan) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _interpolation(orders: np.ndarray, kept: np.ndarray, width: int) -> np.ndarray:
    """`A_jr`: each order as a combination of the `width` kept orders around it (Lagrange)."""
    a = np.zeros((len(orders), len(kept)))
    for i, j in enumerate(orders):
        at = int(np.searchsorted(kept, j))
        if kept[at] == j:
            a[i, at] = 1.0
            continue
        start = max(0, min(at - width // 2, len(kept) - width))
        nodes, same = kept[start : start + width], np.eye(width)
        differences = nodes[:, None] - nodes[None, :] + same
        numerators = np.where(same > 0, 1.0, j - nodes[None, :])
        a[i, start : start + width] = np.prod(numerators / differences, axis=1)
    return a


def _kept(orders: np.ndarray, tails: np.ndarray, share: float, width: int, coarseness: float):
    """Orders further and further apart as what is left of the series gets small."""
    kept = [0]
    while kept[-1] < len(orders) - 1:
        at = kept[-1]
        ease = min(1.0, (share / max(tails[at], 1e-300)) ** (1 / width))
        step = max(1, int(coarseness * orders[at] / 2 * ease))
        kept.append(min(at + step, len(orders) - 1))
    return orders[kept]


def _factor(a: np.ndarray, landmark: np.ndarray) -> np.ndarray | None:
    """T from A: the landmark's factorisation, and exact for powers that stand for themselves."""
    alone = np.count_nonzero(a, axis=0) == 1
    strength = landmark**2 @ a
    if np.any(strength[~alone] <= 0):
        return None
    t = a * landmark[:, None] / np.sqrt(np.where(alone, 1.0, strength))
    t[:, alone] = a[:, alone]
    return t


def _chain(e: np.ndarray, orders: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """The shortest list of kept orders of one parity with an error below `tolerance`.

    `e` has a row per planned variance, the largest first, each scaled to `E[φ'²] = 1`.
    """
    decay = np.exp(-np.outer(_DECADES, orders))
    exact = np.einsum("ij,kj,sj->iks", e, e, decay, optimize=True)
    tails = np.cumsum((e**2).max(axis=0)[::-1])[::-1]
    best = orders, np.eye(len(orders))
    for width in (4, 6):
        for coarseness in 4 * 0.85 ** np.arange(32):
            kept = _kept(orders, tails, tolerance / 3, width, coarseness)
            if len(kept) >= len(best[0]):
                break
            t = _factor(_interpolation(orders, kept, width), e[0]) if len(kept) > width else None
            if t is None:
                continue
            factors = e @ t
            decay = np.exp(-np.outer(_DECADES, kept))
            short = np.einsum("ir,kr,sr->iks", factors, factors, decay, optimize=True)
            if np.abs(exact - short).max() < tolerance:
                best = kept, t
                break
    return best


def make_plan(samples: Samples, variances: np.ndarray, tolerance: float) -> SeriesPlan:
    """Choose powers and nodes for an error of `tolerance · √(E[φ'(u)²] E[φ'(v)²])`.

    `variances` are those to plan for, the largest first.
    """
    z, weights, table = _finest_rule()
    value, derivative = samples(np.sqrt(variances)[:, None] * z)
    e = derivative @ table[:, :-1]
    lift = np.sqrt(np.arange(1, _MOST_ORDERS))
    e_by_value = value @ table[:, 1:] * lift / np.sqrt(variances)[:, None]
    scale = np.sqrt(derivative**2 @ weights)[:, None]
    scale = np.where(scale > 0, scale, 1.0)
    # The two agree to rounding, unless φ' jumps between nodes.
    by_slope = bool(np.abs((e - e_by_value) / scale).max() < 1e-6)
    e = (e if by_slope else e_by_value) / scale
    if not by_slope:
        tolerance = max(tolerance, _REACHED_WITH_JUMPS)
        e = e[:, :_MOST_ORDERS_WITH_JUMPS]
    strongest = (e**2).max(axis=0)
    count = int(np.sum(np.cumsum(strongest[::-1])[::-1] > tolerance / 4))
    powers, columns = [], []
    for parity in (0, 1):
        orders = np.arange(parity, count, 2)
        present = np.flatnonzero(strongest[orders] > tolerance / 1000)
        if present.size == 0:
            continue
        orders = orders[: present[-1] + 1]
        kept, t = _chain(e[:, orders], orders, tolerance / 4)
        used = ((e[:, orders] @ t) ** 2).max(axis=0) > tolerance / 1000
        full = np.zeros((count, len(kept)))
        full[orders] = t
        powers += kept[used].tolist()
        columns.append(full[:, used])
    if not powers:  # φ is constant
        powers, columns = [0], [np.ones((1, 1))]
    sort = np.argsort(powers)
    transform = np.concatenate(columns, axis=1)[:, sort]
    beyond = 3 * count // 2 * 2
    missing = np.max(1 - np.sum(e**2, axis=1)) if np.any(strongest) else 0.0
    if not by_slope:
        lifted = np.zeros((len(transform) + 1, len(powers)))
        lifted[1:] = lift[: len(transform), None] * transform
        transform = lifted
    plan = SeriesPlan(
        powers=tuple(powers[i] for i in sort),
        tail=(beyond, beyond + 1) if missing > 2 * tolerance else None,
        by_slope=by_slope,
        nodes=z,
        weights=weights,
        transform=transform,
    )
    return _coarsen(plan, samples, variances, tolerance / 20)


def _coarsen(
    finest: SeriesPlan, samples: Samples, variances: np.ndarray, tolerance: float
) -> SeriesPlan:
    """The same plan with the widest spacing and least reach of nodes for the same coefficients."""
    _, mean, factors = finest.coefficients(samples, variances)
    mean_size = 1 + np.abs(mean)[:, None]
    factor_size = np.linalg.norm(factors, axis=1)[:, None] + 1e-300
    plan = finest
    for spacing in _SPACINGS:
        z = _nodes(spacing)
        plan = replace(finest, nodes=z, weights=_normal_weights(z))
        _, mean_here, factors_here = plan.coefficients(samples, variances)
        mean_gap = np.abs(mean_here - mean)[:, None] / mean_size
        if max(mean_gap.max(), (np.abs(factors_here - factors) / factor_size).max()) < tolerance:
            break
    roots = np.sqrt(variances)[:, None]
    value, derivative = samples(roots * plan.nodes)
    sampled = np.abs(derivative if plan.by_slope else value / roots) / factor_size
    influence = sampled.max(axis=0) * np.abs(plan.matrix()).max(axis=1)
    influence = np.maximum(influence, (np.abs(value) / mean_size).max(axis=0) * plan.weights)
    drop = int(np.argmax(np.cumsum(influence + influence[::-1]) > tolerance))
    inner = slice(drop, plan.nodes.size - drop)
    return replace(plan, nodes=plan.nodes[inner], weights=plan.weights[inner])
