"""E[φ(u)φ(v)], E[φ'(u)φ'(v)] and E[φ(u)] for Gaussian (u, v), in high precision.

Where a closed form is simple it is written here anew, in 30 digits; everything else is integrated
by the trapezoidal rule over both variables, which for analytic functions of Gaussian variables
converges exponentially. `quadrature` does the same for any function, to check the closed forms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from mpmath import mp, mpf
from scipy.special import erf, expit

mp.dps = 30

# In standard deviations; and in units of the functions, whose poles are at least π/2 from the axis.
_STEP, _END = 0.1, 8.8
_FINEST = 0.35

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Expectation:
    """An activation φ: itself, its slope, and its Gaussian expectations."""

    fn: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    pair: Callable[[Any, Any, Any], Pair]  # of q₁, q₂, κ: value and derivative
    mean: Callable[[Any], Any]
    exact: bool = True  # the library has a closed form too


def correlation(q1: Any, q2: Any, k: Any) -> Any:
    """κ/√(q₁q₂), within [−1, 1]; 0 where a variance is 0."""
    if q1 <= 0 or q2 <= 0:
        return mpf(0)
    return max(mpf(-1), min(mpf(1), k / mp.sqrt(q1 * q2)))


def quadrature(fn: Callable, slope: Callable, q1: Any, q2: Any, k: Any) -> Pair:
    """Both expectations by the trapezoidal rule in two independent normal variables."""
    c = correlation(q1, q2, k)
    root1, root2 = float(mp.sqrt(q1)), float(mp.sqrt(q2))
    along, across = float(c), float(mp.sqrt(1 - c * c))
    nodes, weights = _rule(max(root1, root2))
    u = root1 * nodes
    v = root2 * (along * nodes[:, None] + across * nodes[None, :])
    return tuple(mpf(float((weights * f(u)) @ (f(v) @ weights))) for f in (fn, slope))


def _rule(root: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for functions of a variable with this standard deviation."""
    step = min(_STEP, _FINEST / max(root, 1e-30))
    nodes = step * np.arange(-np.ceil(_END / step), np.ceil(_END / step) + 1)
    return nodes, np.exp(-(nodes**2) / 2) * step / np.sqrt(2 * np.pi)


def mean_by_quadrature(fn: Callable, q: Any) -> Any:
    root = float(mp.sqrt(q))
    nodes, weights = _rule(root)
    return mpf(float(weights @ fn(root * nodes)))


def _integrated(fn: Callable, slope: Callable, *, exact: bool = False) -> Expectation:
    return Expectation(
        fn,
        slope,
        lambda q1, q2, k: quadrature(fn, slope, q1, q2, k),
        lambda q: mean_by_quadrature(fn, q),
        exact,
    )


def rectifier(negative: float, positive: float) -> Expectation:
    """`b x⁺ − a x⁻` from the moments of half-lines: E[x⁺y⁺] and P(x > 0, y > 0)."""
    a, b = mpf(negative), mpf(positive)

    def pair(q1: Any, q2: Any, k: Any) -> Pair:
        c = correlation(q1, q2, k)
        scale = mp.sqrt(q1 * q2)

        def half_lines(cosine: Any) -> Pair:
            angle = mp.acos(cosine)
            both = (mp.pi - angle) / (2 * mp.pi)
            return scale * (mp.sqrt(1 - cosine**2) / (2 * mp.pi) + both * cosine), both

        same, both = half_lines(c)
        opposite, _ = half_lines(-c)
        value = (a**2 + b**2) * same - 2 * a * b * opposite
        return value, (a**2 + b**2) * both + a * b * (1 - 2 * both)

    return Expectation(
        lambda x: np.where(x > 0, positive, negative) * x,
        lambda x: np.where(x > 0, positive, negative),
        pair,
        lambda q: (b - a) * mp.sqrt(q / (2 * mp.pi)),
    )


def sign() -> Expectation:
    return Expectation(
        np.sign,
        np.zeros_like,
        lambda q1, q2, k: (2 / mp.pi * mp.asin(correlation(q1, q2, k)), mpf(0)),
        lambda q: mpf(0),
    )


def error_function(scale: float = 1.0, rate: float = 1.0, shift: float = 0.0) -> Expectation:
    a, b, c = mpf(scale), mpf(rate), mpf(shift)

    def pair(q1: Any, q2: Any, k: Any) -> Pair:
        wide = (1 + 2 * b**2 * q1) * (1 + 2 * b**2 * q2)
        value = 2 * a**2 / mp.pi * mp.asin(2 * b**2 * k / mp.sqrt(wide)) + c**2
        return value, 4 * (a * b) ** 2 / mp.pi / mp.sqrt(wide - (2 * b**2 * k) ** 2)

    return Expectation(
        lambda x: scale * erf(rate * x) + shift,
        lambda x: 2 * scale * rate / np.sqrt(np.pi) * np.exp(-((rate * x) ** 2)),
        pair,
        lambda q: c,
    )


def sine(scale: float = 1.0, rate: float = 1.0, phase: Any = 0.0) -> Expectation:
    a, b, c = mpf(scale), mpf(rate), mpf(phase)

    def pair(q1: Any, q2: Any, k: Any) -> Pair:
        near, far = (mp.exp(-(b**2) * (q1 + q2 - s * 2 * k) / 2) for s in (1, -1))
        turn = mp.cos(2 * c)
        return a**2 * (near - turn * far) / 2, (a * b) ** 2 * (near + turn * far) / 2

    shift = float(phase)
    return Expectation(
        lambda x: scale * np.sin(rate * x + shift),
        lambda x: scale * rate * np.cos(rate * x + shift),
        pair,
        lambda q: a * mp.sin(c) * mp.exp(-(b**2) * q / 2),
    )


