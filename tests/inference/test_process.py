import jax
import numpy as np
import pytest
from inference.problems import WIDE, Indefinite, dense, examples, sampled, sequences
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel

import widelimit as wl
from widelimit.errors import NetworkError, NumericalError, OptionError, ShapeError
from widelimit.inference import GP, Engine, JitterWarning, KernelKind, LeaveOneOutNoise
from widelimit.inference.mixture import FittedMixture


class OfNetwork(Kernel):
    """A network's kernel behind scikit-learn's interface, from the public `kernel` alone."""

    def __init__(self, net, kind):
        self.net, self.kind = net, kind

    def __call__(self, x, y=None, eval_gradient=False):
        return getattr(self.net.kernel(x, y), self.kind.value)

    def diag(self, x):
        return np.diag(self(x))

    def is_stationary(self):
        return False


def target(x):
    return np.sin(2 * x[:, 0]) + 0.3 * x[:, 1]


X, TEST = examples(), examples(9, seed=1)
Y = target(X)


@pytest.mark.parametrize("kind", KernelKind)
def test_agrees_with_scikit_learn(kind):
    net = dense(wl.Relu)
    other = GaussianProcessRegressor(OfNetwork(net, kind), alpha=0.05, optimizer=None).fit(X, Y)
    mean, cov = other.predict(TEST, return_cov=True)
    fitted = GP(net, kind=kind, noise=0.05, engine=WIDE).fit(X, Y)
    ours, std = fitted.predict(TEST)
    np.testing.assert_allclose(ours, mean, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(cov)), rtol=1e-8)
    np.testing.assert_allclose(fitted.covariance(TEST), cov, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(fitted.log_evidence, other.log_marginal_likelihood_value_, rtol=1e-8)


@pytest.mark.parametrize("kind", KernelKind)
def test_float32_kernels_come_close(kind):
    net = dense(wl.Relu)
    narrow = GP(net, kind=kind, noise=0.05).fit(X, Y).predict(TEST)
    wide = GP(net, kind=kind, noise=0.05, engine=WIDE).fit(X, Y).predict(TEST)
    np.testing.assert_allclose(narrow.mean, wide.mean, atol=2e-4)
    np.testing.assert_allclose(narrow.variance, wide.variance, atol=2e-5)
    # On the training points Θ sits on its square-root singularity.
    np.testing.assert_allclose(
        GP(net, kind=kind, noise=0.05).fit(X, Y).predict(X).variance,
        GP(net, kind=kind, noise=0.05, engine=WIDE).fit(X, Y).predict(X).variance,
        atol=2e-5,
    )


def test_blocks_change_nothing():
    whole = GP(dense(), noise=0.1, engine=WIDE).fit(X, Y)
    # Memory for one row of the cross block at a time.
    rows = GP(dense(), noise=0.1, engine=Engine(dtype=np.float64, memory=4 * 8 * 24)).fit(X, Y)
    assert len(list(rows.data.blocks(rows.data.read(TEST)))) == len(TEST)
    np.testing.assert_allclose(rows.predict(TEST).mean, whole.predict(TEST).mean, rtol=1e-12)
    np.testing.assert_allclose(rows.predict(TEST).std, whole.predict(TEST).std, rtol=1e-10)
    np.testing.assert_allclose(rows.mean(TEST), whole.mean(TEST), rtol=1e-12)


def test_leave_one_out_and_noise_per_example():
    noise = np.linspace(0.02, 0.5, len(X))
    fitted = GP(dense(), noise=noise, engine=WIDE).fit(X, Y)
    rest = np.delete(np.arange(len(X)), 5)
    without = GP(dense(), noise=noise[rest], engine=WIDE).fit(X[rest], Y[rest])
    one = without.predict(X[5:6])
    np.testing.assert_allclose(fitted.leave_one_out.mean[5], one.mean[0], rtol=1e-8)
    np.testing.assert_allclose(fitted.leave_one_out.variance[5], one.variance[0] + noise[5])


def test_extension_equals_refit():
    y = np.stack([Y, np.cos(Y)], axis=1)
    grown = GP(dense(), noise=0.1, engine=WIDE).fit(X[:15], y[:15]).extend(X[15:], y[15:])
    whole = GP(dense(), noise=0.1, engine=WIDE).fit(X, y)
    np.testing.assert_allclose(grown.predict(TEST).mean, whole.predict(TEST).mean, rtol=1e-9)
    np.testing.assert_allclose(grown.log_evidence, whole.log_evidence, rtol=1e-10)
    assert len(grown) == len(X)
    each = GP(dense(), noise=np.full(15, 0.1), engine=WIDE).fit(X[:15], y[:15])
    with pytest.raises(NumericalError, match="noise variance of their own"):
        each.extend(X[15:], y[15:])
    again = each.extend(X[15:], y[15:], noise=0.1)
    assert list(each.extend(X[15:], y[15:], noise=0.2).gp.noise[14:16]) == [0.1, 0.2]
    assert grown.gp.noise == 0.1
    chosen = GP(dense(), noise=LeaveOneOutNoise(), engine=WIDE).fit(X[:15], y[:15])
    assert chosen.extend(X[15:], y[15:]).trials == chosen.trials != ()
    np.testing.assert_allclose(again.log_evidence, whole.log_evidence, rtol=1e-10)


def test_samples_follow_the_covariance():
    fitted = GP(dense(), noise=0.1, engine=WIDE).fit(X, Y)
    draws = fitted.sample(TEST[:3], draws=20_000, key=3)
    cov = fitted.covariance(TEST[:3])
    found = np.cov(draws.T)
    spread = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(draws))
    assert np.abs((found - cov) / spread).max() < 4.5
    np.testing.assert_array_equal(draws, fitted.sample(TEST[:3], draws=20_000, key=3))


