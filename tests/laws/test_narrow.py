"""Laws with heads of finite width: closed forms, exact simulation, and drawn networks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import widelimit as wl
from widelimit.errors import NetworkError
from widelimit.laws import GivenGram, Law, law_from_covariance, points, simulate
from widelimit.laws.wishart import bartlett_factor, chi_from_normal, factor_size
from widelimit.layers import IdentityMap, Projections, Scaling
from widelimit.layers.base import with_fields

K = np.array([[1.0, 0.5, 0.2], [0.5, 1.2, -0.3], [0.2, -0.3, 0.8]])
LINEAR_SCORES = IdentityMap()


def given(net: wl.Layer, x: np.ndarray, **options) -> Law:
    return net.law(x, head_widths="given", **options)


def chi_moment(power: int, dof: int) -> float:
    """`E[(χ²_d/d)^k] = Π_{j<k} (1 + 2j/d)`."""
    return math.prod(1 + 2 * j / dof for j in range(power))


def test_chi_of_equal_probability():
    z = np.concatenate([[-8.2, 8.2], np.random.default_rng(0).normal(size=500)])
    for dof in (1, 2, 64, 10**6):
        with jax.enable_x64(True):
            found = np.asarray(chi_from_normal(jnp.asarray(z)[:, None], (dof,)))[:, 0]
        lower, upper = stats.chi.ppf(stats.norm.cdf(z), dof), stats.chi.isf(stats.norm.sf(z), dof)
        np.testing.assert_allclose(found, np.where(z < 0, lower, upper), atol=1e-8)


@pytest.mark.parametrize("dof", [2, 5])
def test_wishart_moments_of_the_factor(dof):
    """`E[TTᵀ] = d`, `Var = 2d` on the diagonal and `d` beside it, with fewer columns than rows."""
    rows, draws = 3, 40_000
    normals = np.random.default_rng(dof).standard_normal((draws, factor_size(rows, dof)))
    with jax.enable_x64(True):
        factor = np.asarray(bartlett_factor(jnp.asarray(normals), rows, dof))
    assert factor.shape == (draws, rows, min(rows, dof))
    gram = factor @ np.swapaxes(factor, 1, 2)
    mean, spread = gram.mean(axis=0), gram.std(axis=0) / math.sqrt(draws)
    assert np.max(np.abs(mean - dof * np.eye(rows)) / spread) < 4.5
    squares = np.square(gram - dof * np.eye(rows))
    error = squares.std(axis=0) / math.sqrt(draws)
    truth = dof * (np.ones((rows, rows)) + np.eye(rows))
    assert np.max(np.abs(squares.mean(axis=0) - truth) / error) < 4.5


@pytest.mark.parametrize("heads", [1, 3])
def test_one_token_in_closed_form(heads):
    """`v = (1/H) Σ g_h² χ²_v/d_v` with `E[g⁴] = 3(1+2/d_k)`, so that
    the kurtosis is `3(3(1+2/d_k)(1+2/d_v) − 1)/H`.
    """
    layer = wl.Attention(heads=heads, score_map=LINEAR_SCORES, key_width=6, value_width=8)
    law = given(layer, np.ones((1, 1, 1)), draws=2**15)
    truth = 3 * (3 * chi_moment(2, 6) * chi_moment(2, 8) - 1) / heads
    kurtosis, variance = law.kurtosis((0, 0)), law.at(0, 0).variance
    assert kurtosis.error < 0.03 * truth
    assert abs(kurtosis.value - truth) < 4.5 * kurtosis.error
    assert abs(variance.value - 1) < 4.5 * variance.error
    # Without either width it is another number.
    for wrong in (3 * chi_moment(2, 6) - 1, 3 * chi_moment(2, 8) - 1, 2):
        assert abs(kurtosis.value - 3 * wrong / heads) > 6 * kurtosis.error


@pytest.mark.parametrize(
    ("scaling", "second"), [(Scaling.LINEAR, 1 + 2 / 5), (Scaling.UNTIED, 1 / 5)]
)
def test_scores_at_one_over_d_are_random_at_finite_width(scaling, second):
    """One token: the score is `χ²_d/d` where queries are keys, `q·k/d` where they are not."""
    layer = wl.Attention(heads=1, scaling=scaling, score_map=LINEAR_SCORES, key_width=5)
    law = given(layer, np.ones((1, 1, 1)), draws=2**14)
    variance = law.at(0, 0).variance
    assert variance.error < 0.01 * second
    assert abs(variance.value - second) < 4.5 * variance.error


def test_two_layers_in_closed_form():
    """One token, identity scores: `κ_1 = g²χ²_v/d_v` and `E[v] = E[κ_1³]`, 3.5 times the limit."""
    layer = wl.Attention(heads=1, score_map=LINEAR_SCORES, key_width=8, value_width=8)
    law = given(wl.Serial(layer, layer), np.ones((1, 1, 1)), draws=2**17)
    variance, truth = law.at(0, 0).variance, 15 * chi_moment(3, 8) ** 2
    assert variance.error < 0.05 * truth
    assert abs(variance.value - truth) < 4.5 * variance.error


def simulated(layer: wl.Attention, runs: int) -> tuple[np.ndarray, float, float]:
    """First outputs of networks, exactly in law; their kurtosis from variances, and its error."""
    found = simulate(
        with_fields(layer, width=8),
        GivenGram(K),
        draws=runs,
        key=int(layer.heads),
        positions=[0],
        variances=True,
        progress=False,
    )
    assert found.variances is not None
    groups = found.variances[:, 0, 0].reshape(50, -1)
    per_group = 3 * (np.mean(groups**2, axis=1) / np.mean(groups, axis=1) ** 2 - 1)
    return found.outputs[:, 0, 0], per_group.mean(), per_group.std(ddof=1) / math.sqrt(50)


def score(found: float, error: float, law: Law) -> float:
    kurtosis = law.kurtosis((0, 0))
    return abs(found - kurtosis.value) / math.hypot(error, kurtosis.error)


@pytest.mark.parametrize("heads", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_law_fits_where_the_limit_and_the_gaussian_fail(heads):
    """Heads of width 4: 100,000 networks against three laws."""
    layer = wl.Attention(heads=heads, key_width=4, value_width=4)
    y, found, error = simulated(layer, 100_000)
    narrow = law_from_covariance(layer, K, head_widths="given", draws=2**13)
    limit = law_from_covariance(layer, K, draws=2**13)
    assert error < 0.03 * found
    assert score(found, error, narrow) < 4.5
    assert score(found, error, limit) > 15
    laws = [law.at(0, 0).mixture for law in (narrow, limit, limit.gaussian(samples=64))]
    chances = [stats.kstest(y, law.cdf).pvalue for law in laws]
    assert chances[0] > 1e-3
    assert max(chances[1:]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 4, 16])
def test_heads_of_width_64(heads):
    """The width that heads have in practice: values add 3·2/64 to the kurtosis of one head."""
    layer = wl.Attention(heads=heads, key_width=64, value_width=64)
    _, found, error = simulated(layer, 500_000)
    narrow = law_from_covariance(layer, K, head_widths="given", draws=2**16)
    limit = law_from_covariance(layer, K, draws=2**16)
    assert error < 0.01 * found
    assert score(found, error, narrow) < 4.5
    assert score(found, error, limit) > 15


def drawn_outputs(net: wl.Layer, x: np.ndarray, runs: int, key: int) -> np.ndarray:
    """First outputs, (runs, channels), of networks with all their weights."""

    def one(subkey):
        y = net.apply(net.init(subkey, x.shape[1:]), jnp.asarray(x, jnp.float32))
        return y.reshape(-1, y.shape[-1])[0]

    keys = jax.random.split(jax.random.key(key), runs)
    return np.asarray(
        jax.jit(lambda k: jax.lax.map(one, k, batch_size=500))(keys), dtype=np.float64
    )


def moments_by_run(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Second and fourth moments over runs and channels, and their covariance."""
    per_run = np.stack([np.mean(y**2, axis=1), np.mean(y**4, axis=1)])
    return per_run.mean(axis=1), np.cov(per_run) / y.shape[0]


