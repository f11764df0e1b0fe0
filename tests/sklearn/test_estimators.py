"""Estimators: scikit-learn's contract, and the numbers of the processes behind them."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import check_estimator

import widelimit as wl
from widelimit.data import pad
from widelimit.errors import NetworkError, NumericalError, OptionError, ShapeError
from widelimit.inference import GP, Engine, KernelKind
from widelimit.sklearn import (
    InfiniteNetworkClassifier,
    InfiniteNetworkRegressor,
    NetworkKernel,
)
from widelimit.sklearn.networks import Kind, NetworkName, candidates
from widelimit.sklearn.transformers import as_cells

RNG = np.random.default_rng(0)
X, TEST = RNG.normal(size=(30, 3)), RNG.normal(size=(7, 3))
Y = 5 + 3 * np.sin(2 * X[:, 0])
NET = wl.Serial(wl.Dense(8, w_std=1.5, b_std=0.3), wl.Erf(), wl.Dense(1, w_std=1.2))
LINEAR = wl.Dense(1, b_std=1.0)  # compiles in no time, for the many shapes of scikit-learn's checks
ATTENTION = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))
BOTH = (InfiniteNetworkRegressor, InfiniteNetworkClassifier)


@pytest.mark.parametrize(
    "estimator",
    [
        InfiniteNetworkRegressor(LINEAR),
        InfiniteNetworkClassifier(LINEAR),
        InfiniteNetworkClassifier(LINEAR, noise=0.1, standardise=False),
        *(pytest.param(model(), marks=pytest.mark.slow) for model in BOTH),
        *(pytest.param(model(kind="ntk"), marks=pytest.mark.slow) for model in BOTH),
    ],
    ids=lambda model: f"{type(model).__name__}-{model.network}-{model.kind}-{model.noise}",
)
@pytest.mark.filterwarnings("ignore")  # scikit-learn feeds estimators what they warn about
def test_scikit_learn_accepts_them(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 50
    assert {result["status"] for result in results} <= {"passed", "skipped"}


@pytest.mark.parametrize("kind", list(KernelKind))
def test_regressors_are_processes_of_normalised_targets(kind):
    model = InfiniteNetworkRegressor(NET, kind=kind, noise=0.05, standardise=False).fit(X, Y)
    engine = Engine(dtype=np.float64)
    process = GP(NET, kind=kind, noise=0.05, engine=engine).fit(X, (Y - Y.mean()) / Y.std())
    expected, spread = process.predict(TEST)
    mean, std = model.predict(TEST, return_std=True)
    np.testing.assert_allclose(mean, expected * Y.std() + Y.mean(), rtol=1e-10)
    np.testing.assert_allclose(std, np.sqrt(spread**2 + 0.05) * Y.std(), rtol=1e-8)
    assert model.process_.log_evidence == pytest.approx(process.log_evidence)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    inside = clone(model).set_params(standardise=True).fit(X, Y)
    outside = clone(model).fit(scaled, Y)
    test = (TEST - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(inside.predict(TEST), outside.predict(test), rtol=1e-10)


def test_several_targets_are_scaled_one_by_one():
    model = InfiniteNetworkRegressor(NET, noise=0.05).fit(X, Y)
    both = InfiniteNetworkRegressor(NET, noise=0.05).fit(X, np.stack([Y, -2 * Y], axis=1))
    mean, std = model.predict(TEST, return_std=True)
    mean2, std2 = both.predict(TEST, return_std=True)
    np.testing.assert_allclose(mean2, np.stack([mean, -2 * mean], axis=1), rtol=1e-10)
    np.testing.assert_allclose(std2, np.stack([std, 2 * std], axis=1), rtol=1e-6)


def test_the_precision_is_that_of_the_inputs():
    model = InfiniteNetworkRegressor(NET).fit(X.astype(np.float32), Y)
    assert model.process_.gp.engine.dtype == np.float32
    wide = InfiniteNetworkRegressor(NET).fit(X, Y)
    assert wide.process_.gp.engine.dtype == np.float64
    np.testing.assert_allclose(model.predict(TEST), wide.predict(TEST), rtol=1e-3)


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_targets_of_any_size(unit):
    model = InfiniteNetworkRegressor(NET, noise=0.1)
    mean, std = model.fit(X, unit * Y).predict(TEST, return_std=True)
    expected, spread = clone(model).fit(X, Y).predict(TEST, return_std=True)
    np.testing.assert_allclose(mean / unit, expected, rtol=1e-10)
    np.testing.assert_allclose(std / unit, spread, rtol=1e-10)


def test_constant_targets_are_predicted_as_such():
    model = InfiniteNetworkRegressor(NET).fit(X, np.full(30, 7.0))
    np.testing.assert_allclose(model.predict(TEST), 7.0)
    # Written as 0.1 their mean is rounded, and they seem to vary.
    constant = InfiniteNetworkRegressor(NET).fit(X, np.full((30, 2), [7.0, 0.1]))
    mean, std = constant.predict(TEST, return_std=True)
    np.testing.assert_allclose(mean, np.full((7, 2), [7.0, 0.1]))
    np.testing.assert_allclose(std[:, 0], std[:, 1])


# --- noise and weights ----------------------------------------------------------------------------


def test_the_noise_is_chosen_by_leave_one_out():
    """Noise in the targets is found within a step of the grid, which is a factor of 3.2."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    clean = np.sin(2 * x[:, 0]) + x[:, 1]
    for level in (0.1, 1.0):
        y = clean + level * rng.normal(size=300)
        model = InfiniteNetworkRegressor().fit(x, y)
        assert 0.4 < model.noise_**0.5 * y.std() / level < 2.5
        _, std = model.predict(rng.normal(size=(100, 2)), return_std=True)
        assert 0.8 < np.median(std) / level < 2.5
        assert len(model.trials_) > 5


