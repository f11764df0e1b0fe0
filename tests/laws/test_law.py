"""The finite-head law against quadrature, finite-width simulation and the tensor-program engine."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensor_programs as examples
from numpy.polynomial.hermite_e import hermegauss
from scipy import integrate, stats

import widelimit as wl
from widelimit.errors import NetworkError, NumericalError, ShapeError, WidelimitError
from widelimit.finite.widths import with_heads
from widelimit.laws import (
    Estimate,
    Law,
    law_from_covariance,
    points,
    tokens_with_covariance,
)
from widelimit.laws.draws import kernels_of
from widelimit.laws.simulation import simulate
from widelimit.laws.simulation_inputs import GivenGram
from widelimit.layers.attention.heads import pivoted_cholesky
from widelimit.netsor import Integration, tanh

K = np.array([[1.0, 0.5, 0.2], [0.5, 1.2, -0.3], [0.2, -0.3, 0.8]])


def two_token_variances(heads: int, nodes: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """v of the first of two independent tokens on a quadrature grid, and the grid's weights.

    Scores g_1, g_2 are N(0, 1); A = (s, 1−s) with s = sigmoid(g_1 − g_2), v = s² + (1−s)².
    """
    z, w = hermegauss(nodes)
    s = 1 / (1 + np.exp(-math.sqrt(2) * z))
    single, w = s**2 + (1 - s) ** 2, w / w.sum()
    if heads == 1:
        return single, w
    assert heads == 2
    return ((single[:, None] + single[None, :]) / 2).ravel(), (w[:, None] * w[None, :]).ravel()


def z_score(found: Estimate, truth: np.ndarray | float) -> float:
    return float(np.max(np.abs(np.asarray(found.value) - truth) / found.error))


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_a_class_token_is_a_position_more(std):
    """The law of an input whose covariance has the token's variance in front."""
    x, attention = (
        np.random.default_rng(0).standard_normal((1, 2, 8)),
        wl.Attention(qk_std=2, heads=1),
    )
    net = wl.Serial(wl.Dense(8), wl.layers.ClassToken(std=std), attention)
    covariance = np.zeros((3, 3))
    covariance[0, 0], covariance[1:, 1:] = std**2, x[0] @ x[0].T / 8
    law, other = net.law(x), law_from_covariance(attention, covariance)
    for at in np.ndindex(1, 3):
        for one, two in zip(
            (law.moments(at=at), law.kurtosis(at)),
            (other.moments(at=at), other.kurtosis(at)),
            strict=True,
        ):
            # Features in another order are other Sobol points, whose errors are estimates of eight.
            error = np.hypot(one.error, two.error)
            assert np.all(np.abs(one.value - two.value) < 6 * error + 0.01 * np.abs(two.value))


@pytest.mark.parametrize("heads", [1, 2])
def test_two_tokens_against_quadrature(heads):
    v, w = two_token_variances(heads)
    law = law_from_covariance(wl.Attention(heads=heads), np.eye(2), draws=16_384)
    y = np.array([0.0, 0.5, 2.0, 3.0])
    density = (w * stats.norm.pdf(y[:, None], scale=np.sqrt(v))).sum(axis=1)
    cdf = (w * stats.norm.cdf(y[:, None], scale=np.sqrt(v))).sum(axis=1)
    m1, m2 = w @ v, w @ v**2
    kurtosis = 3 * (m2 / m1**2 - 1)
    for at in ((0, 0), (0, 1)):
        checks = [
            (law.density(y, at), density),
            (law.cdf(y[1:], at), cdf[1:]),
            (law.sf(y[1:], at), 1 - cdf[1:]),
            (law.moments((2, 4), at), np.array([m1, 3 * m2])),
            (law.kurtosis(at), kurtosis),
        ]
        for found, truth in checks:
            assert z_score(found, truth) < 4.5
            assert np.all(np.asarray(found.error) < 0.01 * np.abs(truth))
        quantiles = law.quantiles([0.05, 0.5, 0.99], at)
        np.testing.assert_allclose(law.cdf(quantiles.value, at).value, [0.05, 0.5, 0.99], atol=2e-6)
    # The check has teeth: two heads are not one head.
    other, ow = two_token_variances(3 - heads)
    wrong = 3 * ((ow @ other**2) / (ow @ other) ** 2 - 1)
    assert z_score(law.kurtosis((0, 0)), wrong) > 20


