"""Kernels of examples with themselves: the diagonal of the whole kernel, in O(N)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.layers import Scaling

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 4, 3))
MASK = np.arange(4)[None, :] < np.array([4, 2, 3, 1, 4])[:, None]
ATTENTION = wl.Attention(8, scaling=Scaling.LINEAR)


@pytest.mark.parametrize(
    "net",
    [
        wl.Serial(wl.Dense(8), wl.Relu(), ATTENTION, wl.MeanPool(), wl.Dense(1)),
        wl.Serial(wl.Dense(8, w_std=2.5), wl.Elementwise(jnp.tanh), wl.MeanPool(), wl.Dense(1)),
        wl.Serial(wl.Dense(8), wl.Relu(), ATTENTION),
    ],
    ids=["pooled", "variances beyond the dual's", "positions kept"],
)
def test_it_is_the_diagonal_of_the_kernel(net):
    whole, own = net.kernel(X, mask=MASK), net.diagonal(X, MASK)
    each = range(len(X))
    np.testing.assert_allclose(own.nngp, whole.nngp[each, each], rtol=1e-12)
    np.testing.assert_allclose(own.ntk, whole.ntk[each, each], rtol=1e-12)
    assert net.diagonal(X, MASK, ntk=False).ntk is None


def test_sampled_networks_have_the_heads_and_errors_of_their_sampler():
    net = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))
    x = X.astype(np.float32)
    sampler = net.sampler(x, samples=8, key=1)
    whole, own = net.kernel(x, sampler=sampler), net.diagonal(x, sampler=sampler)
    for name in ("nngp", "ntk", "nngp_error", "ntk_error"):
        found = getattr(own, name)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.diagonal(getattr(whole, name)), rtol=2e-3)


def test_it_has_gradients():
    net = wl.Serial(wl.Dense(8), wl.Relu(), ATTENTION, wl.MeanPool(), wl.Dense(1))
    x = X.astype(np.float32)

    def total(net):
        return net.diagonal(x).ntk.sum()

    def total_of_all(net):
        return net.kernel(x).ntk.diagonal().sum()

    slopes = [jax.tree.leaves(jax.grad(f)(net)) for f in (total, total_of_all)]
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