def test_sampled_attention_shares_its_heads():
    """Sequences of many lengths, in one piece or extended: all blocks belong to one matrix."""
    net, x = sampled(), sequences([3, 5, 4, 6, 2, 5])
    y = np.arange(6.0)
    gp = GP(net, noise=1e-3, engine=Engine(samples=8, replicates=2))
    fitted = gp.fit(x, y)
    assert fitted.data.sampler is not None
    # The training points again: the kernel blocks must be the same numbers as in the fit.
    again = fitted.predict(x)
    expected = y - 1e-3 * fitted.posterior.weights[:, 0]
    np.testing.assert_allclose(again.mean, expected, atol=1e-3)
    joint = fitted.covariance(x)
    np.testing.assert_allclose(np.diag(joint), again.variance, atol=1e-5)
    test = sequences([6, 3, 1, 2, 5, 4], seed=5)
    padded, mask = np.full((6, 6, 2), np.nan), np.zeros((6, 6), bool)
    for row, sequence in enumerate(test):
        padded[row, : len(sequence)], mask[row, : len(sequence)] = sequence, True
    np.testing.assert_allclose(
        fitted.predict(padded, mask).mean, fitted.predict(test).mean, atol=1e-5
    )
    seeded = GP(net, noise=1e-3, engine=Engine(samples=8, replicates=2, key=1)).fit(x, y)
    assert np.abs(seeded.mean(test) - fitted.mean(test)).max() > 1e-4


def test_growing_keeps_heads_and_masks():
    """Sequences of other lengths join the training set: padded, masked, under the same heads."""
    x, y = sequences([3, 5, 4]), np.arange(3.0)
    data = GP(sampled(), engine=Engine(samples=2, replicates=1)).fit(x[:2], y[:2]).data
    grown = data.extended(data.read(x[2:]))
    assert grown.sampler is data.sampler
    assert grown.inputs.x.shape == (3, 5, 2)
    np.testing.assert_array_equal(grown.inputs.mask.sum(axis=1), [3, 5, 4])
    np.testing.assert_array_equal(grown.inputs.x[2, :4], x[2])


def test_tokens():
    net = wl.Serial(wl.Embedding(16, vocabulary=9), wl.MeanPool(), wl.Dense(1))
    x = [[1, 2, 3], [4, 4], [8, 1, 0, 3]]
    fitted = GP(net, noise=0.1).fit(x, [1.0, 2.0, 3.0])
    mean, std = fitted.predict([[1, 2, 3], [5, 5]])
    assert std[1] > std[0]
    assert mean[1] == 0.0  # no token in common: the prior


def finite():
    return wl.Serial(wl.Attention(8, heads=4), wl.MeanPool(), wl.Dense(1))


def test_a_read_out_token_with_few_heads_is_no_gaussian_process():
    net = wl.Serial(wl.AttentionPool(8, heads=2), wl.Dense(1))
    fitted = GP(net, noise=0.3).fit(sequences([3, 3]), [0.0, 1.0])
    assert isinstance(fitted, FittedMixture)
    np.testing.assert_allclose(
        fitted.mean(sequences([3])), fitted.predict(sequences([3])).mean, rtol=1e-12
    )
    with pytest.raises(NetworkError, match="with 2 heads"):
        GP(net, kind=KernelKind.NTK).fit(sequences([3, 3]), [0.0, 1.0])


