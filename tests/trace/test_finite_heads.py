"""The finite-head paper's setting, written as plain JAX, gives the law of the library's layer."""

import jax
import jax.numpy as jnp
import numpy as np

import widelimit as wl
from widelimit.laws import law_from_covariance
from widelimit.trace import trace

HEADS, TOKENS = 2, 4


def paper(n, key):
    """`h ~ N(0, I)`, `x_i = clip(W_i h)`, then attention heads at 1/√n."""
    names = jax.random.split(key, 6)
    h = jax.random.normal(names[0], (n,))
    inputs = jax.random.normal(names[1], (TOKENS, n, n)) / np.sqrt(n)
    query, keys, value = (jax.random.normal(k, (HEADS, n, n)) / np.sqrt(n) for k in names[2:5])
    out = jax.random.normal(names[5], (HEADS, n, n)) / np.sqrt(n)

    def model(_):
        x = jnp.clip(jnp.einsum("inm,m->in", inputs, h), -100, 100)
        total = 0.0
        for a in range(HEADS):
            q, k, v = x @ query[a], x @ keys[a], x @ value[a]
            weights = jax.nn.softmax(q @ k.T / np.sqrt(n))
            total = total + weights @ v @ out[a]
        return total / np.sqrt(HEADS)

    return model


def test_the_papers_setting_has_the_density_of_the_law():
    law = trace(paper, np.zeros((1, 1)), key=3).limit(draws=2048)
    # Given h the four tokens are independent with unit variance.
    layer = wl.Attention(8, heads=HEADS)
    expected = law_from_covariance(layer, np.eye(TOKENS), draws=4096)
    grid = np.linspace(-4, 4, 33)
    ours, theirs = law.density(grid, at=(0, 0)), expected.density(grid, at=(0, 0))
    error = np.hypot(ours.error, theirs.error)
    assert error.max() < 0.005 * theirs.value.max()
    assert (np.abs(ours.value - theirs.value) < 4.5 * error + 1e-9).all()
    ours, theirs = law.kurtosis(at=(0, 0)), expected.kurtosis(at=(0, 0))
    assert abs(ours.value - theirs.value) < 4 * np.hypot(ours.error, theirs.error)
    assert ours.value > 20 * ours.error  # far from Gaussian: the normal density would be noticed
    first, second = law.covariance(), expected.covariance()
    z = np.abs(first.value - second.value) / np.hypot(first.error, second.error)
    assert z.max() < 4.5


def test_the_papers_setting_is_covered_up_to_its_last_matrix():
    report = trace(paper, np.zeros((1, 1))).check()
    named = {finding.precondition.name for finding in report.findings}
    # The inputs of all scores are clipped; what follows the scores is the conditional recursion.
    assert named == {"NO_MATMUL_AFTER_SCALARS"}
    assert report.ok
    assert "test_finite_heads.py" in str(report)


def test_one_over_n_scores_of_separate_weights_vanish():
    def make(n, key):
        a, b, c, d = jax.random.split(key, 4)
        w = jax.random.normal(a, (n, 3)) / np.sqrt(3)
        query, keys = (jax.random.normal(k, (n, n)) / np.sqrt(n) for k in (b, c))
        readout = jax.random.normal(d, (n,)) / np.sqrt(n)

        def model(x):
            x = x @ w.T
            return jnp.mean(jax.nn.softmax((x @ query) @ (x @ keys).T / n) @ x, axis=0) @ readout

        return model

    x = np.random.default_rng(0).standard_normal((2, 4, 3))
    law = trace(make, x).limit()
    assert not law.random
    pooled = x.mean(axis=1)
    np.testing.assert_allclose(law.covariance().value, pooled @ pooled.T / 3, rtol=1e-12)
