"""Prediction with finitely many heads against quadrature over the scores, and its calibration."""

import math
import sys
import warnings

import jax
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats

import widelimit as wl
from widelimit.errors import (
    MissingExtraError,
    NetworkError,
    NumericalError,
    OptionError,
    ShapeError,
    WidelimitError,
)
from widelimit.inference import MixturePrediction
from widelimit.inference.gp import GPPosterior
from widelimit.inference.mixture import (
    CollapsedWeightsWarning,
    EllipticalSlice,
    Importance,
    MixtureGP,
)
from widelimit.inference.noise import Relative

QK, NOISE = 1.5, 0.05


def network(heads: float) -> wl.Serial:
    return wl.Serial(wl.Attention(heads=heads, qk_std=QK), wl.Select(0))


def problem(seed: int = 0, train: int = 5, test: int = 3, outputs: int = 2):
    """Tokens in two dimensions: one head is four normal numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(train + test, 3, 2)) * 1.2
    w = rng.normal(size=(2, 2))
    kernel = one_head_kernel(x, w)
    root = np.linalg.cholesky(kernel + 1e-9 * np.eye(train + test))
    f = root @ rng.normal(size=(train + test, outputs))
    y = f[:train] + math.sqrt(NOISE) * rng.normal(size=(train, outputs))
    return x[:train], y, x[train:], f[train:]


def one_head_kernel(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """`A_0 x x'ᵀ A'_0ᵀ / 2` for the first query, `A = softmax(QK x w xᵀ / 2)`: by hand."""
    scores = QK * np.einsum("nd,...de,nie->...ni", x[:, 0], w, x) / 2
    a = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = np.einsum("...ni,nid->...nd", a / a.sum(axis=-1, keepdims=True), x)
    return mixed @ np.swapaxes(mixed, -1, -2) / 2


def by_quadrature(x, y, tests, nodes: int = 24):
    """Evidence, posterior mean and variance by Gauss–Hermite quadrature over the four normals."""
    z, weights = hermegauss(nodes)
    grid = np.stack(np.meshgrid(z, z, z, z), axis=-1).reshape(-1, 2, 2)
    log_w = sum(np.meshgrid(*[np.log(weights / weights.sum())] * 4)).ravel()
    n, outputs = len(x), y.shape[1]
    logs, means, variances = [], [], []
    for w, base in zip(np.split(grid, nodes), np.split(log_w, nodes), strict=True):
        kernel = one_head_kernel(np.concatenate([x, tests]), w)
        a = kernel[:, :n, :n] + NOISE * np.eye(n)
        right = np.concatenate([np.broadcast_to(y, (len(w), *y.shape)), kernel[:, :n, n:]], axis=2)
        solved = np.linalg.solve(a, right)
        fit = np.sum(y * solved[..., :outputs], axis=(1, 2))
        log_det = np.linalg.slogdet(a)[1]
        logs.append(base - 0.5 * (fit + outputs * (log_det + n * math.log(2 * math.pi))))
        means.append(kernel[:, n:, :n] @ solved[..., :outputs])
        explained = np.einsum("dtn,dnt->dt", kernel[:, n:, :n], solved[..., outputs:])
        variances.append(np.einsum("dtt->dt", kernel[:, n:, n:]) - explained)
    logs, means, variances = map(np.concatenate, (logs, means, variances))
    evidence = np.logaddexp.reduce(logs)
    w = np.exp(logs - evidence)
    mean = np.tensordot(w, means, 1)
    second = np.tensordot(w, variances[:, :, None] + means**2, 1)
    return evidence, mean, second - mean**2


@pytest.fixture(scope="module")
def reference():
    x, y, tests, _ = problem()
    return x, y, tests, by_quadrature(x, y, tests)


def test_importance_sampling_against_quadrature(reference):
    x, y, tests, (evidence, mean, variance) = reference
    model = MixtureGP(network(1), noise=NOISE, method=Importance(draws=2**15))
    fitted = model.fit(x, y)
    found = fitted.predict(tests)
    assert found.effective > 1000
    scale = math.sqrt(variance.max())
    np.testing.assert_allclose(found.mean, mean, atol=0.03 * scale)
    np.testing.assert_allclose(found.variance, variance, atol=0.03 * scale**2)
    assert fitted.log_evidence == pytest.approx(evidence, abs=0.03)
    # Two heads, or the plain Gaussian process, would be noticed.
    other = MixtureGP(network(2), noise=NOISE, method=Importance(draws=2**13)).fit(x, y)
    assert np.abs(other.predict(tests).mean - mean).max() > 0.06 * scale
    assert abs(other.log_evidence - evidence) > 0.1


def test_relative_noise_is_a_share_of_the_prior_variance(reference):
    x, y, *_ = reference
    z, weights = hermegauss(20)
    grid = np.stack(np.meshgrid(z, z, z, z), axis=-1).reshape(-1, 2, 2)
    shares = np.prod(np.meshgrid(*[weights / weights.sum()] * 4), axis=0).ravel()
    variance = shares @ np.einsum("wnn->w", one_head_kernel(x, grid)) / len(x)
    for key in range(3):
        found = MixtureGP(network(1), noise=Relative(0.3), key=key).fit(x, y).noise
        np.testing.assert_allclose(found, 0.3 * variance, rtol=3e-3)


def test_slice_sampling_against_quadrature(reference):
    x, y, tests, (_, mean, variance) = reference
    method = EllipticalSlice(chains=32, burn=100, steps=400, thin=2)
    found = MixtureGP(network(1), noise=NOISE, method=method).fit(x, y).predict(tests)
    assert found.effective > 1000
    scale = math.sqrt(variance.max())
    np.testing.assert_allclose(found.mean, mean, atol=0.06 * scale)
    np.testing.assert_allclose(found.variance, variance, atol=0.06 * scale**2)


def test_many_heads_fall_back_to_the_gaussian_process():
    x, y, tests, _ = problem(outputs=1)
    joint = np.concatenate([x, tests])
    kernel = network(wl.INFINITE).kernel(joint, ntk=False, samples=1024).nngp.astype(float)
    n = len(x)
    gp = GPPosterior.condition(kernel[:n, :n], y, noise=NOISE)
    expected = gp.predict(kernel[n:, :n], np.diag(kernel)[n:])
    gaps = []
    for heads in (1, 128):
        found = MixtureGP(network(heads), noise=NOISE, method=Importance(draws=1024)).fit(x, y)
        gaps.append(np.abs(found.predict(tests).mean - expected.mean).max())
    assert gaps[1] < 0.03
    assert gaps[0] > 3 * gaps[1]
    # Nothing random: exactly one Gaussian process.
    linear = wl.Serial(wl.Attention(scaling=wl.Scaling.LINEAR), wl.MeanPool())
    found = MixtureGP(linear, noise=NOISE).fit(x, y[:, 0]).predict(tests)
    exact = linear.kernel(joint, dtype=np.float64).nngp
    gp = GPPosterior.condition(exact[:n, :n], y[:, 0], noise=NOISE)
    expected = gp.predict(exact[n:, :n], np.diag(exact)[n:])
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-6)
    low, high = found.interval(0.9)
    want = stats.norm.interval(0.9, expected.mean, expected.std)
    np.testing.assert_allclose((low, high), want, rtol=1e-6)


def test_collapsed_weights_are_reported_with_their_number():
    x, y, _, _ = problem(train=8, outputs=12)
    model = MixtureGP(network(1), noise=1e-6, method=Importance(draws=256))
    with pytest.warns(CollapsedWeightsWarning, match=r"are worth \d+\.\d independent") as caught:
        effective = model.fit(x, y).effective_sample_size
    assert effective < 32
    assert f"{effective:.1f}" in str(caught[0].message)


def ranks(noise_assumed: float, replicates: int) -> np.ndarray:
    """Where the truth lies in its predictive distribution, for data drawn from the prior."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(6, 3, 2)) * 1.2
    found = []
    for _ in range(replicates):
        kernel = one_head_kernel(x, rng.normal(size=(2, 2)))
        values, vectors = np.linalg.eigh(kernel)
        f = vectors @ (np.sqrt(np.maximum(values, 0)) * rng.normal(size=6))
        y = f[:5] + math.sqrt(NOISE) * rng.normal(size=5)
        model = MixtureGP(network(1), noise=noise_assumed, method=Importance(draws=8192))
        found.append(model.fit(x[:5], y).predict(x[5:]).cdf(f[5:])[0])
    return np.array(found)


