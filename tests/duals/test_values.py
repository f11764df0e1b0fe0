"""Every dual against independent integrals, in both precisions."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from dual_cases import (
    ALL,
    CORRELATIONS,
    FORMULAS,
    KINKED,
    SMOOTH,
    both,
    columns,
    evaluate,
    expectation,
    grid,
    homogeneous_expectation,
    normal_pdf,
    normal_rule,
    square,
)
from scipy.integrate import dblquad

from widelimit import duals
from widelimit.errors import NetworkError, OptionError


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


def test_duals_can_be_mapped():
    """Over a batch of pairs, as engines do."""
    q, c = jnp.full((3, 4), 0.8), jnp.linspace(-0.7, 0.7, 12).reshape(3, 4)
    for dual in (duals.relu(), duals.Gelu(), duals.Sine(), duals.Erf()):
        each = jax.vmap(partial(both, dual))(q, q, c)
        for mapped, whole in zip(each, both(dual, q, q, c), strict=True):
            assert np.allclose(mapped, whole, rtol=1e-6, atol=1e-7)


def test_homogeneity_flags():
    for name, case in ALL.items():
        dual, x = case.make(), jnp.linspace(-2, 2, 9)
        same = np.allclose(dual.fn(3 * x), 3 * dual.fn(x), rtol=1e-5, atol=1e-6)
        assert same == dual.homogeneous, name


# The series class.


@pytest.mark.parametrize(
    "make",
    [
        lambda: duals.Series(jnp.tanh, max_variance=-1.0),
        lambda: duals.Series(jnp.tanh, tolerance=0.0),
        lambda: duals.Series(jnp.log),
        lambda: duals.Series(lambda x: x[:2]),
        lambda: duals.Hermite(-1),
        lambda: duals.Hermite(1.5),
        lambda: duals.Polynomial([]),
        lambda: duals.Polynomial(3.0),
    ],
)
def test_mistakes_are_named(make):
    with pytest.raises((NetworkError, OptionError), match="Remedy"):
        make()
