"""Transposed and locally connected convolutions against sums written out by hand."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import OptionError, ShapeError
from widelimit.layers import ConvLocal, ConvTranspose

X = np.random.default_rng(0).standard_normal((3, 4, 2))
BELOW = wl.Serial(wl.Dense(8, w_std=1.3, b_std=0.3), wl.Relu())


def _places(size: int, window: int, stride: int, padding: str) -> np.ndarray:
    """Entry (o, a, i) is 1 where offset o of input position i lands on output position a."""
    valid = padding == "valid"
    out = size * stride + (max(window - stride, 0) if valid else 0)
    before = 0 if valid else max(window - stride, 0) // 2
    found = np.zeros((window, out, size))
    for i in range(size):
        for offset in range(window):
            place = stride * i - before + offset
            place = place % out if padding == "circular" else place
            if 0 <= place < out:
                found[offset, place, i] = 1
    return found


@pytest.mark.parametrize("padding", ["same", "valid", "circular"])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (2, 2), (4, 2), (2, 3), (5, 3), (9, 2)])
def test_transposed_convolution_is_its_sum(window: int, stride: int, padding: str):
    places = _places(4, window, stride, padding)
    layer = ConvTranspose(8, window, stride=stride, padding=padding, w_std=1.4, b_std=0.3)
    base, found = BELOW.kernel(X), wl.Serial(BELOW, layer).kernel(X)

    def rule(kernel):
        return 1.4**2 * np.einsum("oai,nmij,obj->nmab", places, kernel, places) / window

    nngp = rule(base.nngp) + 0.3**2
    np.testing.assert_allclose(found.nngp, nngp, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.ntk, nngp + rule(base.ntk), rtol=1e-12, atol=1e-12)
    # The finite network: each offset has one matrix, in XLA's order from the last to the first.
    params = layer.init(0, (4, 2))
    weight, bias = map(np.asarray, params)
    expected = np.einsum("oai,nic,ocw->naw", places, X, weight[::-1]) * 1.4 / np.sqrt(2 * window)
    y = layer.apply(params, X.astype(np.float32))
    np.testing.assert_allclose(y, expected + 0.3 * bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["same", "valid", "balanced", "circular"])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (2, 2), (4, 3)])
def test_local_convolution_is_the_diagonal_of_a_convolution(window, stride, padding):
    options = {"stride": stride, "padding": padding, "w_std": 1.4, "b_std": 0.3}
    shared = wl.Serial(BELOW, wl.Conv(8, window, **options)).kernel(X)
    found = wl.Serial(BELOW, ConvLocal(8, window, **options)).kernel(X)
    for ours, kernel in zip(found, shared, strict=True):
        expected = kernel * np.eye(kernel.shape[-1])
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)


def test_local_weights_are_shared_by_no_two_positions():
    layer = ConvLocal(2, 2, stride=2)
    params = layer.init(0, (4, 2))
    weight = np.asarray(params[0])
    y = layer.apply(params, X.astype(np.float32))
    for a in range(2):
        covered = X[:, 2 * a : 2 * a + 2].transpose(0, 2, 1).reshape(3, 4)
        np.testing.assert_allclose(y[:, a], covered @ weight[a] / 2, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="other positions"):
        layer.apply(params, np.ones((1, 6, 2), np.float32))


def test_local_convolutions_of_padded_sequences():
    """Padded examples of one length as alone; those of two lengths at positions they share."""
    net = wl.Serial(BELOW, ConvLocal(8, 3, b_std=0.3), wl.Relu(), ConvLocal(8, 2), wl.MeanPool())
    keep = wl.Serial(BELOW, ConvLocal(8, 3, b_std=0.3))
    short = X[1:, :2]
    padded = net.kernel([X[0], *short])
    np.testing.assert_allclose(padded.ntk[1:, 1:], net.kernel(short).ntk, rtol=1e-12)
    mixed, whole = keep.kernel([X[0], short[0]]).nngp, keep.kernel(X[:2]).nngp
    assert not mixed[0, 1, :, 2:].any()
    np.testing.assert_allclose(mixed[0, 1, 0, 0], whole[0, 1, 0, 0], rtol=1e-12)


def test_what_is_refused_says_why():
    with pytest.raises(OptionError, match="ConvTranspose"):
        ConvTranspose(8, 3, padding="balanced")
    with pytest.raises(ShapeError, match="met a mask"):
        wl.Serial(BELOW, ConvTranspose(8, 3, padding="circular")).kernel([X[0], X[1, :2]])
    with pytest.raises(ShapeError, match="different positions"):
        wl.Serial(BELOW, ConvLocal(8, 3)).kernel(X, X[:, :3])