@pytest.mark.slow
def test_simulation_based_calibration():
    """Data from the prior: the truth's rank is uniform, and is not if the noise is denied."""
    honest = ranks(NOISE, 400)
    with warnings.catch_warnings():
        # A model that denies the noise also pins down the scores too firmly.
        warnings.simplefilter("ignore", CollapsedWeightsWarning)
        wrong = ranks(NOISE / 10, 150)
    histogram = np.histogram(honest, bins=10, range=(0, 1))[0]
    assert stats.chisquare(histogram).pvalue > 0.005
    assert stats.kstest(honest, "uniform").pvalue > 0.005
    inside = np.mean((honest > 0.1) & (honest < 0.9))
    assert abs(inside - 0.8) < 3 * math.sqrt(0.16 / 400)
    assert stats.chisquare(np.histogram(wrong, bins=10, range=(0, 1))[0]).pvalue < 1e-3


def test_sequences_of_different_lengths():
    rng = np.random.default_rng(1)
    train = [rng.normal(size=(s, 2)) for s in (2, 3, 4)]
    net = wl.Serial(wl.Attention(heads=2), wl.MeanPool(), wl.Dense(1))
    fitted = MixtureGP(net, noise=1.0, method=Importance(draws=256)).fit(train, np.ones(3))
    long = fitted.predict([rng.normal(size=(6, 2))])
    assert long.mean.shape == (1,)
    assert np.isfinite(long.std).all()


