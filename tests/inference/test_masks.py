"""Every model takes a mask as its second argument, and padding changes nothing."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.inference import (
    BlockedCholesky,
    ConjugateGradients,
    EllipticalSlice,
    Importance,
    KernelKind,
    Nystrom,
)
from widelimit.layers import Scaling

RNG = np.random.default_rng(0)
LENGTHS = np.array([3, 5, 1, 4, 2, 5, 3, 2])
X = RNG.normal(size=(8, 5, 3))
MASK = np.arange(5)[None, :] < LENGTHS[:, None]
Y = np.sign(np.where(MASK, X[:, :, 0], 0.0).sum(axis=1))
NET = wl.Serial(
    wl.Dense(8), wl.Relu(), wl.Attention(8, scaling=Scaling.LINEAR), wl.MeanPool(), wl.Dense(1)
)
FEW = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))


def numbers(prediction):
    return np.stack(list(prediction))


MODELS = {
    "GP": (wl.GP(NET), numbers),
    "GP, tangent kernel": (wl.GP(NET, kind=KernelKind.NTK), numbers),
    "GP, Nyström": (wl.GP(NET, solver=Nystrom(landmarks=6)), numbers),
    "GP, conjugate gradients": (wl.GP(NET, solver=ConjugateGradients()), numbers),
    "GP, blocked Cholesky": (wl.GP(NET, solver=BlockedCholesky(block=4)), numbers),
    "GP, few heads": (wl.GP(FEW), numbers),
    "mixture": (wl.MixtureGP(FEW, noise=1.0, method=Importance(draws=256)), numbers),
    "training": (wl.Training(NET, ridge=0.1), numbers),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("GP", "training") else pytest.mark.slow) for n in MODELS],
)
def test_models_predict_with_a_mask(name):
    model, read = MODELS[name]
    fitted = model.fit(X, Y, MASK)
    padded = read(fitted.predict(X[:3], MASK[:3]))
    lists = read(fitted.predict([x[:n] for x, n in zip(X[:3], LENGTHS[:3], strict=True)]))
    np.testing.assert_allclose(padded, lists, rtol=1e-4, atol=1e-5)
    rubbish = np.where(MASK[:3, :, None], X[:3], np.nan)
    np.testing.assert_allclose(read(fitted.predict(rubbish, MASK[:3])), padded, rtol=1e-6)
    assert np.abs(read(fitted.predict(X[:3])) - padded).max() > 1e-3  # a mask is not passed over


def test_classifiers_predict_with_a_mask():
    labels = np.where(Y > 0, "up", "down")
    fitted = wl.Classifier(wl.GP(NET)).fit(X, labels, MASK)
    ragged = [x[:n] for x, n in zip(X, LENGTHS, strict=True)]
    np.testing.assert_allclose(fitted.predict_proba(X, MASK), fitted.predict_proba(ragged))
    assert (fitted.predict(X, MASK) == fitted.predict(ragged)).all()
    assert np.abs(fitted.predict_proba(X, MASK) - fitted.predict_proba(X)).max() > 1e-3


@pytest.mark.slow
def test_tuned_models_and_both_predictors_predict_with_a_mask():
    tuned = wl.tune(wl.GP(NET), X, Y, MASK, steps=2)
    ragged = [x[:n] for x, n in zip(X, LENGTHS, strict=True)]
    for fitted in (tuned.fitted, wl.GP(NET, kind="ntk").fit(X, Y, MASK)):
        found, other = fitted.predict(X, MASK), fitted.predict(ragged)
        np.testing.assert_allclose(found.mean, other.mean, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_slice_sampled_models_predict_with_a_mask():
    pytest.importorskip("blackjax", reason="needs the extra 'bayes'")
    method = EllipticalSlice(chains=4, burn=100, steps=200)
    fitted = wl.MixtureGP(FEW, noise=1.0, method=method).fit(X, Y, MASK)
    padded = fitted.predict(X[:2], MASK[:2])
    rubbish = np.where(MASK[:2, :, None], X[:2], np.nan)
    np.testing.assert_allclose(fitted.predict(rubbish, MASK[:2]).mean, padded.mean, rtol=1e-6)
    assert np.abs(fitted.predict(X[:2]).mean - padded.mean).max() > 1e-3  # nor is it passed over
