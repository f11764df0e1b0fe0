"""Duals by Hermite series, for functions without a closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dual_cases import ALL, POINTS, evaluate, expectation, normal_cdf, normal_pdf, square, total

from widelimit import duals


@pytest.mark.parametrize("name", ["tanh", "silu"])
def test_series_reports_its_error_and_widens(name):
    dual = ALL[name].make()
    assert dual.error(np.geomspace(0.01, 4, 30)) < 4e-7
    beyond = dual.error([1.0, 32.0])
    assert beyond > 1e-6
    wider = dual.extend_to(20.0)
    assert dual.extend_to(3.0) is dual
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
    assert not duals.Series(jnp.tanh).kinked
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
