import numpy as np
import pytest
from scipy.stats import binomtest
from tensor_programs import mlp

import widelimit as wl
from widelimit import Estimate, inference
from widelimit.statistics import wilson_interval


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.5321, 0.0041, "0.532 ± 0.004"),
        (0.5321, 0.0014, "0.5321 ± 0.0014"),
        (123.456, 20.0, "123 ± 20"),
        (2.0, 0.0, "2 ± 0"),
        (-1.23456e-7, 3e-9, "-1.23e-07 ± 3e-09"),
        (np.array([1.0, 2.0]), np.array([0.1, 0.5]), "[1.00 ± 0.10, 2.0 ± 0.5]"),
        (np.eye(3), np.full((3, 3), 0.02), "Estimate of shape (3, 3), errors up to 0.02"),
    ],
)
def test_estimates_print_the_digits_that_are_known(value, error, shown):
    assert repr(Estimate(value, error)) == shown
    assert f"{Estimate(value, error)}" == shown


def test_estimates_stand_for_their_value():
    found = Estimate(np.array([1.0, 3.0]), np.zeros(2))
    np.testing.assert_array_equal(found, [1.0, 3.0])
    assert float(Estimate(0.25, 0.1)) == 0.25
    assert f"{Estimate(0.256, 0.1):.2f}" == "0.26"


@pytest.mark.parametrize(("correct", "total"), [(0, 5), (5, 5), (3, 7), (120, 200)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilsons_interval_is_that_of_scipy(correct, total, level):
    theirs = binomtest(correct, total).proportion_ci(level, method="wilson")
    ours = wilson_interval(correct, total, level=level)
    np.testing.assert_allclose(ours, (theirs.low, theirs.high), atol=1e-12)


def test_results_print_what_they_hold():
    x = np.random.default_rng(0).normal(size=(3, 4, 2))
    y = np.arange(3.0)
    attention = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    dense = wl.Serial(wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    assert repr(dense.kernel(x)) == "Kernels(nngp (3, 3) float64, ntk (3, 3) float64)"
    sampled = wl.with_heads(attention, wl.INFINITE).kernel(x, samples=4, ntk=False)
    assert "nngp (3, 3) float64, nngp errors up to" in repr(sampled)
    law = attention.law(x, draws=64)
    assert repr(law) == "NetworkLaw(outputs of shape (3,), 64 draws of the scores of 2 heads)"
    assert repr(dense.law(x)) == "NetworkLaw(outputs of shape (3,), Gaussian)"
    assert repr(law.at(0)).startswith("Marginal(variance ")
    fitted = wl.GP(dense, noise=0.05).fit(x, y)
    assert repr(fitted.posterior) == "GPPosterior(3 examples, outputs=1, noise=0.05, jitter=0)"
    assert repr(fitted).startswith("FittedGP(3 examples, nngp, noise 0.05, ")
    assert repr(fitted.predict(x)).startswith("Prediction(mean of shape (3,), std 0.")
    shown = repr(wl.Classifier(wl.GP(dense, noise=0.05)))
    assert shown == f"Classifier(GP({dense!r}, noise=0.05))"
    assert repr(wl.Engine(samples=3)) == "Engine(samples=3)"
    assert repr(inference.Nystrom(landmarks=9)) == "Nystrom(landmarks=9)"
    trained = wl.Training(dense).fit(x, y)
    assert repr(trained) == f"FittedTraining(3 examples, Training({dense!r}))"
    assert repr(trained.dynamics.curve([0.0, 1.0])).startswith("TrainingCurve(2 times, loss ")
    assert repr(fitted.leave_one_out).startswith("LeaveOneOut(3 examples, mean log density ")
    sampler = attention.sampler(x, samples=4, replicates=2)
    assert repr(sampler) == "Sampler(4 heads in each of 2 copies, exact features)"
    program = mlp(np.eye(2), depth=1)
    assert repr(program.limit()).startswith("LimitLaw('")
    assert "at width 4, 3 draws of" in repr(program.simulate(4, 3, 0))
