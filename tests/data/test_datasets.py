import jax
import numpy as np
import pandas as pd
import pytest

import widelimit as wl
from widelimit.data import (
    DataError,
    Dataset,
    Embedder,
    Labelled,
    WordVectors,
    stratified_order,
)


@pytest.fixture
def labelled(rng):
    y = rng.permutation(np.repeat([0, 1, 2], [60, 30, 10]))
    return Labelled(np.arange(100.0)[:, None], y, ("a", "b", "c"))


def test_order_is_a_permutation_fixed_by_its_seed(labelled):
    order = stratified_order(labelled.y, key=3)
    assert sorted(order.tolist()) == list(range(100))
    np.testing.assert_array_equal(order, stratified_order(labelled.y, key=3))
    assert (order != stratified_order(labelled.y, key=4)).any()


@pytest.mark.parametrize("counts", [(60, 30, 10), (50, 50), (997, 2, 1), (13, 7, 5, 75)])
def test_every_beginning_is_in_proportion(counts):
    y = np.repeat(np.arange(len(counts)), counts)
    share = np.array(counts) / sum(counts)
    order = stratified_order(y)
    for size in range(1, sum(counts) + 1):
        found = np.bincount(y[order[:size]], minlength=len(counts))
        assert (np.abs(found - share * size) <= 0.5 + share * len(counts) / 2 + 1e-9).all()


def test_balanced_classes_stay_exactly_balanced():
    y = np.tile(np.arange(10), 80)
    order = stratified_order(y, key=1)
    for size in (10, 200, 790):
        assert set(np.bincount(y[order[:size]])) == {size // 10}


def test_order_does_not_favour_the_first_examples():
    y = np.tile([0, 1], 500)
    first = np.concatenate([stratified_order(y, key=seed)[:100] for seed in range(40)])
    z = (first.mean() - 499.5) / (1000 / np.sqrt(12) / np.sqrt(len(first)))
    assert abs(z) < 4


def test_targets_are_shuffled(rng):
    order = stratified_order(rng.random(50))
    assert sorted(order.tolist()) == list(range(50))


def test_subsets_are_nested(labelled):
    small, large = labelled.subset(20, key=5), labelled.subset(50, key=5)
    assert set(small.x[:, 0]) < set(large.x[:, 0])
    assert np.bincount(small.y).tolist() == [12, 6, 2]


@pytest.mark.parametrize("test", [0.2, 20])
def test_split(labelled, test):
    data = labelled.split(test, key=1)
    assert (len(data.x_train), len(data.x_test)) == (80, 20)
    assert np.bincount(data.y_test).tolist() == [12, 6, 2]
    both = np.concatenate([data.x_train, data.x_test])[:, 0]
    assert sorted(both) == list(range(100))


@pytest.mark.parametrize("test", [0, 0.0, 1.0, 100, 1.5, -1])
def test_split_that_leaves_a_part_empty(labelled, test):
    with pytest.raises(DataError, match="leaves no example in one part"):
        labelled.split(test)


@pytest.mark.parametrize("size", [0, 101, -3])
def test_subset_of_the_wrong_size(labelled, size):
    with pytest.raises(DataError, match=f"size={size} of 100"):
        labelled.subset(size)


def test_masks_follow_their_examples_and_padding_stays_zero(rng):
    x, mask = rng.random((6, 3, 2), np.float32), rng.random((6, 3)) < 0.5
    x[~mask] = 0
    data = Labelled(x, np.tile([0, 1], 3), ("a", "b"), mask)
    part = data.take(np.array([4, 1]))
    np.testing.assert_array_equal(part.mask, mask[[4, 1]])
    moved = data.map(lambda values: values + 1)
    np.testing.assert_array_equal(moved.x, np.where(mask[..., None], x + 1, 0))
    assert moved.x.dtype == np.float32


def test_dataset_subset_and_map(labelled):
    data = labelled.split(0.4).subset(train=30, test=10)
    assert (len(data.train), len(data.test)) == (30, 10)
    assert isinstance(data, Dataset)
    doubled = data.map(lambda x: 2 * x)
    np.testing.assert_array_equal(doubled.x_test, 2 * data.x_test)
    np.testing.assert_array_equal(doubled.x_train, 2 * data.x_train)


def test_texts_become_arrays_beside_their_labels():
    vectors = WordVectors(("good", "bad", "film"), np.eye(3, dtype=np.float32))
    texts = [f"{word} film" for word in ("good", "bad")] * 10
    split = ["test"] * 6 + ["train"] * 14
    frame = pd.DataFrame({"text": texts, "label": [1, 0] * 10, "split": split})
    arrays = Dataset.of_texts(frame, Embedder(vectors=vectors))
    assert arrays.class_names == ("0", "1")
    assert arrays.x_train.shape == (14, 2, 3)
    assert arrays.mask_test is not None
    assert arrays.mask_test.shape == (6, 2)
    # The first word tells the class: texts and labels stayed together.
    np.testing.assert_array_equal(arrays.x_train[:, 0, 0], arrays.y_train)
    np.testing.assert_array_equal(arrays.x_test[:, 0, 0], arrays.y_test)


def test_data_print_what_they_hold_not_their_numbers(labelled):
    assert repr(labelled) == "Labelled(100 examples of shape (1,) float64, classes a, b, c)"
    shown = repr(labelled.split(0.1))
    assert (
        shown == "Dataset(90 training and 10 test examples of shape (1,) float64, classes a, b, c)"
    )


def test_keys_of_jax_split_too(labelled):
    one, two = (labelled.subset(50, key=jax.random.key(k)).x for k in (0, 1))
    assert (one != two).any()
    with pytest.raises(wl.errors.OptionError, match="key"):
        labelled.subset(50, key=-1)
