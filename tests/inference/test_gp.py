import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel

from widelimit.errors import NumericalError, ShapeError
from widelimit.inference import GPPosterior, JitterWarning, Relative

TRAIN, TEST = 25, 8


class Looked(Kernel):
    """A precomputed matrix behind scikit-learn's kernel interface: inputs are row numbers."""

    def __init__(self, table):
        self.table = table

    def __call__(self, x, y=None, eval_gradient=False):
        rows = x[:, 0].astype(int)
        return self.table[np.ix_(rows, rows if y is None else y[:, 0].astype(int))]

    def diag(self, x):
        return np.diag(self.table)[x[:, 0].astype(int)]

    def is_stationary(self):
        return False


def table(rows=TRAIN + TEST, seed=0):
    """A smooth kernel with an uneven diagonal."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    squared = ((x[:, None] - x[None]) ** 2).sum(-1)
    scale = rng.uniform(0.5, 1.5, size=rows)
    return scale[:, None] * np.exp(-squared / 6.0) * scale[None]


def targets(outputs, seed=1):
    shape = (TRAIN,) if outputs is None else (TRAIN, outputs)
    return np.random.default_rng(seed).normal(size=shape)


def blocks(k, train=TRAIN):
    return k[:train, :train], k[train:, :train], k[train:, train:]


@pytest.mark.parametrize("noise", [0.05, np.linspace(0.01, 0.5, TRAIN)])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_agrees_with_scikit_learn(outputs, noise):
    k, y = table(), targets(outputs)
    inner, cross, corner = blocks(k)
    rows = np.arange(len(k))[:, None]
    other = GaussianProcessRegressor(Looked(k), alpha=noise, optimizer=None).fit(rows[:TRAIN], y)
    mean, cov = other.predict(rows[TRAIN:], return_cov=True)
    _, std = other.predict(rows[TRAIN:], return_std=True)

    ours = GPPosterior.condition(inner, y, noise=noise)
    prediction = ours.predict(cross, np.diag(corner))
    assert prediction.mean.shape == (TEST,) if outputs is None else (TEST, outputs)
    # scikit-learn drops the axis of a single output and repeats the covariance per output.
    np.testing.assert_allclose(prediction.mean.reshape(mean.shape), mean, rtol=1e-8, atol=1e-9)
    per_output = std if std.ndim == 1 else std[:, 0]
    np.testing.assert_allclose(prediction.std, per_output, rtol=1e-8)
    per_output = cov if cov.ndim == 2 else cov[:, :, 0]
    np.testing.assert_allclose(ours.covariance(cross, corner), per_output, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.log_evidence, other.log_marginal_likelihood_value_, rtol=1e-8)


def test_float32_kernels_are_solved_in_float64():
    k, y = table().astype(np.float32), targets(2)
    inner, cross, _ = blocks(k)
    ours = GPPosterior.condition(inner, y, noise=1e-3)
    wide = GPPosterior.condition(inner.astype(np.float64), y, noise=1e-3)
    np.testing.assert_allclose(ours.mean(cross), wide.mean(cross), rtol=1e-12)
    assert ours.weights.dtype == np.float64


@pytest.mark.parametrize("outputs", [None, 2])
def test_leave_one_out_equals_brute_force(outputs):
    k, y = blocks(table())[0], targets(outputs)
    noise = np.linspace(0.02, 0.3, TRAIN)
    loo = GPPosterior.condition(k, y, noise=noise).leave_one_out
    for i in range(TRAIN):
        rest = np.delete(np.arange(TRAIN), i)
        left = GPPosterior.condition(k[np.ix_(rest, rest)], y[rest], noise=noise[rest])
        one = left.predict(k[i : i + 1, rest], k[i : i + 1, i])
        variance = one.variance[0] + noise[i]
        np.testing.assert_allclose(loo.mean[i], one.mean[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(loo.variance[i], variance, rtol=1e-10)
        density = -0.5 * ((y[i] - one.mean[0]) ** 2 / variance + np.log(2 * np.pi * variance))
        np.testing.assert_allclose(loo.log_density[i], density, rtol=1e-9)


def test_evidence_is_the_chain_of_one_step_predictions():
    """log p(y) = Σ log p(y_i | y_1..y_{i−1}), one example more at a time."""
    k, y = blocks(table())[0], targets(None)
    posterior = GPPosterior.condition(k[:1, :1], y[:1], noise=0.1)
    chain = posterior.log_evidence
    for i in range(1, TRAIN):
        one = posterior.predict(k[i : i + 1, :i], k[i : i + 1, i])
        variance = one.variance[0] + 0.1
        chain += -0.5 * ((y[i] - one.mean[0]) ** 2 / variance + np.log(2 * np.pi * variance))
        posterior = GPPosterior.condition(k[: i + 1, : i + 1], y[: i + 1], noise=0.1)
    whole = GPPosterior.condition(k, y, noise=0.1)
    np.testing.assert_allclose(chain, whole.log_evidence, rtol=1e-10)


def test_samples_have_the_posterior_moments():
    inner, cross, corner = blocks(table())
    posterior = GPPosterior.condition(inner, targets(2), noise=0.1)
    count = 40_000
    draws = posterior.sample(cross, corner, draws=count)
    assert draws.shape == (count, TEST, 2)
    mean, cov = posterior.mean(cross), posterior.covariance(cross, corner)
    errors = np.sqrt(np.diag(cov) / count)[:, None]
    assert np.abs((draws.mean(axis=0) - mean) / errors).max() < 4.5
    centred = draws - mean
    for output in range(2):
        found = centred[:, :, output].T @ centred[:, :, output] / count
        spread = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / count)
        assert np.abs((found - cov) / spread).max() < 4.5
    mixed = centred[:, :, 0].T @ centred[:, :, 1] / count  # the outputs are independent
    assert np.abs(mixed / np.sqrt(np.outer(np.diag(cov), np.diag(cov)) / count)).max() < 4.5


def test_samples_at_noise_free_training_points_are_the_targets():
    k, y = table(), targets(None)
    posterior = GPPosterior.condition(blocks(k)[0], y)
    some = slice(3, 9)
    draws = posterior.sample(k[some, :TRAIN], k[some, some], draws=5)
    np.testing.assert_allclose(draws, np.tile(y[some], (5, 1)), atol=1e-6)


def coverage_z(scale, level=0.9, repeats=2000):
    """z-score of the coverage of intervals whose standard deviation is multiplied by `scale`.

    The draws from the prior are the outputs of one posterior.
    """
    k = table()
    noisy = k + 0.1 * np.eye(len(k))
    draws = multivariate_normal(cov=noisy).rvs(size=repeats, random_state=5).T
    inner, cross, corner = blocks(k)
    posterior = GPPosterior.condition(inner, draws[:TRAIN], noise=0.1)
    low, high = posterior.predict(cross, np.diag(corner)).interval(level, noise=0.1)
    covered = np.abs(draws[TRAIN:] - (low + high) / 2) <= scale * (high - low) / 2
    rates = covered.mean(axis=0)
    error = rates.std(ddof=1) / np.sqrt(repeats)
    assert error < 0.004
    return (rates.mean() - level) / error


def test_ninety_per_cent_intervals_cover_ninety_per_cent():
    assert abs(coverage_z(1.0)) < 4.0


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_wrong_standard_deviations_would_be_noticed(wrong):
    assert abs(coverage_z(wrong)) > 4.0


def test_interval_levels_and_shapes():
    inner, cross, corner = blocks(table())
    prediction = GPPosterior.condition(inner, targets(3), noise=0.1).predict(cross, np.diag(corner))
    low, high = prediction.interval(0.6826894921370859)
    np.testing.assert_allclose((high - low) / 2, np.tile(prediction.std[:, None], 3), rtol=1e-12)
    with pytest.raises(NumericalError, match="between 0 and 1"):
        prediction.interval(90.0)
    noise = np.linspace(0.1, 0.5, len(prediction.std))
    low, high = prediction.interval(0.6826894921370859, noise=noise)
    wide = np.sqrt(prediction.variance + noise)
    np.testing.assert_allclose((high - low) / 2, np.tile(wide[:, None], 3), rtol=1e-12)
    for wrong in (-1.0, np.nan, Relative(0.1)):
        with pytest.raises(NumericalError, match="The noise"):
            prediction.interval(0.9, noise=wrong)


def test_one_example():
    posterior = GPPosterior.condition([[2.0]], [3.0], noise=1.0)
    prediction = posterior.predict([[2.0]], [2.0])
    np.testing.assert_allclose(prediction.mean, [2.0])
    np.testing.assert_allclose(prediction.variance, [2.0 - 4.0 / 3.0])
    np.testing.assert_allclose(posterior.leave_one_out.mean, [0.0], atol=1e-15)
    np.testing.assert_allclose(posterior.leave_one_out.variance, [3.0])


def test_constant_targets_shrink_towards_the_prior():
    inner, cross, _ = blocks(table())
    zero = GPPosterior.condition(inner, np.zeros(TRAIN), noise=0.1)
    np.testing.assert_array_equal(zero.mean(cross), 0.0)
    one = GPPosterior.condition(inner, np.ones(TRAIN), noise=1e-8)
    np.testing.assert_allclose(one.mean(inner), 1.0, atol=1e-4)


def test_repeated_examples_without_noise_predict_the_average_of_their_targets():
    k = table()[:6, :6]
    index = [*range(6), 2]
    inner = k[np.ix_(index, index)]
    y = np.arange(7.0)
    with pytest.warns(JitterWarning, match="rows 2 and 6"):
        posterior = GPPosterior.condition(inner, y)
    assert posterior.jitter > 0.0
    np.testing.assert_allclose(posterior.mean(inner)[[2, 6]], (y[2] + y[6]) / 2, atol=1e-3)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda y: np.where(np.arange(TRAIN) == 7, np.nan, y), NumericalError, "row 7"),
        (lambda y: y[:-1], ShapeError, "one row per example"),
        (lambda y: y[:, None, None], ShapeError, "one row per example"),
        (lambda y: y.astype(str), NumericalError, "real numbers"),
    ],
)
def test_unusable_targets_are_named(spoil, error, message):
    with pytest.raises(error, match=message):
        GPPosterior.condition(blocks(table())[0], spoil(targets(None)), noise=0.1)


def test_blocks_that_do_not_belong_together_are_noticed():
    inner, cross, corner = blocks(table())
    posterior = GPPosterior.condition(inner, targets(None), noise=1e-3)
    with pytest.raises(NumericalError, match="belong to one"):
        posterior.predict(3.0 * cross, np.diag(corner))
    with pytest.raises(NumericalError, match="belong to one"):
        posterior.covariance(3.0 * cross, corner)
    with pytest.raises(ShapeError, match="test against training"):
        posterior.mean(cross.T)
    with pytest.raises(ShapeError, match="prior variance"):
        posterior.predict(cross, corner)


@pytest.mark.parametrize("outputs", [None, 2])
def test_groups_left_out_equal_brute_force(outputs):
    k, y = blocks(table())[0], targets(outputs)
    posterior = GPPosterior.condition(k, y, noise=0.1)
    folds = np.arange(TRAIN) % 3
    found = posterior.with_groups(folds).leave_one_out.mean
    for fold in range(3):
        left = np.flatnonzero(folds == fold)
        rest = np.setdiff1d(np.arange(TRAIN), left)
        others = GPPosterior.condition(k[np.ix_(rest, rest)], y[rest], noise=0.1)
        np.testing.assert_allclose(
            found[left], others.mean(k[np.ix_(left, rest)]), rtol=1e-8, atol=1e-10
        )
