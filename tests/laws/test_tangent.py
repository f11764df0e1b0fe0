"""The finite-head tangent kernel against formulas by hand and wide finite networks."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine.inputs import as_inputs
from widelimit.engine.phases import refuse_factorised_ntk, refuse_finite_heads
from widelimit.errors import NetworkError, WidelimitError
from widelimit.laws import tangent as engine
from widelimit.laws import tokens_with_covariance

K = np.array([[1.0, 0.5, 0.2], [0.5, 1.2, -0.3], [0.2, -0.3, 0.8]])


def by_hand(seed: int, draws: int, *, heads: int, channels: int) -> np.ndarray:
    """Θ of one attention layer on tokens with covariance K, from the formula with value fields.

    `2AκAᵀ` on the diagonal of the channels, `2κ * (u κ u'ᵀ)` between all of them, averaged over the
    heads, `u_ak = A_ak(ṽ_k − (Aṽ)_a)`.
    """
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(K)
    w = rng.standard_normal((draws, heads, 3, 3))
    scores = root @ w @ root.T
    a = np.exp(scores - scores.max(axis=-1, keepdims=True))
    a /= a.sum(axis=-1, keepdims=True)
    values = np.einsum("ij,dhcj->dhci", root, rng.standard_normal((draws, heads, channels, 3)))
    u = a[:, :, None] * (
        values[:, :, :, None, :] - np.einsum("dhai,dhci->dhca", a, values)[..., None]
    )
    through = 2 * K * np.einsum("dhcak,kl,dhebl->dhceab", u, K, u)
    direct = 2 * np.einsum("dhai,ij,dhbj->dhab", a, K, a)
    diagonal = np.eye(channels)[:, :, None, None]
    return (through + diagonal * direct[:, :, None, None]).mean(axis=1)


@pytest.mark.parametrize("heads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_linear_readout_against_the_formula(heads):
    net = wl.Attention(heads=heads)
    law = net.law(tokens_with_covariance(K), draws=64)
    found = law.sample_ntk(800, channels=2)[:, :, :, 0, 0]
    truth = by_hand(0, 40_000, heads=heads, channels=2)
    for c, e in ((0, 0), (0, 1)):
        for moment in (lambda t: t, np.square):
            one, two = moment(found[:, c, e]), moment(truth[:, c, e])
            error = np.sqrt(one.var(axis=0) / len(one) + two.var(axis=0) / len(two))
            assert np.max(np.abs(one.mean(axis=0) - two.mean(axis=0)) / error) < 4.5
    # Channels are uncorrelated in the mean, but their cross entries are not zero.
    assert found[:, 0, 1].std() > 0.05 * found[:, 0, 0].mean()
    mean = law.ntk(draws=400)
    error = np.hypot(mean.error[0, 0], truth[:, 0, 0].std(axis=0) / 200)
    gap = np.abs(mean.value[0, 0] - truth[:, 0, 0].mean(axis=0)) / error
    assert gap.max() < 4.5
    wrong = np.abs(1.1 * mean.value[0, 0] - truth[:, 0, 0].mean(axis=0)) / error
    assert wrong.max() > 4.5


@pytest.mark.parametrize(
    "activation",
    [
        pytest.param(wl.Tanh(), marks=pytest.mark.slow),
        pytest.param(wl.Relu(), marks=pytest.mark.slow),
        wl.layers.Monomial(2),
    ],
)
def test_joint_expectation_under_a_nonlinearity(activation):
    """`E[φ'(y_a)φ'(y'_b) ∂_m y_a ∂_n y'_b]` given the scores, against draws of values."""
    x = tokens_with_covariance(np.kron(np.array([[1.0, 0.6], [0.6, 1.0]]), K).reshape(2, 3, 2, 3))
    net = wl.Serial(wl.Attention(heads=1, ov_std=1.5), activation, wl.Select(0), wl.Dense(1))
    inputs = as_inputs(x)
    with jax.enable_x64(True):
        parts = eqx.filter_jit(engine._parts)(net, inputs, jax.random.key(3))
        scores = np.asarray(parts.scores[:, 0, 0])  # (example, query, key)
        slope = jax.vmap(jax.grad(activation.dual.fn))
        a = np.exp(scores - scores.max(axis=-1, keepdims=True))
        a = (a / a.sum(axis=-1, keepdims=True))[:, 0]
        rng = np.random.default_rng(0)
        root = np.linalg.cholesky(np.kron(np.array([[1.0, 0.6], [0.6, 1.0]]), K))
        values = 1.5 * (rng.standard_normal((200_000, 6)) @ root.T).reshape(-1, 2, 3)
        y = np.einsum("ni,dni->dn", a, values)
        u = a * (values - y[..., None])
        pulled = np.stack([np.asarray(slope(jnp.asarray(y[:, n]))) for n in range(2)], axis=1)
    gradient = (pulled[..., None] * u).reshape(-1, 6)
    products = gradient[:, :, None] * gradient[:, None, :]
    # Only the first query's scores reach the readout.
    root = np.asarray(parts.root)
    matrix = (root @ root.T).reshape(2, 3, 3, 2, 3, 3)
    assert np.abs(matrix[:, 1:]).max() < 1e-12
    expected, error = products.mean(axis=0), products.std(axis=0) / math.sqrt(len(y))
    found = matrix[:, 0, :, :, 0].reshape(6, 6)
    assert np.max(np.abs(found - expected) / error) < 4.5
    # The product of the two expectations is something else.
    outer = np.einsum("dn,dm->nm", pulled, pulled) / len(y)
    plain = np.einsum("dni,dmj->nimj", u, u) / len(y)
    factorised = (outer[:, None, :, None] * plain).reshape(6, 6)
    if not isinstance(activation.dual, type(wl.Relu().dual)):
        assert np.max(np.abs(factorised - expected) / error) > 10


def finite_ntks(net: wl.Layer, x: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Tangent kernels of drawn finite networks with one output."""
    data = jnp.asarray(x, jnp.float32)

    def ntk(key):
        params = net.init(key, x.shape[1:])
        jacobian = jax.jacrev(lambda p: net.apply(p, data)[:, 0])(params)
        rows = [leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(jacobian)]
        return sum(row @ row.T for row in rows)

    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(jax.jit(lambda k: jax.lax.map(ntk, k))(keys))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "heads", "readout"),
    [
        (wl.Attention, 1, wl.Select(0)),
        (wl.Attention, 2, wl.Select(0)),
        (wl.AttentionPool, 2, wl.Serial()),
    ],
)
def test_mean_and_spread_of_wide_finite_networks(kind, heads, readout):
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    x[1] = 0.7 * x[0] + 0.7 * x[1]

    def network(width: int) -> wl.Layer:
        attention = kind(width, heads=heads, ov_std=1.5, qk_std=1.5)
        return wl.Serial(attention, wl.layers.Monomial(2), readout, wl.Dense(1))

    law = network(8).law(x)
    drawn = law.sample_ntk(4000)[:, 0, 0]
    mean = law.ntk(draws=2000)
    runs = 3000
    small, large = (finite_ntks(network(n), x, runs, n) for n in (128, 256))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        found = 2 * large[:, i, j].mean() - small[:, i, j].mean()
        spread = (4 * large[:, i, j].var() + small[:, i, j].var()) / runs
        error = math.sqrt(spread + mean.error[i, j] ** 2)
        assert abs(found - mean.value[i, j]) < 4 * error
        # Spreads: heavy-tailed, so compared by quantiles of the wider networks.
        for q in (0.25, 0.5, 0.75):
            gap = np.quantile(large[:, i, j], q) - np.quantile(drawn[:, i, j], q)
            assert abs(gap) < 0.12 * np.subtract(*np.quantile(drawn[:, i, j], [0.75, 0.25]))


