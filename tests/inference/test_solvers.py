"""All solvers give the posterior that one dense factorisation gives, or say what they cannot."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.data import load_sample_images
from widelimit.inference.pivots import pivoted
from widelimit.persist import ModelFileError, save

pytest.importorskip("zarr")

NET = wl.Serial(
    wl.Flatten(), wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(8), wl.Relu(), wl.Dense(1)
)
NOISE, TRAIN = 0.05, 150


@pytest.fixture(scope="module")
def images():
    data = load_sample_images()
    x, y = data.train.x[:TRAIN].astype(np.float64), data.train.y[:TRAIN]
    return x, np.eye(int(y.max()) + 1)[y], data.test.x[:20].astype(np.float64)


@pytest.fixture(scope="module")
def dense(images):
    x, y, _ = images
    return wl.GP(NET, noise=NOISE, engine=wl.Engine(dtype=np.float64)).fit(x, y)


def fitted(images, solver, store=None, kind=wl.inference.KernelKind.NNGP):
    x, y, _ = images
    engine = wl.Engine(dtype=np.float64, store=store)
    return wl.GP(NET, noise=NOISE, kind=kind, engine=engine, solver=solver).fit(x, y)


SOLVERS = {
    "cholesky": wl.inference.Cholesky(),
    "blocked": wl.inference.BlockedCholesky(block=40),
    "iterative": wl.inference.ConjugateGradients(),
    "all landmarks": wl.inference.Nystrom(landmarks=TRAIN),
}


@pytest.mark.parametrize("stored", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", SOLVERS)
def test_predictions_are_those_of_a_dense_solve(images, dense, tmp_path, name, stored):
    model = fitted(images, SOLVERS[name], tmp_path / "k" if stored else None)
    (mean, std), (wanted, spread) = model.predict(images[2]), dense.predict(images[2])
    assert np.abs(mean - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert np.abs(std - spread).max() < 1e-6 * spread.max()
    np.testing.assert_allclose(
        model.covariance(images[2]), dense.covariance(images[2]), atol=1e-8 * spread.max() ** 2
    )
    assert len(model) == TRAIN
    rows = np.array([3, 77])
    np.testing.assert_allclose(
        model.posterior.left_out_at(rows).mean, dense.leave_one_out.mean[rows], rtol=1e-6, atol=1e-9
    )
    if name == "iterative":
        with pytest.raises(wl.WidelimitError, match="The evidence is not to be had"):
            _ = model.log_evidence
    else:
        assert model.log_evidence == pytest.approx(dense.log_evidence, rel=1e-8)


def test_landmarks_bound_the_evidence_and_never_claim_too_much(images, dense):
    exact = dense.predict(images[2])
    bounds = []
    for landmarks in (10, 40, 100):
        model = fitted(images, wl.inference.Nystrom(landmarks=landmarks))
        bounds.append(model.log_evidence)
        # What landmarks do not see is uncertain: the variance is never below the exact one.
        assert (model.predict(images[2]).variance >= exact.variance * (1 - 1e-9)).all()
    assert bounds == sorted(bounds)
    assert bounds[-1] < dense.log_evidence


@pytest.mark.slow
def test_classifiers_work_with_every_solver(images):
    x, y, test = images
    labels = y.argmax(axis=1)
    found = {}
    for name, solver in SOLVERS.items():
        gp = wl.GP(NET, noise=NOISE, engine=wl.Engine(dtype=np.float64), solver=solver)
        found[name] = wl.Classifier(gp).fit(x, labels).predict_proba(test)
    for table in found.values():  # as few examples as here, all of them calibrate
        np.testing.assert_allclose(table, found["cholesky"], atol=1e-6)


def test_iterations_go_on_from_the_last_one(images, tmp_path):
    counts = []

    def run(most):
        seen = []
        solver = wl.inference.ConjugateGradients(
            rank=5,
            keep=tmp_path / "iterate.npz",
            most_iterations=most,
            progress=lambda iteration, residual: seen.append(residual),
        )
        try:
            return fitted(images, solver)
        finally:
            counts.append(seen)

    with pytest.raises(wl.errors.NumericalError, match="after 6 iterations"):
        run(6)
    run(500)
    assert counts[1][0] < counts[0][-1] * 1.5
    (tmp_path / "iterate.npz").write_bytes(b"half")
    run(500)
    assert len(counts[2]) > len(counts[1])


def test_temporary_factors_go_with_their_model(images):
    from pathlib import Path

    model = fitted(images, wl.inference.BlockedCholesky(block=64))
    folder = Path(model.posterior.factor.folder)
    assert folder.exists()
    del model
    assert not folder.exists()


@pytest.mark.parametrize(
    "solver", [wl.inference.ConjugateGradients(), wl.inference.Nystrom(landmarks=5)]
)
def test_noise_is_needed(images, solver):
    x, y, _ = images
    with pytest.raises(wl.errors.NumericalError, match="need noise"):
        wl.GP(NET, noise=0.0, solver=solver).fit(x, y)


@pytest.mark.parametrize("name", ["blocked", "iterative", "all landmarks"])
def test_what_cannot_be_extended_says_so(images, name):
    _, y, test = images
    with pytest.raises(wl.WidelimitError, match=r"not extended|at once|not to be had"):
        fitted(images, SOLVERS[name]).extend(test[:1], y[:1])


@pytest.mark.parametrize("name", ["blocked", "iterative"])
def test_what_is_on_disk_elsewhere_is_not_saved(images, tmp_path, name):
    model = fitted(images, SOLVERS[name], tmp_path / "k")
    with pytest.raises(ModelFileError, match="on disk elsewhere"):
        save(model, tmp_path / "model.wl")
    assert not (tmp_path / "model.wl").exists()


def test_wrong_solvers_are_refused():
    with pytest.raises(wl.errors.NumericalError, match="A solver is one of"):
        wl.GP(NET, solver="cg")  # pyright: ignore[reportArgumentType]
    with pytest.raises(wl.errors.OptionError, match="landmarks="):
        wl.inference.Nystrom(landmarks=0)


@pytest.mark.slow
def test_pivots_are_drawn_in_proportion_to_what_is_missing():
    """One pivot of a diagonal kernel: the law is known."""
    diagonal = np.array([1.0, 2.0, 3.0, 10.0])
    kernel = np.diag(diagonal)
    counts = np.zeros(4)
    for seed in range(600):
        found = pivoted(
            diagonal,
            lambda chosen: kernel[:, chosen],
            lambda chosen: kernel[np.ix_(chosen, chosen)],
            1,
            rng=np.random.default_rng(seed),
            unit=1e-16,
        )
        counts[found.pivots[0]] += 1
        np.testing.assert_allclose(
            found.missed, np.where(np.arange(4) == found.pivots[0], 0, diagonal)
        )
    share = diagonal / diagonal.sum()
    errors = np.sqrt(share * (1 - share) / 600)
    assert (np.abs(counts / 600 - share) < 4 * errors).all()
