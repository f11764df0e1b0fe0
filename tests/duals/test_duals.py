"""Every dual against independent integrals, in both precisions, with its gradients."""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.special import erf

from widelimit import duals
from widelimit.errors import NetworkError

CORRELATIONS = (-1.0, -0.999999, -0.9, -0.3, 0.0, 0.3, 0.9, 0.999999, 1.0)
VARIANCES = (0.01, 0.25, 1.0, 4.0)
Function = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(autouse=True)
def _strict_ranks():
    with jax.numpy_rank_promotion("raise"):
        yield


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
    "monomial": Case(partial(duals.monomial, 3), lambda x: x**3, lambda x: 3 * x**2),
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
    "tanh": Case(duals.tanh, np.tanh, lambda x: 1 / np.cosh(x) ** 2, SERIES, 4.0),
    "sigmoid": Case(duals.sigmoid, logistic, logistic_slope, SERIES, 4.0),
    "silu": Case(
        duals.silu,
        lambda x: x * logistic(x),
        lambda x: logistic(x) + x * logistic_slope(x),
        SERIES,
        4.0,
    ),
    "softplus": Case(duals.softplus, lambda x: np.logaddexp(0, x), logistic, SERIES, 4.0),
    "tanh_gelu": Case(duals.tanh_gelu, gelu_by_tanh, gelu_by_tanh_slope, SERIES, 4.0),
}
KINKED = {
    "relu": Case(duals.relu, lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, 1.0, 0.0)),
    "leaky_relu": Case(
        partial(duals.leaky_relu, 0.1),
        lambda x: np.where(x > 0, x, 0.1 * x),
        lambda x: np.where(x > 0, 1.0, 0.1),
    ),
    "rectifier": Case(
        partial(duals.Rectifier, negative=-0.4, positive=1.3),
        lambda x: np.where(x > 0, 1.3 * x, -0.4 * x),
        lambda x: np.where(x > 0, 1.3, -0.4),
    ),
    "absolute": Case(duals.absolute, np.abs, np.sign),
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
def _both(dual, q1, q2, k):
    return dual(dual.prepare(q1), dual.prepare(q2), k)


@eqx.filter_jit
def _gradients(dual, q1, q2, k):
    def total(which, *inputs):
        return _both(dual, *inputs)[which].sum()

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
    return call(_both, dual, (q1, q2, k), dtype)


def slopes(dual: duals.Dual, q1, q2, k, dtype=np.float64):
    """Their gradients in `(q1, q2, k)`."""
    return call(_gradients, dual, (q1, q2, k), dtype)


def columns(points):
    q1, q2, c = (np.array(column) for column in zip(*points, strict=True))
    return q1, q2, c, c * np.sqrt(q1 * q2)


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_duals_equal_two_dimensional_integrals(name):
    case = SMOOTH[name]
    points = grid(case.far)
    q1, q2, _, k = columns(points)
    for found, phi in zip(evaluate(case.make(), q1, q2, k), (case.phi, case.slope), strict=True):
        exact = np.array([expectation(phi, *point) for point in points])
        sizes = {q: square(phi, q) for q in {*q1, *q2}}
        scale = np.sqrt([sizes[a] * sizes[b] for a, b, _ in points])
        error = np.abs(found - exact) / scale
        assert error.max() < case.tolerance
        assert np.abs(found * (1 + 1e-5) - exact).max() > case.tolerance * scale.max()


@pytest.mark.parametrize("name", KINKED)
def test_rectifiers_equal_angular_integrals(name):
    case = KINKED[name]
    points = [(a, b, c) for a, b in [(1.0, 1.0), (0.01, 4.0), (25.0, 9.0)] for c in CORRELATIONS]
    q1, q2, c, k = columns(points)
    value, derivative = evaluate(case.make(), q1, q2, k)
    exact = np.array([homogeneous_expectation(case.phi, 1, *point) for point in points])
    assert np.abs((value - exact) / np.sqrt(q1 * q2)).max() < 1e-13
    exact = np.array([homogeneous_expectation(case.slope, 0, *point) for point in points])
    # A correlation rounded by ε moves the derivative by ε/sin, at most √ε.
    room = 1e-13 + 4e-16 / np.sqrt(np.maximum(1 - c**2, 4e-16))
    assert np.all(np.abs(derivative - exact) < room)


