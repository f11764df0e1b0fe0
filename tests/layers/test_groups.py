"""Heads that are not all alike: their layer's kernels, law, and finite networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NetworkError
from widelimit.finite.widths import with_heads
from widelimit.layers import HeadGroups, Scaling
from widelimit.layers.base import with_fields

X = (0.8 * np.random.default_rng(0).normal(size=(2, 3, 4)) + 0.4).astype(np.float64)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_temperatures_and_slopes_by_hand():
    """At 1/d: `κ ← Σ_g share_g A_g κ A_gᵀ`, `A_g = softmax(qk_g κ − slope_g |a − i|)`."""
    options = {"scaling": Scaling.LINEAR}
    groups = HeadGroups(
        wl.Attention(8, heads=1, qk_std=0.5, positions=wl.Alibi(0.3), **options),
        wl.Attention(8, heads=3, qk_std=2.0, positions=wl.Alibi(1.1), **options),
    )
    kappa = np.einsum("iac,jbc->ijab", X, X) / X.shape[-1]
    gaps = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    truth, wrong = np.zeros_like(kappa), np.zeros_like(kappa)
    for share, qk, slope in ((0.25, 0.5, 0.3), (0.75, 2.0, 1.1)):
        weights = softmax(qk * np.einsum("iiab->iab", kappa) - slope * gaps)
        mixed = np.einsum("iak,ijkl,jbl->ijab", weights, kappa, weights)
        truth += share * mixed
        wrong += 0.5 * mixed
    found = groups.kernel(X, dtype=np.float64)
    np.testing.assert_allclose(found.nngp, truth, rtol=1e-9)
    np.testing.assert_allclose(found.ntk, 2 * truth, rtol=1e-9)
    assert np.abs(truth - wrong).max() > 0.01 * np.abs(truth).max()


def test_equal_groups_are_one_layer():
    layer = wl.Attention(8, scaling=Scaling.LINEAR, qk_std=1.5)
    one, many = layer.kernel(X), HeadGroups(layer, layer, layer).kernel(X)
    np.testing.assert_allclose(many.nngp, one.nngp, rtol=1e-5)
    np.testing.assert_allclose(many.ntk, one.ntk, rtol=1e-5)


def test_shares_stay_with_infinitely_many_heads():
    flat, sharp = wl.Attention(8, heads=3, qk_std=0.1), wl.Attention(8, heads=1, qk_std=4.0)
    assert with_heads(HeadGroups(flat, sharp), wl.INFINITE).coefficients() == [0.75, 0.25]
    assert HeadGroups(wl.Attention(8), wl.Attention(8)).coefficients() == [0.5, 0.5]


@pytest.mark.parametrize(
    "groups", [(wl.Dense(8),), (wl.Attention(8), wl.Attention(8, heads=2)), (wl.Attention(8), 3)]
)
def test_what_is_no_group_of_heads(groups):
    with pytest.raises(NetworkError):
        HeadGroups(*groups)


@pytest.mark.slow
def test_the_law_of_different_heads_against_drawn_networks():
    """Heads of widths 4 make the law exact at every width of the layer."""
    widths = {"key_width": 4, "value_width": 4}
    groups = HeadGroups(
        wl.Attention(16, heads=2, qk_std=0.3, positions=wl.Alibi(0.2), **widths),
        wl.Attention(16, heads=1, qk_std=3.0, positions=wl.Alibi(1.0), **widths),
    )
    x = jnp.asarray(X[:1], jnp.float32)

    def one(key):
        return groups.apply(groups.init(key, x.shape[1:]), x)[0, 0]

    keys = jax.random.split(jax.random.key(0), 20_000)
    y = np.asarray(jax.jit(lambda k: jax.lax.map(one, k, batch_size=500))(keys), np.float64)
    per_run = np.stack([np.mean(y**2, axis=1), np.mean(y**4, axis=1)])
    found, errors = per_run.mean(axis=1), per_run.std(axis=1) / np.sqrt(len(y))
    law = groups.law(X[:1], head_widths="given", draws=2**14).moments((2, 4), (0, 0))
    assert np.all(errors < [0.01 * found[0], 0.03 * found[1]])
    assert np.all(np.abs(found - law.value) < 4.5 * np.hypot(errors, law.error))
    alike = with_fields(groups, shares=(0.5, 0.5)).law(X[:1], head_widths="given", draws=2**14)
    other = alike.moments((2, 4), (0, 0))
    assert np.max(np.abs(found - other.value) / np.hypot(errors, other.error)) > 8
