"""Inputs in other orders of entries: the same numbers as with the order undone by hand."""

import itertools
import math

import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NetworkError, ShapeError
from widelimit.layers import Rearrange
from widelimit.lift.layout import rearranging
from widelimit.lift.parts import PartNode, Source

NET = (wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
PATCHES = Rearrange((1, 3, 2, 4, 0), factors=((3,), (2, 4), (2, 4)), groups=(2, 3))
X = np.random.default_rng(0).standard_normal((3, 3, 8, 8))


def cut(x):
    return x.reshape(len(x), 3, 2, 4, 2, 4).transpose(0, 2, 4, 3, 5, 1).reshape(len(x), 4, 48)


def test_kernels_laws_and_finite_networks_take_the_models_layout():
    net, plain = wl.Serial(PATCHES, *NET), wl.Serial(*NET)
    for found, expected in zip(net.kernel(X, X[:2]), plain.kernel(cut(X), cut(X)[:2]), strict=True):
        np.testing.assert_array_equal(found, expected)
    params = net.init(jax.random.key(0), X.shape[1:])
    np.testing.assert_array_equal(net.apply(params, X), plain.apply(params[1:], cut(X)))
    np.testing.assert_array_equal(net.kernel(list(X)).nngp, plain.kernel(cut(X)).nngp)
    traced = jax.jit(lambda a: net.kernel(a).nngp)(X.astype(np.float32))
    np.testing.assert_allclose(traced, net.kernel(X).nngp, rtol=1e-5)
    y = X[:, 0, 0, 0]
    for one, two in zip(
        wl.GP(net, noise=0.1).fit(X, y).predict(X),
        wl.GP(plain, noise=0.1).fit(cut(X), y).predict(cut(X)),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_split_and_merged_axes_is_found_again(seed):
    rng = np.random.default_rng(seed)
    factors = [tuple(map(int, rng.integers(1, 4, rng.integers(1, 3)))) for _ in range(3)]
    flat = [n for each in factors for n in each]
    order = rng.permutation(len(flat))
    cuts = [0, *sorted(rng.choice(len(flat) + 1, rng.integers(0, 3))), len(flat)]
    extents = [flat[axis] for axis in order]
    after = tuple(math.prod(extents[a:b]) for a, b in itertools.pairwise(cuts))
    shape = tuple(math.prod(each) for each in factors)
    table = np.arange(math.prod(shape)).reshape(flat).transpose(order).reshape(after)
    source = PartNode(Source(), (), after[:-1], after[-1], "")
    layer = rearranging(shape, table.reshape(-1, after[-1]), source)
    x = rng.standard_normal((2, *shape))
    found = x if layer is None else layer.reorder(x)
    np.testing.assert_array_equal(found, x.reshape(2, -1)[:, table.reshape(-1)].reshape(2, *after))


def test_what_does_not_fit_is_refused():
    with pytest.raises(NetworkError, match="every axis once"):
        Rearrange((0, 0, 1))
    with pytest.raises(ShapeError, match="do not fit"):
        wl.Serial(PATCHES, *NET).kernel(X[:, :2])
    with pytest.raises(ShapeError, match="do not fit"):
        wl.Serial(PATCHES, *NET).init(0, (8, 8, 3))