def test_factorised_rule_is_refused_and_why():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    net = wl.Serial(wl.Attention(8, heads=2), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(NetworkError, match="does not factorise layer by layer"):
        net.kernel(x)
    assert net.kernel(x, ntk=False, samples=2).ntk is None
    for branch in (
        wl.Residual(wl.Attention(4, heads=1)),
        wl.Sum(wl.Attention(8, heads=1), wl.Dense(8)),
    ):
        refuse_factorised_ntk(wl.Serial(branch, wl.MeanPool(), wl.Dense(1)))
        with pytest.raises(NetworkError, match="LayerNorm above attention"):
            wl.Serial(branch, wl.LayerNorm(), wl.MeanPool()).kernel(x)
    with pytest.raises(NetworkError, match="Product above attention"):
        wl.Product(wl.Attention(8, heads=1), wl.Dense(8)).kernel(x)


@pytest.mark.slow
def test_under_linear_layers_the_average_over_heads_is_the_mean():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    linear = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    kernel = linear.kernel(x, samples=512)
    mean = linear.law(x, draws=64).ntk(draws=500)
    gap = np.abs(kernel.ntk - mean.value) / np.hypot(kernel.ntk_error, mean.error)
    assert gap.max() < 4.5


def test_training_refuses_finite_heads():
    with pytest.raises(NetworkError, match=r"moves during training.*Got: .* 3 heads"):
        refuse_finite_heads(wl.Serial(wl.Attention(heads=3), wl.MeanPool()), "Training dynamics")
    refuse_finite_heads(wl.Attention(), "Training dynamics")
    refuse_finite_heads(wl.Attention(heads=3, scaling=wl.Scaling.LINEAR), "Training dynamics")


def test_what_tangent_laws_do_not_cover():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    two = wl.Serial(wl.Attention(heads=1), wl.Attention(heads=1), wl.MeanPool())
    with pytest.raises(NetworkError, match="not known for several layers of random scores"):
        two.law(x, draws=64).sample_ntk(2)
    wide = wl.Attention(heads=200)
    with pytest.raises(WidelimitError, match="derivatives of coordinates by scores"):
        wide.law(x, draws=8).sample_ntk(2)


def test_deterministic_networks_have_their_ntk():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    net = wl.Serial(wl.Attention(scaling=wl.Scaling.LINEAR), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    found = net.law(x).sample_ntk(2, channels=2)
    expected = net.kernel(x, dtype=np.float64).ntk
    np.testing.assert_allclose(found[1, 1, 1], expected, rtol=1e-9)
    assert not found[0, 0, 1].any()


@pytest.mark.slow
def test_padding_and_positions_enter_the_tangent_kernel():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 3, 4))
    positions = (wl.Decay(rate=0.5), wl.Rotary(pairs=1))
    net = wl.Serial(wl.Attention(8, heads=1, positions=positions), wl.MeanPool(), wl.Dense(1))
    mean = net.law(x, draws=64).ntk(draws=500)
    kernel = net.kernel(x, samples=512)
    gap = abs(kernel.ntk - mean.value) / np.hypot(kernel.ntk_error, mean.error)
    assert gap.max() < 4.5
    padded, mask = np.concatenate([x, np.ones((1, 2, 4))], axis=1), np.arange(5)[None] < 3
    again = net.law(padded, mask, draws=64).ntk(draws=500)
    gap = abs(again.value - mean.value) / np.hypot(again.error, mean.error)
    assert gap.max() < 4.5
