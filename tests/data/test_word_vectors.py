import gzip
import zipfile

import numpy as np
import pytest

from widelimit.data import DataError, WordVectors, find_vectors, load_glove, load_vectors, save_npz

LINES = ["good 1 0.5 -2\n", "bad -1 0.25 3e-1\n", "film 0 0 0\n"]
VECTORS = np.array([[1, 0.5, -2], [-1, 0.25, 0.3], [0, 0, 0]], np.float32)


def write(path, content):
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
@pytest.mark.parametrize("header", ["", "3 3\n"])
def test_text_files_with_and_without_header(tmp_path, name, header):
    vectors = load_vectors(write(tmp_path / name, header + "".join(LINES)))
    assert vectors.words == ("good", "bad", "film")
    np.testing.assert_array_equal(vectors.vectors, VECTORS)
    assert vectors.vectors.dtype == np.float32


def test_words_with_spaces_and_words_that_repeat(tmp_path):
    content = "".join([*LINES, ". . . 1 2 3\n", "good 9 9 9\n"])
    vectors = load_vectors(write(tmp_path / "v.txt", content))
    assert vectors.words == ("good", "bad", "film", ". . .")
    np.testing.assert_array_equal(vectors["good"], VECTORS[0])


def test_vocabulary_selects(tmp_path):
    path = write(tmp_path / "v.txt", "".join(LINES))
    save_npz(tmp_path / "v.npz", words=np.array(["good", "bad", "film"]), vectors=VECTORS)
    for source in (path, tmp_path / "v.npz"):
        vectors = load_vectors(source, vocabulary={"film", "good", "zebra"})
        assert vectors.words == ("good", "film")
        np.testing.assert_array_equal(vectors.vectors, VECTORS[[0, 2]])


def test_npz_with_scale(tmp_path):
    whole = np.array([[4, -8], [100, 127]], np.int8)
    scale = np.array([0.5, 0.25], np.float32)
    save_npz(tmp_path / "v.npz", words=np.array(["a", "b"]), vectors=whole, scale=scale)
    np.testing.assert_array_equal(load_vectors(tmp_path / "v.npz").vectors, [[2, -2], [50, 31.75]])


def test_lookup():
    vectors = WordVectors(("good", "bad", "film"), VECTORS)
    assert vectors.find(["bad", "zebra", "good"]).tolist() == [1, -1, 0]
    assert vectors.coverage(["bad", "zebra", "good", "film"]) == 0.75
    assert vectors.coverage([]) == 0
    assert ("bad" in vectors, "zebra" in vectors, len(vectors), vectors.dimension) == (
        True, False, 3, 3,
    )  # fmt: skip


def test_unit_rms_makes_the_input_kernel_one():
    scaled = WordVectors(("good", "bad", "film"), VECTORS).unit_rms().vectors
    np.testing.assert_allclose((scaled**2).mean(axis=1), [1, 1, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("".join(LINES) + "end 1 2", "Line 4 of .*cut off"),
        ("".join(LINES) + "end", "Line 4 of .*1 fields, expected 4"),
        ("".join(LINES) + "end 1 2 x\n", "Line 4 of .*'x'"),
        ("good 1 nan\n", "some not finite"),
        ("", "0 words"),
        ("only\nwords\n", "Line 1 of"),
    ],
)
def test_broken_text_files(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        load_vectors(write(tmp_path / "v.txt", content))


def test_broken_npz(tmp_path):
    save_npz(tmp_path / "v.npz", words=np.array(["a", "b"]), vectors=VECTORS)
    with pytest.raises(DataError, match=r"words \(2,\) and vectors \(3, 3\)"):
        load_vectors(tmp_path / "v.npz")
    save_npz(tmp_path / "v.npz", words=np.array(["a", "b"]))
    with pytest.raises(DataError, match="lacks the arrays vectors"):
        load_vectors(tmp_path / "v.npz")


def test_no_word_of_the_vocabulary(tmp_path):
    with pytest.raises(DataError, match="0 words"):
        load_vectors(write(tmp_path / "v.txt", "".join(LINES)), vocabulary={"GOOD"})


def test_wrong_encoding(tmp_path):
    (tmp_path / "v.txt").write_bytes("good 1\ncafé 2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"Line 2 .*not written in utf-8"):
        load_vectors(tmp_path / "v.txt")


def test_glove_forms(tmp_path):
    text = tmp_path / "a" / "glove.6B.3d.txt"
    text.parent.mkdir()
    write(text, "".join(LINES))
    archive = tmp_path / "b" / "glove.6B.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("glove.6B.50d.txt", "good 1\n")
        file.writestr("glove.6B.3d.txt", "".join(LINES))
    for place in (text.parent, archive.parent, archive):
        vectors = load_glove(place, dimension=3)
        np.testing.assert_array_equal(vectors.vectors, VECTORS)
    with pytest.raises(DataError, match=r"GloVe is not.*download=True"):
        load_glove(tmp_path)


def test_real_vectors(real_data):
    vectors = load_glove(real_data, vocabulary={"the", "movie"})
    assert sorted(vectors.words) == ["movie", "the"]
    np.testing.assert_allclose(vectors["the"][:3], [-0.038194, -0.24487, 0.72812], atol=1e-3)


def test_vectors_come_from_the_data_directory_else_beside_the_data_else_from_the_sample(
    tmp_path, monkeypatch
):
    root, beside = tmp_path / "root", tmp_path / "beside"
    for folder in (root, beside):
        folder.mkdir()
    monkeypatch.setenv("WIDELIMIT_DATA", str(root))
    assert find_vectors(None, beside).sample
    small, large = beside / "glove.6B.50d.txt", beside / "glove.6B.100d.txt"
    small.write_text("good 1 2\n")
    assert find_vectors(None, beside).place == str(small)
    assert find_vectors(None).sample
    large.write_text("good 1 2\n")
    assert find_vectors(None, beside).place == str(large)
    own = root / "glove.6B.50d.txt"
    own.write_text("bad 1 2\n")
    found = find_vectors(None, beside)
    assert (found.place, found.vectors.words, found.sample) == (str(own), ("bad",), False)
    assert find_vectors(small, beside).place == str(small)
