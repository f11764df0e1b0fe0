"""Sums over the neighbours in graphs, against matrix products written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NetworkError, ShapeError
from widelimit.layers import Aggregate, Graph

RNG = np.random.default_rng(0)
SIZES = (5, 3, 4, 5)
NODES = [RNG.standard_normal((size, 2)) for size in SIZES]
EDGES = [RNG.random((size, size, 2)) < 0.5 for size in SIZES]
EDGES = [np.asarray(e, float) * RNG.random(e.shape) for e in EDGES]
LAYERS = (Graph(), wl.Dense(8, w_std=1.3, b_std=0.3))
BELOW = wl.Serial(*LAYERS[1:])


def _padded() -> tuple[tuple, tuple]:
    """The same graphs as arrays, with numbers at padding that must not matter."""
    nodes, edges = np.full((4, 5, 2), 7.0), np.full((4, 5, 5, 2), 7.0)
    mask = np.arange(5) < np.array(SIZES)[:, None]
    for i, size in enumerate(SIZES):
        nodes[i, :size], edges[i, :size, :size] = NODES[i], EDGES[i]
    return (nodes, edges), (mask, None)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_sum_over_neighbours_is_its_matrix(kind: int):
    """Each pair of graphs by itself, and all of them in one call, as lists and padded."""
    net = wl.Serial(*LAYERS, Aggregate(kind))
    x, mask = _padded()
    for found in (net.kernel((NODES, EDGES)), net.kernel(x, mask=mask)):
        for i, j in ((0, 1), (2, 2), (3, 0)):
            one, two = EDGES[i][..., kind], EDGES[j][..., kind]
            base = BELOW.kernel(NODES[i][None], NODES[j][None])
            for ours, kernel in zip(found, base, strict=True):
                expected = one @ np.asarray(kernel)[0, 0] @ two.T
                corner = ours[i, j, : SIZES[i], : SIZES[j]]
                np.testing.assert_allclose(corner, expected, rtol=1e-12, atol=1e-13)
                assert not ours[i, j, SIZES[i] :].any()
                assert not ours[i, j, :, SIZES[j] :].any()


def test_sums_that_wait_equal_sums_at_once():
    """Two sums, weights between them and pooling: nothing is computed until the end."""
    layers = (Aggregate(), wl.Dense(8, b_std=0.2), Aggregate(1), wl.MeanPool(), wl.Dense(1))
    found = wl.Serial(*LAYERS, *layers).kernel((NODES, EDGES))
    base = BELOW.kernel(NODES[0][None], NODES[1][None])
    kappa, theta = (np.asarray(kernel)[0, 0] for kernel in base)
    first, second = ([EDGES[i][..., kind] for i in (0, 1)] for kind in (0, 1))
    kappa, theta = (first[0] @ kernel @ first[1].T for kernel in (kappa, theta))
    kappa, theta = kappa + 0.04, theta + kappa + 0.04
    kappa, theta = ((second[0] @ kernel @ second[1].T).mean() for kernel in (kappa, theta))
    np.testing.assert_allclose(found.nngp[0, 1], kappa, rtol=1e-12)
    np.testing.assert_allclose(found.ntk[0, 1], kappa + theta, rtol=1e-12)


def test_nodes_with_an_axis_of_time():
    """Edges lead between nodes; each time is summed apart. Edges may lead between pixels too."""
    x, edges = RNG.standard_normal((2, 3, 4, 2)), RNG.random((2, 3, 3, 1))
    found = wl.Serial(*LAYERS, Aggregate()).kernel((x, edges)).nngp
    base = np.asarray(BELOW.kernel(x).nngp)
    one = edges[..., 0]
    expected = np.einsum("nai,nmisjt,mbj->nmasbt", one, base, one)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    pixels = RNG.random((2, 3, 4, 3, 4, 1))
    found = wl.Serial(*LAYERS, Aggregate()).kernel((x, pixels)).nngp
    flat = pixels.reshape(2, 12, 12)
    expected = np.einsum("nai,nmij,mbj->nmab", flat, base.reshape(2, 2, 12, 12), flat)
    np.testing.assert_allclose(found.reshape(2, 2, 12, 12), expected, rtol=1e-12, atol=1e-13)


def test_finite_networks_sum_over_the_same_neighbours():
    net = wl.Serial(Graph(), Aggregate(1), wl.Residual(Aggregate()))
    x, mask = _padded()
    y = np.asarray(net.apply(net.init(0, ((5, 2), (5, 5, 2))), x, mask))
    for i, size in enumerate(SIZES):
        first = EDGES[i][..., 1] @ NODES[i]
        np.testing.assert_allclose(y[i, :size], first + EDGES[i][..., 0] @ first, rtol=1e-5)
        assert not y[i, size:].any()


def test_renumbered_graphs_are_the_same_after_pooling():
    net = wl.Serial(*LAYERS, Aggregate(), wl.Relu(), Aggregate(), wl.MeanPool(), wl.Dense(1))
    order = np.array([3, 0, 4, 1, 2])
    nodes = np.stack([NODES[0], NODES[0][order]])
    edges = np.stack([EDGES[0], EDGES[0][order][:, order]])
    found = net.kernel((nodes, edges))
    np.testing.assert_allclose(found.ntk, found.ntk[0, 0], rtol=1e-10)


def test_branches_attention_and_gradients_of_edges():
    """Relations of two kinds with weights each, and sampled attention, on graphs."""
    relations = wl.Sum(*(wl.Serial(Aggregate(kind), wl.Dense(8)) for kind in (0, 1)))
    net = wl.Serial(*LAYERS, relations, wl.Relu(), wl.Attention(8), wl.MeanPool(), wl.Dense(1))
    x, mask = _padded()
    sampler = net.sampler(x, mask, samples=4, replicates=1, key=0)
    found = net.kernel(x, mask=mask, sampler=sampler)
    assert np.linalg.eigvalsh(found.ntk)[0] > 0
    sums = wl.Serial(*LAYERS, relations, wl.Relu(), wl.MeanPool(), wl.Dense(1))
    nodes, edges = (jnp.asarray(part[:1]) for part in x)

    def total(edges):
        return jnp.sum(sums.kernel((nodes, edges)).ntk)

    slope = np.asarray(jax.grad(total)(edges))[0, 1, 2, 0]
    step = np.zeros(edges.shape, np.float32)
    step[0, 1, 2, 0] = 0.05
    numeric = (total(edges + step) - total(edges - step)) / 0.1
    np.testing.assert_allclose(slope, numeric, rtol=1e-2)


def test_what_is_refused_says_why():
    with pytest.raises(NetworkError, match="without edges"):
        wl.Serial(wl.Dense(8), Aggregate()).kernel(NODES[0][None])
    with pytest.raises(ShapeError, match="every node to every node"):
        wl.Serial(Graph(), Aggregate()).kernel((NODES[0][None], EDGES[1][None]))
    with pytest.raises(ShapeError, match="no edges of its kind"):
        wl.Serial(Graph(), Aggregate(2)).kernel((NODES, EDGES))
    with pytest.raises(ShapeError, match="no edges of its kind"):
        wl.Serial(Graph(), wl.MeanPool(2), Aggregate()).kernel((NODES[0][None], EDGES[0][None]))
    with pytest.raises(ShapeError, match="tuple of 2 streams"):
        wl.Serial(Graph(), Aggregate()).kernel(NODES[0][None])
    net = wl.Serial(wl.layers.Parallel(wl.Serial(), wl.Dense(3)), Graph())
    with pytest.raises(NetworkError, match="not those of the input"):
        net.kernel((NODES[0][None], EDGES[0][None]))
