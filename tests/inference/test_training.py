import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inference.problems import WIDE, dense, examples, sampled, sequences

import widelimit as wl
from widelimit.errors import NetworkError, NumericalError, ShapeError
from widelimit.inference import (
    GP,
    Dynamics,
    Engine,
    KernelKind,
    Optimizer,
    Reduction,
    Training,
)

X, TEST = examples(6), examples(3, seed=1)
Y = np.sin(2 * X[:, 0])


def test_is_the_dynamics_of_the_two_kernels():
    net, times = dense(), np.array([0.0, 1.0, 30.0, np.inf])
    fitted = Training(net, learning_rate=0.3, engine=WIDE).fit(X, Y)
    train, cross, test = net.kernel(X), net.kernel(TEST, X), net.kernel(TEST)
    by_hand = Dynamics.decompose(train.ntk, Y, nngp=train.nngp, learning_rate=0.3)
    there = by_hand.on(cross.ntk, cross.nngp, test.nngp)
    mean, std = fitted.predict(TEST, t=times)
    np.testing.assert_allclose(mean, there.mean(times), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(std, there.predict(times).std, rtol=1e-8)
    np.testing.assert_allclose(
        fitted.on(TEST, covariance=True).covariance(times),
        there.covariance(times),
        rtol=1e-8,
        atol=1e-10,
    )
    np.testing.assert_allclose(
        fitted.dynamics.curve(times).loss, by_hand.curve(times).loss, rtol=1e-10
    )
    goal = np.ones(3)
    np.testing.assert_allclose(
        fitted.on(TEST).curve(times, goal).loss, there.curve(times, goal).loss, rtol=1e-8
    )
    top = np.linalg.eigvalsh(train.ntk)[-1]
    np.testing.assert_allclose(fitted.dynamics.largest_stable_learning_rate, 2 / top, rtol=1e-10)


def test_the_end_of_training_is_kernel_regression():
    trained = Training(dense(), ridge=0.1, engine=WIDE).fit(X, Y).predict(TEST)
    regression = GP(dense(), kind=KernelKind.NTK, noise=0.1, engine=WIDE).fit(X, Y)
    np.testing.assert_allclose(trained.mean, regression.mean(TEST), rtol=1e-8)


def test_blocks_change_nothing():
    few = Engine(dtype=np.float64, memory=1_000)  # a block for each test example
    times = np.array([[0.0, 1.0]])
    small = Training(dense(), engine=few).fit(X, Y).predict(TEST, t=times)
    whole = Training(dense(), engine=WIDE).fit(X, Y).predict(TEST, t=times)
    assert small.mean.shape == (1, 2, 3)
    np.testing.assert_allclose(small.mean, whole.mean, rtol=1e-10)
    np.testing.assert_allclose(small.variance, whole.variance, rtol=1e-8)


# --- ensembles of wide finite networks, trained ---------------------------------------------------


def trained_pairs(width, count, rate, steps, seed=0):
    """Outputs (pair, sign, step, example) of networks trained by full-batch gradient descent.

    The two members of a pair start with opposite readouts, hence with opposite functions: half
    their sum has only the fluctuations of the NTK, half their difference has the whole spread.
    """
    net = wl.Serial(wl.Dense(width, w_std=1.5, b_std=0.3), wl.Erf(), wl.Dense(1, w_std=1.2))
    x, both = jnp.asarray(X, jnp.float32), jnp.asarray(np.concatenate([X, TEST]), jnp.float32)
    y = jnp.asarray(Y, jnp.float32)

    def train(key, sign):
        params = net.init(key, x.shape[1:])
        params = (*params[:2], (params[2][0] * sign, params[2][1]))
        slope = jax.grad(lambda p: 0.5 * jnp.sum((net.apply(p, x)[:, 0] - y) ** 2))

        def step(params, _):
            moved = jax.tree.map(lambda p, g: p - rate * g, params, slope(params))
            return moved, net.apply(params, both)[:, 0]

        _, path = jax.lax.scan(step, params, None, length=steps[-1] + 1)
        return path[jnp.asarray(steps)]

    def pair(key):
        return jax.vmap(lambda sign: train(key, sign))(jnp.asarray([1.0, -1.0]))

    keys = jax.random.split(jax.random.key(seed), count)
    run = jax.jit(lambda keys: jax.lax.map(pair, keys, batch_size=100))
    return np.asarray(run(keys), np.float64)


def mean_and_variance(paths):
    """Estimates (quantity, step, example) over an ensemble, and their standard errors."""
    centre, half = paths.mean(axis=1), (paths[:, 0] - paths[:, 1]) / 2
    square = half**2 + (centre - centre.mean(axis=0)) ** 2
    draws = np.stack([centre, square])
    return draws.mean(axis=1), draws.std(axis=1, ddof=1) / np.sqrt(len(paths))


def at_infinite_width(rate, steps, counts, widths=(128, 512)):
    """Errors fall as 1/width: two widths, extrapolated. Estimates and standard errors."""
    (narrow, narrow_error), (wide, wide_error) = (
        mean_and_variance(trained_pairs(width, count, rate, steps))
        for width, count in zip(widths, counts, strict=True)
    )
    weight = widths[1] / (widths[1] - widths[0])
    value = weight * wide + (1 - weight) * narrow
    return value, np.hypot(weight * wide_error, (1 - weight) * narrow_error)


def predicted(rate, steps, *, scale=1.0):
    """The same quantities in closed form; `scale` puts a wrong factor into the readout."""
    net = wl.Serial(wl.Dense(64, w_std=1.5, b_std=0.3), wl.Erf(), wl.Dense(1, w_std=1.2 * scale))
    descent = Optimizer.GRADIENT_DESCENT
    fitted = Training(net, learning_rate=rate, optimizer=descent, engine=WIDE).fit(X, Y)
    here, there = fitted.dynamics.predict(np.array(steps)), fitted.predict(TEST, t=np.array(steps))
    return np.stack(
        [
            np.concatenate([here.mean, there.mean], axis=1),
            np.concatenate([here.variance, there.variance], axis=1),
        ]
    )


def scores(found, error, expected):
    """The largest z-scores of the mean and of the variance curves."""
    floor = 1e-4  # the mean of a pair is exactly zero at the start
    return (np.abs(found - expected) / np.maximum(error, floor)).max(axis=(1, 2))


def test_wide_trained_networks_follow_the_curves():
    """Mean and variance of the outputs over an ensemble, during training, on and off the data."""
    steps = (0, 5, 40)
    found, error = at_infinite_width(0.1, steps, counts=(400, 300), widths=(64, 256))
    assert error[0].max() < 0.01
    mean, variance = scores(found, error, predicted(0.1, steps))
    assert mean < 4.5
    assert variance < 4.5
    assert scores(found, error, predicted(0.12, steps))[0] > 10  # another learning rate
    assert scores(found, error, predicted(0.1, steps, scale=2**0.5))[1] > 5  # twice the variance


@pytest.mark.slow
def test_wide_trained_networks_follow_the_curves_closely():
    """The same with standard errors of about one per cent also in the variance."""
    steps = (0, 5, 20)
    found, error = at_infinite_width(0.1, steps, counts=(12_000, 24_000))
    expected = predicted(0.1, steps)
    assert (error.max(axis=(1, 2)) < 0.014 * np.abs(expected).max(axis=(1, 2))).all()
    # The mean is known so well that terms of order 1/width² show: they are below 0.3 %.
    assert np.abs(found[0] - expected[0]).max() < 0.003
    assert scores(found, error, expected)[1] < 4.5
    assert scores(found, error, predicted(0.1, steps, scale=1.05))[1] > 5


# --- classes, and what is refused ----------------------------------------------------------------


def test_cross_entropy_from_labels():
    labels = np.array(["b", "a", "b", "c", "a", "c"])
    # Far below the stability limit steps of descent and flow agree.
    flow = Training(dense(), engine=WIDE).cross_entropy(X, labels, [0.0, 4.0], TEST)
    slow = Training(
        dense(), learning_rate=0.02, optimizer=Optimizer.GRADIENT_DESCENT, engine=WIDE
    ).cross_entropy(X, labels, [0, 200], TEST)
    assert list(flow.classes) == ["a", "b", "c"]
    assert flow.test is not None
    assert flow.test.shape == (2, 3, 3)
    np.testing.assert_allclose(flow.train, slow.train, atol=0.02)
    np.testing.assert_allclose(flow.test, slow.test, atol=0.02)
    np.testing.assert_allclose(flow.loss[0], 6 * np.log(3), rtol=1e-10)
    assert (flow.classes[flow.train[1].argmax(-1)] == labels).all()
    members = Training(dense(), engine=WIDE).cross_entropy(X, labels, [0.0], TEST, members=4000)
    start = np.concatenate([members.train, members.test], axis=2)[:, 0, :, 1]
    prior = dense().kernel(np.concatenate([X, TEST]), ntk=False).nngp
    spread = np.sqrt((prior**2 + np.outer(np.diag(prior), np.diag(prior))) / len(start))
    assert np.abs((start.T @ start / len(start) - prior) / spread).max() < 4.5


def test_what_has_no_closed_form_is_refused():
    finite = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(NetworkError, match="moves during training"):
        Training(finite).fit(sequences([3, 3]), [0.0, 1.0])
    with pytest.raises(NumericalError, match="no ridge"):
        Training(dense(), ridge=0.1).cross_entropy(X, Y > 0, [1.0])
    with pytest.raises(NumericalError, match="first in row 0"):
        Training(dense()).fit(X, np.full(6, np.nan))
    with pytest.raises(ShapeError, match="mask_test= without x_test="):
        Training(dense()).cross_entropy(X, Y > 0, [1.0], mask_test=np.ones((6, 1), bool))


@pytest.mark.slow
def test_sampled_heads_are_shared_by_all_blocks():
    x = sequences([3, 5, 4, 6])
    engine = Engine(samples=8, replicates=2)
    fitted = Training(sampled(), reduction=Reduction.MEAN_OVER_EXAMPLES, engine=engine).fit(
        x, np.arange(4.0)
    )
    there, here = fitted.predict(x, t=3.0), fitted.dynamics.predict(3.0)
    np.testing.assert_allclose(there.mean, here.mean, atol=1e-4)
    np.testing.assert_allclose(there.variance, here.variance, atol=1e-4)
