"""Streams that are added: kernels against those of the streams, and against finite networks."""

import numpy as np
import pytest
from agreement import assert_agrees

import widelimit as wl
from widelimit.errors import NetworkError, OptionError, ShapeError
from widelimit.inference.process import amplify
from widelimit.layers import AddStreams

RNG = np.random.default_rng(0)
WORDS = RNG.normal(size=(4, 5, 3))
MASK = np.arange(5)[None, :] < np.array([5, 3, 1, 4])[:, None]
ROWS = RNG.normal(size=(4, 2))
TEXT = wl.Serial(wl.Conv(8, 3, w_std=1.3, b_std=0.3), wl.Relu(), wl.MeanPool(), wl.Dense(8))
TABLE = wl.Serial(wl.Dense(8, w_std=1.2, b_std=0.2), wl.Erf(), wl.Dense(8, b_std=0.5))
READOUT = (wl.Relu(), wl.Dense(1, w_std=1.1))


def joint(*shares):
    return wl.Serial(wl.Parallel(TEXT, TABLE), AddStreams(shares), *READOUT)


def test_kernels_are_sums_of_those_of_the_streams():
    net = wl.Serial(wl.Parallel(TEXT, TABLE), AddStreams((0.3, 1.2)))
    found = net.kernel((WORDS, ROWS), mask=(MASK, None))
    text, table = TEXT.kernel(WORDS, mask=MASK), TABLE.kernel(ROWS)
    np.testing.assert_allclose(found.nngp, 0.3 * text.nngp + 1.2 * table.nngp, rtol=1e-6)
    np.testing.assert_allclose(found.ntk, 0.3 * text.ntk + 1.2 * table.ntk, rtol=1e-6)


def test_a_relu_sees_the_sum():
    """The arc-cosine formula, applied to the sum by hand."""
    both = wl.Serial(wl.Parallel(TEXT, TABLE), AddStreams((0.3, 1.2)))
    k = np.asarray(both.kernel((WORDS, ROWS), mask=(MASK, None)).nngp, np.float64)
    root = np.sqrt(np.outer(np.diag(k), np.diag(k)))
    angle = np.arccos(np.clip(k / root, -1, 1))
    relu = root * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    found = joint(0.3, 1.2).kernel((WORDS, ROWS), mask=(MASK, None)).nngp
    np.testing.assert_allclose(found, 1.1**2 * relu, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.optimised
def test_wide_networks_agree():
    assert_agrees(joint(0.3, 1.2), (WORDS, ROWS))


@pytest.mark.parametrize("shares", [(1.0,), (1.0, -0.1), 0.5, ((0.5, 0.5),)])
def test_shares_are_two_or_more_numbers(shares):
    with pytest.raises(OptionError, match="share for each"):
        AddStreams(shares)


def test_streams_that_cannot_be_added():
    with pytest.raises(ShapeError, match="still have positions"):
        wl.Serial(wl.Parallel(wl.Dense(8), TABLE), AddStreams((1, 1))).kernel((WORDS, ROWS))
    activated = wl.Serial(wl.Dense(8), wl.Relu())
    with pytest.raises(NetworkError, match="fresh weights"):
        wl.Serial(wl.Parallel(activated, activated), AddStreams((1, 1))).kernel((ROWS, ROWS))
    with pytest.raises(ShapeError, match="number of channels"):
        wl.Serial(wl.Parallel(TEXT, wl.Dense(4)), AddStreams((1, 1))).kernel((WORDS, ROWS))


def test_a_process_with_streams_predicts_and_is_saved(tmp_path):
    process = wl.GP(joint(0.5, 0.5), noise=0.1).fit((WORDS, ROWS), np.arange(4.0))
    wl.save(process, tmp_path / "p.wl")
    found = wl.load(tmp_path / "p.wl").predict((WORDS, ROWS))
    np.testing.assert_array_equal(found.mean, process.predict((WORDS, ROWS)).mean)


def test_shares_are_amplified():
    net = wl.Serial(wl.Parallel(TEXT, TABLE), AddStreams((0.3, 1.2)))
    found = amplify(net, 2.0).kernel((WORDS, ROWS)).nngp
    np.testing.assert_allclose(found, 2 * net.kernel((WORDS, ROWS)).nngp, rtol=1e-6)
