"""Sines and cosines over the channels: sums over channels become integrals over frequencies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from widelimit.trace import RefusedError, trace

TOKENS = 4
X = np.random.default_rng(0).standard_normal((2, TOKENS, 3))


def halves(n):
    """Sines in the first half of the channels, cosines in the second."""
    angles = jnp.arange(TOKENS)[:, None] * 10_000 ** (-jnp.arange(0, n, 2)[None] / n)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def interleaved(n):
    """Sines in even, cosines in odd channels, as "Attention is all you need" has them."""
    angles = jnp.arange(TOKENS)[:, None] * jnp.exp(
        -jnp.log(10_000.0) * jnp.arange(0, n, 2)[None] / n
    )
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(TOKENS, n)


def model(table):
    def make(n, key):
        a, b, c = jax.random.split(key, 3)
        embed = jax.random.normal(a, (3, n)) / np.sqrt(3)
        hidden = jax.random.normal(b, (n, n)) / np.sqrt(n)
        readout = jax.random.normal(c, (n, 1)) / np.sqrt(n)
        return lambda x: (x @ embed + table(n)) @ hidden @ readout

    return make


@pytest.mark.parametrize("table", [halves, interleaved])
def test_a_sinusoidal_table_adds_its_integral(table):
    law = trace(model(table), X).limit()
    assert not law.random

    def cosine(gap):
        return quad(lambda u: np.cos(gap * 10_000.0**-u), 0, 1, epsabs=1e-12, limit=200)[0]

    gaps = np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))
    added = np.vectorize(cosine)(gaps) / 2
    expected = np.einsum("aic,bjc->abij", X, X) / 3 + added
    found = law.covariance().value[..., 0, :, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


class Rotary(eqx.Module):
    """Queries and keys turned by angles that differ from channel to channel."""

    weights: list
    readout: jax.Array

    def __init__(self, n, key):
        a, b, c, d = jax.random.split(key, 4)
        self.weights = [jax.random.normal(k, (3, n)) for k in (a, b, c)]
        self.readout = jax.random.normal(d, (n, 1)) / np.sqrt(n)

    def __call__(self, x):
        q, k, v = (x @ w for w in self.weights)
        n = q.shape[-1]
        angles = jnp.arange(TOKENS)[:, None] * 10_000 ** (-jnp.arange(0, n, 2)[None] / n)

        def turned(z):
            one, two = jnp.split(z, 2, axis=-1)
            cos, sin = jnp.cos(angles), jnp.sin(angles)
            return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)

        scores = jax.nn.softmax(turned(q) @ turned(k).T / np.sqrt(n))
        return jnp.mean(scores @ v, axis=0) @ self.readout


@pytest.mark.slow
def test_rotary_scores_are_refused_with_the_layer_that_has_them():
    with pytest.raises(RefusedError, match=r"(?s)test_position_tables.py.*Rotary\(\)"):
        trace(Rotary, X).limit(draws=4)


def test_a_table_that_is_split_is_refused():
    def make(n, key):
        readout = jax.random.normal(key, (n, 1)) / np.sqrt(n)
        return lambda x: (halves(n).reshape(TOKENS, 4, -1) * x[0, 0]).reshape(TOKENS, n) @ readout

    with pytest.raises(RefusedError, match="know their place"):
        trace(make, X).limit()


def test_outputs_stacked_along_their_last_axis_keep_their_places():
    def make(n, key):
        a, b = jax.random.split(key)
        embed, readout = jax.random.normal(a, (3, n)), jax.random.normal(b, (n,)) / np.sqrt(n)

        def forward(x):
            once = x @ embed @ readout
            return jnp.stack([once, 2 * once], axis=-1)

        return forward

    law = trace(make, X).limit()
    assert law.shape == (2, TOKENS, 2)
    gram = np.einsum("aic,bjc->abij", X, X)
    expected = np.einsum("abij,cd->abicjd", gram, np.outer([1, 2], [1, 2]))
    np.testing.assert_allclose(law.covariance().value, expected, atol=1e-9)
