"""Padding changes nothing, in finite and infinite networks, whatever a layer leaves there."""

import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import ShapeError

X = np.random.default_rng(0).standard_normal((2, 5, 3))
SHORT = 3  # real positions of the first example
BATCH = [X[0, :SHORT], X[1]]


class Shifted(wl.Layer):
    """`y = x + 1` at every position, padding included: nobody thought of masks."""

    def outline(self, before):
        return before.to(gaussian=False)

    def forward(self, params, x, mask, key):
        return x + 1

    def cross(self, pair, memo1, memo2):
        pair = pair.compute()
        return pair.to(pair.nngp + 1, pair.ntk)


def _networks() -> dict[str, wl.Layer]:
    linear = wl.Attention(8, heads=2, scaling=wl.Scaling.LINEAR, b_std=0.3)
    return {
        "conv": wl.Serial(wl.Conv(8, 3, stride=2), wl.Conv(8, 3), wl.MeanPool()),
        "stranger": wl.Serial(wl.Dense(8), Shifted(), wl.Conv(8, 3)),
        "stranger_of_pending_maps": wl.Serial(linear, Shifted(), wl.MeanPool()),
        "stranger_of_a_residual": wl.Serial(wl.Dense(8), wl.Residual(linear), Shifted(), linear),
        "norms_without_eps": wl.Serial(wl.LayerNorm(eps=0.0), wl.Dense(8), wl.RMSNorm(eps=0.0)),
        "branches": wl.Serial(
            wl.Concat(wl.Conv(8, 2, stride=2), wl.Conv(4, 3, stride=2)), wl.Conv(8, 3)
        ),
    }


SLOW = ("stranger_of_a_residual", "branches", "norms_without_eps")
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in sorted(_networks())]


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_kernel(name):
    net = _networks()[name]
    padded, alone = net.kernel(BATCH), net.kernel(BATCH[0][None], BATCH[1][None])
    for ours, expected in ((padded.nngp, alone.nngp), (padded.ntk, alone.ntk)):
        corner = tuple(slice(extent) for extent in expected.shape[2:])
        np.testing.assert_allclose(ours[0, 1][corner], expected[0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", [pytest.param("conv", marks=pytest.mark.slow), "stranger"])
def test_padding_changes_no_finite_network(name):
    net = _networks()[name]
    params = net.init(0, X.shape[1:])
    apply = jax.jit(lambda params, x, mask=None: net.apply(params, x, mask))
    mask = np.arange(5)[None] < SHORT
    ours = apply(params, np.where(mask[..., None], X[:1], 7.0), mask)[0]
    exact = apply(params, BATCH[0][None])[0]
    np.testing.assert_allclose(ours[: len(exact)], exact, rtol=2e-5, atol=2e-6)


def test_images_in_front_of_which_a_token_stands_have_rows_of_their_own_length():
    """They become one sequence, in which neighbours are those of the image without its padding."""
    token = wl.Serial(wl.Dense(8), wl.Relu(), wl.layers.ClassToken())
    after = wl.Serial(
        wl.LayerNorm(), wl.layers.PositionTable(std=0.7), wl.Conv(8, 3), wl.Relu(), wl.MeanPool()
    )
    net = wl.Serial(*token.layers, *after.layers)
    rng = np.random.default_rng(2)
    images = [rng.standard_normal((*size, 3)) for size in ((2, 3), (3, 2), (1, 4))]
    padded = net.kernel(images)
    for i, j in ((0, 1), (0, 2), (1, 2), (1, 1)):
        alone = net.kernel(images[i][None], images[j][None])
        np.testing.assert_allclose(padded.nngp[i, j], alone.nngp[0, 0], rtol=1e-12)
        np.testing.assert_allclose(padded.ntk[i, j], alone.ntk[0, 0], rtol=1e-12)
    params = token.init(0, (3, 4, 3))
    whole = token.apply(params, images)
    for image, ours in zip(images, whole, strict=True):
        exact = token.apply(params, image[None])[0]
        np.testing.assert_allclose(ours[: len(exact)], exact, rtol=2e-5, atol=2e-6)
        assert not np.any(ours[len(exact) :])


@pytest.mark.parametrize("reading", ["kernel", "diagonal", "law", "signal", "drawn", "mixture"])
def test_examples_of_which_nothing_is_left_are_refused_in_every_reading(reading):
    """Their outputs would silently be zero, or the last bias alone."""
    short = [BATCH[0][:1], BATCH[1]]
    read = {
        "kernel": lambda net: net.kernel(short, ntk=False),
        "diagonal": lambda net: net.diagonal(short, ntk=False),
        "law": lambda net: net.law(short, draws=4),
        "signal": lambda net: net.signal(short),
        "drawn": lambda net: wl.monte_carlo_kernel(net, short, key=0, draws=1),
        "mixture": lambda net: wl.GP(net).fit(short, np.array([0.0, 1.0])),
    }[reading]
    attention = wl.Attention(8, heads=2)
    for window in (wl.Select(1), wl.Conv(8, 2, padding="valid")):
        end = () if isinstance(window, wl.Select) else (wl.MeanPool(),)
        net = wl.Serial(wl.Dense(8), attention, window, *end, wl.Dense(1, b_std=0.3))
        with pytest.raises(ShapeError, match="too short, the first at index 0"):
            read(net)


def test_branches_of_different_lengths_are_refused_as_they_are_alone():
    valid = wl.Conv(8, 2, stride=2, padding="valid")
    same = wl.Conv(8, 2, stride=2)
    x = np.random.default_rng(1).standard_normal((2, 4, 3))
    for branches in ((valid, same), (same, valid)):
        net = wl.Serial(wl.Sum(*branches), wl.MeanPool())
        with pytest.raises(ShapeError, match="same positions"):
            net.kernel(x[:1, :3])
        with pytest.raises(ShapeError, match=r"same real positions.*index 0"):
            net.kernel([x[0, :3], x[1]])
    with pytest.raises(ShapeError, match=r"same real positions.*index 0"):
        net.apply(net.init(0, (4, 3)), [x[0, :3], x[1]])
    whole = net.kernel([x[0, :2], x[1]])  # both branches have one window of two positions
    alone = net.kernel(x[:1, :2], x[1:])
    np.testing.assert_allclose(whole.ntk[0, 1], alone.ntk[0, 0], rtol=1e-12)


def test_branches_inside_a_transformation_do_not_depend_on_their_order():
    """There are no numbers to refuse: positions count that are real in all branches."""
    valid = wl.Conv(8, 2, stride=2, padding="valid")
    same = wl.Conv(8, 2, stride=2, b_std=1.0)
    x = np.random.default_rng(1).standard_normal((1, 4, 3)).astype(np.float32)
    mask = np.array([[True, True, True, False]])

    def pooled(*branches):
        net = wl.Serial(wl.Sum(*branches), wl.MeanPool())
        return jax.jit(lambda a, m: net.kernel(a, mask=m))(x, mask).nngp

    exact = wl.Serial(wl.Sum(valid, same), wl.MeanPool()).kernel(x[:, :2]).nngp
    np.testing.assert_allclose(pooled(valid, same), exact, rtol=1e-5)
    np.testing.assert_allclose(pooled(same, valid), exact, rtol=1e-5)
