import io
import json
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import widelimit as wl
from widelimit import persist, registry
from widelimit.data.errors import DataError
from widelimit.errors import OptionError
from widelimit.inference import GP, Classifier, Engine, KernelKind, Nystrom, Training
from widelimit.layers.base import Layer
from widelimit.persist import ModelFileError, load, save
from widelimit.sklearn import (
    InfiniteNetworkClassifier,
    InfiniteNetworkRegressor,
    prepare_columns,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4, 3))
Y = np.sin(X[:, 0, 0])
FLAT = X[:, 0, :]
DENSE = wl.Serial(wl.Dense(8, w_std=1.5, b_std=0.3), wl.Relu(), wl.Dense(1))


EVERYTHING = wl.Serial(
    wl.Conv(8, 2, w_std=1.3, padding="valid", parameterization=wl.layers.Parameterization.STANDARD),
    wl.Tanh(),
    wl.Residual(
        wl.Attention(8, positions=(wl.Decay(rate=0.3), wl.Alibi(), wl.Rotary()), heads=4),
        weight=0.3,
    ),
    wl.Sum(wl.Dense(8), wl.Serial(wl.Dense(8), wl.LeakyRelu(0.2), wl.Dropout(0.1), wl.Dense(8))),
    wl.Attention(8, score_map=wl.ElementwiseMap(wl.Gelu()), pattern=wl.Local(2)),
    wl.Attention(8, scaling=wl.Scaling.LINEAR, pattern=wl.layers.Allowed(np.eye(3, dtype=bool))),
    wl.layers.Polynomial([0.0, 1.0, 0.5]),
    wl.LayerNorm(),
    wl.MeanPool(),
    wl.Dense(1),
)


def equal(one, two):
    """Bit for bit."""
    np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def round_trip(model, folder):
    save(model, folder / "model.wl")
    return load(folder / "model.wl")


@pytest.mark.parametrize("kind", KernelKind)
def test_processes(tmp_path, kind):
    fitted = GP(DENSE, kind=kind, noise=np.linspace(0.1, 0.2, 12)).fit(FLAT, Y)
    loaded = round_trip(fitted, tmp_path)
    equal(loaded.predict(FLAT + 0.1).mean, fitted.predict(FLAT + 0.1).mean)
    equal(loaded.predict(FLAT + 0.1).variance, fitted.predict(FLAT + 0.1).variance)
    assert loaded.log_evidence == fitted.log_evidence
    equal(loaded.leave_one_out.mean, fitted.leave_one_out.mean)
    grown = [model.extend(FLAT[:2] + 1, Y[:2], noise=0.1) for model in (fitted, loaded)]
    equal(grown[0].mean(FLAT), grown[1].mean(FLAT))


def test_networks_with_every_kind_of_field(tmp_path):
    loaded = round_trip(EVERYTHING, tmp_path)
    assert repr(loaded) == repr(EVERYTHING)
    assert jax.tree.structure(loaded) == jax.tree.structure(EVERYTHING)
    for one, two in zip(jax.tree.leaves(loaded), jax.tree.leaves(EVERYTHING), strict=True):
        equal(one, two)


def test_sampled_heads_and_landmarks(tmp_path):
    """The drawn heads, and the landmarks of their features, are the same after loading."""
    net = wl.Serial(wl.Dense(8), wl.Erf(), wl.Attention(8), wl.MeanPool(), wl.Dense(1))
    fitted = GP(net, noise=0.1, engine=Engine(samples=2, replicates=1)).fit(X, Y)
    loaded = round_trip(fitted, tmp_path)
    equal(loaded.mean(X[:5] + 0.1), fitted.mean(X[:5] + 0.1))


def test_training_and_classifiers(tmp_path):
    trained = Training(DENSE, ridge=0.1).fit(FLAT, Y)
    loaded = round_trip(trained, tmp_path)
    times = np.array([1.0, np.inf])
    equal(loaded.predict(FLAT[:3], t=times).mean, trained.predict(FLAT[:3], t=times).mean)
    equal(loaded.predict(FLAT[:3], t=times).variance, trained.predict(FLAT[:3], t=times).variance)
    labels = np.where(Y > 0, "up", "down")
    classifier = Classifier(GP(DENSE)).fit(FLAT, labels)
    again = round_trip(classifier, tmp_path)
    equal(again.predict_proba(FLAT), classifier.predict_proba(FLAT))
    equal(again.predict(FLAT), classifier.predict(FLAT))


def test_estimators(tmp_path):
    models = ((InfiniteNetworkRegressor(DENSE), Y), (InfiniteNetworkClassifier(), Y > 0))
    for estimator, y in models:
        estimator.fit(FLAT, y)
        loaded = round_trip(estimator, tmp_path)
        equal(loaded.predict(FLAT), estimator.predict(FLAT))
        assert loaded.n_features_in_ == 3
        assert loaded.get_params(deep=False).keys() == estimator.get_params(deep=False).keys()


