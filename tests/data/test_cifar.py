import io
import os
import pickle
import struct
import tarfile
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from widelimit.data import CIFAR10_CLASSES, DataError, load_cifar10, save_npz
from widelimit.data.pickles import unpickle_plain

BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
SIZE = 10


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 did, like the official batches."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, obj):
        data = obj if isinstance(obj, bytes) else obj.encode("latin-1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(obj)

    dispatch[bytes] = save_string
    dispatch[str] = save_string


def python2_pickle(value) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


@pytest.fixture
def images(rng):
    x = rng.integers(0, 256, (6 * SIZE, 32, 32, 3), dtype=np.uint8)
    y = np.tile(np.arange(10), 6)
    return x, y


def planes(x):
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def write_python(folder, images, pack=python2_pickle):
    folder.mkdir(parents=True, exist_ok=True)
    x, y = images
    for i, name in enumerate(BATCHES):
        part = slice(i * SIZE, (i + 1) * SIZE)
        batch = {b"data": planes(x[part]), b"labels": y[part].tolist(), b"batch_label": b"a batch"}
        (folder / name).write_bytes(pack(batch))
    (folder / "readme.html").write_text("CIFAR-10")
    return folder


def write_binary(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    records = np.concatenate([images[1].astype(np.uint8)[:, None], planes(images[0])], axis=1)
    for i, name in enumerate(BATCHES):
        (folder / f"{name}.bin").write_bytes(records[i * SIZE : (i + 1) * SIZE].tobytes())
    return folder


def tar(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return path


def same(data, images):
    x, y = images
    np.testing.assert_array_equal(data.x_train, x[:-SIZE])
    np.testing.assert_array_equal(data.y_train, y[:-SIZE])
    np.testing.assert_array_equal(data.x_test, x[-SIZE:])
    np.testing.assert_array_equal(data.y_test, y[-SIZE:])
    assert data.class_names == CIFAR10_CLASSES
    assert data.y_train.dtype == np.int64


@pytest.mark.parametrize("pack", [python2_pickle, pickle.dumps])
def test_python_batches(tmp_path, images, pack):
    folder = write_python(tmp_path / "cifar-10-batches-py", images, pack)
    same(load_cifar10(tmp_path), images)
    same(load_cifar10(folder), images)


def test_binary_batches(tmp_path, images):
    folder = write_binary(tmp_path / "cifar-10-batches-bin", images)
    same(load_cifar10(tmp_path), images)
    same(load_cifar10(folder), images)


@pytest.mark.parametrize(
    ("write", "folder", "archive"),
    [
        (write_python, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        (write_binary, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    ],
)
def test_archives_are_read_in_place(tmp_path, images, write, folder, archive):
    path = tmp_path / "data" / archive
    path.parent.mkdir()
    tar(write(tmp_path / folder, images), path)
    same(load_cifar10(path.parent), images)
    same(load_cifar10(path), images)
    assert os.listdir(path.parent) == [archive]
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(DataError, match="cut off or damaged"):
        load_cifar10(path)


def test_npz(tmp_path, images):
    x, y = images
    save_npz(
        tmp_path / "cifar10.npz",
        x_train=x[:-SIZE],
        y_train=y[:-SIZE].astype(np.uint8),
        x_test=x[-SIZE:],
        y_test=y[-SIZE:].astype(np.uint8),
    )
    same(load_cifar10(tmp_path), images)


@pytest.mark.parametrize("top", ["cifar10", "."])
def test_folders_of_images(tmp_path, images, top):
    x, y = images
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        part = "train" if i < len(x) - SIZE else "test"
        path = tmp_path / top / part / CIFAR10_CLASSES[label] / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    data = load_cifar10(tmp_path)
    order = np.argsort(y[:-SIZE], kind="stable")
    np.testing.assert_array_equal(data.x_train, x[:-SIZE][order])
    np.testing.assert_array_equal(data.x_test, x[-SIZE:])


def test_environment_variable(tmp_path, images, monkeypatch):
    write_binary(tmp_path / "cifar-10-batches-bin", images)
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    same(load_cifar10(), images)


def test_nothing_found_says_how_to_go_on(tmp_path):
    with pytest.raises(
        DataError, match=r"CIFAR-10 must be on this disk.*WIDELIMIT_DATA.*download=True.*toronto"
    ):
        load_cifar10(tmp_path)


def test_missing_batch(tmp_path, images):
    (write_python(tmp_path / "cifar-10-batches-py", images) / "data_batch_4").unlink()
    with pytest.raises(DataError, match="no data_batch_4 in"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("keep", [0, 1000, SIZE * 3072])
def test_cut_off_python_batch(tmp_path, images, keep):
    path = write_python(tmp_path / "cifar-10-batches-py", images) / "data_batch_2"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"data_batch_2' is cut off or damaged"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("keep", [0, 3072, 3 * 3073])
def test_cut_off_binary_batch(tmp_path, images, keep):
    path = write_binary(tmp_path / "cifar-10-batches-bin", images) / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"test_batch.bin' is cut off or damaged"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "no entry"),
        ({b"data": 1}, "no entry"),
        ({b"data": np.zeros((3, 5), np.uint8), b"labels": [1, 2, 3]}, r"\(3, 5\)"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2, 3]}, "3 labels"),
        ({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}, "float64"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 12]}, "outside 0..9"),
    ],
)
def test_pickles_that_are_no_batch(tmp_path, images, batch, message):
    folder = write_python(tmp_path / "cifar-10-batches-py", images)
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load_cifar10(tmp_path)


class Malice:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_may_not_run_anything(tmp_path, images):
    folder = write_python(tmp_path / "cifar-10-batches-py", images)
    target = tmp_path / "harm"
    content = pickle.dumps({b"data": Malice(target)})
    pickle.loads(content)
    assert target.is_dir(), "the pickle is harmful when loaded without care"
    target.rmdir()
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=r"wants to run posix.mkdir.*do not trust"):
        load_cifar10(tmp_path)
    assert not target.exists()


def test_a_pickled_array_may_not_hold_objects(tmp_path):
    content = pickle.dumps(np.array([None, "x"], dtype=object), protocol=2)
    with pytest.raises(DataError, match=r"array of object.*do not trust"):
        unpickle_plain(content, tmp_path)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(True),
    ],
)
@pytest.mark.parametrize("pack", [python2_pickle, lambda value: pickle.dumps(value, protocol=2)])
def test_arrays_come_back_as_they_were(tmp_path, array, pack):
    result = unpickle_plain(pack([array]), tmp_path)[0]
    np.testing.assert_array_equal(result, array)
    assert result.dtype == array.dtype


@pytest.mark.parametrize("value", [np.arange(3.0), {"a": [1, "b", b"c", None, (2.5,)]}])
def test_plain_data_is_unpickled(tmp_path, value):
    result = unpickle_plain(pickle.dumps(value), tmp_path)
    np.testing.assert_equal(result, value)


def test_real_files(real_data):
    data = load_cifar10(real_data)
    assert data.x_train.shape == (8000, 32, 32, 3)
    assert data.x_test.shape == (2000, 32, 32, 3)
    assert np.bincount(data.y_train).tolist() == [800] * 10
    assert data.class_names == CIFAR10_CLASSES