def test_quasi_random_points_are_more_accurate_and_errors_are_honest(monkeypatch):
    v, w = two_token_variances(2)
    truth = w @ v
    misses, scores = {256: [], 0: []}, {256: [], 0: []}
    for dimensions in misses:
        monkeypatch.setattr(points, "_MOST_DIMENSIONS", dimensions)
        for seed in range(8):
            law = law_from_covariance(wl.Attention(heads=2), np.eye(2), key=jax.random.key(seed))
            found = law.at(0, 0).variance
            misses[dimensions].append(found.value - truth)
            scores[dimensions].append((found.value - truth) / found.error)
    rms = {p: float(np.sqrt(np.mean(np.square(m)))) for p, m in misses.items()}
    assert rms[256] < 0.2 * rms[0]
    for values in scores.values():
        assert 0.4 < np.sqrt(np.mean(np.square(values))) < 1.9


def test_large_latents_are_sampled_and_small_ones_are_not():
    small = law_from_covariance(wl.Attention(heads=1), np.eye(3), draws=64)
    large = law_from_covariance(wl.Attention(heads=8), np.eye(12), draws=64)
    assert not small.points.random
    assert large.points.random
    assert large.kernels.shape == (64, 12, 12)


@pytest.mark.parametrize("heads", [1, 2])
def test_wide_finite_network_has_the_laws_kurtosis(heads):
    runs = simulate(
        wl.Attention(1024, heads=heads),
        GivenGram(K),
        draws=60_000,
        key=heads,
        positions=[0],
        progress=False,
    )
    y = runs.outputs[:, 0, 0]
    law = law_from_covariance(wl.Attention(heads=heads), K, draws=16_384)
    kurtosis, moments = law.kurtosis((0, 0)), [np.mean(y**k) for k in (2, 4, 6, 8)]
    m2, m4, m6, m8 = moments
    # Delta method for m4/m2² from the sample's own moments.
    error = (
        math.sqrt(
            (m8 - m4**2 - 4 * m4 / m2 * (m6 - m2 * m4) + 4 * (m4 / m2) ** 2 * (m4 - m2**2)) / len(y)
        )
        / m2**2
    )
    found = m4 / m2**2 - 3
    assert abs(found - kurtosis.value) < 3 * math.hypot(error, kurtosis.error)
    assert found > 4 * error
    ks = stats.kstest(y, law.at(0, 0).mixture.cdf)
    assert ks.pvalue > 0.001


def test_many_heads_are_nearly_gaussian():
    law = law_from_covariance(wl.Attention(heads=256), np.eye(4), draws=512)
    kurtosis = law.kurtosis((0, 0))
    assert abs(kurtosis.value) < 0.01
    y = np.linspace(-3, 3, 301)
    gaussian = law.gaussian()
    assert np.max(np.abs(law.cdf(y, (0, 0)).value - gaussian.cdf(y, (0, 0)).value)) < 0.001
    # With one head the distance between the distribution functions is several times that, and the
    # density far out many times the Gaussian's.
    single = law_from_covariance(wl.Attention(heads=1), np.eye(4))
    assert np.max(np.abs(single.cdf(y, (0, 0)).value - gaussian.cdf(y, (0, 0)).value)) > 0.003
    far = [float(each.density(3.0, (0, 0))) for each in (single, law, gaussian)]
    assert far[0] > 8 * far[2]
    assert far[1] < 1.2 * far[2]


def test_mean_kernel_is_the_infinite_head_kernel():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 5))
    net = wl.Serial(wl.Attention(heads=2, ov_std=1.3, qk_std=0.8), wl.MeanPool())
    law = net.law(x)
    infinite = with_heads(net, wl.INFINITE).kernel(x, ntk=False, samples=512)
    found = law.covariance()
    error = np.hypot(found.error, infinite.nngp_error)
    assert np.max(np.abs(found.value - infinite.nngp) / error) < 4.5
    assert np.max(np.abs(1.1 * found.value - infinite.nngp) / error) > 4.5
    gaussian = law.gaussian()
    np.testing.assert_allclose(gaussian.covariance().value, infinite.nngp, rtol=0.02)
    assert gaussian.kurtosis(0).value == pytest.approx(0, abs=1e-12)