@pytest.mark.slow
def test_rotary_groups_and_biases_against_drawn_networks():
    """One layer is exact at every width: networks of 16 channels with all their parts."""
    x = np.random.default_rng(0).normal(size=(1, 3, 5))
    layer = wl.Attention(
        16,
        heads=2,
        kv_heads=1,
        key_width=4,
        value_width=3,
        qk_std=1.5,
        positions=(wl.Rotary(10.0, pairs=2), wl.Alibi(0.3)),
        projections=Projections(qk_b_std=0.7, v_b_std=0.5),
    )
    y = drawn_outputs(layer, x, 20_000, 1)
    found, covariance = moments_by_run(y)
    errors = np.sqrt(np.diag(covariance))
    law, wide = given(layer, x, draws=2**14), layer.law(x, draws=2**14)
    moments = law.moments((2, 4), (0, 0))
    assert np.all(errors < [0.01 * found[0], 0.03 * found[1]])
    assert np.all(np.abs(found - moments.value) < 4.5 * np.hypot(errors, moments.error))
    other = wide.moments((2, 4), (0, 0))
    assert abs(found[1] - other.value[1]) > 8 * math.hypot(errors[1], other.error[1])
    # Heads with keys and values of their own are less alike: another fourth moment.
    apart = given(with_fields(layer, kv_heads=None), x, draws=2**14).moments((2, 4), (0, 0))
    assert abs(found[1] - apart.value[1]) > 6 * math.hypot(errors[1], apart.error[1])


