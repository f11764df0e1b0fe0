import os
import tarfile

import numpy as np
import pytest

from widelimit.data import CIFAR10_CLASSES, DataError, load_cifar10, save_npz

BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
SIZE = 10


@pytest.fixture
def images(rng):
    x = rng.integers(0, 256, (6 * SIZE, 32, 32, 3), dtype=np.uint8)
    y = np.tile(np.arange(10), 6)
    return x, y


def planes(x):
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


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


def test_binary_batches(tmp_path, images):
    folder = write_binary(tmp_path / "cifar-10-batches-bin", images)
    same(load_cifar10(tmp_path), images)
    same(load_cifar10(folder), images)


def test_archives_are_read_in_place(tmp_path, images):
    folder = write_binary(tmp_path / "made" / "cifar-10-batches-bin", images)
    tar(folder, tmp_path / "cifar-10-binary.tar.gz")
    same(load_cifar10(tmp_path), images)
    same(load_cifar10(tmp_path / "cifar-10-binary.tar.gz"), images)
    assert sorted(os.listdir(tmp_path)) == ["cifar-10-binary.tar.gz", "made"]


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


def test_environment_variable(tmp_path, images, monkeypatch):
    write_binary(tmp_path / "cifar-10-batches-bin", images)
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    same(load_cifar10(), images)


def test_nothing_found_says_how_to_go_on(tmp_path):
    with pytest.raises(
        DataError, match=r"CIFAR-10 is not on this disk.*WIDELIMIT_DATA.*download=True.*toronto"
    ):
        load_cifar10(tmp_path)


def test_missing_batch(tmp_path, images):
    (write_binary(tmp_path / "cifar-10-batches-bin", images) / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"has no data_batch_4\.bin"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("keep", [0, 3072, 3 * 3073])
def test_cut_off_binary_batch(tmp_path, images, keep):
    path = write_binary(tmp_path / "cifar-10-batches-bin", images) / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"test_batch.bin' is cut off or damaged"):
        load_cifar10(tmp_path)


def test_labels_beyond_the_ten_classes(tmp_path, images):
    x, y = images
    write_binary(tmp_path / "cifar-10-batches-bin", (x, np.where(y == 3, 12, y)))
    with pytest.raises(DataError, match=r"is no batch of CIFAR-10.*the label 12"):
        load_cifar10(tmp_path)


def test_python_batches_are_not_unpickled(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(DataError, match=r"has no data_batch_1\.bin.*must be converted"):
        load_cifar10(tmp_path)


def test_real_files(real_data):
    data = load_cifar10(real_data)
    assert data.x_train.shape == (8000, 32, 32, 3)
    assert data.x_test.shape == (2000, 32, 32, 3)
    assert np.bincount(data.y_train).tolist() == [800] * 10
    assert data.class_names == CIFAR10_CLASSES