def test_deterministic_scores_give_a_gaussian_and_one_kernel():
    x = np.random.default_rng(1).normal(size=(2, 3, 4))
    net = wl.Serial(wl.Attention(scaling=wl.Scaling.LINEAR), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    law = net.law(x)
    assert law.draws == 1
    assert law.kurtosis(1).value == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(law.covariance().value, net.kernel(x).nngp, rtol=1e-6)
    assert law.sample_kernels(3).shape == (3, 2, 2)


def test_elementwise_infinite_heads_beside_finite_ones():
    x = np.random.default_rng(2).normal(size=(1, 3, 4))
    relu = wl.ElementwiseMap(wl.Relu())
    net = wl.Serial(wl.Attention(score_map=relu), wl.Attention(heads=2), wl.MeanPool(), wl.Dense(1))
    law = net.law(x)
    assert len(law.latent.recipes) == 1
    assert law.kurtosis(0).value > 10 * law.kurtosis(0).error


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_padding_changes_nothing(layers):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 5, 4))
    mask = np.ones((2, 5), bool)
    mask[1, 3:] = False
    positions = wl.Decay(rate=0.5)
    net = wl.Serial(*(wl.Attention(heads=h, positions=positions) for h in range(1, layers + 1)))
    padded, alone = net.law(x, mask, draws=1024), net.law(x[1:, :3], draws=1024)
    for place in range(3):
        one, two = padded.at(1, place), alone.at(0, place)
        for a, b in ((one.variance, two.variance), (one.kurtosis(), two.kurtosis())):
            assert abs(a.value - b.value) < 4.5 * math.hypot(a.error, b.error)
    with pytest.raises(ShapeError, match="padding, which is always zero"):
        padded.at(1, 4)
    assert np.all(padded.sample(3)[:, 1, 3:] == 0)


def test_joint_density_integrates_to_the_marginal():
    law = law_from_covariance(wl.Attention(heads=4), K, draws=256)
    grid = np.linspace(-9, 9, 2001)
    points = np.stack([np.full_like(grid, 0.4), grid], axis=-1)
    joint = law.joint_density(points, [(0, 0), (0, 2)])
    total = integrate.simpson(joint.value, x=grid)
    assert total == pytest.approx(float(law.density(0.4, (0, 0))), rel=1e-7)
    with pytest.raises(NetworkError, match="are linearly dependent"):
        law.joint_density(points, [(0, 0), (0, 0)])
    with pytest.raises(ShapeError, match="one entry for each coordinate"):
        law.joint_density(points, [(0, 0)])


def test_functionals_and_coordinates_agree():
    law = law_from_covariance(wl.Attention(heads=2), K, draws=256)
    weights = np.zeros((1, 3))
    weights[0, 1] = 2.0
    y = np.array([-1.0, 0.3])
    np.testing.assert_allclose(
        law.functional(weights).density(2 * y).value, law.at(0, 1).density(y).value / 2
    )
    pooled = wl.Serial(wl.Attention(heads=2), wl.MeanPool()).law(
        tokens_with_covariance(K), draws=256
    )
    mean = np.full((1, 3), 1 / 3)
    np.testing.assert_allclose(law.cdf(y, mean).value, pooled.cdf(y).value, rtol=1e-10)


def test_channels_share_their_scores():
    law = law_from_covariance(wl.Attention(heads=1), np.eye(4))
    y = law.sample(40_000, channels=2)[:, 0, 0]
    product = y[:, 0] * y[:, 1]
    assert abs(product.mean()) < 4.5 * product.std() / 200
    squares = np.square(y)
    expected = np.var(law.at(0, 0).variances)
    centred = (squares[:, 0] - squares[:, 0].mean()) * (squares[:, 1] - squares[:, 1].mean())
    error = centred.std() / 200
    assert abs(centred.mean() - expected) < 4.5 * error
    assert centred.mean() > 4.5 * error  # independent channels would give 0
    assert stats.kstest(y[:, 0], law.at(0, 0).mixture.cdf).pvalue > 1e-3


