"""Duals by quadrature: accurate in their range, planned anew beyond it, or they say so."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import widelimit as wl

X = np.array([[1.0, 0.5], [0.3, -2.0]])


def _exact(phi, covariance):
    """E[φ(u)φ(v)]: φ(u) times the conditional mean of φ(v), both by the trapezoidal rule.

    Its error is `exp(−2πd/h)` for poles at a distance d from the line: 1e-16 for tanh(5a).
    """
    root = np.linalg.cholesky(covariance)
    nodes, step = np.linspace(-9, 9, 361, retstep=True)
    weights = step * stats.norm.pdf(nodes)
    inner = phi(root[1, 0] * nodes[:, None] + root[1, 1] * nodes) @ weights
    return weights @ (phi(root[0, 0] * nodes) * inner)


@pytest.mark.parametrize("w_std", [0.3, 1.0, 3.5])
def test_tanh_is_accurate_also_beyond_the_planned_range(w_std):
    """The last of them has variances of 25, the plan is for 4."""
    net = wl.Serial(wl.Dense(8, w_std=w_std), wl.Tanh())
    covariance = w_std**2 * X @ X.T / 2
    found = net.kernel(X).nngp
    np.testing.assert_allclose(found[0, 1], _exact(np.tanh, covariance), rtol=1e-6, atol=1e-7)
    same = integrate.quad(
        lambda a: np.tanh(np.sqrt(covariance[1, 1]) * a) ** 2 * stats.norm.pdf(a), -9, 9
    )[0]
    np.testing.assert_allclose(found[1, 1], same, rtol=1e-6)


def test_a_function_with_kinks_says_so():
    with pytest.warns(wl.errors.AccuracyWarning, match="kinks"):
        net = wl.Serial(wl.Dense(8), wl.Elementwise(jax.nn.relu))
    exact = wl.Serial(wl.Dense(8), wl.Relu()).kernel(X)
    np.testing.assert_allclose(net.kernel(X).nngp, exact.nngp, rtol=5e-3)


def test_variances_out_of_reach_are_said():
    net = wl.Serial(wl.Dense(8, w_std=12.0), wl.Tanh())
    with pytest.warns(wl.errors.AccuracyWarning, match="variances up to"):
        net.kernel(X)


@pytest.mark.parametrize("w_std", [30.0, 100.0, 1e3, 1e4])
def test_errors_at_extreme_variances_are_not_understated(w_std):
    """`E[φ'(u)²]` of tanh, which falls off within a distance 1/w_std of zero, is said to be off."""
    net = wl.Serial(wl.Dense(8, w_std=w_std), wl.Tanh(), wl.Dense(1))
    with pytest.warns(wl.errors.AccuracyWarning) as said:
        found = net.kernel(np.ones((1, 4)))
    slopes = integrate.quad(lambda u: np.cosh(u) ** -4 * stats.norm.pdf(u / w_std), -40, 40)[0]
    slope = (found.ntk - found.nngp).item() / w_std**2
    announced = float(re.search(r"error of (\S+)", str(said[0].message))[1])
    np.testing.assert_allclose(announced, abs(1 - slope / (slopes / w_std)), rtol=0.06)


def test_smooth_functions_in_range_say_nothing():
    net = wl.Serial(wl.Dense(8), wl.Elementwise(lambda x: x * jnp.tanh(jax.nn.softplus(x))))
    assert np.isfinite(net.kernel(X).ntk).all()