@pytest.mark.parametrize(
    "options",
    [
        {"solver": wl.inference.Nystrom(landmarks=2)},
        {"jitter": wl.inference.Jitter(limit=0.0)},
        {"engine": Engine(tolerance=0.1)},
        {"engine": Engine(store="kernels")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_mixture_refuses_options_of_one_process(options):
    with pytest.raises(NetworkError, match="a mixture of processes"):
        GP(finite(), **options).fit(sequences([3] * 4), [1.0, 0.5, 0.0, -1.0])


def test_finitely_many_heads_are_a_mixture():
    x = np.stack(sequences([3] * 4))
    fitted = GP(finite(), noise=0.3, engine=Engine(key=7)).fit(x, [1.0, 0.5, 0.0, -1.0])
    assert isinstance(fitted, FittedMixture)
    assert fitted.model.net.layers[0].heads == 4
    assert fitted.model.noise == 0.3
    mean, std = fitted.predict(x)
    assert mean.shape == std.shape == (4,)


def coverage_z(scale, repeats=400):
    """z-score of the coverage of 90 % intervals for data drawn from the network's prior."""
    net, both = dense(), np.concatenate([X, TEST])
    cov = net.kernel(both, ntk=False).nngp + 0.1 * np.eye(len(both))
    draws = np.linalg.cholesky(cov) @ np.random.default_rng(0).normal(size=(len(both), repeats))
    fitted = GP(net, noise=0.1, engine=WIDE).fit(X, draws[: len(X)])
    low, high = fitted.predict(TEST).interval(0.9, noise=0.1)
    covered = np.abs(draws[len(X) :] - (low + high) / 2) <= scale * (high - low) / 2
    rates = covered.mean(axis=0)
    error = rates.std(ddof=1) / np.sqrt(repeats)
    assert error < 0.009
    return (rates.mean() - 0.9) / error


def test_ninety_per_cent_intervals_cover_ninety_per_cent():
    assert abs(coverage_z(1.0)) < 4.0
    assert abs(coverage_z(0.8)) > 4.0
    assert abs(coverage_z(1.25)) > 4.0


def test_one_example_and_constant_targets():
    fitted = GP(dense(), noise=0.0, engine=WIDE).fit(X[:1], [2.0])
    mean, std = fitted.predict(X[:1])
    np.testing.assert_allclose(mean, [2.0], rtol=1e-10)
    np.testing.assert_allclose(std, [0.0], atol=1e-6)
    np.testing.assert_allclose(fitted.leave_one_out.mean, [0.0], atol=1e-12)
    zero = GP(dense(), engine=WIDE).fit(X, np.zeros(len(X)))
    np.testing.assert_array_equal(zero.mean(TEST), 0.0)


def test_near_duplicates_without_noise_are_reported():
    x = np.concatenate([X[:6], X[2:3] + 1e-9])
    with pytest.warns(JitterWarning, match="rows 2 and 6"):
        fitted = GP(dense(), noise=0.0).fit(x, Y[:7])
    assert fitted.jitter > 0.0
    assert np.isfinite(fitted.predict(TEST).mean).all()


def test_unusable_data_is_named():
    gp = GP(dense(), noise=0.1)
    with pytest.raises(NumericalError, match="first in row 3"):
        gp.fit(X, np.where(np.arange(len(X)) == 3, np.nan, Y))
    with pytest.raises(NumericalError, match="not finite numbers"):
        gp.fit(np.where(X > 1, np.nan, X), Y)
    with pytest.raises(ShapeError, match="one row per example"):
        gp.fit(X, Y[:-1])
    fitted = gp.fit(X, Y)
    with pytest.raises(ShapeError, match="channels and position axes of the training"):
        fitted.predict(TEST[:, :2])
    with pytest.raises(ShapeError, match="one set of outputs per example"):
        gp.fit(X[:, None, :], Y)


def test_unusable_networks_are_named():
    with pytest.raises(NumericalError, match="not a kernel"):
        GP(wl.Serial(wl.Dense(8, b_std=0.5), Indefinite()), noise=1e-6).fit(X, Y)
    with pytest.raises(NetworkError, match="with 4 heads"):
        GP(finite(), kind=KernelKind.NTK).fit(sequences([3, 3]), [0.0, 1.0])
    with pytest.raises(NetworkError, match="A function is no network"):
        GP(lambda x: x)
    with pytest.raises(OptionError, match="kind= is none of 'nngp', 'ntk'"):
        GP(dense(), kind="kernel")
    assert GP(dense(), kind="ntk").kind is KernelKind.NTK


@pytest.mark.parametrize("transform", [jax.grad, jax.jit])
@pytest.mark.parametrize("part", ["noise", "x", "y", "test"])
def test_a_process_inside_a_transformation_is_refused(transform, part):
    def mean(value):
        given = {"noise": 0.1, "x": X, "y": Y, "test": TEST} | {part: value}
        fitted = GP(dense(wl.Relu), noise=given["noise"]).fit(given["x"], given["y"])
        return fitted.predict(given["test"]).mean.sum()

    with pytest.raises(OptionError, match="cannot be traced"):
        transform(mean)({"noise": 0.1, "x": X, "y": Y, "test": TEST}[part])