def test_sampled_kernels_are_positive_and_have_the_laws_moments(monkeypatch):
    monkeypatch.setattr(points, "_MOST_DIMENSIONS", 0)
    x = np.random.default_rng(5).normal(size=(2, 3, 4))
    net = wl.Serial(wl.Attention(heads=1), wl.Attention(heads=1))
    law = net.law(x, draws=2000)
    kernels = law.sample_kernels(2000)
    assert kernels.shape == (2000, 2, 2, 3, 3)
    joint = kernels.transpose(0, 1, 3, 2, 4).reshape(2000, 6, 6)
    assert np.linalg.eigvalsh(joint).min() > -1e-10
    v = kernels[:, 1, 1, 2, 2]
    marginal = law.at(1, 2)
    error = math.hypot(v.std() / math.sqrt(2000), marginal.variance.error)
    assert abs(v.mean() - marginal.variance.value) < 4.5 * error


def test_tensor_programs_derive_the_same_law():
    """Given the same scores both give one Gaussian, and the scores have one law."""
    heads = 2
    law = law_from_covariance(wl.Attention(heads=heads), K, draws=32)
    program = examples.multi_head_attention(K, heads=heads)
    limit = program.limit()
    np.testing.assert_allclose(
        limit.scalar_covariance().value, np.kron(np.eye(heads), np.kron(K, K)), atol=1e-12
    )
    with jax.enable_x64(True):
        factor = np.asarray(pivoted_cholesky(jnp.asarray(K), 3).factor)
        normals = np.random.default_rng(0).standard_normal((5, law.latent.size))
        kernels = np.asarray(kernels_of(law.latent, jnp.asarray(normals)))
    w = normals.reshape(5, heads, 3, 3)
    scores = np.einsum("ar,dhrs,is->dhai", factor, w, factor)
    derived = limit.given(scores.reshape(5, -1)).gram().value
    np.testing.assert_allclose(kernels, derived, rtol=1e-9)


def test_tensor_program_after_an_mlp_derives_the_same_law():
    program = examples.attention_after_mlp(K, heads=1, depth=1, activation=tanh, w_std=1.0)
    found = program.limit(integration=Integration()).expected_gram(4000, 0)
    net = wl.Serial(wl.Dense(8), wl.Tanh(), wl.Attention(heads=1))
    ours = law_from_covariance(net, K).covariance()
    error = np.hypot(found.error, ours.error[0, 0])
    assert np.max(np.abs(found.value - ours.value[0, 0]) / error) < 4.5
    assert np.max(np.abs(1.1 * found.value - ours.value[0, 0]) / error) > 4.5


@pytest.mark.slow
def test_rotary_and_biases_enter_the_law():
    net = wl.Attention(heads=1, positions=(wl.Rotary(pairs=2), wl.Alibi(0.5)))
    plain = law_from_covariance(wl.Attention(heads=1), K).at(0, 0).variance
    law = law_from_covariance(net, K)
    infinite = with_heads(net, wl.INFINITE).kernel(
        tokens_with_covariance(K), ntk=False, samples=4096
    )
    found = law.at(0, 0).variance
    error = math.hypot(found.error, infinite.nngp_error[0, 0, 0, 0])
    assert abs(found.value - infinite.nngp[0, 0, 0, 0]) < 4.5 * error
    assert abs(found.value - plain.value) > 10 * math.hypot(found.error, plain.error)


# --- what users get wrong ---


def small_law() -> Law:
    return law_from_covariance(wl.Attention(heads=1), np.eye(3), draws=64)


@pytest.mark.parametrize("at", [(0, 3), (1, 0), (0, -1), 0, (0, 1, 2), (0.5, 1), None, "first"])
def test_a_coordinate_out_of_range(at):
    with pytest.raises(ShapeError, match=r"no such coordinate; it has \(example 0 to 0, position"):
        small_law().density(0.0, at)


