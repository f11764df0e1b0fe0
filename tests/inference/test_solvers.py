"""All solvers give the posterior that one dense factorisation gives, or say what they cannot."""

import copy
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import widelimit as wl
from widelimit.data import load_sample_images
from widelimit.errors import OptionError
from widelimit.inference import Temperature
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
    if name == "iterative":  # a determinant by stochastic Lanczos
        outputs = images[1].shape[1]
        error = 0.5 * outputs * model.posterior.factor.log_determinant_error
        assert 0 < error < 0.02 * abs(dense.log_evidence)
        assert abs(model.log_evidence - dense.log_evidence) < 4 * error
        found, wanted = model.leave_one_out, dense.leave_one_out
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-5, atol=1e-8)
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


def test_calibration_leaves_out_what_tests_are_like():
    """A landmark that is left out keeps a feature nobody else knows: it is harder than a test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, labels = digits.data[order].astype(np.float64) / 16, digits.target[order]
    net = wl.Serial(wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(8), wl.Relu(), wl.Dense(1))
    train, test = slice(0, 600), slice(600, None)
    solver = wl.inference.Nystrom(landmarks=150)
    gp = wl.GP(net, noise=wl.inference.Relative(1e-3), solver=solver)
    model = wl.Classifier(gp).fit(x[train], labels[train])
    posterior = model.process.posterior
    rows = posterior.calibration_rows
    np.testing.assert_array_equal(np.sort([*rows, *posterior.landmarks]), np.arange(600))
    found = model.process.predict(x[test])
    spread = found.variance + float(model.process.gp.noise)
    misled = Temperature.fit(posterior.leave_one_out, labels[train])
    scores = [
        np.log(each.probabilities(found.mean, spread)[np.arange(len(spread)), labels[test]]).mean()
        for each in (model.temperature, misled)
    ]
    assert scores[0] > scores[1] + 0.01


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

    with pytest.raises(wl.errors.NumericalError, match="Got: 6 iterations"):
        run(6)
    run(500)
    assert counts[1][0] < counts[0][-1] * 1.5
    (tmp_path / "iterate.npz").write_bytes(b"half")
    run(500)
    assert len(counts[2]) > len(counts[1])


def test_models_of_one_folder_do_not_share_a_factor(images, tmp_path):
    """A solver is used for several models: each has its own factor, and nothing else is touched."""
    x, y, test = images
    (tmp_path / "factor").mkdir()
    (tmp_path / "factor" / "precious.txt").write_text("mine")
    solver = wl.inference.BlockedCholesky(folder=tmp_path, block=40)
    one = wl.GP(NET, noise=NOISE, solver=solver).fit(x, y)
    before = one.predict(test)
    two = wl.GP(NET, noise=100 * NOISE, solver=solver).fit(x, y)
    np.testing.assert_array_equal(one.predict(test).std, before.std)
    assert (two.predict(test).std > before.std).all()
    folders = {Path(model.posterior.factor.files.folder).parent for model in (one, two)}
    del one, two
    assert all(folder.exists() for folder in folders)  # for a later run
    assert set(tmp_path.iterdir()) == {tmp_path / "factor", *folders}
    assert [p.name for p in (tmp_path / "factor").iterdir()] == ["precious.txt"]


def test_a_relative_folder_means_the_same_place_later(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = fitted(images, wl.inference.BlockedCholesky(folder="factors", block=64))
    before = model.predict(images[2]).std
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    np.testing.assert_array_equal(model.predict(images[2]).std, before)


def test_copies_of_a_model_whose_factor_is_on_disk(images, tmp_path):
    before = fitted(images, wl.inference.BlockedCholesky(block=64)).predict(images[2]).std
    model = fitted(images, wl.inference.BlockedCholesky(block=64))
    again = copy.deepcopy(model)
    with pytest.raises(wl.WidelimitError, match="goes with its process"):
        pickle.dumps(model)
    del model
    np.testing.assert_array_equal(again.predict(images[2]).std, before)
    model = fitted(images, wl.inference.BlockedCholesky(folder=tmp_path, block=64))
    sent = pickle.dumps(model)
    del model
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again.predict(images[2]).std, before)
    block = Path(again.posterior.factor.files.folder) / "0-0"
    content = bytearray(block.read_bytes())
    content[100] ^= 1
    block.write_bytes(bytes(content))
    with pytest.raises(wl.WidelimitError, match=r"Block \(0, 0\) .* fit the model again"):
        again.predict(images[2])
    shutil.rmtree(again.posterior.factor.files.folder)
    with pytest.raises(wl.WidelimitError, match="fit the model again"):
        again.predict(images[2])


def test_a_folder_that_is_a_file(images, tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(wl.WidelimitError, match="could not be written"):
        fitted(images, wl.inference.BlockedCholesky(folder=tmp_path / "file"))


def test_temporary_factors_go_with_their_model(images):
    model = fitted(images, wl.inference.BlockedCholesky(block=64))
    folder = Path(model.posterior.factor.files.folder)
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


def test_landmarks_of_nothing():
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
    with pytest.raises(wl.errors.NumericalError, match="Landmarks are examples of which"):
        wl.GP(net, solver=wl.inference.Nystrom(landmarks=2)).fit(np.zeros((5, 4)), np.arange(5.0))


def test_the_stored_kernel_of_tokens_has_the_precision_of_the_engine(tmp_path):
    words = wl.Embedding(8, vocabulary=20)
    net = wl.Serial(words, wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    tokens = np.random.default_rng(0).integers(0, 20, size=(8, 5))
    y = np.arange(8.0)
    plain, stored = (
        wl.GP(net, noise=1e-4, engine=wl.Engine(dtype=np.float64, store=store)).fit(tokens, y)
        for store in (None, tmp_path / "k")
    )
    np.testing.assert_allclose(stored.mean(tokens[:3]), plain.mean(tokens[:3]), rtol=1e-9)


def test_a_store_is_for_what_tuning_ends_with(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3))
    net = wl.Serial(wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(1))
    engine = wl.Engine(dtype=np.float64, store=tmp_path / "k")
    tuned = wl.inference.tune(wl.GP(net, engine=engine), x, x[:, 0], steps=2)
    stored = wl.scale.KernelStore(tmp_path / "k")
    exact = tuned.gp.net.kernel(x).nngp
    np.testing.assert_allclose(np.asarray(stored.nngp), exact, rtol=1e-12)


@pytest.mark.parametrize("name", ["blocked", "iterative", "all landmarks"])
def test_what_cannot_be_extended_says_so(images, name):
    _, y, test = images
    with pytest.raises(wl.WidelimitError, match="at once"):
        fitted(images, SOLVERS[name]).extend(test[:1], y[:1])


@pytest.mark.parametrize("name", ["blocked", "iterative"])
def test_what_is_on_disk_elsewhere_is_not_saved(images, tmp_path, name):
    model = fitted(images, SOLVERS[name], tmp_path / "k")
    with pytest.raises(ModelFileError, match="on disk elsewhere"):
        save(model, tmp_path / "model.wl")
    assert not (tmp_path / "model.wl").exists()


def test_wrong_solvers_are_refused():
    with pytest.raises(wl.errors.NumericalError, match="is no solver"):
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


@pytest.mark.parametrize(
    "solver", [wl.inference.ConjugateGradients(), wl.inference.Nystrom(landmarks=5)]
)
def test_solvers_that_factorise_nothing_refuse_jitter(solver):
    x = np.random.default_rng(0).normal(size=(12, 2))
    dense_net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
    model = wl.GP(dense_net, noise=0.1, jitter=wl.inference.Jitter(), solver=solver)
    with pytest.raises(OptionError, match="jitter= has no meaning"):
        model.fit(x, x[:, 0])


def test_a_factor_that_is_kept_is_gone_on_with(images, tmp_path, monkeypatch):
    """A run that was stopped has left blocks; those that are damaged are computed again."""
    keep, told = tmp_path / "factor", []

    def stop(done, total):
        told.append(done)
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(images, wl.inference.BlockedCholesky(folder=keep, block=30, progress=stop))
    left = [path for path in keep.rglob("*") if path.is_file()]
    assert len(left) == 7
    left[3].write_bytes(left[3].read_bytes()[:-1] + b"x")
    told.clear()
    solver = wl.inference.BlockedCholesky(
        folder=keep, block=30, progress=lambda done, total: told.append((done, total))
    )
    model = fitted(images, solver)
    assert [total for _, total in told] == [15] * 9
    whole = fitted(images, wl.inference.BlockedCholesky(block=30))
    np.testing.assert_array_equal(model.predict(images[2]).std, whole.predict(images[2]).std)
    told.clear()
    fitted(images, solver)
    assert told == []


def test_iterations_that_were_stopped_go_on(images, tmp_path):
    steps = []

    def stop(step, error):
        steps.append(error)
        if step == 6:
            raise KeyboardInterrupt

    options = {"keep": tmp_path / "iterate.npz", "rank": 16}
    solver = replace(SOLVERS["iterative"], **options)
    with pytest.raises(KeyboardInterrupt):
        fitted(images, replace(solver, progress=stop), tmp_path / "k")
    again = []
    model = fitted(
        images, replace(solver, progress=lambda _, error: again.append(error)), tmp_path / "k"
    )
    assert again[0] < 1.5 * steps[-1] < steps[0]  # it begins where the other one stopped
    whole = fitted(images, replace(solver, keep=None), tmp_path / "k")
    np.testing.assert_allclose(model.mean(images[2]), whole.mean(images[2]), rtol=1e-6, atol=1e-8)
    again.clear()
    fitted(images, replace(solver, progress=lambda _, error: again.append(error)), tmp_path / "k")
    assert not again  # it is there already
