"""Changing widths keeps the network: shares of concatenated branches, outputs, kernels."""

import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.finite.widths import with_width


def _widths(net):
    params = net.init(jax.random.key(0), (6, 3))
    return [leaf.shape[-1] for leaf in jax.tree.leaves(params)]


def test_hidden_layers_get_the_width_and_outputs_keep_theirs():
    net = wl.Serial(wl.Conv(8, 3), wl.Relu(), wl.Dense(16), wl.Relu(), wl.MeanPool(), wl.Dense(3))
    assert _widths(with_width(net, 20)) == [20, 40, 3]
    assert _widths(with_width(net, 20, outputs=7)) == [20, 40, 7]


def test_branches_keep_their_shares_and_residuals_their_sums():
    net = wl.Serial(
        wl.Dense(6),
        wl.Concat(wl.Dense(4), wl.Dense(8)),
        wl.Residual(wl.Serial(wl.Dense(2), wl.Relu(), wl.Dense(12))),
        wl.Relu(),
        wl.Dense(1),
    )
    assert _widths(with_width(net, 4)) == [12, 8, 16, 4, 24, 1]


def test_an_output_through_a_skip_connection_keeps_its_width():
    net = wl.Serial(wl.Dense(5), wl.Residual(wl.Serial(wl.Relu(), wl.Dense(9), wl.Dense(5))))
    assert _widths(with_width(net, 18)) == [5, 18, 5]
    assert _widths(with_width(net, 18, outputs=2)) == [2, 18, 2]


def test_kernels_do_not_change():
    net = wl.Serial(wl.Dense(8), wl.Concat(wl.Dense(2), wl.Dense(6, w_std=2.0)), wl.Dense(1))
    x = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_array_equal(with_width(net, 10).kernel(x).ntk, net.kernel(x).ntk)


def _placed(width, channels):
    encoding = wl.Decay(0.5, combine="concat", channels=channels)
    attention = wl.Attention(8, scaling="linear", positions=encoding)
    return wl.Serial(wl.Dense(width), attention, wl.MeanPool(), wl.Dense(1))


def test_encodings_beside_the_channels_keep_their_share_or_their_number():
    x = np.random.default_rng(0).standard_normal((3, 4, 2))
    before, after = (_placed(8, None).kernel(x), with_width(_placed(8, None), 64).kernel(x))
    np.testing.assert_array_equal(after.ntk, before.ntk)
    before, after = (_placed(64, 4).kernel(x), with_width(_placed(8, 4), 64).kernel(x))
    np.testing.assert_array_equal(after.ntk, before.ntk)


def test_widths_are_positive():
    with pytest.raises(wl.errors.OptionError, match="positive integer"):
        with_width(wl.Dense(3), 0)
