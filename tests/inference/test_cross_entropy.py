import numpy as np
import pytest
from inference.linear_problem import linear_problem
from scipy.integrate import solve_ivp
from scipy.special import log_softmax, softmax

from widelimit.errors import NumericalError, ShapeError
from widelimit.inference import Optimizer, Reduction, cross_entropy_path, sample_initial_functions

TIMES = [0.0, 0.5, 4.0, 30.0]


def problem(classes=3):
    p = linear_problem(outputs=classes)
    p.labels = np.eye(classes)[p.rng.integers(classes, size=12)]
    p.start = p.rng.normal(size=(12, classes))
    p.start_test = p.rng.normal(size=(5, classes))
    return p


@pytest.mark.parametrize(
    ("reduction", "factor"),
    [
        (Reduction.SUM, 1.0),
        (Reduction.MEAN_OVER_EXAMPLES, 1 / 12),
        (Reduction.MEAN_OVER_ENTRIES, 1 / 36),
    ],
)
def test_gradient_flow_equals_integrating_the_logits(reduction, factor):
    p = problem()
    both = np.vstack([p.ntk, p.ntk_cross])

    def pull(_, flat):
        logits = flat.reshape(17, 3)
        return -(0.7 * factor * both @ (softmax(logits[:12], axis=1) - p.labels)).reshape(-1)

    start = np.vstack([p.start, p.start_test]).reshape(-1)
    path = solve_ivp(pull, (0, 30), start, t_eval=TIMES, rtol=1e-10, atol=1e-12)
    exact = path.y.T.reshape(4, 17, 3)
    found = cross_entropy_path(
        p.ntk, p.labels, TIMES, start=p.start, learning_rate=0.7, reduction=reduction
    )
    np.testing.assert_allclose(found.train, exact[:, :12], atol=2e-5)
    np.testing.assert_allclose(
        found.logits(p.ntk_cross, start=p.start_test), exact[:, 12:], atol=2e-5
    )
    loss = -factor * np.sum(p.labels * log_softmax(exact[:, :12], axis=-1), axis=(1, 2))
    np.testing.assert_allclose(found.loss, loss, rtol=1e-5)


def test_gradient_descent_equals_training_the_weights():
    p = problem()
    weights = np.zeros((20, 3))
    found = cross_entropy_path(
        p.ntk, p.labels, [7, 0, 50], learning_rate=0.3, optimizer=Optimizer.GRADIENT_DESCENT
    )
    np.testing.assert_array_equal(found.times, [7, 0, 50])
    np.testing.assert_array_equal(found.train[1], 0.0)
    for step in range(1, 51):
        error = softmax(p.phi @ weights, axis=1) - p.labels
        weights = weights - 0.3 * p.phi.T @ error
        if step in (7, 50):
            index = [7, 0, 50].index(step)
            np.testing.assert_allclose(found.train[index], p.phi @ weights, atol=1e-12)
            np.testing.assert_allclose(
                found.logits(p.ntk_cross)[index], p.phi_test @ weights, atol=1e-12
            )


def test_ensembles_train_each_member():
    p = problem()
    joint = np.block([[p.nngp, p.nngp_cross.T], [p.nngp_cross, p.nngp_test]])
    starts = sample_initial_functions(joint, outputs=3, draws=2)
    options = {"learning_rate": 0.3, "optimizer": Optimizer.GRADIENT_DESCENT}
    together = cross_entropy_path(p.ntk, p.labels, [0, 3, 40, 200], start=starts[:, :12], **options)
    logits = together.logits(p.ntk_cross, start=starts[:, 12:])
    assert logits.shape == (2, 4, 5, 3)
    assert together.loss.shape == (2, 4)
    for member in range(2):
        alone = cross_entropy_path(
            p.ntk, p.labels, [0, 3, 40, 200], start=starts[member, :12], **options
        )
        np.testing.assert_allclose(together.train[member], alone.train, atol=1e-10)
        np.testing.assert_allclose(
            logits[member], alone.logits(p.ntk_cross, start=starts[member, 12:]), atol=1e-10
        )


def test_initial_functions_have_the_prior_covariance():
    k = linear_problem(features=6).nngp  # singular: 12 examples, 6 features
    count = 40_000
    draws = sample_initial_functions(k, outputs=2, draws=count)
    assert draws.shape == (count, 12, 2)
    for output in range(2):
        found = draws[:, :, output].T @ draws[:, :, output] / count
        error = np.sqrt((k**2 + np.outer(np.diag(k), np.diag(k))) / count)
        assert np.abs((found - k) / error).max() < 4.5


def test_time_zero_alone():
    p = problem()
    found = cross_entropy_path(p.ntk, p.labels, 0.0, start=p.start)
    np.testing.assert_array_equal(found.train, p.start[None])


def test_unusable_inputs_are_named():
    p = problem()
    with pytest.raises(NumericalError, match="probability distribution"):
        cross_entropy_path(p.ntk, p.labels - 1 / 3, 1.0)
    for optimizer in Optimizer:
        with pytest.raises(NumericalError, match="one time at least"):
            cross_entropy_path(p.ntk, p.labels, [], optimizer=optimizer)
    with pytest.raises(NumericalError, match="has no end"):
        cross_entropy_path(p.ntk, p.labels, np.inf)
    with pytest.raises(NumericalError, match="more than 3 steps"):
        cross_entropy_path(p.ntk, p.labels, [100.0] * 4, max_steps=3)
    with pytest.raises(ShapeError, match="initial logits"):
        cross_entropy_path(p.ntk, p.labels, 1.0, start=p.start_test)
    path = cross_entropy_path(p.ntk, p.labels, 1, optimizer=Optimizer.GRADIENT_DESCENT)
    with pytest.raises(ShapeError, match="initial logits of the test"):
        path.logits(p.ntk_cross, start=p.start)
