import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import check_estimator

import widelimit as wl
from widelimit.errors import NetworkError, NumericalError, OptionError, ShapeError
from widelimit.inference import GP, Engine, KernelKind
from widelimit.sklearn.estimators import (
    InfiniteNetworkClassifier,
    NNGPRegressor,
    NTKRegressor,
    default_network,
)
from widelimit.sklearn.kernel import NetworkKernel

RNG = np.random.default_rng(0)
X, TEST = RNG.normal(size=(30, 3)), RNG.normal(size=(7, 3))
Y = 5 + 3 * np.sin(2 * X[:, 0])
NET = wl.Serial(wl.Dense(8, w_std=1.5, b_std=0.3), wl.Erf(), wl.Dense(1, w_std=1.2))
LINEAR = wl.Dense(1, b_std=1.0)  # compiles in no time, for the many shapes of scikit-learn's checks
ATTENTION = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(NNGPRegressor(LINEAR), marks=pytest.mark.slow),
        pytest.param(NNGPRegressor(), marks=pytest.mark.slow),
        pytest.param(NTKRegressor(), marks=pytest.mark.slow),
        InfiniteNetworkClassifier(LINEAR),
        pytest.param(InfiniteNetworkClassifier(), marks=pytest.mark.slow),
        pytest.param(InfiniteNetworkClassifier(kind="ntk"), marks=pytest.mark.slow),
    ],
    ids=lambda e: f"{type(e).__name__}-{'default' if e.network is None else 'linear'}",
)
@pytest.mark.filterwarnings("ignore")  # scikit-learn feeds estimators what they warn about
def test_scikit_learn_accepts_them(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 50
    assert {result["status"] for result in results} <= {"passed", "skipped"}


@pytest.mark.parametrize(
    ("estimator", "kind"), [(NNGPRegressor, KernelKind.NNGP), (NTKRegressor, KernelKind.NTK)]
)
def test_regressors_are_processes_of_normalised_targets(estimator, kind):
    model = estimator(NET, noise=0.05).fit(X, Y)
    engine = Engine(dtype=np.float64)
    process = GP(NET, kind=kind, noise=0.05, engine=engine).fit(X, (Y - Y.mean()) / Y.std())
    expected, spread = process.predict(TEST)
    mean, std = model.predict(TEST, return_std=True)
    np.testing.assert_allclose(mean, expected * Y.std() + Y.mean(), rtol=1e-10)
    np.testing.assert_allclose(std, spread * Y.std(), rtol=1e-8)
    _, cov = model.predict(TEST, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)
    assert model.log_marginal_likelihood_ == pytest.approx(process.log_evidence)
    both = estimator(NET, noise=0.05).fit(X, np.stack([Y, -2 * Y], axis=1))
    mean2, std2 = both.predict(TEST, return_std=True)
    np.testing.assert_allclose(mean2, np.stack([mean, -2 * mean], axis=1), rtol=1e-10)
    np.testing.assert_allclose(std2, np.stack([std, 2 * std], axis=1), rtol=1e-6)
    assert both.predict(TEST, return_cov=True)[1].shape == (7, 7, 2)


def test_raw_targets_and_precision():
    model = NNGPRegressor(NET, normalize_y=False).fit(X.astype(np.float32), Y)
    assert model.model_.gp.engine.dtype == np.float32
    process = GP(NET, noise=0.1).fit(X, Y)
    np.testing.assert_allclose(model.predict(TEST), process.mean(TEST), rtol=1e-4)


def test_constant_targets_are_predicted_as_such():
    model = NNGPRegressor(NET).fit(X, np.full(30, 7.0))
    np.testing.assert_allclose(model.predict(TEST), 7.0)
    # Written as 0.1 their mean is rounded, and they seem to vary.
    constant = NNGPRegressor(NET).fit(X, np.full((30, 2), [7.0, 0.1]))
    mean, std = constant.predict(TEST, return_std=True)
    np.testing.assert_allclose(mean, np.full((7, 2), [7.0, 0.1]))
    np.testing.assert_allclose(std[:, 0], std[:, 1])


def test_pipelines_scores_and_grid_search():
    x, y = load_diabetes(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), NNGPRegressor(NET, noise=1.0))
    scores = cross_val_score(pipeline, x[:200], y[:200], cv=3)
    assert scores.mean() > 0.3
    search = GridSearchCV(
        NNGPRegressor(NET),
        {"noise": [1e-3, 0.1], "network__0.w_std": [0.01, 1.5]},
        cv=2,
    ).fit(X, Y)
    assert search.best_params_["network__0.w_std"] == 1.5
    assert search.best_estimator_.get_params()["network__0.w_std"] == 1.5