class Halved(Layer):
    """A layer of a user's own."""

    factor: float = eqx.field(static=True)

    def outline(self, before):
        return before

    def cross(self, pair, memo1, memo2):
        return pair.each(lambda kernel: kernel * self.factor)


def test_own_functions_and_classes_need_a_name(tmp_path):
    def bent(x):
        return jnp.tanh(x) + 0.1 * x

    net = wl.Serial(wl.Dense(8), wl.Elementwise(bent), Halved(0.25), wl.Dense(1))
    path = tmp_path / "own.wl"
    with pytest.raises(ModelFileError, match=r"model.*function.*bent"):
        save(net, path)
    assert not path.exists()
    wl.register("bent", bent)
    with pytest.raises(ModelFileError, match=r"layers\[2\] is of a class.*Halved"):
        save(net, path)
    wl.register("Halved", Halved)
    try:
        save(net, path)
        equal(load(path).kernel(FLAT).ntk, net.kernel(FLAT).ntk)
        with pytest.raises(OptionError, match="registered once"):
            wl.register("bent", jnp.sin)
    finally:
        registry._registered.clear()
    with pytest.raises(ModelFileError, match="'bent'"):
        load(path)


def test_names_of_classes_are_unique():
    assert persist.tree._classes()["layers.Dense"] is wl.Dense


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.wl"
    save(GP(DENSE).fit(FLAT, Y), path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_files_that_are_cut_off(saved, tmp_path, share):
    whole = saved.read_bytes()
    path = tmp_path / "cut.wl"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises((ModelFileError, DataError), match=r"cut off or damaged|is empty|another"):
        load(path)


def test_damaged_arrays_are_noticed(saved, tmp_path):
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        info = max(archive.infolist(), key=lambda i: i.file_size)
    content[info.header_offset + info.compress_size // 2 + 60] ^= 1
    path = tmp_path / "flipped.wl"
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load(path)


def changed(saved, path, change):
    """The same archive with another manifest."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(text)
                change(manifest)
                text = json.dumps(manifest)
            new.writestr(name, text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=9, library="9.0"), r"version 9\..*written by widelimit 9\.0"),
        (lambda m: m.update(format="something"), "not that of a model"),
        (lambda m: m["model"].update({"class": "os.system"}), "the class 'os.system'"),
        (lambda m: m["model"]["fields"].pop("gp"), "do not fit"),
        (lambda m: m["model"]["fields"].update(gp={"array": 999}), "do not fit"),
        (lambda m: m["model"]["fields"].update(gp={"what": 1}), "do not fit"),
        (lambda m: m["model"]["fields"].update(gp={"function": "eval"}), "the function 'eval'"),
    ],
)
def test_other_versions_and_strange_manifests(saved, tmp_path, change, message):
    path = tmp_path / "changed.wl"
    changed(saved, path, change)
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_other_files(saved, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a model")
    with pytest.raises(ModelFileError, match="another type of file"):
        load(text)
    other = tmp_path / "arrays.npz"
    np.savez(other, a=np.arange(3))
    with pytest.raises(ModelFileError, match="another zip archive"):
        load(other)
    with pytest.raises(DataError, match="There is no file"):
        load(tmp_path / "nothing.wl")
    with pytest.raises(DataError, match="could not be written"):
        save(DENSE, text / "inside.wl")
    with pytest.raises(ModelFileError, match="is of a class that is not registered"):
        save(object(), tmp_path / "object.wl")


# --- pipelines ------------------------------------------------------------------------------------


def people(count=40):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(count) < 0.1, np.nan, rng.normal(size=count)),
            "city": rng.choice(np.array(["a", "b", None], dtype=object), count),
            "day": pd.date_range("2023-01-01", periods=count, freq="9D"),
            "text": rng.choice(["a good film of this year", "a bad story with no end"], count),
        }
    )
    return frame, np.where(frame.text.str.contains("good"), "up", "down")


@pytest.mark.parametrize("text", [None, "text"])
def test_pipelines(tmp_path, text):
    frame, y = people()
    columns = prepare_columns(frame.drop(columns="text") if text is None else frame, text=text)
    net = "auto" if text is None else "linear"
    model = make_pipeline(columns, InfiniteNetworkClassifier(net)).fit(frame, y)
    loaded = round_trip(model, tmp_path)
    new = frame.iloc[:5].assign(city=["z", "a", None, "b", "a"], age=[np.nan, 1, 2, 3, 4])
    equal(loaded.predict_proba(new), model.predict_proba(new))
    assert loaded.predict(new).tolist() == model.predict(new).tolist()
    assert repr(loaded) == repr(model)
    named = model.set_output(transform="pandas").fit(frame, y)
    equal(round_trip(named, tmp_path).predict_proba(new), named.predict_proba(new))


@pytest.mark.parametrize(
    "step",
    [FunctionTransformer(np.log1p), PCA(2), KMeans(2), make_union(StandardScaler())],
    ids=lambda step: type(step).__name__,
)
def test_what_cannot_be_loaded_is_not_saved(tmp_path, step):
    model = make_pipeline(step, InfiniteNetworkRegressor(DENSE)).fit(np.abs(FLAT), Y)
    with pytest.raises(ModelFileError, match=r"model\.steps"):
        save(model, tmp_path / "model.wl")
    assert not list(tmp_path.iterdir())


def test_pipelines_of_another_scikit_learn(tmp_path):
    path = tmp_path / "model.wl"
    save(make_pipeline(StandardScaler(), InfiniteNetworkRegressor(DENSE)).fit(FLAT, Y), path)
    changed(path, tmp_path / "old.wl", lambda m: m.update({"scikit-learn": "0.24.1"}))
    with pytest.raises(ModelFileError, match=r"scikit-learn 0\.24\.1"):
        load(tmp_path / "old.wl")


# --- arrays of another kind or shape --------------------------------------------------------------

SAMPLED = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))
NUMBERS = pd.DataFrame(FLAT, columns=["a", "b", "c"])
MODELS = {
    "process": lambda: GP(DENSE).fit(FLAT, Y),
    "sampled": lambda: GP(SAMPLED, engine=Engine(samples=4)).fit(X, Y),
    "landmarks": lambda: GP(DENSE, solver=Nystrom(landmarks=4)).fit(FLAT, Y),
    "classes": lambda: Classifier(GP(DENSE)).fit(FLAT, Y > 0),
    "regressor": lambda: InfiniteNetworkRegressor(DENSE).fit(FLAT, Y),
    "classifier": lambda: InfiniteNetworkClassifier(DENSE).fit(FLAT, Y > 0),
    "pipeline": lambda: make_pipeline(
        prepare_columns(NUMBERS), InfiniteNetworkClassifier(DENSE)
    ).fit(NUMBERS, Y > 0),
}
ALTERED = {
    "text": lambda a: np.full(a.shape, "a"),
    "bytes": lambda a: a.astype(np.uint8),
    "complex": lambda a: a.astype(complex),
    "nan": lambda a: np.where(np.ones(a.shape, bool), np.nan, 0.0),
    "infinite": lambda a: np.full(a.shape, np.inf),
    "shorter": lambda a: a[:-1] if a.ndim else a[None],
    "longer": lambda a: np.concatenate([a, a]) if a.ndim else np.stack([a, a]),
    "deeper": lambda a: a[None],
    "flat": lambda a: a.reshape(-1),
    "empty": lambda a: a[:0] if a.ndim else np.empty(0),
    "turned": lambda a: a.T.copy(),
    "negative": lambda a: -a - 1 if a.dtype.kind in "if" else a,
}


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *(pytest.param(name, 1.0, marks=pytest.mark.slow) for name in MODELS),
        *((name, 0.1) for name in ("classes", "regressor", "pipeline")),
    ],
)
def test_arrays_of_another_kind_or_shape(tmp_path, name, share):
    """Each is refused, or the model predicts finite numbers with it: none ends in a raw error."""
    model, path, odd = MODELS[name](), tmp_path / "model.wl", tmp_path / "odd.wl"
    x = {"sampled": X, "pipeline": NUMBERS}.get(name, FLAT)
    save(model, path)
    with zipfile.ZipFile(path) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    refused, tried, rng = 0, 0, np.random.default_rng(0)
    arrays = [part for part in parts if part.endswith(".npy")]
    for part in arrays:
        held = np.load(io.BytesIO(parts[part]))
        for what, change in ALTERED.items():
            if rng.random() > share:
                continue
            tried += 1
            try:
                other = change(held)
            except (TypeError, ValueError):  # texts have no complex numbers
                continue
            file = io.BytesIO()
            np.save(file, other)
            with zipfile.ZipFile(odd, "w") as archive:
                for one, content in parts.items():
                    archive.writestr(one, file.getvalue() if one == part else content)
            try:
                found = load(odd)
                if hasattr(found, "predict_proba"):
                    predicted = found.predict_proba(x)
                else:
                    predicted = found.predict(x)
                    predicted = getattr(predicted, "mean", predicted)
                predicted = predicted() if callable(predicted) else predicted
                assert np.isfinite(predicted).all(), f"{what} {part}"
            except wl.WidelimitError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{what} {part}, {held.dtype} {held.shape}") from error
    assert refused > tried / 3


def test_temperatures_that_are_no_number(tmp_path):
    path, odd = tmp_path / "model.wl", tmp_path / "odd.wl"
    save(InfiniteNetworkClassifier(DENSE).fit(FLAT, Y > 0), path)

    def change(manifest):
        fields = manifest["model"]["fields"]["temperature_"]["fields"]
        fields["inverse"] = {"float": "nan"}

    changed(path, odd, change)
    with pytest.raises(ModelFileError, match="Temperature"):
        load(odd)
