"""Both predictors from one kernel call, and noise relative to the kernel."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import OptionError
from widelimit.inference import KernelKind, NetworkKernels, Nystrom, Relative, fit_both

RNG = np.random.default_rng(0)
X, Y, TEST = RNG.normal(size=(10, 4)), RNG.normal(size=10), RNG.normal(size=(3, 4))
NET = wl.Serial(wl.Dense(16, w_std=1.5), wl.Relu(), wl.Dense(1, w_std=2.0))


@pytest.mark.parametrize("noise", [0.1, Relative(0.05)])
def test_both_predictors_are_those_that_are_fitted_alone(noise):
    both = fit_both(wl.GP(NET, noise=noise), X, Y)
    found = both.predict(TEST)
    for kind, fitted, prediction in zip(KernelKind, (both.nngp, both.ntk), found, strict=True):
        alone = wl.GP(NET, kind=kind, noise=noise).fit(X, Y)
        np.testing.assert_allclose(prediction.mean, alone.predict(TEST).mean, rtol=1e-6)
        np.testing.assert_allclose(prediction.std, alone.predict(TEST).std, rtol=1e-6)
        assert fitted.log_evidence == pytest.approx(alone.log_evidence, rel=1e-9)


def test_kernels_are_computed_once(monkeypatch):
    calls = []

    def counted(name):
        plain = getattr(NetworkKernels, name)

        def method(self, *args, **options):
            calls.append(name)
            return plain(self, *args, **options)

        monkeypatch.setattr(NetworkKernels, name, method)

    counted("train")
    counted("cross")
    fit_both(wl.GP(NET), X, Y).predict(TEST)
    assert calls == ["train", "cross"]


def test_both_predictors_need_kernels_in_memory():
    with pytest.raises(wl.WidelimitError, match="share kernels"):
        fit_both(wl.GP(NET, solver=Nystrom(landmarks=4)), X, Y)


def test_relative_noise_is_a_share_of_the_kernel():
    k = NET.kernel(X)
    for kind, kernel in zip(KernelKind, k, strict=True):
        fitted = wl.GP(NET, kind=kind, noise=Relative(0.2)).fit(X, Y)
        assert fitted.gp.noise == pytest.approx(0.2 * np.trace(kernel) / len(X), rel=1e-6)
        loud = wl.GP(NET, kind=kind, noise=Relative(0.2)).fit(7 * X, Y)  # homogeneous network
        np.testing.assert_allclose(
            fitted.predict(TEST).mean, loud.predict(7 * TEST).mean, rtol=1e-4, atol=1e-6
        )


def test_every_model_knows_relative_noise(tmp_path):
    noise = Relative(0.1)
    labels = Y > 0
    classifier = wl.Classifier(wl.GP(NET, noise=noise)).fit(X, labels)
    assert np.isfinite(classifier.predict_proba(TEST)).all()
    few = wl.Serial(wl.Attention(8, heads=1), wl.MeanPool(), wl.Dense(1))
    mixture = wl.GP(few, noise=noise).fit(X[:, None], Y)
    expected = 0.1 * few.diagonal(X[:, None], ntk=False).nngp.mean()
    np.testing.assert_allclose(mixture.noise, expected, rtol=1e-5)  # one token: nothing is drawn
    fitted = wl.GP(NET, noise=noise).fit(X, Y)
    wl.save(fitted, tmp_path / "fitted.wl")
    assert wl.load(tmp_path / "fitted.wl").gp.noise == fitted.gp.noise
    wl.save(wl.GP(NET, noise=noise), tmp_path / "plain.wl")
    assert wl.load(tmp_path / "plain.wl").noise == noise


@pytest.mark.parametrize("share", [0.0, -1.0, np.nan, "much"])
def test_shares_are_positive(share):
    with pytest.raises(OptionError, match="positive"):
        Relative(share)
