"""Every layer of the library, traced through its own finite network, gives its own kernel."""

import jax
import numpy as np
import pytest
from networks import ATTENTION, NETWORKS, Kind

import widelimit as wl
from widelimit.engine.inputs import outline_of
from widelimit.engine.walk import run
from widelimit.finite.widths import with_width
from widelimit.trace import trace


def finite(net: wl.Layer, shape: tuple[int, ...]):
    """`make(width, key)` of a described network."""

    def make(width, key):
        wide = with_width(net, width)
        params = wide.init(key, shape)
        return jax.tree_util.Partial(lambda p, x: run(wide, p, x, None, None), params)

    return make


def first_channel(covariance: np.ndarray, channels: int) -> np.ndarray:
    """(N, N, positions…, positions'…) of the first output channel."""
    assert covariance.shape[-1] == channels
    positions = (slice(None),) * ((covariance.ndim - 2) // 2 - 1)
    return covariance[(..., *positions, 0, *positions, 0)]


FAST = {"relu", "tanh", "conv_same", "layer_norm_after_activation", "gate", "embedding"}
CASES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in NETWORKS
    if name not in ATTENTION  # their finite networks have heads: see test_models
    and NETWORKS[name].kind is not Kind.GRAPH  # a traced model has one input
    and name != "dense"  # one layer: no axis of it grows
    and "drop" not in name  # without a key dropout does nothing; its kernel is that of training
]


@pytest.mark.parametrize("name", CASES)
def test_traced_layers_have_their_own_kernel(name):
    case = NETWORKS[name]
    x = case.inputs(3)
    law = trace(finite(case.net, x.shape[1:]), x).limit()
    channels = case.net.outline(outline_of(case.net, x.shape[1:])).channels
    found = first_channel(law.covariance().value, channels)
    error = first_channel(law.covariance().error, channels)
    expected = np.asarray(case.net.kernel(x, dtype=np.float64, ntk=False).nngp)
    assert not law.random
    scale = np.abs(expected).max()
    assert error.max() < 1e-3 * scale
    assert (np.abs(found - expected) <= np.maximum(4 * error, 1e-6 * scale)).all()


def test_one_layer_has_no_axis_that_grows():
    case = NETWORKS["dense"]
    x = case.inputs(3)
    with pytest.raises(wl.WidelimitError, match="No axis grew"):
        trace(finite(case.net, x.shape[1:]), x).limit()


def attention(*layers: wl.Layer) -> wl.Layer:
    return wl.Serial(wl.Dense(8), *layers, wl.MeanPool(), wl.Dense(1))


ATTENTION = {
    "linear": attention(wl.Attention(heads=2, scaling=wl.Scaling.LINEAR)),
    "softmax": attention(wl.Attention(heads=2, qk_std=1.5)),
    "identity": attention(wl.Attention(heads=3, score_map=wl.IdentityMap())),
    "causal": attention(wl.Attention(heads=2, pattern=wl.Causal())),
    "residual": attention(wl.Residual(wl.Serial(wl.LayerNorm(), wl.Attention(heads=2)))),
    "twice": attention(wl.Attention(heads=1), wl.Relu(), wl.Attention(heads=2)),
    "block": attention(wl.TransformerBlock(8, heads=2)),
    "alibi": attention(wl.Attention(heads=2, positions=wl.Alibi())),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTION)
def test_traced_attention_has_its_own_law(name):
    net = ATTENTION[name]
    x = np.random.default_rng(0).standard_normal((2, 4, 3))
    draws = 8192 if name in ("identity", "twice") else 4096
    ours = trace(finite(net, x.shape[1:]), x).limit(draws=draws)
    theirs = net.law(x, draws=8192)
    found, expected = ours.covariance(), theirs.covariance()
    scale = np.abs(expected.value).max()
    error = np.hypot(first_channel(found.error, 1), expected.error)
    assert error.max() < 0.01 * scale
    apart = np.abs(first_channel(found.value, 1) - expected.value)
    assert (apart < np.maximum(4 * error, 1e-6 * scale)).all()
    one, two = ours.kurtosis(at=(0, 0)), theirs.kurtosis(at=0)
    assert abs(one.value - two.value) < 4 * np.hypot(one.error, two.error) + 1e-9


TANGENT = {
    "mlp": wl.Serial(wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(8), wl.Erf(), wl.Dense(1)),
    "layer_norm": wl.Serial(
        wl.Dense(8), wl.Relu(), wl.LayerNorm(), wl.Dense(8), wl.Relu(), wl.Dense(1)
    ),
    "linear": ATTENTION["linear"],
    "conv": wl.Serial(
        wl.Conv(8, 3, b_std=0.2), wl.Relu(), wl.Conv(8, 3), wl.Erf(), wl.MeanPool(), wl.Dense(1)
    ),
    "strided": wl.Serial(
        wl.Conv(8, 3),
        wl.Relu(),
        wl.Conv(8, 2, stride=2, padding="valid", b_std=0.3),
        wl.Relu(),
        wl.MeanPool(),
        wl.Dense(2),
    ),
}
SHAPES = {"linear": (2, 4, 3), "conv": (2, 4, 3), "strided": (2, 4, 4, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TANGENT)
def test_traced_tangent_kernels_are_the_layers_own(name):
    net = TANGENT[name]
    x = np.random.default_rng(0).standard_normal(SHAPES.get(name, (3, 4)))
    found = trace(finite(net, x.shape[1:]), x).ntk(draws=8)
    expected = np.asarray(net.kernel(x, dtype=np.float64).ntk)
    assert found.power == 0
    np.testing.assert_allclose(found.kernel.value[..., 0, 0], expected, rtol=2e-6)


@pytest.mark.slow
def test_tangent_kernels_with_finite_heads_are_those_of_the_law():
    net = ATTENTION["softmax"]
    x = np.random.default_rng(0).standard_normal((2, 3, 3))
    found = trace(finite(net, x.shape[1:]), x).ntk(draws=2048).kernel
    expected = net.law(x).ntk(draws=2048)
    error = np.hypot(found.error[..., 0, 0], expected.error)
    assert error.max() < 0.03 * expected.value.max()
    assert (np.abs(found.value[..., 0, 0] - expected.value) < 4 * error).all()
