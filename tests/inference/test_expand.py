import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.errors import OptionError
from widelimit.inference import Dynamics, Optimizer, linearize, taylor_expand


def network(params, x, scale=1.0):
    hidden = jax.nn.softmax(x @ params["in"], axis=-1)
    return scale * jnp.tanh(hidden) @ params["out"]


def params(seed=0, width=7):
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "in": jax.random.normal(first, (3, width)),
        "out": jax.random.normal(second, (width, 2)),
    }


X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def test_linearization_is_value_plus_jacobian():
    start, end = params(0), params(1)
    jacobian = jax.jit(jax.jacfwd(network))(start, X)
    change = sum(jnp.tensordot(jacobian[k], end[k] - start[k], axes=end[k].ndim) for k in start)
    expected = network(start, X) + change
    linear = jax.jit(linearize(network, start))
    np.testing.assert_allclose(linear(end, X), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(linear(start, X), network(start, X), rtol=1e-6)
    scaled = linear(end, X, scale=2.0)
    np.testing.assert_allclose(scaled, 2.0 * expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_polynomials_are_expanded_exactly(degree):
    """For f(θ) = θ³ about 2: 8 + 12 s + 6 s² + s³ at s = θ − 2."""
    found = taylor_expand(lambda p, x: x * p**3, jnp.asarray(2.0), degree=degree)
    terms = [8.0, 12.0 * 0.5, 6.0 * 0.25, 0.125, 0.0]
    value = found(jnp.asarray(2.5), jnp.asarray(1.0))
    np.testing.assert_allclose(value, sum(terms[: degree + 1]), rtol=1e-6)


def test_errors_shrink_with_their_order():
    with jax.enable_x64(True):
        start = jax.tree.map(lambda a: a.astype(jnp.float64), params(0))
        end = jax.tree.map(lambda a: a.astype(jnp.float64), params(1))
        for degree in (1, 2):
            expanded = taylor_expand(network, start, degree=degree)
            x = X.astype(np.float64)
            gap = jax.jit(lambda p, f=expanded, x=x: jnp.abs(f(p, x) - network(p, x)).max())
            errors = []
            for size in (0.02, 0.01):
                moved = {k: start[k] + size * (end[k] - start[k]) for k in start}
                errors.append(float(gap(moved)))
            assert np.log2(errors[0] / errors[1]) == pytest.approx(degree + 1, abs=0.15)


def test_expansions_compile_and_differentiate():
    start, end = params(0), params(1)
    linear = linearize(network, start)
    np.testing.assert_allclose(jax.jit(linear)(end, X), linear(end, X), rtol=1e-5, atol=1e-6)
    slope = jax.jit(jax.grad(lambda p: linear(p, X).sum()))(end)
    expected = jax.jit(jax.grad(lambda p: network(p, X).sum()))(start)
    for key in start:
        np.testing.assert_allclose(slope[key], expected[key], rtol=1e-4, atol=1e-5)


def test_modules_with_fixed_parts():
    class Layer(eqx.Module):
        weight: jax.Array
        count: int
        steps: jax.Array

        def __call__(self, x):
            return self.count * jnp.sin(x @ self.weight) + self.steps

    start = Layer(jnp.ones((3, 2)), 2, jnp.asarray([1, 2]))
    end = eqx.tree_at(lambda m: m.weight, start, 1.1 * jnp.ones((3, 2)))
    found = linearize(lambda m, x: jax.vmap(m)(x), start)(end, X)
    s = X.sum(axis=1, keepdims=True)
    expected = np.array([[1.0, 2.0]]) + 2 * np.sin(s) + 2 * np.cos(s) * 0.1 * s
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_trained_linearised_network_follows_the_dynamics():
    """Gradient descent on the weights of f_lin is the closed form with its empirical NTK."""
    with jax.enable_x64(True):
        start = jax.tree.map(lambda a: a.astype(jnp.float64), params(0))
        x = np.random.default_rng(1).normal(size=(6, 3))
        y = np.random.default_rng(2).normal(size=(4, 1))
        one_output = lambda p, v: network(p, v)[:, :1]  # noqa: E731
        linear = jax.jit(linearize(one_output, start))
        jacobian = jax.jit(jax.jacfwd(one_output))(start, x)
        flat = np.concatenate([np.asarray(jacobian[k]).reshape(6, -1) for k in start], axis=1)
        ntk = flat @ flat.T
        loss = lambda p: 0.5 * jnp.sum((linear(p, x[:4]) - y) ** 2)  # noqa: E731
        now, rate = start, 1.0 / np.linalg.eigvalsh(ntk[:4, :4])[-1]
        slope = jax.jit(jax.grad(loss))
        for _ in range(25):
            now = {k: now[k] - rate * g for k, g in slope(now).items()}
        trained = np.asarray(linear(now, x))
        initial = np.asarray(one_output(start, x))
    dynamics = Dynamics.decompose(
        ntk[:4, :4], y, learning_rate=rate, optimizer=Optimizer.GRADIENT_DESCENT
    )
    np.testing.assert_allclose(dynamics.mean(25, start=initial[:4]), trained[:4], atol=1e-10)
    elsewhere = dynamics.on(ntk_cross=ntk[4:, :4])
    found = elsewhere.mean(25, start=initial[4:], train_start=initial[:4])
    np.testing.assert_allclose(found, trained[4:], atol=1e-10)


def test_degrees_are_not_negative():
    with pytest.raises(OptionError, match="degree= is not a non-negative integer"):
        taylor_expand(network, params(), degree=-1)
