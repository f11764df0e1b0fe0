"""Linear attention in either order of its products: `(q kᵀ) v` and `q (kᵀ v)`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.trace import trace

X = np.random.default_rng(0).standard_normal((2, 3, 4))


def model(features, *, cheap, heads=1):
    """One layer of attention without softmax, divided by the number of channels."""

    def make(n, key):
        a, b, c, d, e = jax.random.split(key, 5)
        embed = jax.random.normal(a, (4, n)) / 2
        query, keys, value = (jax.random.normal(k, (n, n)) / np.sqrt(n) for k in (b, c, d))
        readout = jax.random.normal(e, (n, 1)) / np.sqrt(n)

        def one_head(q, k, v):
            if cheap:
                return q @ (k.T @ v)
            return (q @ k.T) @ v

        def forward(x):
            x = x @ embed
            parts = [features(x @ query), features(x @ keys), x @ value]
            split = [p.reshape(3, heads, -1).transpose(1, 0, 2) for p in parts]
            mixed = jax.vmap(one_head)(*split).transpose(1, 0, 2).reshape(3, -1)
            scale = n / heads if features is not identity else np.sqrt(n / heads)
            return jnp.tanh(jnp.mean(x + mixed / scale, axis=0)) @ readout

        return forward

    return make


def identity(x):
    return x


def positive(x):
    return jax.nn.elu(x) + 1


def test_averaged_scores_are_the_same_in_either_order():
    one, two = (
        trace(model(positive, cheap=cheap), X).limit(draws=8).covariance().value
        for cheap in (True, False)
    )
    np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2])
def test_random_scores_have_the_same_law_in_either_order(heads):
    laws = [
        trace(model(identity, cheap=c, heads=heads), X).limit(draws=8192) for c in (True, False)
    ]
    assert all(law.random for law in laws)
    one, two = (law.covariance() for law in laws)
    error = np.hypot(one.error, two.error)
    assert error.max() < 0.02 * one.value.max()
    assert (np.abs(one.value - two.value) < 4 * error + 1e-9).all()