def test_sign_equals_angular_integral():
    points = [(a, b, c) for a, b in [(1.0, 1.0), (0.01, 4.0)] for c in CORRELATIONS]
    q1, q2, c, k = columns(points)
    value, derivative = evaluate(duals.Sign(), q1, q2, k)
    exact = np.array([homogeneous_expectation(np.sign, 0, *point) for point in points])
    assert np.all(np.abs(value - exact) < 1e-13 + 4e-16 / np.sqrt(np.maximum(1 - c**2, 4e-16)))
    assert np.all(derivative == 0)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_the_reference_rule_equals_adaptive_integration(name):
    phi, (q1, q2, c) = ALL[name].phi, (0.25, 4.0, 0.3)

    def integrand(y, z):
        v = np.sqrt(q2) * (c * z + np.sqrt(1 - c**2) * y)
        return phi(np.sqrt(q1) * z) * phi(v) * normal_pdf(y) * normal_pdf(z)

    exact, _ = dblquad(integrand, -9, 9, -9, 9, epsabs=1e-11, epsrel=1e-11)
    assert abs(expectation(phi, q1, q2, c) - exact) < 1e-10


def test_closed_forms_equal_mpmath_in_thirty_digits():
    """Two duals as their own one-dimensional integrals: E over v of φ(v) E[φ(u) | v]."""
    q1, q2, k = 1.0, 2.25, -0.9
    with mp.workdps(30):
        spread = mp.sqrt(q1 - mp.mpf(k) ** 2 / q2)

        def relu_given(v):
            m = mp.mpf(k) / q2 * v
            return m * mp.ncdf(m / spread) + spread * mp.npdf(m / spread)

        def erf_given(v):
            return mp.erf(mp.mpf(k) / q2 * v / mp.sqrt(1 + 2 * spread**2))

        deviation = mp.sqrt(q2)
        relu = mp.quad(lambda v: v * relu_given(v) * mp.npdf(v, 0, deviation), [0, 3, 20])
        both = mp.quad(lambda v: mp.erf(v) * erf_given(v) * mp.npdf(v, 0, deviation), [-20, 0, 20])
    assert abs(evaluate(duals.relu(), [q1], [q2], [k])[0][0] - relu) < 1e-15
    assert abs(evaluate(duals.Erf(), [q1], [q2], [k])[0][0] - both) < 1e-14


def test_relu_keeps_relative_accuracy_where_it_vanishes():
    """Near `c = −1` the value is `√(q₁q₂) t³/6π` for the small angle t; no digits are lost."""
    for dtype, room in ((np.float64, 1e-12), (np.float32, 2e-6)):
        gaps = np.array([2.0**-20, 2.0**-14, 2.0**-8])
        value, derivative = evaluate(duals.relu(), np.ones(3), np.ones(3), gaps - 1, dtype)
        for gap, v, d in zip(gaps, value, derivative, strict=True):
            with mp.workdps(40):
                t = mp.acos(1 - mp.mpf(gap))
                exact = (mp.sin(t) - t * mp.cos(t)) / (2 * mp.pi), t / (2 * mp.pi)
            assert abs(v / exact[0] - 1) < room
            assert abs(d / exact[1] - 1) < room


@pytest.mark.parametrize("name", FORMULAS)
def test_single_precision_is_close_to_double(name):
    """On the same (float32) inputs, in units of the largest value at these variances."""
    dual = ALL[name].make()
    q1, q2, c, k = (a.astype(np.float32) for a in columns(grid(4.0)))
    single, double = evaluate(dual, q1, q2, k, np.float32), evaluate(dual, q1, q2, k)
    ends = evaluate(dual, q1, q1, q1), evaluate(dual, q2, q2, q2)
    own = [np.sqrt(a * b) for a, b in zip(*ends, strict=True)]
    for which, (s, d, scale) in enumerate(zip(single, double, own, strict=True)):
        angular = dual.kinked and (which == 1 or name == "sign")
        # √(q₁q₂) is rounded, unless the variances are equal: then nothing is lost.
        loss = np.where(q1 == q2, 0, 4e-7 / np.sqrt(np.maximum(1 - c**2, 4e-7))) if angular else 0
        assert np.all(np.abs(s - d) <= (1e-6 + loss) * scale)


@pytest.mark.parametrize("name", FORMULAS)
def test_identical_inputs_are_exact_in_single_precision(name):
    dual = ALL[name].make()
    q = np.geomspace(0.01, 4, 50).astype(np.float32)
    single, double = evaluate(dual, q, q, q, np.float32), evaluate(dual, q, q, q)
    for s, d in zip(single, double, strict=True):
        assert np.all(np.abs(s - d) <= 1e-6 * d)


