"""Channels that do not share one law: products refuse them, normalisation centres them first."""

import numpy as np
import pytest

import widelimit as wl


def _uneven() -> wl.Layer:
    return wl.Concat(wl.Dense(4), wl.Dense(4, w_std=3.0))


UNLIKE = {
    "concat": wl.Serial(wl.Dense(8), wl.Product(_uneven(), _uneven()), wl.Dense(1)),
    "flatten": wl.Product(*(wl.Serial(wl.Dense(8), wl.Flatten()),) * 2),
    "raw": wl.Product(wl.Serial(), wl.Concat(wl.Dense(1), wl.Dense(2, w_std=3.0))),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_products_of_unlike_channels_are_refused(name):
    # (1 + 81)/2 is not ((1 + 9)/2)²: the average of a product is not the product of averages.
    with pytest.raises(wl.errors.NetworkError, match="channels of one law"):
        UNLIKE[name].kernel(np.ones((1, 2, 3)))


def test_one_factor_may_have_unlike_channels():
    net = wl.Serial(wl.Dense(8), wl.Product(_uneven(), wl.Dense(8, w_std=2.0)), wl.Dense(1))
    # κ = 1 after the first layer; factors (1 + 9)/2 = 5 and 4.
    np.testing.assert_allclose(net.kernel(np.ones((1, 3)), ntk=False).nngp, 20.0)


@pytest.mark.parametrize("value", [0.7, 1.7])
def test_equal_channels_of_a_raw_input_normalise_to_zero(value):
    net = wl.Serial(wl.LayerNorm(), wl.Dense(4))
    found = net.kernel(np.full((1, 1, 3), value, np.float32), ntk=False).nngp
    np.testing.assert_allclose(found, 0.0, atol=1e-6)


def test_nearly_equal_channels_of_a_raw_input_keep_their_digits():
    noise = np.random.default_rng(0).normal(size=(3, 2, 5))
    x = (5 + 1e-3 * noise).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    exact = np.einsum("iac,jbc->ijab", unit, unit) / 5
    np.testing.assert_allclose(wl.LayerNorm().kernel(x, ntk=False).nngp, exact, atol=2e-6)
