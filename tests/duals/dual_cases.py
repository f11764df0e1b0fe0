"""Duals with their functions written again in numpy, integrals of these, and calls of those."""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
from scipy.special import erf

from widelimit import duals

CORRELATIONS = (-1.0, -0.999999, -0.9, -0.3, 0.0, 0.3, 0.9, 0.999999, 1.0)
VARIANCES = (0.01, 0.25, 1.0, 4.0)
POINTS = [(0.3, 0.7, 0.2), (1.0, 1.0, -0.5), (2.0, 0.5, 0.0), (1.5, 3.0, 1.9), (1.0, 1.0, 0.0)]
Function = Callable[[np.ndarray], np.ndarray]


class Case(NamedTuple):
    """A dual, and φ and φ' written again in numpy."""

    make: Callable[[], duals.Dual]
    phi: Function
    slope: Function
    tolerance: float = 1e-13  # float64, relative to √(E[φ²]E[φ²])
    far: float = 25.0  # a variance beyond the usual ones where it must hold as well


def normal_cdf(x):
    return (1 + erf(x / np.sqrt(2))) / 2


def normal_pdf(x):
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def logistic_slope(x):
    return logistic(x) * logistic(-x)


def gelu_by_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_by_tanh_slope(x):
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


SERIES = 4e-7
SMOOTH = {
    "identity": Case(duals.Identity, lambda x: x, np.ones_like),
    "erf": Case(
        partial(duals.Erf, scale=0.7, rate=0.8, shift=0.2),
        lambda x: 0.7 * erf(0.8 * x) + 0.2,
        lambda x: 1.12 / np.sqrt(np.pi) * np.exp(-((0.8 * x) ** 2)),
        1e-12,
        9.0,
    ),
    "gelu": Case(
        duals.Gelu,
        lambda x: x * normal_cdf(x),
        lambda x: normal_cdf(x) + x * normal_pdf(x),
        1e-12,
        9.0,
    ),
    "sin": Case(
        partial(duals.Sine, scale=0.7, rate=0.8, phase=0.3),
        lambda x: 0.7 * np.sin(0.8 * x + 0.3),
        lambda x: 0.56 * np.cos(0.8 * x + 0.3),
    ),
    "cos": Case(duals.cosine, np.cos, lambda x: -np.sin(x)),
    "exp": Case(
        partial(duals.Exp, scale=0.7, rate=0.5),
        lambda x: 0.7 * np.exp(x / 2),
        lambda x: 0.35 * np.exp(x / 2),
        far=9.0,
    ),
    "gaussian": Case(
        partial(duals.Gaussian, scale=0.7, rate=0.5),
        lambda x: 0.7 * np.exp(-(x**2) / 2),
        lambda x: -0.7 * x * np.exp(-(x**2) / 2),
        1e-12,
        9.0,
    ),
    "monomial": Case(partial(duals.Polynomial, [0, 0, 0, 1]), lambda x: x**3, lambda x: 3 * x**2),
    "polynomial": Case(
        partial(duals.Polynomial, [0.5, -1.0, 0.3, 0.2, 0.1]),
        lambda x: 0.5 - x + 0.3 * x**2 + 0.2 * x**3 + 0.1 * x**4,
        lambda x: -1 + 0.6 * x + 0.6 * x**2 + 0.4 * x**3,
    ),
    "hermite": Case(
        partial(duals.Hermite, 4),
        lambda x: (x**4 - 6 * x**2 + 3) / np.sqrt(24),
        lambda x: (4 * x**3 - 12 * x) / np.sqrt(24),
        1e-12,
    ),
    "tanh": Case(
        partial(duals.Series, jnp.tanh), np.tanh, lambda x: 1 / np.cosh(x) ** 2, SERIES, 4.0
    ),
    "sigmoid": Case(partial(duals.Series, jax.nn.sigmoid), logistic, logistic_slope, SERIES, 4.0),
    "silu": Case(
        partial(duals.Series, jax.nn.silu),
        lambda x: x * logistic(x),
        lambda x: logistic(x) + x * logistic_slope(x),
        SERIES,
        4.0,
    ),
    "softplus": Case(
        partial(duals.Series, jax.nn.softplus), lambda x: np.logaddexp(0, x), logistic, SERIES, 4.0
    ),
    "tanh_gelu": Case(duals.tanh_gelu, gelu_by_tanh, gelu_by_tanh_slope, SERIES, 4.0),
}
KINKED = {
    "relu": Case(duals.relu, lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, 1.0, 0.0)),
    "leaky_relu": Case(
        partial(duals.Rectifier, negative=0.1),
        lambda x: np.where(x > 0, x, 0.1 * x),
        lambda x: np.where(x > 0, 1.0, 0.1),
    ),
    "rectifier": Case(
        partial(duals.Rectifier, negative=-0.4, positive=1.3),
        lambda x: np.where(x > 0, 1.3 * x, -0.4 * x),
        lambda x: np.where(x > 0, 1.3, -0.4),
    ),
    "absolute": Case(partial(duals.Rectifier, negative=-1.0), np.abs, np.sign),
}
SIGN = {"sign": Case(duals.Sign, np.sign, np.zeros_like)}
ALL = SMOOTH | KINKED | SIGN
# One of each formula, where the instances of a class differ in nothing that is tested.
FORMULAS = [n for n in ALL if n not in {"cos", "monomial", "sigmoid", "silu", "tanh_gelu", "relu"}]