def test_parameters_of_the_network():
    model = NNGPRegressor(NET, noise=0.2)
    assert model.get_params()["network__0.w_std"] == 1.5
    assert "network__2.b_std" not in model.get_params()  # there is no such bias
    other = clone(model).set_params(**{"network__0.w_std": 2.5, "noise": 0.3})
    assert other.get_params()["network__0.w_std"] == 2.5
    assert other.noise == 0.3
    assert model.get_params()["network__0.w_std"] == 1.5
    default = NNGPRegressor().set_params(**{"network__0.w_std": 1.0})
    assert default.get_params()["network__0.w_std"] == 1.0
    with pytest.raises(NetworkError, match="names they have"):
        model.set_params(**{"network__w": 1.0})
    assert repr(default_network()).count("Dense") == 3


def test_tuning_improves_the_evidence():
    plain = NNGPRegressor(NET, noise=0.5).fit(X, Y)
    tuned = NNGPRegressor(NET, noise=0.5, tune=True).fit(X, Y)
    assert tuned.log_marginal_likelihood_ > plain.log_marginal_likelihood_ + 1
    assert tuned.network_ is not NET


def test_sequences_and_pickles():
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(n, 2)) for n in (3, 5, 4, 6, 2, 5)]
    test = [rng.normal(size=(n, 2)) for n in (6, 1)]
    regressor = NNGPRegressor(ATTENTION, samples=4, random_state=3).fit(x, np.arange(6.0))
    classifier = InfiniteNetworkClassifier(ATTENTION, samples=4).fit(x, list("ababab"))
    assert classifier.predict_proba(test).shape == (2, 2)
    assert 0 <= classifier.score(x, list("ababab")) <= 1
    for model in (regressor, classifier):
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(test), model.predict(test))
    padded = np.stack([x[1], x[5]])  # an array with positions is not a matrix of features
    np.testing.assert_allclose(
        regressor.predict(padded), regressor.predict([x[1], x[5]]), rtol=1e-5
    )
    tokens = wl.Serial(wl.Embedding(8, vocabulary=5), wl.MeanPool(), wl.Dense(1))
    words = InfiniteNetworkClassifier(tokens).fit([[0, 1], [2], [2, 3], [1, 0, 0]], [0, 1, 1, 0])
    np.testing.assert_array_equal(words.predict([[0], [3]]), [0, 1])


def test_classifiers_on_real_data():
    x, y = load_wine(return_X_y=True)
    train, test, labels, truth = train_test_split(x, y, test_size=0.5, random_state=0)
    for kind in ("nngp", KernelKind.NTK):
        model = make_pipeline(StandardScaler(), InfiniteNetworkClassifier(NET, kind=kind))
        assert model.fit(train, labels).score(test, truth) > 0.95
        np.testing.assert_allclose(model.predict_proba(test).sum(axis=1), 1.0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a useless bias
def test_the_kernel_in_gaussian_processes():
    kernel = NetworkKernel(NET)
    matrix, gradient = kernel(X, eval_gradient=True)
    assert gradient.shape == (30, 30, 3)
    for i, step in enumerate(1e-5 * np.eye(3)):
        ahead, behind = (kernel.clone_with_theta(kernel.theta + s)(X) for s in (step, -step))
        np.testing.assert_allclose((ahead - behind) / 2e-5, gradient[:, :, i], atol=1e-8)
    np.testing.assert_allclose(kernel.diag(X), np.diag(matrix), rtol=1e-12)
    np.testing.assert_allclose(kernel(TEST, X), NET.kernel(TEST, X).nngp, rtol=1e-12)
    y = (Y - Y.mean()) / Y.std()
    fixed = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y)
    ours = GP(NET, noise=0.05, engine=Engine(dtype=np.float64)).fit(X, y)
    np.testing.assert_allclose(fixed.predict(TEST), ours.mean(TEST), rtol=1e-8)
    fitted = GaussianProcessRegressor(kernel + WhiteKernel(0.1)).fit(X, y)
    assert fitted.log_marginal_likelihood_value_ > fixed.log_marginal_likelihood_value_
    assert "0.w_std=" in repr(fitted.kernel_)
    assert kernel.theta[0] == pytest.approx(np.log(1.5))  # the original is untouched


