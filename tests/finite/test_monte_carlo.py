"""Averages over finite networks: what is averaged, and what does not depend on chunks."""

import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.finite.empirical import empirical_ntk
from widelimit.finite.monte_carlo import monte_carlo_kernel

KEY = jax.random.key(3)
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
NET = wl.Serial(wl.Dense(16, b_std=0.3), wl.Relu(), wl.Dense(5, b_std=0.2))


def _by_hand(draws):
    """Kernels of each draw from its outputs and its Jacobians."""
    nngps, ntks = [], []
    for i in range(draws):
        weight_key, *_ = jax.random.split(jax.random.fold_in(KEY, i), 4)
        params = NET.init(weight_key, (4,))
        y = np.asarray(NET.apply(params, X))
        nngps.append(y @ y.T / 5)
        ntks.append(empirical_ntk(NET.apply, params, X))
    return np.array(nngps), np.array(ntks)


def test_means_and_errors_are_those_of_the_draws():
    found = monte_carlo_kernel(NET, X, key=KEY, draws=12)
    nngp, ntk = _by_hand(12)
    np.testing.assert_allclose(found.nngp, nngp.mean(axis=0), rtol=1e-4, atol=1e-5)
    error = nngp.std(axis=0, ddof=1) / np.sqrt(12)
    np.testing.assert_allclose(found.nngp_error, error, rtol=1e-3)
    # Random signs of the channels leave the tangent kernel's mean as it is.
    assert (np.abs(found.ntk - ntk.mean(axis=0)) < 4.5 * found.ntk_error).all()


def test_one_output_channel_has_its_exact_tangent_kernel():
    net = wl.Serial(wl.Dense(16), wl.Relu(), wl.Dense(1))
    found = monte_carlo_kernel(net, X, X[:2], key=KEY, draws=1)
    weight_key, *_ = jax.random.split(jax.random.fold_in(KEY, 0), 4)
    expected = empirical_ntk(net.apply, net.init(weight_key, (4,)), X, X[:2])
    np.testing.assert_allclose(found.ntk, expected, rtol=1e-5, atol=1e-6)
    assert found.ntk_error is None


def test_draws_do_not_depend_on_memory_or_on_the_other_input():
    whole = monte_carlo_kernel(NET, X, key=KEY, draws=3)
    # So little memory that the Jacobians of one draw are streamed too.
    parts = monte_carlo_kernel(NET, X, key=KEY, draws=3, memory=1)
    for one, two in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    pair = monte_carlo_kernel(NET, X, X[1:], key=KEY, draws=3, ntk=False)
    np.testing.assert_allclose(pair.nngp, whole.nngp[:, 1:], rtol=1e-4, atol=1e-5)
    assert pair.ntk is None


def test_positions_come_after_examples():
    net = wl.Serial(wl.Conv(8, 3, b_std=0.1), wl.Relu(), wl.Conv(2, 3))
    x = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(np.float32)
    found = monte_carlo_kernel(net, x, x[:1, :3], key=KEY, draws=1)
    assert found.nngp.shape == found.ntk.shape == (2, 1, 4, 3)
    weight_key, *_ = jax.random.split(jax.random.fold_in(KEY, 0), 4)
    params = net.init(weight_key, (4, 3))
    one, two = net.apply(params, x), net.apply(params, x[:1, :3])
    np.testing.assert_allclose(
        found.nngp, np.einsum("iac,jbc->ijab", one, two) / 2, rtol=1e-4, atol=1e-5
    )


def test_dropout_masks_of_the_two_passes_are_independent():
    """Without independence the diagonal would be larger by 1/(1 − rate)."""
    net = wl.Serial(wl.Dense(32), wl.Dropout(0.5), wl.Dense(64))
    key = jax.random.key(3, impl="rbg")  # of all kinds of keys the fastest
    found = monte_carlo_kernel(net, X, key=key, draws=6000)
    exact = net.kernel(X)
    scale = np.abs(exact.nngp).max()
    assert found.nngp_error.max() < 0.01 * scale
    assert (np.abs(found.nngp - exact.nngp) < 4.5 * found.nngp_error).all()
    assert (np.abs(found.ntk - exact.ntk) < 4.5 * found.ntk_error).all()


@pytest.mark.parametrize("draws", [0, 1.5, True])
def test_draws_are_a_positive_number(draws):
    with pytest.raises(wl.WidelimitError, match="draws= is not a positive integer"):
        monte_carlo_kernel(NET, X, key=KEY, draws=draws)