def test_padding_changes_nothing():
    rng = np.random.default_rng(3)
    x, mask = rng.normal(size=(2, 4, 3)), np.ones((2, 4), bool)
    mask[1, 2:] = False
    layer = wl.Attention(heads=1, key_width=3, value_width=3)
    padded, alone = given(layer, x, mask=mask), given(layer, x[1:, :2])
    one, two = padded.at(1, 1), alone.at(0, 1)
    for a, b in ((one.variance, two.variance), (one.kurtosis(), two.kurtosis())):
        assert abs(a.value - b.value) < 4.5 * math.hypot(a.error, b.error)
    assert np.all(padded.sample(3)[:, 1, 2:] == 0)


def test_wide_heads_are_the_limit(monkeypatch):
    monkeypatch.setattr(points, "_MOST_DIMENSIONS", 0)
    wide = wl.Attention(heads=2, key_width=10**6, value_width=10**6)
    found = law_from_covariance(wide, K, head_widths="given")
    monkeypatch.undo()
    limit = law_from_covariance(wide, K)
    one, two = found.kurtosis((0, 1)), limit.kurtosis((0, 1))
    assert abs(one.value - two.value) < 4.5 * math.hypot(one.error, two.error)
    assert found.gaussian().kurtosis((0, 1)).value == pytest.approx(0, abs=1e-12)
    assert "2 heads of given width" in repr(found)


def test_what_has_no_such_law():
    x = np.ones((1, 2, 4))
    refused = {
        "without key_width=": wl.Attention(heads=1),
        "heads=INFINITE": wl.Attention(key_width=4),
        "encoding of positions": wl.Attention(heads=1, key_width=4, positions=wl.Decay()),
        "qk_norm=True": wl.Attention(heads=1, key_width=4, projections=Projections(qk_norm=True)),
        "AttentionPool": wl.AttentionPool(heads=1, key_width=4),
        "scores at 1/d": wl.Attention(heads=1, scaling=Scaling.LINEAR, value_width=4),
        "odd key_width": wl.Attention(heads=1, key_width=3, positions=wl.Rotary(pairs=1)),
    }
    for got, net in refused.items():
        with pytest.raises(NetworkError, match=got):
            given(net, x)
    with pytest.raises(NetworkError, match="not known for heads of finite width"):
        given(wl.Attention(heads=1, key_width=4), x, draws=16).ntk()


@pytest.mark.slow
def test_two_layers_against_wide_networks():
    """Narrow heads in two layers under a nonlinearity, the layers' own 1/n term removed."""
    x = wl.laws.tokens_with_covariance(np.diag([0.3, 1.0, 3.0]))

    def layer(width: int, ov_std: float) -> wl.Layer:
        return wl.Attention(width, heads=1, key_width=4, value_width=4, ov_std=ov_std)

    def network(width: int) -> wl.Layer:
        return wl.Serial(layer(width, 1.5), wl.Relu(), layer(width, 1.0))

    runs = 40_000
    (small, c_small), (large, c_large) = (
        moments_by_run(drawn_outputs(network(width), x, runs, width)) for width in (64, 128)
    )
    moments, covariance = 2 * large - small, 4 * c_large + c_small
    slope = np.array([-2 * moments[1] / moments[0] ** 3, 1 / moments[0] ** 2])
    found, error = moments[1] / moments[0] ** 2 - 3, math.sqrt(slope @ covariance @ slope)
    law, limit = given(network(8), x, draws=2**16), network(8).law(x, draws=2**14)

    def scores(law: Law) -> tuple[float, float]:
        variance, kurtosis = law.at(0, 0).variance, law.kurtosis((0, 0))
        return (
            abs(moments[0] - variance.value) / math.hypot(covariance[0, 0] ** 0.5, variance.error),
            abs(found - kurtosis.value) / math.hypot(error, kurtosis.error),
        )

    assert covariance[0, 0] ** 0.5 < 0.03 * moments[0]
    assert max(scores(law)) < 4.5
    assert max(scores(limit)) > 8