@cache
def normal_rule() -> tuple[np.ndarray, np.ndarray]:
    """Equally spaced nodes: error below 1e-13 for what is smooth on the scale of a third."""
    z = np.arange(-66, 67) / 6
    w = normal_pdf(z)
    return z, w / w.sum()


def expectation(phi: Function, q1: float, q2: float, c: float) -> float:
    """`E[φ(u)φ(v)]` by a product rule on independent normals."""
    z, w = normal_rule()
    u = np.sqrt(q1) * z[:, None]
    v = np.sqrt(q2) * (c * z[:, None] + np.sqrt((1 - c) * (1 + c)) * z[None, :])
    return float(w @ (phi(u) * phi(v)) @ w)


def square(phi: Function, q: float) -> float:
    z, w = normal_rule()
    return float(w @ phi(np.sqrt(q) * z) ** 2)


def homogeneous_expectation(phi: Function, degree: int, q1: float, q2: float, c: float) -> float:
    """The same for φ(sx) = s^degree φ(x): an integral over the angle, cut at the kinks."""
    with mp.workdps(30):
        theta = mp.acos(mp.mpf(c))
        angles = [(a + s * mp.pi / 2) % (2 * mp.pi) for a in (0, theta) for s in (1, -1)]
        cuts = sorted({mp.mpf(0), 2 * mp.pi, *angles})
        pieces = [(float(a), float(b - a)) for a, b in pairwise(cuts)]
    x, w = np.polynomial.legendre.leggauss(20)
    total = 0.0
    for start, width in pieces:
        t = start + width / 2 * (1 + x)
        product = phi(np.sqrt(q1) * np.cos(t)) * phi(np.sqrt(q2) * np.cos(t - float(theta)))
        total += width / 2 * float(w @ product)
    return total / (2 * np.pi) * 2**degree  # E[r²] = 2, E[r⁰] = 1


def grid(far: float) -> list[tuple[float, float, float]]:
    pairs = [(a, b) for a in VARIANCES for b in VARIANCES if a <= b] + [(far, 1.0), (far, far)]
    return [(a, b, c) for a, b in pairs for c in CORRELATIONS]


@eqx.filter_jit
def both(dual, q1, q2, k):
    return dual(dual.prepare(q1), dual.prepare(q2), k)


@eqx.filter_jit
def _gradients(dual, q1, q2, k):
    def total(which, *inputs):
        return both(dual, *inputs)[which].sum()

    return [jax.grad(partial(total, which), argnums=(0, 1, 2))(q1, q2, k) for which in (0, 1)]


LENGTH = 128  # every call below has this shape, so that each dual is compiled once


def call(function, dual: duals.Dual, inputs, dtype=np.float64):
    """The arrays that `function(dual, q1, q2, k)` gives in `dtype`, as float64 numpy."""
    size = len(inputs[0])
    with jax.enable_x64(dtype == np.float64):
        full = [jnp.asarray(np.resize(np.asarray(a, np.float64), LENGTH), dtype) for a in inputs]
        out = function(dual, *full)
        return jax.tree.map(lambda a: np.asarray(a, np.float64)[:size], out)


def evaluate(dual: duals.Dual, q1, q2, k, dtype=np.float64):
    """Value and derivative."""
    return call(both, dual, (q1, q2, k), dtype)


def slopes(dual: duals.Dual, q1, q2, k, dtype=np.float64):
    """Their gradients in `(q1, q2, k)`."""
    return call(_gradients, dual, (q1, q2, k), dtype)


def columns(points):
    q1, q2, c = (np.array(column) for column in zip(*points, strict=True))
    return q1, q2, c, c * np.sqrt(q1 * q2)


def total(which: int, dual: duals.Dual, q1, q2, k):
    """The sum of values (0) or derivatives (1), to be differentiated."""
    return dual(dual.prepare(q1), dual.prepare(q2), k)[which].sum()
