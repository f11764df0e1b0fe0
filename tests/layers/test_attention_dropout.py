"""Dropped attention weights: an input's own variance grows, kernels between passes do not."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NetworkError, OptionError
from widelimit.layers import IdentityMap, Scaling

RATE = 0.4
X = (0.8 * np.random.default_rng(0).normal(size=(2, 3, 4)) + 0.4).astype(np.float64)
KAPPA = np.einsum("iac,jbc->ijab", X, X) / X.shape[-1]


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True)


def relu_dual(own1: np.ndarray, own2: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """`√(q q')/2π (sin θ + (π − θ) cos θ)`."""
    scale = np.sqrt(np.multiply.outer(own1, own2))
    angle = np.arccos(np.clip(cross / scale, -1, 1))
    return scale / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))


def relu_and_mean(cross: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """NNGP after ReLU and the mean over positions; `gain` is what a pass has on its own."""
    own = np.einsum("iiaa->ia", cross) + gain
    pairs = [[relu_dual(own[i], own[j], cross[i, j]).mean() for j in range(2)] for i in range(2)]
    return np.array(pairs)


def by_hand(rate: float) -> np.ndarray:
    """Softmax attention at 1/d, ReLU and the mean over positions."""
    weights = softmax(1.5 * np.einsum("iiab->iab", KAPPA))
    cross = np.einsum("iak,ijkl,jbl->ijab", weights, KAPPA, weights)
    gain = rate / (1 - rate) * np.einsum("iak,iikk->ia", weights**2, KAPPA)
    return relu_and_mean(cross, gain)


def network(rate: float, heads: float = wl.INFINITE, width: int = 8) -> wl.Layer:
    layer = wl.Attention(
        width, heads=heads, scaling=Scaling.LINEAR, qk_std=1.5, key_width=64, dropout=rate
    )
    return wl.Serial(layer, wl.Relu(), wl.MeanPool())


def test_two_passes_by_hand():
    for rate in (0.0, RATE):
        found = network(rate).kernel(X, ntk=False, dtype=np.float64).nngp
        np.testing.assert_allclose(found, by_hand(rate), rtol=1e-6)
    assert np.abs(by_hand(RATE) / by_hand(0.0) - 1).max() > 0.03


def test_identity_scores_by_hand():
    """At 1/√d: `E[A_ai²] = qk² κ_aa κ_ii`, from nothing drawn."""
    layer = wl.Attention(8, score_map=IdentityMap(), qk_std=0.7, dropout=RATE)
    net = wl.Serial(layer, wl.Relu(), wl.MeanPool())
    cross = 0.7**2 * KAPPA * np.einsum("ijkl,ijkl->ij", KAPPA, KAPPA)[:, :, None, None]
    own = np.einsum("iiaa->ia", KAPPA)
    gain = RATE / (1 - RATE) * 0.7**2 * own * np.sum(own**2, axis=1, keepdims=True)
    found = net.kernel(X, ntk=False, dtype=np.float64).nngp
    np.testing.assert_allclose(found, relu_and_mean(cross, gain), rtol=1e-5)


def test_padding_and_evaluation():
    mask = np.array([[True, True, False], [True, True, True]])
    net = network(RATE)
    padded = net.kernel(X, mask=mask, ntk=False).nngp
    alone = net.kernel(X[:1, :2], ntk=False).nngp
    np.testing.assert_allclose(padded[0, 0], alone[0, 0], rtol=1e-5)
    # Without a key nothing is dropped.
    finite = network(RATE, heads=2)
    params = finite.init(0, X.shape[1:])
    whole = network(0.0, heads=2).apply(params, X)
    np.testing.assert_array_equal(finite.apply(params, X), whole)
    assert not np.array_equal(finite.apply(params, X, key=1), whole)


def test_rates_and_refusals():
    for rate in (1.0, -0.1, True, "half"):
        with pytest.raises(OptionError, match="probability below 1"):
            wl.Attention(8, dropout=rate)
    layer = wl.Attention(8, heads=1, key_width=4, dropout=0.1)
    with pytest.raises(NetworkError, match="dropout="):
        wl.laws.simulate(layer, wl.laws.GivenGram(np.eye(2)), draws=2)
    with pytest.raises(NetworkError, match="dropout="):
        layer.law(X, head_widths="given")


@pytest.mark.slow
@pytest.mark.optimised  # networks are drawn by the thousand
def test_against_networks_with_many_heads():
    """Two passes with masks of their own through the same weights."""
    net, x = network(RATE, heads=64, width=256), jnp.asarray(X, jnp.float32)

    def one(key):
        first, second, third = jax.random.split(key, 3)
        params = net.init(first, x.shape[1:])
        passes = [net.apply(params, x, key=k) for k in (second, third)]
        return passes[0] @ passes[1].T / 256

    keys = jax.random.split(jax.random.key(0), 1500)
    kernels = np.asarray(jax.jit(lambda k: jax.lax.map(one, k, batch_size=10))(keys), np.float64)
    found, error = kernels.mean(axis=0), kernels.std(axis=0) / math.sqrt(len(kernels))
    truth, without = by_hand(RATE), by_hand(0.0)
    assert np.all(error < 0.01 * np.abs(truth))
    # Heads and widths are finite: a share of 1/64 of the effect is left.
    left = np.abs(truth - without) / 32
    assert np.all(np.abs(found - truth) < 4.5 * error + left)
    assert np.max(np.abs(found - without) / error) > 10
