import numpy as np
import pytest

from widelimit.inference import GPPosterior, LeaveOneOutDensity, LeaveOneOutError, LogEvidence
from widelimit.inference.objectives import Objective

OBJECTIVES = [LogEvidence(), LeaveOneOutDensity(), LeaveOneOutError()]


def problem(outputs):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(9, 12))
    y = rng.normal(size=9 if outputs is None else (9, outputs))
    return features @ features.T / 12, y, rng.uniform(0.05, 0.3, size=9), rng


@pytest.mark.parametrize("outputs", [None, 3])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_gradients_agree_with_finite_differences(objective: Objective, outputs):
    k, y, noise, rng = problem(outputs)
    _, gradient = objective(GPPosterior.condition(k, y, noise=noise))
    np.testing.assert_allclose(gradient, gradient.T, atol=1e-12)
    for _ in range(4):
        direction = rng.normal(size=k.shape)
        direction = direction + direction.T
        step = 1e-5

        def value(size, direction=direction):
            moved = GPPosterior.condition(k + size * direction, y, noise=noise)
            return objective(moved)[0]

        slope = (value(step) - value(-step)) / (2 * step)
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_the_diagonal_is_the_gradient_in_the_noise(objective: Objective):
    k, y, noise, _ = problem(2)
    _, gradient = objective(GPPosterior.condition(k, y, noise=noise))
    for i in (0, 5):
        step = 1e-6 * np.eye(9)[i]
        up = objective(GPPosterior.condition(k, y, noise=noise + step))[0]
        down = objective(GPPosterior.condition(k, y, noise=noise - step))[0]
        np.testing.assert_allclose(gradient[i, i], (up - down) / 2e-6, rtol=1e-5)


def test_leave_one_out_error_is_that_of_the_predictions():
    k, y, noise, _ = problem(2)
    posterior = GPPosterior.condition(k, y, noise=noise)
    error = np.sum((posterior.leave_one_out.mean - y) ** 2)
    np.testing.assert_allclose(LeaveOneOutError()(posterior)[0], -0.5 * error)
