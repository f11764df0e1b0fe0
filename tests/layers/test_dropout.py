"""Dropout below random scores: every pass of the network has scores of its own."""

import numpy as np
import pytest
from scipy.special import expit

import widelimit as wl
from widelimit.errors import NetworkError, ShapeError

RATE, QK = 0.4, 1.6
X = 0.8 * np.random.default_rng(0).normal(size=(2, 2, 4)) + 0.5
NET = wl.Serial(wl.Dense(8, w_std=1.2), wl.Dropout(RATE), wl.Attention(8, qk_std=QK))


def _exact(x: np.ndarray, rate: float, *, one_pass: bool) -> np.ndarray:
    """κ after softmax over two keys, where weights are logistic in one Gaussian difference.

    `A_a = (s(u_a), 1 − s(u_a))` with `u_a = G_a1 − G_a2`. Within a pass κ_aa is κ_aa/(1 − rate).
    """
    kappa = 1.2**2 * np.einsum("nac,mbc->nmab", x, x) / x.shape[-1]
    own = np.stack([k + np.diag(np.diag(k)) * rate / (1 - rate) for k in kappa[[0, 1], [0, 1]]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    grid = weights[:, None] * weights[None, :]

    def spread(k):
        return k[0, 0] + k[1, 1] - k[0, 1] - k[1, 0]

    result = np.empty_like(kappa)
    for n, m, a, b in np.ndindex(kappa.shape):
        between = own[n] if one_pass and n == m else kappa[n, m]
        first = QK**2 * own[n][a, a] * spread(own[n])
        second = QK**2 * own[m][b, b] * spread(own[m])
        shared = QK**2 * between[a, b] * spread(between)
        slope = shared / np.sqrt(first)
        u = np.sqrt(first) * nodes
        v = slope * nodes[:, None] + np.sqrt(max(second - slope**2, 0)) * nodes[None, :]
        s = np.broadcast_to(expit(u)[:, None], grid.shape)
        one, two = np.stack([s, 1 - s]), np.stack([expit(v), 1 - expit(v)])
        result[n, m, a, b] = np.einsum("ixy,jxy,xy,ij->", one, two, grid, between)
    return result


def test_scores_of_two_passes_under_dropout():
    k = NET.kernel(X, key=0, samples=2048, ntk=False)
    exact = _exact(X, RATE, one_pass=False)
    assert k.nngp_error.max() < 0.01 * np.abs(exact).max()
    assert np.abs((k.nngp - exact) / k.nngp_error).max() < 5
    ignored = _exact(X, 0.0, one_pass=False)  # what scores without dropout give
    assert np.abs((k.nngp - ignored) / k.nngp_error).max() > 10


@pytest.mark.slow
def test_a_pass_with_itself_feeds_the_next_layer():
    """ReLU looks at the variance within one pass, which is larger than between two."""
    k = wl.Serial(*NET.layers, wl.LayerNorm(eps=0.0)).kernel(X, key=0, samples=4096, ntk=False)
    variance = np.einsum("nnaa->na", _exact(X, RATE, one_pass=True))
    between = np.einsum("nnaa->na", _exact(X, RATE, one_pass=False))
    found = np.einsum("nnaa->na", k.nngp)
    np.testing.assert_allclose(found, between / variance, rtol=0.01)
    assert (between / variance < 0.95).all()


def test_kernels_under_dropout_are_symmetric_and_shared():
    sampler = NET.sampler(X, key=0, samples=16, replicates=2)
    whole = NET.kernel(X, sampler=sampler)
    again = NET.kernel(X[::-1], X, sampler=sampler)
    np.testing.assert_allclose(again.nngp[::-1], whole.nngp, rtol=1e-11)
    np.testing.assert_allclose(again.ntk[::-1], whole.ntk, rtol=1e-11)
    with pytest.raises(ShapeError, match="drawn for 2"):
        NET.kernel(np.ones((1, 3, 4)), sampler=sampler)


def test_a_law_is_of_one_pass():
    net = wl.Serial(
        wl.Dense(8), wl.Dropout(0.5), wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1)
    )
    with pytest.raises(NetworkError, match="scores of its own"):
        net.law(X)
    wl.Serial(wl.Attention(8, heads=2), wl.Dropout(0.5), wl.MeanPool(), wl.Dense(1)).law(
        X, draws=16
    )
