"""Every layer of the library, traced through its own finite network, gives its own kernel."""

import numpy as np
import pytest
from networks import NETWORKS

import widelimit as wl
from widelimit.trace import trace
from widelimit.widths import with_width

# Layers whose kernel the tracer takes from sampled limit variables, not from series.
SAMPLED = {"product_of_three"}


def finite(net: wl.Layer, shape: tuple[int, ...]):
    """`make(width, key)` of a described network."""

    def make(width, key):
        wide = with_width(net, width)
        params = wide.init(key, shape)
        return lambda x: wide.forward(params, x, None, None)[0]

    return make


def first_channel(law, channels: int) -> np.ndarray:
    """(N, N, positions…, positions'…) of the first output channel."""
    covariance = law.covariance().value
    rank = (covariance.ndim - 2) // 2
    assert covariance.shape[-1] == channels
    return covariance[(..., *([slice(None)] * (rank - 1)), 0, *([slice(None)] * (rank - 1)), 0)]


@pytest.mark.parametrize("name", NETWORKS)
def test_traced_layers_have_their_own_kernel(name):
    case = NETWORKS[name]
    if name in ("dropout", "normed_and_dropped"):
        pytest.skip("without a key, dropout does nothing; its kernel is that of training")
    x = case.inputs(3)
    traced = trace(finite(case.net, x.shape[1:]), x, widths=(64, 96, 160))
    law = traced.limit()
    outputs = (
        8 if case.net.outline(wl.network.outline_of(case.net, x.shape[1:])).channels == 8 else 1
    )
    found = first_channel(law, outputs)
    expected = np.asarray(case.net.kernel(x, dtype=np.float64, ntk=False).nngp)
    scale = np.abs(expected).max()
    assert not law.random
    tolerance = 1e-6 * scale if law.covariance().error.max() == 0 else 0.0
    error = 4 * first_channel_error(law, outputs) + tolerance
    assert (np.abs(found - expected) <= np.maximum(error, 1e-6 * scale)).all(), (
        np.abs(found - expected).max() / scale
    )


def first_channel_error(law, channels: int) -> np.ndarray:
    covariance = law.covariance().error
    rank = (covariance.ndim - 2) // 2
    return covariance[(..., *([slice(None)] * (rank - 1)), 0, *([slice(None)] * (rank - 1)), 0)]