@pytest.mark.parametrize("name", ALL)
def test_mean_and_function(name):
    case = ALL[name]
    dual = case.make()
    q = np.array([0.0, 0.01, 1.0, 4.0])
    half, w = np.polynomial.legendre.leggauss(200)
    z = 6.5 * (1 + half)
    weights = 6.5 * w * normal_pdf(z)
    exact = [(case.phi(np.sqrt(v) * z) + case.phi(-np.sqrt(v) * z)) @ weights for v in q]
    with jax.enable_x64(True):
        x = np.linspace(-3, 3, 31)
        assert np.abs(np.asarray(dual.fn(jnp.asarray(x))) - case.phi(x)).max() < 1e-13
        mean = eqx.filter_jit(lambda dual, q: dual.mean(q))(dual, jnp.asarray(q))
        assert np.abs(np.asarray(mean) - exact).max() < 10 * case.tolerance


@pytest.mark.parametrize("name", FORMULAS)
def test_zero_variance_has_the_right_limit(name):
    """A position that is zero gives `φ(0) E[φ(v)]`, and `φ(0)²` with itself."""
    case = ALL[name]
    q1, q2, k = np.zeros(3), np.array([0.0, 0.5, 4.0]), np.zeros(3)
    z, w = normal_rule()
    for dtype, room in ((np.float64, max(case.tolerance, 1e-9)), (np.float32, 2e-6)):
        value, derivative = evaluate(case.make(), q1, q2, k, dtype)
        means = [np.dot(w, case.phi(np.sqrt(v) * z)) for v in q2]
        origin = float(case.phi(np.zeros(()))) * np.array(means)
        assert np.abs(value - origin).max() < room * (1 + np.abs(origin).max())
        assert np.isfinite(derivative).all()


def total(which: int, dual: duals.Dual, q1, q2, k):
    return dual(dual.prepare(q1), dual.prepare(q2), k)[which].sum()


POINTS = [(0.3, 0.7, 0.2), (1.0, 1.0, -0.5), (2.0, 0.5, 0.0), (1.5, 3.0, 1.9), (1.0, 1.0, 0.0)]


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_equal_finite_differences(name):
    dual, h = ALL[name].make(), 1e-4
    inputs = np.array(POINTS).T
    for i in range(3):
        step = h * np.eye(3)[:, i : i + 1]
        ahead, behind = evaluate(dual, *(inputs + step)), evaluate(dual, *(inputs - step))
        for gradient, a, b in zip(slopes(dual, *inputs), ahead, behind, strict=True):
            slope = (a - b) / (2 * h)
            assert np.all(np.abs(gradient[i] - slope) < 1e-5 * (1 + np.abs(slope)))


@pytest.mark.parametrize("name", [n for n in FORMULAS if n != "sign"])
def test_price_theorem(name):
    """The value's gradient in κ is the derivative dual, also at `c = ±1`."""
    dual = ALL[name].make()
    q = np.repeat([0.01, 1.0, 4.0], 5)
    k = q * np.tile([-1, -0.4, 0, 0.7, 1.0], 3)
    derivative = evaluate(dual, q, q, k)[1]
    gradient = slopes(dual, q, q, k)[0][2]
    assert np.abs(gradient - derivative).max() < 1e-12 * np.abs(derivative).max()


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_where_formulas_are_singular(name):
    """They are finite, and along `q₁ = q₂ = κ = q` those of `E[φ(u)²]` and `E[φ'(u)²]`."""
    dual, h = ALL[name].make(), 1e-4
    corners = [
        (1, 1, 1),
        (1, 1, -1),
        (0, 0, 0),
        (0, 1, 0),
        (0.3, 0.3, 0.3),
        (2, 0.5, 1),
        (2, 0.5, -1),
    ]
    for dtype in (np.float32, np.float64):
        found = slopes(dual, *np.array(corners, float).T, dtype)
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(found))
    q = np.array([0.3, 1.0, 3.0])
    ahead, behind = evaluate(dual, *[q + h] * 3), evaluate(dual, *[q - h] * 3)
    for gradient, a, b in zip(slopes(dual, q, q, q), ahead, behind, strict=True):
        assert np.abs(sum(gradient) - (a - b) / (2 * h)).max() < 1e-5


@pytest.mark.parametrize("name", ["relu", "sign", "gelu", "softplus"])
def test_second_derivatives_equal_finite_differences(name):
    dual = ALL[name].make()
    h = 1e-5
    with jax.enable_x64(True):
        inputs = jnp.asarray(np.array([0.8, 1.7, 0.6]))

        def value(inputs):
            q1, q2, k = inputs.reshape(3, 1)
            return total(0, dual, q1, q2, k)

        gradient = jax.jit(jax.grad(value))
        hessian = jax.jit(jax.hessian(value))(inputs)
        for i in range(3):
            shift = jnp.asarray(np.eye(3)[i] * h)
            slope = (gradient(inputs + shift) - gradient(inputs - shift)) / (2 * h)
            assert np.abs(np.asarray(hessian[i] - slope)).max() < 1e-6


