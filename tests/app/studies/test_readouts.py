"""Readouts that share a trunk have the kernels of the networks on their own."""

import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.app.studies.kept_kernels import KeptKernels
from widelimit.app.studies.readouts import Readouts
from widelimit.data import Labelled
from widelimit.errors import ShapeError

TRUNK = wl.Conv(8, 3, w_std=1.3, b_std=0.1)
BRANCHES = (
    wl.Serial(wl.MeanPool(), wl.Dense(2)),
    wl.Serial(wl.Flatten(), wl.Dense(2, w_std=0.7)),
    wl.Serial(wl.Attention(8, scaling=wl.Scaling.LINEAR, qk_std=3.0), wl.MeanPool(), wl.Dense(2)),
)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)


def test_kernels_are_those_of_each_network(x, tmp_path):
    together = wl.Serial(TRUNK, Readouts(*BRANCHES))
    found = together.kernel(x)
    kept = KeptKernels(tmp_path, tile=2).get(together, Labelled(x, np.zeros(5, int), ("a", "b")))
    assert found.nngp.shape == (5, 5, 3, 3)
    assert kept.nngp.shape == (3, 5, 5)
    for index, branch in enumerate(BRANCHES):
        alone = wl.Serial(TRUNK, branch).kernel(x)
        np.testing.assert_allclose(found.nngp[..., index, index], alone.nngp, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.ntk[..., index, index], alone.ntk, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kept.nngp[index], alone.nngp, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kept.ntk[index], alone.ntk, rtol=1e-5, atol=1e-6)
    assert not found.nngp[:, :, 0, 1].any()


def test_the_finite_network_has_one_output_for_each(x):
    net = wl.with_heads(wl.Serial(TRUNK, Readouts(*BRANCHES)), 2)
    params = net.init(jax.random.key(0), shape=x.shape[1:])
    assert net.apply(params, x).shape == (5, 3, 2)


@pytest.mark.parametrize("bad", [wl.Dense(2), wl.MeanPool()])
def test_a_readout_that_is_none_is_refused(x, bad):
    with pytest.raises(ShapeError, match="readout"):
        wl.Serial(TRUNK, Readouts(bad)).kernel(x)