@pytest.mark.parametrize("noise", [None, 0.1])
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_weights_count_examples(kind, noise):
    """A weight of two is the same row twice, a weight of zero a row that is not there."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, counts = rng.normal(size=(25, 3)), rng.integers(0, 4, 25)
        y = x[:, 0] + 0.5 * rng.normal(size=25)
        for model, target in zip(BOTH, (y, np.where(y > 0, "up", "down")), strict=True):
            weighted = model(NET, kind=kind, noise=noise).fit(x, target, sample_weight=counts)
            repeated = model(NET, kind=kind, noise=noise)
            repeated.fit(np.repeat(x, counts, axis=0), np.repeat(target, counts))
            assert weighted.noise_ == pytest.approx(repeated.noise_)
            if model is InfiniteNetworkClassifier:
                found, expected = weighted.predict_proba(TEST), repeated.predict_proba(TEST)
            else:
                found = np.stack(weighted.predict(TEST, return_std=True))
                expected = np.stack(repeated.predict(TEST, return_std=True))
            np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_classes_have_weights():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    y = (x[:, 0] + rng.normal(size=60) > 1.2).astype(int)
    assert 0 < y.sum() < 15
    plain = InfiniteNetworkClassifier(NET, noise=1.0).fit(x, y)
    even = InfiniteNetworkClassifier(NET, noise=1.0, class_weight="balanced").fit(x, y)
    ratio = {0: 1, 1: (y == 0).sum() / y.sum()}
    named = InfiniteNetworkClassifier(NET, noise=1.0, class_weight=ratio)
    test = rng.normal(size=(200, 2))
    assert even.predict(test).mean() > plain.predict(test).mean() + 0.1
    # "balanced" has the same ratio and more examples in all, so less noise.
    assert (named.fit(x, y).predict(test) == even.predict(test)).mean() > 0.9


# --- scikit-learn's tools -------------------------------------------------------------------------


def test_pipelines_scores_and_grid_search():
    x, y = load_diabetes(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), InfiniteNetworkRegressor(NET))
    scores = cross_val_score(pipeline, x[:200], y[:200], cv=3)
    assert scores.mean() > 0.3
    search = GridSearchCV(
        InfiniteNetworkRegressor(NET, standardise=False),
        {"noise": [1e-3, None], "network__0.w_std": [0.01, 1.5]},
        cv=2,
    ).fit(X, Y)
    assert search.best_params_["network__0.w_std"] == 1.5
    assert search.best_estimator_.get_params()["network__0.w_std"] == 1.5


def test_frames_and_columns():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "city": np.where(X[:, 2] > 0, "x", "y")})
    encode = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    model = make_pipeline(encode.set_output(transform="default"), InfiniteNetworkRegressor(NET))
    assert model.fit(frame, Y).score(frame, Y) > 0.5
    numbers = frame.drop(columns="city")
    named = InfiniteNetworkRegressor(NET).fit(numbers, Y)
    assert named.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        named.predict(numbers.rename(columns={"a": "c"}))


def test_parameters_of_the_network():
    model = InfiniteNetworkRegressor(NET, noise=0.2)
    assert model.get_params()["network__0.w_std"] == 1.5
    assert "network__2.b_std" not in model.get_params()  # there is no such bias
    other = clone(model).set_params(**{"network__0.w_std": 2.5, "noise": 0.3})
    assert other.get_params()["network__0.w_std"] == 2.5
    assert other.noise == 0.3
    assert model.get_params()["network__0.w_std"] == 1.5
    with pytest.raises(NetworkError, match="names they have"):
        model.set_params(**{"network__w": 1.0})
    with pytest.raises(NetworkError, match="no parameters before it is built"):
        InfiniteNetworkRegressor().set_params(**{"network__0.w_std": 1.0})


# --- sequences, texts, images ---------------------------------------------------------------------


def test_sequences_and_pickles(tmp_path):
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(n, 2)) for n in (3, 5, 4, 6, 2, 5)]
    test = [rng.normal(size=(n, 2)) for n in (6, 1)]
    regressor = InfiniteNetworkRegressor(ATTENTION, samples=4, random_state=3)
    regressor.fit(x, np.arange(6.0))
    classifier = InfiniteNetworkClassifier(ATTENTION, samples=4).fit(x, list("ababab"))
    assert classifier.predict_proba(test).shape == (2, 2)
    assert 0 <= classifier.score(x, list("ababab")) <= 1
    for model in (regressor, classifier):
        joblib.dump(model, tmp_path / "model.joblib")
        for again in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
            np.testing.assert_array_equal(again.predict(test), model.predict(test))
    padded = np.stack([x[1], x[5]])  # an array with positions is not a matrix of features
    np.testing.assert_allclose(
        regressor.predict(padded), regressor.predict([x[1], x[5]]), rtol=1e-5
    )
    tokens = wl.Serial(wl.Embedding(8, vocabulary=5), wl.MeanPool(), wl.Dense(1))
    words = InfiniteNetworkClassifier(tokens).fit([[0, 1], [2], [2, 3], [1, 0, 0]], [0, 1, 1, 0])
    np.testing.assert_array_equal(words.predict([[0], [3]]), [0, 1])


def test_masks_lists_and_cells_are_the_same_sequences():
    rng = np.random.default_rng(2)
    lists = [rng.normal(size=(n, 5)) for n in rng.integers(2, 6, 20)]
    y = np.array([one.mean() for one in lists])
    x, mask = pad(lists)
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    as_lists = InfiniteNetworkRegressor(net).fit(lists, y).predict(lists)
    as_arrays = InfiniteNetworkRegressor(net).fit(x, y, mask=mask).predict(x, mask=mask)
    np.testing.assert_allclose(as_lists, as_arrays, rtol=1e-10)
    raw = InfiniteNetworkRegressor(net, standardise=False).fit(lists, y).predict(lists)
    cells = as_cells(lists)
    for given in (cells, cells[:, 0], pd.DataFrame({"series": cells[:, 0]})):
        in_cells = InfiniteNetworkRegressor(net).fit(given, y).predict(given)
        np.testing.assert_allclose(in_cells, raw, rtol=1e-10)  # cells stay as they are


SHAPES = {Kind.TABLE: (3,), Kind.SEQUENCE: (4, 6), Kind.IMAGE: (4, 4, 3)}


@pytest.mark.parametrize("kind", SHAPES)
def test_networks_by_name(kind):
    """Every network for a kind of data is found by its name, others are refused."""
    x = np.random.default_rng(0).normal(size=(12, *SHAPES[kind]))
    usual = next(iter(candidates(kind, channels=SHAPES[kind][-1]).values()))
    model = InfiniteNetworkRegressor().fit(x, np.arange(12.0))
    assert model.summary_.startswith(f"{usual.name}: ")
    other = "fcn" if kind is Kind.SEQUENCE else "transformer"
    with pytest.raises(OptionError, match=f"no network '{other}'"):
        InfiniteNetworkRegressor(other).fit(x, np.arange(12.0))
    deep = InfiniteNetworkRegressor("linear", depth=3).fit(x, np.arange(12.0))
    assert deep.summary_.startswith(f"{NetworkName.LINEAR}: ")


@pytest.mark.parametrize(
    ("loader", "network", "noise"), [(load_wine, NET, 0.1), (load_breast_cancer, "auto", None)]
)
def test_classifiers_on_real_data(loader, network, noise):
    x, y = loader(return_X_y=True)
    train, test, labels, truth = train_test_split(x, y, test_size=0.5, random_state=0)
    for kind in ("nngp", KernelKind.NTK):
        model = InfiniteNetworkClassifier(network, kind=kind, noise=noise).fit(train, labels)
        assert model.score(test, truth) > 0.95
        np.testing.assert_allclose(model.predict_proba(test).sum(axis=1), 1.0)


# --- the kernel -----------------------------------------------------------------------------------


def test_the_kernel_in_gaussian_processes():
    kernel = NetworkKernel(NET)
    matrix, gradient = kernel(X, eval_gradient=True)
    assert gradient.shape == (30, 30, 0)
    np.testing.assert_allclose(kernel.diag(X), np.diag(matrix), rtol=1e-12)
    np.testing.assert_allclose(kernel(TEST, X), NET.kernel(TEST, X).nngp, rtol=1e-12)
    y = (Y - Y.mean()) / Y.std()
    fixed = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y)
    ours = GP(NET, noise=0.05, engine=Engine(dtype=np.float64)).fit(X, y)
    np.testing.assert_allclose(fixed.predict(TEST), ours.mean(TEST), rtol=1e-8)
    fitted = GaussianProcessRegressor(kernel + WhiteKernel(0.1)).fit(X, y)
    assert fitted.log_marginal_likelihood_value_ > fixed.log_marginal_likelihood_value_
    assert fitted.kernel_.k2.noise_level != 0.1


def test_the_kernel_in_support_vector_machines():
    labels = X[:, 0] > 0
    machine = SVC(kernel=NetworkKernel(NET, kind=KernelKind.NTK)).fit(X, labels)
    table = SVC(kernel="precomputed").fit(NET.kernel(X).ntk, labels)
    expected = table.decision_function(NET.kernel(TEST, X).ntk)
    np.testing.assert_allclose(machine.decision_function(TEST), expected, rtol=1e-6)


def test_the_kernel_folds_rows_and_shares_heads():
    rows = RNG.normal(size=(6, 8))
    kernel = NetworkKernel(ATTENTION, shape=(4, 2))
    with pytest.raises(NetworkError, match="no heads to share"):
        kernel(rows)
    drawn = kernel.drawn_for(rows)
    matrix = drawn(rows)
    np.testing.assert_allclose(drawn(rows[:2], rows[2:]), matrix[:2, 2:], rtol=1e-10)
    np.testing.assert_allclose(drawn.diag(rows), np.diag(matrix), rtol=1e-10)


def test_mistakes_are_named():
    with pytest.raises(NetworkError, match="3 is no network"):
        InfiniteNetworkRegressor(3).fit(X, Y)
    with pytest.raises(OptionError, match="'linear', 'fcn'"):
        InfiniteNetworkRegressor("dense").fit(X, Y)
    with pytest.raises(OptionError, match="'nngp', 'ntk'"):
        InfiniteNetworkClassifier(NET, kind="rbf").fit(X, Y > 5)
    with pytest.raises(NumericalError, match="one class"):
        InfiniteNetworkClassifier(NET).fit(X, np.zeros(30, int))
    with pytest.raises(NotFittedError):
        InfiniteNetworkRegressor(NET).predict(X)
    with pytest.raises(ValueError, match="NaN"):
        InfiniteNetworkRegressor(NET).fit(X, np.where(Y > 7, np.nan, Y))
    with pytest.raises(NumericalError, match="weight 0"):
        InfiniteNetworkRegressor(NET).fit(X, Y, sample_weight=np.zeros(30))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        InfiniteNetworkRegressor(NET).fit(X, Y, sample_weight=-np.ones(30))
    for options in (
        {"standardise": "no"},
        {"depth": 2},
        {"samples": -3},
        {"random_state": -1},
    ):
        with pytest.raises(OptionError, match=next(iter(options)).replace("random_state", "key")):
            InfiniteNetworkRegressor(NET, **options).fit(X, Y)
    for depth in (0, 10**9):
        with pytest.raises(OptionError, match=f"depth={depth}"):
            InfiniteNetworkRegressor(depth=depth).fit(X, Y)
    with pytest.raises(ShapeError, match="No network 'auto' takes such examples"):
        InfiniteNetworkRegressor().fit(np.zeros((3, 2, 2, 2, 2)), np.arange(3.0))
    with pytest.raises(ShapeError, match=r"folded into examples of shape \(2, 2\)"):
        NetworkKernel(wl.Serial(wl.MeanPool(), wl.Dense(1)), shape=(2, 2))(X)
    with pytest.raises(NetworkError, match="is no network"):
        NetworkKernel("erf")(X)
    finite = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(NetworkError, match="with 2 heads"):
        InfiniteNetworkRegressor(finite).fit(RNG.normal(size=(4, 3, 2)), np.arange(4.0))


def test_solvers_and_stores_are_parameters(tmp_path):
    pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    dense = InfiniteNetworkRegressor().fit(x, y)
    model = InfiniteNetworkRegressor(
        solver=wl.inference.ConjugateGradients(), store=tmp_path / "kernel"
    ).fit(x, y)
    np.testing.assert_allclose(model.predict(x), dense.predict(x), rtol=1e-6)
    assert (tmp_path / "kernel").is_dir()
