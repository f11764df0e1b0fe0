"""Programs that must be refused are, and the message quotes the line at fault."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.errors import NetworkError
from widelimit.programs import products
from widelimit.trace import RefusedError, trace

X = np.random.default_rng(0).standard_normal((2, 3, 4))
TOKENS = np.array([[0, 1, 2], [2, 1, 1]])


def drawn(key, *shapes):
    keys = jax.random.split(key, len(shapes))
    return [
        jax.random.normal(k, shape) / np.sqrt(shape[-1])
        for k, shape in zip(keys, shapes, strict=True)
    ]


def rounded_width(n, key):
    (w,) = drawn(key, (n // 3, 4))
    return lambda x: jnp.sum(x @ w.T)  # line: w = drawn


def width_dependent_depth(n, key):
    w, v = drawn(key, (n, 4), (n, n))

    def model(x):
        h = x @ w.T
        for _ in range(n // 64):
            h = jnp.tanh(h @ v.T)  # refused here
        return h.sum()

    return model


def odd_literal(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: (x @ w.T) @ v.T * (1.0 + 1.0 / n)  # refused here


def tied_transpose(n, key):
    w, v = drawn(key, (n, 4), (n, n))
    return lambda x: jnp.tanh(jnp.tanh(x @ w.T) @ v.T) @ v  # refused here


def tied_queries_and_keys(n, key):
    w, v = drawn(key, (n, 4), (n, n))

    def model(x):
        q = (x @ w.T) @ v.T
        return jax.nn.softmax(q @ q.T / np.sqrt(n)) @ q  # refused here

    return model


def unscaled_weights(n, key):
    (w, v) = drawn(key, (n, 4), (1, n))
    u = jax.random.normal(key, (n, n))
    return lambda x: jnp.tanh((x @ w.T) @ u) @ v.T  # refused here


def sorted_channels(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: jnp.sort(x @ w.T, axis=-1) @ v.T  # refused here


def largest_channel(n, key):
    (w,) = drawn(key, (n, 4))
    return lambda x: jnp.max(x @ w.T, axis=-1)  # refused here


def cumulative_channels(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: jnp.cumsum(x @ w.T, axis=-1) @ v.T  # refused here


def fourier_channels(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: jnp.real(jnp.fft.fft(x @ w.T)) @ v.T  # refused here


def one_channel(n, key):
    (w,) = drawn(key, (n, 4))
    return lambda x: (x @ w.T)[:, 0]  # refused here


def half_and_one_channels(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: jnp.tanh((x @ w.T)[:, 1:]) @ v[:, 1:].T  # refused here


def channel_numbers(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: (x @ w.T * jnp.cos(jnp.arange(n))[None]) @ v.T  # refused here


def fixed_vector(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    table = np.random.default_rng(0).standard_normal((1, n))
    return lambda x: (x @ w.T * table) @ v.T  # refused here


def product_of_matrices(n, key):
    w, u, v = drawn(key, (n, 4), (n, n), (n, n))
    return lambda x: x @ w.T @ (u @ v)  # refused here


def low_rank_update(n, key):
    w, u, v = drawn(key, (n, 4), (n, n), (n, n))
    return lambda x: x @ w.T @ (u + v)  # refused here


def weight_norm(n, key):
    w, u = drawn(key, (n, 4), (n, n))
    return lambda x: x @ w.T @ (u / jnp.linalg.norm(u, axis=0, keepdims=True))  # refused here


def weights_with_mean(n, key):
    (w,) = drawn(key, (n, 4))
    u = jax.random.uniform(key, (n, n)) / n  # refused here
    return lambda x: x @ w.T @ u


def constant_matrix(n, key):
    (w,) = drawn(key, (n, 4))
    u = jnp.ones((n, n)) / n
    return lambda x: jnp.tanh(x @ w.T) @ u  # refused here


def outer_of_activations(n, key):
    w, v = drawn(key, (n, 4), (n, 4))
    return lambda x: (x @ w.T).T @ (x @ v.T)  # refused here


def two_width_axes(n, key):
    w, v = drawn(key, (n, 4), (n, 4))
    return lambda x: jnp.tanh((x @ w.T)[:, :, None] + (x @ v.T)[:, None, :])  # refused here


def while_loop(n, key):
    w, v = drawn(key, (n, 4), (1, n))

    def model(x):
        h = x @ w.T
        h = jax.lax.while_loop(lambda s: jnp.sum(s) < 3, lambda s: 2 * s, h)  # refused here
        return h @ v.T

    return model


def computed_index(n, key):
    w, v = drawn(key, (n, 4), (1, n))

    def model(x):
        h = x @ w.T
        scores = (h @ v.T)[:, 0]
        return h[jnp.argmax(scores)] @ v.T  # refused here

    return model


def dropout_in_training(n, key):
    w, v = drawn(key, (n, 4), (1, n))

    def model(x):
        h = x @ w.T
        keep = jax.random.bernoulli(key, 0.9, h.shape)  # refused here
        return jnp.where(keep, h, 0.0) @ v.T

    return model


def batch_norm_cancellation(n, key):
    w, v = drawn(key, (n, 4), (1, n))

    def model(x):
        h = jnp.abs(x @ w.T)
        gap = jnp.mean(h, axis=-1) - jnp.sum(h, axis=-1) / n  # refused here
        return jnp.tanh(gap)[:, None] * (h @ v.T)

    return model


def several_outputs(n, key):
    w, v = drawn(key, (n, 4), (1, n))
    return lambda x: ((x @ w.T) @ v.T, x)


def grouped_channels_of_convolution(n, key):
    a, b = jax.random.split(key)
    first = eqx.nn.Conv1d(3, n, 1, key=a)
    second = eqx.nn.Conv1d(n, n, 3, groups=4, key=b)
    return lambda x: second(first(x))  # refused here


def concrete_key(n, key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    w = rng.standard_normal((n, 4))
    return lambda x: x @ w.T


MARKED = [
    width_dependent_depth, odd_literal, tied_transpose, tied_queries_and_keys, unscaled_weights,
    sorted_channels, largest_channel, cumulative_channels, fourier_channels, one_channel,
    half_and_one_channels, channel_numbers, fixed_vector, product_of_matrices, low_rank_update,
    weight_norm, weights_with_mean, constant_matrix, outer_of_activations, two_width_axes,
    while_loop, computed_index, dropout_in_training,
    batch_norm_cancellation, grouped_channels_of_convolution,
]  # fmt: skip


@pytest.mark.parametrize("make", MARKED, ids=lambda make: make.__name__)
def test_refused_programs_name_the_line(make):
    with pytest.raises(RefusedError) as caught:
        trace(make, X).limit(draws=8)
    message = str(caught.value)
    assert caught.value.place.file == __file__
    assert "refused here" in caught.value.place.code, message
    assert "Remedy:" in message
    assert "test_refusals.py" in message


@pytest.mark.parametrize("make", [rounded_width, several_outputs, concrete_key])
def test_models_that_cannot_be_read_are_refused(make):
    with pytest.raises(RefusedError, match="Remedy"):
        trace(make, X).limit(draws=8)


@pytest.mark.parametrize(
    ("factor", "word"),
    [(lambda n: 1.0, "grows as n\\^1/2"), (lambda n: 1 / n, "vanishes as n\\^-1/2")],
)
def test_outputs_of_another_order_are_refused(factor, word):
    def make(n, key):
        w, v = drawn(key, (n, 4), (n, 4))
        return lambda x: jnp.tanh(x @ w.T) @ v[:, 0] * 2 * factor(n)

    with pytest.raises(NetworkError, match=word):
        trace(make, X).limit()


def test_outputs_without_readout_are_refused():
    def make(n, key):
        w, v = drawn(key, (n, 4), (5, n))
        return lambda x: jax.nn.softmax((x @ w.T) @ v.T)

    with pytest.raises(NetworkError, match="logits"):
        trace(make, X).limit(draws=8)


def test_two_widths_are_not_enough():
    with pytest.raises(NetworkError.__base__, match="not three different widths"):
        trace(tied_transpose, X, widths=(32, 64))


def test_a_tied_readout_has_no_tangent_kernel():
    class Tied(eqx.Module):
        w: jax.Array
        u: jax.Array
        v: jax.Array

        def __call__(self, x):
            h = jnp.tanh(x @ self.w.T) + np.sqrt(self.v.shape[1]) * self.v[0]
            return jnp.tanh(h @ self.u.T) @ self.v.T  # used twice

    def make(n, key):
        w, u, v = drawn(key, (n, 4), (n, n), (1, n))
        return Tied(w, u, v)

    with pytest.raises(RefusedError, match="Gradient independence"):
        trace(make, X[:, 0]).ntk()


@pytest.mark.parametrize(
    ("pool", "most", "sums"),
    [
        (lambda h: h.mean(axis=0), 24, "8 sums of 3 vectors, for 1 draw of"),  # the embedding
        (lambda h: jnp.cumsum(h, axis=0)[-1], 64, "8 sums of 8 vectors, for 1 draw of"),
    ],
)
def test_mixtures_that_do_not_fit_are_named(monkeypatch, pool, most, sums):
    def make(n, key):
        w, v = drawn(key, (n, 3), (3, n))
        return lambda x: pool(jnp.tanh(x @ w.T)) @ v.T

    x = np.ones((2, 4, 3))
    monkeypatch.setattr(products, "MOST_COEFFICIENTS", most)
    assert trace(make, x).limit().covariance().value.shape == (2, 2, 3, 3)
    monkeypatch.setattr(products, "MOST_COEFFICIENTS", most - 1)
    with pytest.raises(RefusedError, match=sums):
        trace(make, x).limit()
