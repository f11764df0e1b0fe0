"""Kernels and predictors inside JAX's transformations, in the precision that JAX is set to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit.neural_tangents as nt
from widelimit.neural_tangents import stax


@pytest.fixture(params=[False, True], ids=["single", "double"])
def dtype(request):
    """What `jax_enable_x64` makes of numbers."""
    with jax.enable_x64(request.param):
        yield np.dtype(np.float64 if request.param else np.float32)


def _kernel_fn(end=None):
    return stax.serial(
        stax.Conv(8, (2,), padding="SAME", W_std=1.2, b_std=0.3),
        stax.Erf(),
        stax.GlobalAvgPool() if end is None else end,
        stax.Dense(1),
    )[2]


def _inputs(dtype, *sizes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(size, 3, 2)), dtype) for size in sizes]


def _close(found, expected, dtype, factor=1.0):
    tolerance = factor * (1e-11 if dtype == np.float64 else 1e-5)
    assert jnp.asarray(found).dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_compiled_kernels_are_those_of_plain_calls(dtype):
    x1, x2 = _inputs(dtype, 3, 2)
    kernel_fn = _kernel_fn()
    plain = kernel_fn(x1, x2, ("nngp", "ntk"))
    compiled = jax.jit(lambda a, b: kernel_fn(a, b, ("nngp", "ntk")))(x1, x2)
    _close(compiled.nngp, plain.nngp, dtype)
    _close(compiled.ntk, plain.ntk, dtype)
    whole = jax.jit(lambda a: kernel_fn(a))(x1)
    _close(whole.cov1, jnp.diagonal(kernel_fn(x1, None, "nngp")), dtype)


def test_numbers_of_another_precision_are_those_that_jax_holds(dtype):
    x = np.random.default_rng(0).normal(size=(3, 3, 2))  # float64
    assert _kernel_fn()(x, None, "ntk").dtype == dtype
    assert _kernel_fn()((8 * x).astype(int), None, "ntk").dtype == dtype


def test_gradients_are_slopes(dtype):
    (x,) = _inputs(dtype, 3)
    kernel_fn = _kernel_fn()

    def total(y):
        return jnp.sum(kernel_fn(y, x, "ntk"))

    slope, step = jax.grad(total)(x + 0.3), 1e-5
    backward = jax.jacrev(lambda y: kernel_fn(y, x, "ntk"))(x + 0.3)
    forward = jax.jacfwd(lambda y: kernel_fn(y, x, "ntk"))(x + 0.3)
    _close(backward, forward, dtype, 10)
    _close(jnp.sum(backward, (0, 1)), slope, dtype, 10)
    if dtype == np.float64:
        direction = jnp.cos(jnp.arange(x.size, dtype=dtype)).reshape(x.shape)
        ahead, behind = (total(x + 0.3 + sign * step * direction) for sign in (1, -1))
        np.testing.assert_allclose(
            jnp.sum(slope * direction), (ahead - behind) / (2 * step), rtol=1e-8
        )


def test_gradients_at_equal_inputs_are_finite(dtype):
    (x,) = _inputs(dtype, 3)
    for layer in (stax.Relu(), stax.Abs(), stax.Erf(), stax.RectifiedMonomial(2), stax.Gelu()):
        kernel_fn = stax.serial(stax.Dense(4), layer, stax.Flatten(), stax.Dense(1))[2]
        slope = jax.grad(lambda y, k=kernel_fn: jnp.sum(k(y, None, "ntk")))(x)
        assert jnp.isfinite(slope).all()


def test_kernels_map_over_batches_and_hyperparameters(dtype):
    (x,) = _inputs(dtype, 6)
    kernel_fn = _kernel_fn()
    pairs = x.reshape(3, 2, 3, 2)
    mapped = jax.vmap(lambda y: kernel_fn(y, None, "nngp"))(pairs)
    _close(mapped, np.stack([kernel_fn(y, None, "nngp") for y in pairs]), dtype)

    def of_deviation(std):
        fn = stax.serial(stax.Dense(4, std, 0.1), stax.Relu(), stax.Flatten(), stax.Dense(1))[2]
        return fn(x, None, "nngp")[0, 1]

    stds = jnp.asarray([0.7, 1.0, 1.5], dtype)
    _close(jax.vmap(of_deviation)(stds), np.stack([of_deviation(s) for s in stds]), dtype)
    ahead, behind = of_deviation(1.1 + 1e-3), of_deviation(1.1 - 1e-3)
    np.testing.assert_allclose(
        jax.grad(of_deviation)(jnp.asarray(1.1, dtype)), (ahead - behind) / 2e-3, rtol=2e-3
    )


def test_predictors_work_inside_transformations(dtype):
    x, x_test = _inputs(dtype, 5, 2)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(5, 2)), dtype)
    kernel_fn = _kernel_fn()

    def gp(x, y):
        kernels = [kernel_fn(*p, ("nngp", "ntk")) for p in ((x, None), (x_test, x))]
        test = kernel_fn(x_test, None, ("nngp", "ntk"))
        return nt.predict.gp_inference(kernels[0], y, diag_reg=0.1)("ntk", kernels[1], test)

    plain, compiled = gp(x, y), jax.jit(gp)(x, y)
    _close(compiled.mean, plain.mean, dtype, 10)
    _close(compiled.covariance, plain.covariance, dtype, 10)
    many = jax.vmap(lambda targets: gp(x, targets).mean)(jnp.stack([y, 2 * y]))
    _close(many[1], 2 * plain.mean, dtype, 10)

    def distilled(x, t=3.0):
        predict = nt.predict.gradient_descent_mse(
            kernel_fn(x, None, "ntk"), y, learning_rate=0.5, diag_reg=0.1
        )
        return jnp.sum(predict(t, 0.0, 0.0, kernel_fn(x_test, x, "ntk"))[1] ** 2)

    slope = jax.jit(jax.grad(distilled))(x)
    assert slope.dtype == dtype
    assert jnp.isfinite(slope).all()
    if dtype == np.float64:
        moved = jnp.zeros_like(x).at[1, 2, 0].set(1e-5)
        expected = (distilled(x + moved) - distilled(x - moved)) / 2e-5
        np.testing.assert_allclose(slope[1, 2, 0], expected, rtol=1e-6)


def test_ensembles_and_flows_work_inside_transformations(dtype):
    x, x_test = _inputs(dtype, 5, 2)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(5, 1)), dtype)
    kernel_fn = _kernel_fn()

    def ensemble(t):
        predict = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, y, diag_reg=0.1)
        return predict(t, x_test, "ntk", compute_cov=True)

    def flow(t):
        ntk, cross = kernel_fn(x, None, "ntk"), kernel_fn(x_test, x, "ntk")
        predict = nt.predict.gradient_descent(lambda f, g: 0.5 * jnp.mean((f - g) ** 2), ntk, y)
        return predict(t, 0.0, 0.0, cross)[1]

    time = jnp.asarray(2.0, dtype)
    for predict in (lambda t: ensemble(t).mean, lambda t: ensemble(t).covariance, flow):
        _close(jax.jit(predict)(time), predict(time), dtype, 20)
        speed = jax.jacrev(predict)(time) if predict is not flow else None
        if dtype == np.float64 and speed is not None:
            expected = (predict(time + 1e-5) - predict(time - 1e-5)) / 2e-5
            np.testing.assert_allclose(speed, expected, rtol=1e-6, atol=1e-9)


def test_empirical_kernels_work_inside_transformations(dtype):
    x1, x2 = _inputs(dtype, 3, 2)
    init_fn, apply_fn, _ = stax.serial(stax.Flatten(), stax.Dense(5), stax.Erf(), stax.Dense(2))
    _, params = init_fn(jax.random.PRNGKey(0), x1.shape)
    kernel_fn = nt.empirical_kernel_fn(apply_fn, trace_axes=())
    plain = kernel_fn(x1, x2, ("nngp", "ntk"), params)
    compiled = jax.jit(lambda p: kernel_fn(x1, x2, ("nngp", "ntk"), p))(params)
    _close(compiled.ntk, plain.ntk, dtype)
    _close(compiled.nngp, plain.nngp, dtype)
    slope = jax.grad(lambda p: jnp.sum(kernel_fn(x1, None, "ntk", p)))(params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def test_predictors_outlive_the_transformation_that_calls_them_first(dtype):
    x, x_test = _inputs(dtype, 4, 2)
    y, kernel_fn = jnp.ones((4, 1), dtype), _kernel_fn()
    ntk, cross = kernel_fn(x, None, "ntk"), kernel_fn(x_test, x, "ntk")
    one = nt.predict.gradient_descent_mse(ntk, y)
    many = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, y)
    for predict in (
        lambda t: one(t, 0.0, 0.0, cross)[1],
        lambda t: many(t, x_test, "ntk"),
    ):
        time = jnp.asarray(3.0, dtype)
        _close(jax.jit(predict)(time), predict(time), dtype, 10)