def test_the_kernel_in_support_vector_machines():
    labels = X[:, 0] > 0
    machine = SVC(kernel=NetworkKernel(NET, kind=KernelKind.NTK)).fit(X, labels)
    table = SVC(kernel="precomputed").fit(NET.kernel(X).ntk, labels)
    expected = table.decision_function(NET.kernel(TEST, X).ntk)
    np.testing.assert_allclose(machine.decision_function(TEST), expected, rtol=1e-6)
    fixed = NetworkKernel(NET, bounds_ratio=None)
    assert fixed.n_dims == 0
    assert fixed(X[:2], eval_gradient=True)[1].shape == (2, 2, 0)


def test_the_kernel_folds_rows_and_shares_heads():
    rows = RNG.normal(size=(6, 8))
    kernel = NetworkKernel(ATTENTION, shape=(4, 2))
    with pytest.raises(NetworkError, match="share their heads"):
        kernel(rows)
    drawn = kernel.drawn_for(rows)
    matrix = drawn(rows)
    np.testing.assert_allclose(drawn(rows[:2], rows[2:]), matrix[:2, 2:], rtol=1e-10)
    np.testing.assert_allclose(drawn.diag(rows), np.diag(matrix), rtol=1e-10)
    with pytest.raises(NetworkError, match="of one set of examples with itself"):
        drawn(rows, rows, eval_gradient=True)


def test_mistakes_are_named():
    with pytest.raises(NetworkError, match="around a network"):
        NNGPRegressor("dense").fit(X, Y)
    with pytest.raises(OptionError, match="'nngp', 'ntk'"):
        InfiniteNetworkClassifier(NET, kind="rbf").fit(X, Y > 5)
    with pytest.raises(NumericalError, match="one class"):
        InfiniteNetworkClassifier(NET).fit(X, np.zeros(30, int))
    with pytest.raises(NotFittedError):
        NNGPRegressor(NET).predict(X)
    with pytest.raises(NumericalError, match="at a time"):
        NNGPRegressor(NET).fit(X, Y).predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="NaN"):
        NNGPRegressor(NET).fit(X, np.where(Y > 7, np.nan, Y))
    for options in ({"normalize_y": "no"}, {"tune": 1}, {"samples": -3}, {"random_state": -1}):
        with pytest.raises(OptionError, match=next(iter(options)).replace("random_state", "key")):
            NNGPRegressor(NET, **options).fit(X, Y)
    for ratio in (0.5, 1.0, -1.0, np.nan):
        with pytest.raises(OptionError, match="bounds_ratio= is"):
            _ = NetworkKernel(NET, bounds_ratio=ratio).bounds
    with pytest.raises(ShapeError, match=r"folded into examples of shape \(2, 2\)"):
        NetworkKernel(wl.Serial(wl.MeanPool(), wl.Dense(1)), shape=(2, 2))(X)
    with pytest.raises(NetworkError, match="built around a network"):
        NetworkKernel("erf")(X)
    finite = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(NetworkError, match="with 2 heads"):
        NNGPRegressor(finite).fit(RNG.normal(size=(4, 3, 2)), np.arange(4.0))


def test_solvers_and_stores_are_parameters(tmp_path):
    pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    dense = wl.sklearn.NNGPRegressor().fit(x, y)
    model = wl.sklearn.NNGPRegressor(
        solver=wl.inference.ConjugateGradients(), store=tmp_path / "kernel"
    ).fit(x, y)
    np.testing.assert_allclose(model.predict(x), dense.predict(x), rtol=1e-6)
    assert (tmp_path / "kernel").is_dir()