def cosine(scale: float = 1.0, rate: float = 1.0, phase: float = 0.0) -> Expectation:
    return sine(scale, rate, mpf(phase) + mp.pi / 2)


def exponential(scale: float = 1.0, rate: float = 1.0) -> Expectation:
    a, b = mpf(scale), mpf(rate)

    def pair(q1: Any, q2: Any, k: Any) -> Pair:
        value = a**2 * mp.exp(b**2 * (q1 + q2 + 2 * k) / 2)
        return value, b**2 * value

    return Expectation(
        lambda x: scale * np.exp(rate * x),
        lambda x: scale * rate * np.exp(rate * x),
        pair,
        lambda q: a * mp.exp(b**2 * q / 2),
    )


def gaussian(scale: float = 1.0, rate: float = 1.0) -> Expectation:
    a, b = mpf(scale), mpf(rate)

    def pair(q1: Any, q2: Any, k: Any) -> Pair:
        d = (1 + 2 * b * q1) * (1 + 2 * b * q2) - (2 * b * k) ** 2
        return a**2 / mp.sqrt(d), (2 * a * b) ** 2 * k / d ** (mpf(3) / 2)

    return Expectation(
        lambda x: scale * np.exp(-rate * x**2),
        lambda x: -2 * scale * rate * x * np.exp(-rate * x**2),
        pair,
        lambda q: a / mp.sqrt(1 + 2 * b * q),
    )


def polynomial(coefficients: Any) -> Expectation:
    """Moments E[uⁱvʲ] by pairing one u (or v) with each of the others."""
    p = [mpf(c) for c in coefficients]
    slopes = [j * c for j, c in enumerate(p)][1:] or [mpf(0)]

    def pair(q1: Any, q2: Any, k: Any) -> Pair:
        @cache
        def moment(i: int, j: int) -> Any:
            if i < 0 or j < 0 or (i + j) % 2:
                return mpf(0)
            if i == 0 and j == 0:
                return mpf(1)
            if i == 0:
                return (j - 1) * q2 * moment(0, j - 2)
            return (i - 1) * q1 * moment(i - 2, j) + j * k * moment(i - 1, j - 1)

        def expected(c: list[Any]) -> Any:
            rows = ((x * y, i, j) for i, x in enumerate(c) for j, y in enumerate(c))
            return sum((w * moment(i, j) for w, i, j in rows), mpf(0))

        return expected(p), expected(slopes)

    def mean(q: Any) -> Any:
        total, moment = mpf(0), mpf(1)
        for j in range(0, len(p), 2):
            total, moment = total + p[j] * moment, moment * (j + 1) * q
        return total

    plain, steep = np.array(p, float), np.array(slopes, float)
    return Expectation(
        lambda x: np.polynomial.polynomial.polyval(x, plain),
        lambda x: np.polynomial.polynomial.polyval(x, steep),
        pair,
        mean,
    )


def hermite(degree: int) -> Expectation:
    series = np.zeros(degree + 1)
    series[-1] = 1
    powers = np.polynomial.hermite_e.herme2poly(series)
    return polynomial([mpf(float(c)) / mp.sqrt(mp.factorial(degree)) for c in powers])


def _gelu() -> Expectation:
    def normal(x: np.ndarray) -> np.ndarray:
        return (1 + erf(x / np.sqrt(2))) / 2

    def slope(x: np.ndarray) -> np.ndarray:
        return normal(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    return _integrated(lambda x: x * normal(x), slope, exact=True)


def _elementwise(function: str) -> Expectation:
    if function == "bent":
        return rectifier(0.3, 1.0)
    found = {
        "arctan": (lambda x: np.arctan(x) + 0.1 * x, lambda x: 1 / (1 + x**2) + 0.1),
        "bump": (
            lambda x: x * np.exp(-(x**2) / 4) + 0.3,
            lambda x: (1 - x**2 / 2) * np.exp(-(x**2) / 4),
        ),
    }
    return _integrated(*found[function])


_KNOWN: dict[str, Callable[..., Expectation]] = {
    "Relu": lambda: rectifier(0.0, 1.0),
    "LeakyRelu": lambda slope: rectifier(slope, 1.0),
    "ABRelu": rectifier,
    "Abs": lambda: rectifier(-1.0, 1.0),
    "Sign": sign,
    "Erf": error_function,
    "Gelu": _gelu,
    "Sin": sine,
    "Cos": cosine,
    "Exp": exponential,
    "Gaussian": gaussian,
    "Monomial": lambda degree: polynomial([0.0] * degree + [1.0]),
    "Polynomial": polynomial,
    "Hermite": hermite,
    "identity": lambda: polynomial([0.0, 1.0]),
    "Tanh": lambda: _integrated(np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "Sigmoid": lambda: _integrated(expit, lambda x: expit(x) * expit(-x)),
    "Silu": lambda: _integrated(
        lambda x: x * expit(x), lambda x: expit(x) * (1 + x * expit(-x))
    ),
    "Softplus": lambda: _integrated(lambda x: np.logaddexp(0, x), expit),
    "Elementwise": _elementwise,
}  # fmt: skip


def expectation(options: dict[str, Any]) -> Expectation:
    """The activation of this name and these arguments."""
    return _KNOWN[options["name"]](**options.get("given", {}))
