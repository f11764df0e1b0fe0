import json
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit import persist, registry
from widelimit.data.errors import DataError
from widelimit.errors import OptionError
from widelimit.inference import GP, Classifier, Engine, KernelKind, Training
from widelimit.layers.base import Layer
from widelimit.persist import ModelFileError, load, save
from widelimit.sklearn import InfiniteNetworkClassifier, InfiniteNetworkRegressor

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
    with pytest.raises(ModelFileError, match=r"layers\[2\] is a .*Halved"):
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
    assert persist._classes()["layers.Dense"] is wl.Dense


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
        (lambda m: m.update(version=2, library="9.0"), "version 2, written by widelimit 9.0"),
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
    with pytest.raises(DataError, match="must exist"):
        load(tmp_path / "nothing.wl")
    with pytest.raises(DataError, match="could not be written"):
        save(DENSE, text / "inside.wl")
    with pytest.raises(ModelFileError, match="classes of this package"):
        save(object(), tmp_path / "object.wl")