@pytest.mark.parametrize("name", ["erf", "sin", "exp", "gaussian", "polynomial", "rectifier"])
def test_parameters_are_leaves_with_gradients(name):
    dual = ALL[name].make()
    with jax.enable_x64(True):
        inputs = [jnp.asarray(np.array(column)) for column in zip(*POINTS, strict=True)]

        @eqx.filter_jit
        def both(dual):
            return total(0, dual, *inputs) + total(1, dual, *inputs)

        gradient = eqx.filter_grad(both)(dual)
        leaves, structure = jax.tree.flatten(dual)
        assert leaves
        for i, leaf in enumerate(leaves):
            for index in np.ndindex(np.shape(leaf)):
                step = np.zeros(np.shape(leaf))
                step[index] = 1e-5
                ends = [
                    both(jax.tree.unflatten(structure, [*leaves[:i], leaf + d, *leaves[i + 1 :]]))
                    for d in (step, -step)
                ]
                slope = (ends[0] - ends[1]) / 2e-5
                found = jax.tree.leaves(gradient)[i][index]
                assert abs(found - slope) < 1e-6 * (1 + abs(slope))


@pytest.mark.parametrize("name", ["relu", "sign", "identity", "gelu", "sin", "hermite", "softplus"])
def test_prepared_positions_broadcast_over_pairs(name):
    """Leaves keep the axes of q, are reshaped by the caller, and pairs come out alike."""
    dual = ALL[name].make()
    rng = np.random.default_rng(0)
    q1, q2 = rng.uniform(0.1, 3, (2, 4)).astype("f"), rng.uniform(0.1, 3, (3, 5)).astype("f")
    c = rng.uniform(-1, 1, (2, 3, 4, 5)).astype("f")
    k = c * np.sqrt(q1[:, None, :, None] * q2[None, :, None, :])
    prepare = eqx.filter_jit(lambda dual, q: dual.prepare(q))
    left, right = prepare(dual, jnp.asarray(q1)), prepare(dual, jnp.asarray(q2))
    assert all(leaf.shape == q1.shape for leaf in jax.tree.leaves(left))
    left = jax.tree.map(lambda a: a[:, None, :, None], left)
    right = jax.tree.map(lambda a: a[None, :, None, :], right)
    apply = eqx.filter_jit(lambda dual, *a, **options: dual(*a, **options))
    value, derivative = apply(dual, left, right, jnp.asarray(k))
    assert value.shape == derivative.shape == k.shape
    assert value.dtype == derivative.dtype == jnp.float32
    full = (q1[:, None, :, None], q2[None, :, None, :], k)
    flat = [np.broadcast_to(a, k.shape).ravel() for a in full]
    for found, expected in zip((value, derivative), evaluate(dual, *flat, np.float32), strict=True):
        assert np.allclose(found.ravel(), expected, rtol=1e-5, atol=1e-6)
    alone, nothing = apply(dual, left, right, jnp.asarray(k), need_derivative=False)
    assert nothing is None
    assert np.allclose(alone, value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["relu", "tanh", "softplus"])
def test_at_unit_variance_is_the_same_dual(name):
    dual = ALL[name].make()
    c = np.linspace(-1, 1, 41)
    ones = np.ones_like(c)
    unit, full = evaluate(dual.at_unit_variance(), ones, ones, c), evaluate(dual, ones, ones, c)
    for u, f in zip(unit, full, strict=True):
        assert np.abs(u - f).max() <= 4e-7 * np.abs(f).max()
    mean = eqx.filter_jit(lambda dual: dual.mean(jnp.ones(2)))
    assert np.allclose(mean(dual), mean(dual.at_unit_variance()), rtol=2e-6, atol=1e-7)


def test_duals_can_be_mapped():
    """Over a batch of pairs, as engines do."""
    q, c = jnp.full((3, 4), 0.8), jnp.linspace(-0.7, 0.7, 12).reshape(3, 4)
    for dual in (duals.relu(), duals.Gelu(), duals.Sine(), duals.Erf()):
        each = jax.vmap(partial(_both, dual))(q, q, c)
        for mapped, whole in zip(each, _both(dual, q, q, c), strict=True):
            assert np.allclose(mapped, whole, rtol=1e-6, atol=1e-7)


