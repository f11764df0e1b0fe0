import os
import zipfile

import numpy as np
import pytest

from widelimit.data import (
    DataError,
    load_npz,
    load_npz_split,
    load_vectors,
    read_npz,
    save_npz,
)

X = np.arange(24.0).reshape(4, 3, 2)


def test_whole_numbers_and_texts_are_classes(tmp_path):
    save_npz(tmp_path / "a.npz", x=X, y=np.array([7, 9, 9, 7], dtype=np.uint8))
    data = load_npz(tmp_path / "a.npz")
    assert data.class_names == ("7", "9")
    assert data.y.tolist() == [0, 1, 1, 0]
    save_npz(tmp_path / "b.npz", images=X, kind=np.array(["b", "a", "b", "b"]))
    data = load_npz(tmp_path / "b.npz", x="images", y="kind")
    assert data.class_names == ("a", "b")
    assert data.y.tolist() == [1, 0, 1, 1]


def test_floats_are_targets(tmp_path):
    save_npz(tmp_path / "a.npz", x=X, y=np.arange(4, dtype=np.float32))
    data = load_npz(tmp_path / "a.npz")
    assert data.class_names == ()
    assert data.y.dtype == np.float64


def test_class_names_number_the_labels(tmp_path):
    save_npz(tmp_path / "a.npz", x=X, y=np.array([2, 0, 0, 0]), class_names=np.array(list("pqr")))
    data = load_npz(tmp_path / "a.npz")
    assert data.class_names == ("p", "q", "r")
    assert data.y.tolist() == [2, 0, 0, 0]
    save_npz(tmp_path / "b.npz", x=X, y=np.array(list("rppp")), class_names=np.array(list("pqr")))
    assert load_npz(tmp_path / "b.npz").y.tolist() == [2, 0, 0, 0]


def test_masks_come_along(tmp_path):
    mask = np.ones((4, 3), dtype=bool)
    mask[1, 2] = False
    save_npz(tmp_path / "a.npz", x=X, y=np.arange(4), mask=mask)
    np.testing.assert_array_equal(load_npz(tmp_path / "a.npz").mask, mask)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "y": np.arange(3)}, r"labels \(3,\)"),
        ({"x": X, "y": np.zeros((4, 1), int)}, r"labels \(4, 1\)"),
        ({"x": X[:0], "y": np.arange(0)}, r"inputs \(0, 3, 2\)"),
        ({"x": X[:, 0, 0], "y": np.arange(4)}, r"inputs \(4,\)"),
        ({"x": np.where(X == 3, np.nan, X), "y": np.arange(4)}, "finite"),
        ({"x": X.astype(str), "y": np.arange(4)}, "finite"),
        ({"x": X, "y": np.array([0, 1, np.inf, 0])}, "targets"),
        ({"x": X, "y": np.arange(4), "mask": np.ones((4, 2), bool)}, r"mask \(4, 2\)"),
        ({"x": X, "y": np.arange(4), "mask": np.ones((4, 3), int)}, "int64 mask"),
        ({"x": X, "y": np.arange(4), "class_names": np.array(["a", "b"])}, "0..3 for 2"),
        ({"x": X, "y": np.zeros(4, int)}, "two different labels"),
        ({"x": X}, "lacks the arrays y"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, message):
    save_npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_npz(tmp_path / "a.npz")


def test_split(tmp_path):
    arrays = {
        "x_train": X,
        "y_train": np.array(["b", "a", "b", "b"]),
        "x_test": X[:2],
        "y_test": np.array(["c", "b"]),
    }
    save_npz(tmp_path / "a.npz", **arrays)
    data = load_npz_split(tmp_path / "a.npz")
    assert data.class_names == ("a", "b", "c")
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0, 1, 1], [2, 1])
    save_npz(tmp_path / "b.npz", **(arrays | {"x_test": X[:2, :, :1]}))
    with pytest.raises(DataError, match="x_test"):
        load_npz_split(tmp_path / "b.npz")


def test_masks_without_a_real_position_are_refused(tmp_path):
    x, mask = np.zeros((3, 4, 2)), np.ones((3, 4), bool)
    mask[1] = False
    save_npz(tmp_path / "d.npz", x=x, y=np.array([0, 1, 0]), mask=mask)
    with pytest.raises(DataError, match=r"Example 1 of .* has no real position"):
        load_npz(tmp_path / "d.npz")
    parts = {"x_train": x, "y_train": np.array([0, 1, 0]), "mask_train": mask}
    save_npz(tmp_path / "s.npz", **parts, x_test=x, y_test=np.array([0, 1, 0]))
    with pytest.raises(DataError, match="no real position"):
        load_npz_split(tmp_path / "s.npz")


@pytest.mark.parametrize("depth", [50, 5_000, 200_000])
@pytest.mark.parametrize("brackets", ["()", "[]", "{}"])
def test_headers_of_brackets_in_brackets_are_refused(tmp_path, depth, brackets):
    begin, end = brackets
    text = "{'descr': " + begin * depth + end * depth + ", 'fortran_order': False, 'shape': (1,)}\n"
    header = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text.encode()
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x.npy", header + bytes(8))
    with pytest.raises(DataError, match=r"'x.npy' in .* is no plain array"):
        read_npz(tmp_path / "b.npz")


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match="pipe or socket, not a file"):
        read_npz(tmp_path / "pipe.npz")
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match="pipe or socket, not a file"):
        load_vectors(tmp_path / "pipe.txt")
