"""Gradients of duals: finite differences, Price's theorem, and where formulas are singular."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dual_cases import ALL, FORMULAS, POINTS, evaluate, slopes, total


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
