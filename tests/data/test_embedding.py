import numpy as np
import pytest

from widelimit.data import DataError, Embedder, Empty, Keep, WordVectors, pad
from widelimit.errors import OptionError, ShapeError

VECTORS = WordVectors(("good", "bad", "film"), np.array([[1, 2], [3, 4], [5, 9]], np.float32))
MEAN = np.array([3, 5], np.float32)


def test_pad_keeps_every_number_and_marks_it():
    arrays = [np.full((3, 2), 1.0), np.full((1, 2), 2.0)]
    x, mask = pad(arrays)
    assert x.shape == (2, 3, 2)
    np.testing.assert_array_equal(mask, [[True, True, True], [True, False, False]])
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(x[i][mask[i]], array)
    assert x[~mask].tolist() == [[0, 0], [0, 0]]


def test_pad_images_of_different_sizes(rng):
    arrays = [rng.random((2, 5, 3), np.float32), rng.random((4, 1, 3), np.float32)]
    x, mask = pad(arrays)
    assert x.shape == (2, 4, 5, 3)
    assert x.dtype == np.float32
    assert mask.sum(axis=(1, 2)).tolist() == [10, 4]
    np.testing.assert_array_equal(x[0, :2, :5], arrays[0])
    np.testing.assert_array_equal(x[1, :4, :1], arrays[1])


def test_long_texts_keep_their_first_or_their_last_words():
    text = ["bad film xx good"]
    first, _ = Embedder(vectors=VECTORS, length=2)(text)
    last, _ = Embedder(vectors=VECTORS, length=2, keep=Keep.LAST)(text)
    all_of_it, _ = Embedder(vectors=VECTORS, keep=Keep.LAST)(text)
    np.testing.assert_array_equal(first, all_of_it[:, :2])
    np.testing.assert_array_equal(last, all_of_it[:, 1:])


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.ones((2, 3)), np.ones((2, 4))],
        [np.ones((2, 3)), np.ones((0, 3))],
        [np.ones(3)],
        [np.ones((2, 3)), np.ones((2, 2, 3))],
    ],
)
def test_pad_refuses(arrays):
    with pytest.raises(ShapeError, match="non-empty"):
        pad(arrays)


def test_words_become_vectors():
    x, mask = Embedder(vectors=VECTORS)(["Good film!", "bad"])
    np.testing.assert_array_equal(x, [[[1, 2], [5, 9]], [[3, 4], [0, 0]]])
    np.testing.assert_array_equal(mask, [[True, True], [True, False]])
    assert x.dtype == np.float32


def test_truncation_counts_words_that_have_a_vector():
    x, _ = Embedder(vectors=VECTORS, length=2)(["xx good yy film bad"])
    np.testing.assert_array_equal(x, [[[1, 2], [5, 9]]])


def test_phrases_are_means_of_real_words():
    embedder = Embedder(vectors=VECTORS, phrase=2)
    text = "good xx film bad"
    x, mask = embedder([text, "bad"])
    np.testing.assert_array_equal(x, [[[3, 5.5], [3, 4]], [[3, 4], [0, 0]]])
    np.testing.assert_array_equal(mask, [[True, True], [True, False]])
    assert x.dtype == np.float32
    assert embedder.positions(text) == ["good film", "bad"]
    with pytest.raises(OptionError, match="phrase=0"):
        Embedder(vectors=VECTORS, phrase=0)


def test_unknown_words_are_left_out():
    x, mask = Embedder(vectors=VECTORS)(["good zebra film"])
    np.testing.assert_array_equal(x[0], [[1, 2], [5, 9]])
    assert mask.all()


@pytest.mark.parametrize("text", ["", "!!!", "zebra"])
def test_empty_texts(text):
    with pytest.raises(DataError, match=r"no word with a vector.*text 1 .*Empty.MEAN"):
        Embedder(vectors=VECTORS)(["good", text])
    x, mask = Embedder(vectors=VECTORS, empty=Empty.MEAN)(["good film", text])
    np.testing.assert_array_equal(x[1], [MEAN, [0, 0]])
    assert mask[1].tolist() == [True, False]


def test_embedding_leaves_the_vectors_alone():
    before = VECTORS.vectors.copy()
    Embedder(vectors=VECTORS, empty=Empty.MEAN)(["zebra", "good film"])
    np.testing.assert_array_equal(VECTORS.vectors, before)


def test_a_tokenizer_of_ones_own():
    embedder = Embedder(vectors=VECTORS, tokenizer=lambda text: text.split()[::-1])
    np.testing.assert_array_equal(embedder(["good film"])[0], [[[5, 9], [1, 2]]])


def test_length_is_positive():
    with pytest.raises(DataError, match="length=0"):
        Embedder(vectors=VECTORS, length=0)