@pytest.mark.parametrize("heads", [0, -1, 1.5, True, "two", None])
def test_heads_that_are_no_number_of_heads(heads):
    with pytest.raises(WidelimitError, match="number of heads is no positive integer"):
        wl.Attention(heads=heads)
    with pytest.raises(WidelimitError, match="number of heads is no positive integer"):
        with_heads(wl.Attention(heads=2), heads)


def test_other_mistakes_name_their_rule():
    law = small_law()
    with pytest.raises(ShapeError, match="one finite weight for each coordinate"):
        law.functional(np.ones(3))
    with pytest.raises(WidelimitError, match="probabilities of quantiles"):
        law.quantiles([0.0, 0.5], (0, 0))
    with pytest.raises(WidelimitError, match="order= is not a non-negative integer"):
        law.moments((2.5,), (0, 0))  # pyright: ignore[reportArgumentType]
    with pytest.raises(WidelimitError, match="positive integer"):
        law.sample(0)
    with pytest.raises(WidelimitError, match="draws= is not an integer of at least 8"):
        law_from_covariance(wl.Attention(heads=1), np.eye(2), draws=3)
    with pytest.raises(WidelimitError, match="do not fit into the memory"):
        law_from_covariance(wl.Attention(heads=1), np.eye(9), memory=1000)
    with pytest.raises(WidelimitError, match="positive variance"):
        law.functional(np.zeros((1, 3)))
    with pytest.raises(NetworkError, match="ends in fresh weights"):
        law_from_covariance(wl.Serial(wl.Attention(heads=1), wl.Relu()), np.eye(2))
    with pytest.raises(ShapeError, match=r"not of shape \(S, S\)"):
        tokens_with_covariance(np.ones((2, 3)))
    with pytest.raises(NumericalError, match="positive semi-definite"):
        tokens_with_covariance(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(NetworkError, match="more than one stream"):
        wl.CrossAttention(8, heads=1).law((np.ones((1, 2, 4)), np.ones((1, 3, 4))))


# --- two layers, against networks with explicit weights ---


@pytest.mark.slow
def test_two_layers_against_wide_networks():
    """Variance and kurtosis with their 1/n term removed, and the distribution function."""
    x = tokens_with_covariance(np.diag([0.3, 1.0, 3.0]))

    def network(width: int) -> wl.Layer:
        return wl.Serial(
            wl.Attention(width, heads=1, ov_std=1.5), wl.Relu(), wl.Attention(width, heads=1)
        )

    def outputs(width: int, runs: int) -> np.ndarray:
        net, data = network(width), jnp.asarray(x, jnp.float32)

        def one(key):
            # All channels of every network: they share the scores, as the law says.
            return net.apply(net.init(key, data.shape[1:]), data)[0, 0]

        keys = jax.random.split(jax.random.key(width), runs)
        return np.asarray(jax.jit(lambda k: jax.lax.map(one, k, batch_size=20))(keys), np.float64)

    def statistics(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Variance and fourth moment, averaged over the channels of each run."""
        per_run = np.stack([np.mean(y**2, axis=1), np.mean(y**4, axis=1)])
        return per_run.mean(axis=1), np.cov(per_run) / y.shape[0]

    runs = 6000
    law = network(8).law(x, draws=2**14)
    small, large = outputs(128, runs), outputs(256, runs)
    (m_small, c_small), (m_large, c_large) = statistics(small), statistics(large)
    moments, covariance = 2 * m_large - m_small, 4 * c_large + c_small
    variance, kurtosis = law.at(0, 0).variance, law.kurtosis((0, 0))
    assert abs(moments[0] - variance.value) < 4 * math.hypot(
        math.sqrt(covariance[0, 0]), variance.error
    )
    slope = np.array([-2 * moments[1] / moments[0] ** 3, 1 / moments[0] ** 2])
    error = math.sqrt(slope @ covariance @ slope)
    found = moments[1] / moments[0] ** 2 - 3
    assert error < 0.15 * kurtosis.value
    assert abs(found - kurtosis.value) < 4 * math.hypot(error, kurtosis.error)
    ks = stats.kstest(large[:, 0], law.at(0, 0).mixture.cdf)
    assert ks.statistic < 1.6 / math.sqrt(runs) + 0.005
