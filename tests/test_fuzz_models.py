"""Damaged and altered model files: refused with a sentence, or the very same model."""

import io
import json
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from fuzzing import FEW, MANY, damaged, tried, values
from hypothesis import strategies as st

import widelimit as wl
from widelimit.errors import WidelimitError
from widelimit.persist import load, save

NET = wl.Serial(wl.Dense(8, b_std=0.1), wl.Relu(), wl.Attention(8), wl.MeanPool(), wl.Dense(1))
ODD_NODES = (
    {},
    [],
    10**30,
    {"float": "0x1p9999"},
    {"array": 99},
    {"array": -1},
    {"class": "layers.Dense"},
    {"class": "subprocess.Popen", "fields": {}},
    {"enum": ["data.Keep", "x"]},
    {"dtype": "x"},
    {"key": [1, "x"]},
    {"function": "os.system"},
    {"tuple": 3},
    {"dict": [[[], 1]]},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model file that is as it should be."""
    path = tmp_path_factory.mktemp("model") / "m.wl"
    model = {"net": NET, "numbers": np.arange(12.0), "names": ("a", "b"), "n": 3, "f": 0.1}
    save(model, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The file of a Pipeline with steps of scikit-learn's and of ours."""
    pd = pytest.importorskip("pandas")
    from sklearn.pipeline import make_pipeline

    from widelimit.sklearn import InfiniteNetworkRegressor, prepare_columns

    frame = pd.DataFrame({"a": np.arange(12.0), "b": ["x", "y", "z"] * 4})
    frame["day"], frame["text"] = pd.date_range("2020", periods=12), "a good film"
    frame.loc[3, "a"] = np.nan
    columns = prepare_columns(frame, text="text")
    model = make_pipeline(columns, InfiniteNetworkRegressor("linear", noise=0.1))
    path = tmp_path_factory.mktemp("pipeline") / "p.wl"
    save(model.fit(frame, np.arange(12.0)), path)
    return path.read_bytes()


def check_damage(folder, whole, content):
    """What can still be loaded is what was saved: every byte of content has a checksum."""
    path = folder / "m.wl"
    path.write_bytes(content)
    with suppress(WidelimitError):
        found = load(path)
        assert found["names"] == ("a", "b")
        np.testing.assert_array_equal(found["numbers"], np.arange(12.0))
        assert repr(found["net"]) == repr(NET)


@st.composite
def altered(draw, whole):
    """The manifest with one of its nodes replaced, and everything else intact."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        parts = {name: archive.read(name) for name in archive.namelist()}
    node = manifest
    for _ in range(draw(st.integers(1, 9))):
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        keys = [key for key, value in inner if isinstance(value, dict | list) and value]
        if not keys:
            break
        node = node[draw(st.sampled_from(keys))]
    key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    odd = st.sampled_from(ODD_NODES)
    node[key] = draw(st.one_of(odd, values))
    parts["manifest.json"] = json.dumps(manifest).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def check_altered(folder, content):
    path = folder / "m.wl"
    path.write_bytes(content)
    with suppress(WidelimitError):
        load(path)


def fuzz(count, folder, whole):
    damage = damaged(st.just(whole))
    return (
        tried(count, damage, lambda content: check_damage(folder, whole, content)),
        tried(count, altered(whole), lambda content: check_altered(folder, content)),
    )


def test_damaged_models(tmp_path, whole):
    assert min(fuzz(FEW, tmp_path, whole)) >= FEW // 2


def test_altered_steps_of_a_pipeline(tmp_path, pipeline):
    count = tried(FEW, altered(pipeline), lambda content: check_altered(tmp_path, content))
    assert count >= FEW // 2


@pytest.mark.slow
def test_many_damaged_models(tmp_path, whole):
    assert sum(fuzz(MANY, tmp_path, whole)) >= 500
