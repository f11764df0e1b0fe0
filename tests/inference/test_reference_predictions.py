"""Predictions beside neural-tangents' predictors, on the kernels those were given."""

import numpy as np
import pytest
from reference.load import load

from widelimit.inference import (
    Dynamics,
    GPPosterior,
    Reduction,
    cross_entropy_path,
    largest_stable_learning_rate,
)

TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def regulariser(fixture, kernel, absolute=False):
    """Their `diag_reg` as a variance: a fraction of the mean diagonal unless absolute."""
    return float(fixture.diag_reg) * (1.0 if absolute else np.trace(kernel) / len(kernel))


def dynamics(fixture, ntk="ntk", **options):
    theta = getattr(fixture, f"{ntk}_train_train")
    return Dynamics.decompose(
        theta,
        fixture.y_train,
        nngp=fixture.nngp_train_train,
        learning_rate=float(fixture.learning_rate),
        reduction=Reduction.MEAN_OVER_ENTRIES,
        **options,
    )


def blocks(fixture, ntk="ntk"):
    return {
        "ntk_cross": getattr(fixture, f"{ntk}_test_train"),
        "nngp_cross": fixture.nngp_test_train,
        "nngp": fixture.nngp_test_test,
    }


@pytest.mark.parametrize("name", ["gp", "gp_relative_noise", "gp_absolute_noise"])
@pytest.mark.parametrize(("kind", "theirs"), [("nngp", "nngp"), ("ntk", "ntkgp")])
def test_posteriors(name, kind, theirs):
    f = load(f"predict_{name}")
    kernel = getattr(f, f"{kind}_train_train")
    cross = getattr(f, f"{kind}_test_train")
    corner = getattr(f, f"{kind}_test_test")
    noise = regulariser(f, kernel, absolute="absolute" in name)
    posterior = GPPosterior.condition(kernel, f.y_train, noise=noise)
    np.testing.assert_allclose(posterior.mean(cross), getattr(f, f"{theirs}_mean"), **TIGHT)
    cov = getattr(f, f"{theirs}_cov")
    np.testing.assert_allclose(posterior.covariance(cross, corner), cov, **TIGHT)
    np.testing.assert_allclose(
        posterior.predict(cross, np.diag(corner)).variance, np.diag(cov), **TIGHT
    )


@pytest.mark.parametrize("name", ["gp", "gp_relative_noise", "gp_absolute_noise"])
def test_trained_ensembles(name):
    f = load(f"predict_{name}")
    ridge = regulariser(f, f.ntk_train_train, absolute="absolute" in name)
    trained = Dynamics.decompose(
        f.ntk_train_train, f.y_train, nngp=f.nngp_train_train, ridge=ridge
    ).on(**blocks(f))
    np.testing.assert_allclose(trained.mean(np.inf), f.ntk_mean, **TIGHT)
    np.testing.assert_allclose(trained.covariance(np.inf), f.ntk_cov, **TIGHT)


@pytest.mark.parametrize("name", ["ensemble", "ensemble_noise"])
def test_ensembles_over_time(name):
    f = load(f"predict_{name}")
    training = dynamics(f, ridge=regulariser(f, f.ntk_train_train))
    for found, side in ((training.on(**blocks(f)), "test"), (training, "train")):
        for times, when in ((f.times, ""), (np.inf, "_inf")):
            mean = getattr(f, f"ntk_{side}_mean{when}")
            np.testing.assert_allclose(found.mean(times), mean, **TIGHT)
            cov = getattr(f, f"ntk_{side}_cov{when}")
            np.testing.assert_allclose(found.covariance(times), cov, **TIGHT)


def test_training_the_readout_alone():
    """Their `nngp` ensemble without regulariser: the dynamics with the NNGP kernel for both."""
    f = load("predict_ensemble")
    training = dynamics(f, ntk="nngp")
    for found, side in ((training.on(**blocks(f, ntk="nngp")), "test"), (training, "train")):
        for times, when in ((f.times, ""), (np.inf, "_inf")):
            mean = getattr(f, f"nngp_{side}_mean{when}")
            np.testing.assert_allclose(found.mean(times), mean, **TIGHT)
            cov = getattr(f, f"nngp_{side}_cov{when}")
            np.testing.assert_allclose(found.covariance(times), cov, **TIGHT)


def test_gradient_flow_of_one_network():
    f = load("predict_gradient_flow")
    training = dynamics(f)
    elsewhere = training.on(**blocks(f))
    for times, when in ((f.times, ""), (np.inf, "_inf")):
        train, test = getattr(f, f"f_train{when}"), getattr(f, f"f_test{when}")
        np.testing.assert_allclose(training.mean(times, start=f.f_train_0), train, **TIGHT)
        found = elsewhere.mean(times, start=f.f_test_0, train_start=f.f_train_0)
        np.testing.assert_allclose(found, test, **TIGHT)
    border = largest_stable_learning_rate(
        f.ntk_train_train, outputs=2, reduction=Reduction.MEAN_OVER_ENTRIES
    )
    np.testing.assert_allclose(border, f.max_learning_rate, rtol=1e-10)


def test_gradient_flow_under_cross_entropy():
    f = load("predict_gradient_flow_cross_entropy")
    path = cross_entropy_path(
        f.ntk_train_train,
        f.y_train,
        f.times,
        start=f.f_train_0,
        learning_rate=float(f.learning_rate),
        reduction=Reduction.MEAN_OVER_EXAMPLES,
        tolerance=1e-9,
    )
    np.testing.assert_allclose(path.train, f.f_train, atol=5e-7)
    found = path.logits(f.ntk_test_train, start=f.f_test_0)
    np.testing.assert_allclose(found, f.f_test, atol=5e-7)
