"""Signal propagation: profiles agree with the kernels of truncated networks, and with theory."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

import widelimit as wl
from widelimit.engine import Quantity

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(3, 5, 4))


def test_profile_reads_the_kernel_of_every_prefix(x):
    layers = (
        wl.Dense(8, w_std=1.2, b_std=0.3),
        wl.Relu(),
        wl.Attention(8, scaling=wl.Scaling.LINEAR),
        wl.LayerNorm(),
    )
    profile = wl.Serial(*layers).signal(x)
    assert profile.labels == ("input", "Dense", "Relu", "Attention", "LayerNorm")
    for depth in range(1, len(layers) + 1):
        k = wl.Serial(*layers[:depth]).kernel(x)
        own = np.einsum("iiab->iab", k.nngp)
        variance = np.einsum("iaa->ia", own)
        root = np.sqrt(variance)
        correlation = own / root[:, :, None] / root[:, None, :]
        apart = ~np.eye(5, dtype=bool)
        across = np.einsum("ijaa->ija", k.nngp) / root[:, None] / root[None]
        expected = {
            Quantity.VARIANCE: variance.mean(),
            Quantity.POSITIONS: correlation[:, apart].mean(),
            Quantity.INPUTS: across[~np.eye(3, dtype=bool)].mean(),
            Quantity.TANGENT: np.einsum("iiaa->ia", k.ntk).mean(),
            Quantity.RANK: np.mean(variance.sum(1) ** 2 / (own**2).sum((1, 2)) / 5),
        }
        for quantity, value in expected.items():
            np.testing.assert_allclose(profile[quantity][depth], value, rtol=1e-9)


def test_masked_positions_do_not_count(x):
    net = wl.Serial(wl.Dense(8, b_std=0.5), wl.Relu(), wl.Attention(8, scaling=wl.Scaling.LINEAR))
    mask = np.broadcast_to(np.arange(5) < 3, (3, 5))
    padded = net.signal(np.where(mask[..., None], x, np.nan), mask)
    np.testing.assert_allclose(padded.values, net.signal(x[:, :3]).values, rtol=1e-9)


def test_attention_without_residual_collapses_positions(x):
    attention = wl.Attention(4, scaling=wl.Scaling.LINEAR)
    collapsed = wl.Repeat(attention, 12).signal(x)[Quantity.POSITIONS]
    kept = wl.Repeat(wl.Residual(attention, 0.9), 12).signal(x)[Quantity.POSITIONS]
    assert collapsed[-1] > 0.999
    assert kept[-1] < 0.9


def test_relu_correlations_follow_the_critical_line(x):
    """At w_std² = 2 ReLU keeps the variance, and correlations rise towards 1."""
    net = wl.Repeat(wl.Serial(wl.Dense(8, w_std=2**0.5), wl.Relu()), 10)
    profile = wl.Serial(net, wl.Dense(8, w_std=2**0.5)).signal(x)
    dense = [i for i, label in enumerate(profile.labels) if label == "Dense"]
    variance = profile[Quantity.VARIANCE][dense]
    np.testing.assert_allclose(variance, variance[0], rtol=1e-9)
    assert (np.diff(profile[Quantity.INPUTS][dense]) > 0).all()


def test_sampled_profiles_carry_errors(x):
    net = wl.Serial(wl.Dense(8), wl.Attention(8))
    profile = net.signal(x, samples=64, replicates=6, key=jax.random.key(1))
    long = net.signal(x, samples=2048, replicates=6, key=jax.random.key(2))
    error = np.hypot(profile.errors, long.errors)[-1]
    gap = np.abs(profile.values - long.values)[-1]
    assert (error[:4] > 0).all()
    assert (gap[:4] < 5 * error[:4]).all()


def test_phase_diagram_and_pictures(x, tmp_path):
    def make(weight, qk_std):
        attention = wl.Attention(4, scaling=wl.Scaling.LINEAR, qk_std=qk_std)
        return wl.Repeat(wl.Residual(attention, weight), 4)

    weights, scales = [0.1, 0.9], [0.5, 4.0]
    grid = wl.phase_diagram(make, weights, scales, x)
    assert grid.shape == (2, 2)
    assert (grid[0] > grid[1]).all()
    np.testing.assert_array_equal(
        grid, wl.phase_diagram(make, weights, scales, x, quantity="correlation of positions")
    )
    profile = make(0.5, 1.0).signal(x)
    axes = profile.plot()
    assert [panel.get_title() for panel in axes] == [q.value for q in wl.engine.Quantity]
    assert profile.plot(list(axes))[0] is axes[0]
    axes[0].figure.savefig(tmp_path / "signal.png")
    assert (tmp_path / "signal.png").stat().st_size > 5000
    pyplot.close(axes[0].figure)
    with pytest.raises(wl.errors.ShapeError, match="5 panels"):
        profile.plot(list(axes[:1]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sample'"):
        wl.phase_diagram(make, weights, scales, x, sample=3)
    with pytest.raises(wl.errors.OptionError, match="quantity= is none of"):
        profile["variances"]


def test_hyperparameters_of_phase_diagrams_keep_their_kind_and_progress_is_told(x):
    met, told = [], []

    def make(heads, qk_std):
        met.append((heads, qk_std))
        return wl.Serial(wl.Attention(4, heads=heads, qk_std=qk_std), wl.MeanPool(), wl.Dense(1))

    grid = wl.phase_diagram(
        make,
        [1, wl.INFINITE],
        np.array([2, 3]),
        x,
        quantity="variance",
        replicates=2,
        samples=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert grid.shape == (2, 2)
    assert met == [(1, 2), (1, 3), (wl.INFINITE, 2), (wl.INFINITE, 3)]
    assert [np.asarray(value).dtype.kind for value in met[0]] == ["i", "i"]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.raises(wl.errors.OptionError, match="first= takes several values"):
        wl.phase_diagram(make, 3, [1], x)


def test_profiles_print_as_a_table(x):
    shown = repr(wl.Serial(wl.Dense(4), wl.Relu()).signal(x)).splitlines()
    assert [row.split()[0] for row in shown[1:]] == ["input", "Dense", "Relu"]
    assert "effective rank" in shown[0]


def test_too_many_examples_are_refused():
    with pytest.raises(wl.errors.ShapeError, match="up to 32 examples"):
        wl.Serial(wl.Dense(4)).signal(np.ones((40, 3, 2)))


@pytest.mark.parametrize("quantity", list(Quantity))
def test_a_profile_can_be_differentiated(quantity):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)

    def net(scale):
        attention = wl.Attention(8, scaling=wl.Scaling.LINEAR, qk_std=scale)
        return wl.Serial(wl.Dense(8, b_std=0.2), wl.Relu(), wl.Residual(attention, 0.4))

    def end(scale):
        return net(scale).signal(x)[quantity][-1]

    step = 0.05
    slope = (float(end(1.0 + step)) - float(end(1.0 - step))) / (2 * step)
    found = float(jax.grad(end)(jnp.float32(1.0)))
    assert abs(found) > 1e-4
    assert found == pytest.approx(slope, rel=0.02)


def test_quantities_without_meaning_leave_the_gradients_of_others_alone():
    x = np.random.default_rng(0).normal(size=(1, 3, 5)).astype(np.float32)  # no pair of inputs

    def variance(net):
        return net.signal(x)[Quantity.VARIANCE][-1]

    slopes = jax.grad(variance)(wl.Serial(wl.Dense(8), wl.MeanPool(), wl.Dense(1)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