def test_mistakes_name_their_rule():
    x, y, tests, _ = problem()
    with pytest.raises(ShapeError, match="one set of outputs per example"):
        MixtureGP(wl.Attention(heads=1)).fit(x, y)
    with pytest.raises(ShapeError, match="targets must have shape"):
        MixtureGP(network(1)).fit(x, y[:-1])
    with pytest.raises(NetworkError, match="ends in fresh weights"):
        MixtureGP(wl.Serial(network(1), wl.Relu())).fit(x, y)
    with pytest.raises(NumericalError, match="positive definite"):
        MixtureGP(network(1), noise=0.0, method=Importance(draws=32)).fit(
            np.concatenate([x, x]), np.concatenate([y, y])
        ).predict(tests)
    fitted = MixtureGP(network(1), method=EllipticalSlice()).fit(x, y)
    with pytest.raises(WidelimitError, match="average over the prior"):
        _ = fitted.log_evidence
    model = MixtureGP(network(1), noise=1.0, method=Importance(draws=512), key=jax.random.key(1))
    prediction = model.fit(x, y).predict(tests)
    with pytest.raises(NumericalError, match="level of an interval"):
        prediction.interval(1.5)


def test_observations_with_noise_of_their_own():
    """As many examples as outputs: noise belongs to the examples."""
    means, noise = np.array([[[0.0, 1.0], [2.0, 3.0]]]), np.array([0.5, 2.0])
    prediction = MixturePrediction.of(means, np.array([[1.0, 0.25]]), np.ones(1), 1.0)
    spread = np.sqrt([1.5, 2.25])[:, None]
    want = stats.norm.interval(0.9, means[0], spread)
    np.testing.assert_allclose(prediction.interval(0.9, noise=noise), want, rtol=1e-9, atol=1e-9)
    want = stats.norm.cdf(0.7, means[0], spread)
    np.testing.assert_allclose(prediction.cdf(0.7, noise=noise), want, rtol=1e-12)
    with pytest.raises(NumericalError, match="The noise cannot be negative"):
        prediction.interval(0.9, noise=-1.0)
    # A value per example would be taken for one per output, of which there are as many.
    with pytest.raises(ShapeError, match="one for every prediction"):
        prediction.cdf([0.7, 0.8])


def test_variances_do_not_cancel_beside_large_means():
    means = np.array([[1e9], [1e9 + 1.0]])
    prediction = MixturePrediction.of(means, np.full((2, 1), 0.5), np.array([0.25, 0.75]), 2.0)
    assert prediction.variance[0] == pytest.approx(0.5 + 0.25 * 0.75)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: MixtureGP(network(1), method="slices"), "method= is Importance"),
        (lambda: MixtureGP(network(1), samples=0), "samples= is"),
        (lambda: EllipticalSlice(chains=1), "chains= is not an integer of at least 2"),
        (lambda: EllipticalSlice(thin=0), "thin= is not a positive"),
        (lambda: EllipticalSlice(burn=-1), "burn= is not a non-negative"),
        (lambda: EllipticalSlice(steps=3, thin=2), "steps= is not an integer of at least 4"),
    ],
)
def test_unusable_ways_of_averaging_are_named(make, rule):
    with pytest.raises(OptionError, match=rule):
        make()


def test_slice_sampling_names_the_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    x, y, _, _ = problem()
    fitted = MixtureGP(network(1), method=EllipticalSlice()).fit(x, y)
    with pytest.raises(MissingExtraError, match=r"widelimit\[bayes\]"):
        _ = fitted.effective_sample_size