def test_homogeneity_flags():
    for name, case in ALL.items():
        dual, x = case.make(), jnp.linspace(-2, 2, 9)
        same = np.allclose(dual.fn(3 * x), 3 * dual.fn(x), rtol=1e-5, atol=1e-6)
        assert same == dual.homogeneous, name


# The series class.


@pytest.mark.parametrize("name", ["tanh", "silu"])
def test_series_reports_its_error_and_widens(name):
    dual = ALL[name].make()
    assert dual.error(np.geomspace(0.01, 4, 30)) < 4e-7
    beyond = dual.error([1.0, 32.0])
    assert beyond > 1e-6
    wider = dual.covering(20.0)
    assert dual.covering(3.0) is dual
    assert wider.max_variance == 32.0
    assert wider.error([0.01, 1.0, 32.0]) < beyond / 10
    for phi, found in zip(
        (ALL[name].phi, ALL[name].slope), evaluate(wider, [9.0], [6.25], [6.75]), strict=True
    ):
        scale = np.sqrt(square(phi, 9.0) * square(phi, 6.25))
        assert abs(found[0] - expectation(phi, 9.0, 6.25, 0.9)) < 1e-6 * scale


def capped(x):
    return jnp.minimum(x, 1)


def test_series_of_a_function_with_a_kink_says_so_and_carries_its_tail():
    dual = duals.Series(capped)
    q = np.array([0.5, 2.0])
    assert dual.kinked
    assert not duals.tanh().kinked
    assert 1e-4 < dual.error(q) < 0.03
    assert np.isfinite(dual.error([0.0, 1.0]))
    below = normal_cdf(1 / np.sqrt(q))  # E[φ'²] = P(u < 1)
    value, derivative = evaluate(dual, q, q, q)
    assert np.abs(derivative - below).max() < 0.01
    assert np.abs(value - [square(lambda x: np.minimum(x, 1), v) for v in q]).max() < 1e-3
    # E[φ'] = P(u < 1) has a slope in q, though φ'' = 0 almost everywhere.
    with jax.enable_x64(True):
        ends = jnp.asarray(q), jnp.ones(2)
        mean_slope = eqx.filter_jit(lambda q: dual.prepare(q).factors[0])  # E[φ'(u)]
        gradient = np.asarray(jax.jvp(mean_slope, *[(end,) for end in ends])[1])
    exact = normal_pdf(1 / np.sqrt(q)) * -0.5 * q**-1.5
    assert np.abs(gradient - exact).max() < 2e-3


class Swish(eqx.Module):
    rate: jax.Array

    def __call__(self, x):
        return x * jax.nn.sigmoid(self.rate.astype(x.dtype) * x)


def test_series_differentiates_parameters_of_the_activation():
    with jax.enable_x64(True):
        dual = duals.Series(Swish(jnp.asarray(1.2)), max_variance=3.0)
        inputs = [jnp.asarray(np.array(column)) for column in zip(*POINTS, strict=True)]

        @jax.jit
        def at(rate):
            return total(0, eqx.tree_at(lambda d: d.function.rate, dual, rate), *inputs)

        slope = (at(jnp.asarray(1.2 + 1e-4)) - at(jnp.asarray(1.2 - 1e-4))) / 2e-4
        assert abs(jax.grad(at)(jnp.asarray(1.2)) - slope) < 1e-6


def test_series_is_a_stable_compile_key():
    first, second = duals.Series(jnp.tanh), duals.Series(jnp.tanh)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert hash(jax.tree.structure(first)) == hash(jax.tree.structure(second))
    assert jax.tree.structure(first) != jax.tree.structure(duals.Series(jnp.tanh, max_variance=9))


def test_series_can_be_made_while_tracing():
    q = jnp.full(2, 0.7)

    @jax.jit
    def run(q):
        return total(0, duals.Series(jnp.tanh, max_variance=1.5), q, q, q)

    assert np.allclose(run(q), 2 * square(np.tanh, 0.7), rtol=1e-5)


def test_series_of_a_constant():
    value, derivative = evaluate(duals.Series(lambda x: 0 * x + 2.0), [1.0], [2.0], [0.5])
    assert abs(value[0] - 4) < 1e-12
    assert derivative[0] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: duals.Series(jnp.tanh, max_variance=-1.0),
        lambda: duals.Series(jnp.tanh, tolerance=0.0),
        lambda: duals.Series(jnp.log),
        lambda: duals.Series(lambda x: x[:2]),
        lambda: duals.monomial(-1),
        lambda: duals.Hermite(1.5),
        lambda: duals.Polynomial([]),
        lambda: duals.Polynomial(3.0),
    ],
)
def test_mistakes_are_named(make):
    with pytest.raises(NetworkError, match="Remedy"):
        make()
