import importlib
from pathlib import Path

import numpy as np

from widelimit.data import (
    Tokenizer,
    load_cifar10,
    load_glove,
    load_sample_graph,
    load_sample_images,
    load_sample_sentences,
    load_sample_texts,
    load_sample_vectors,
    read_frame,
    sample_directory,
)


def ridge_accuracy(x_train, y_train, x_test, y_test, strength):
    mean = x_train.mean(axis=0)
    targets = np.eye(y_train.max() + 1)[y_train]
    targets -= targets.mean(axis=0)
    kernel = (x_train - mean) @ (x_train - mean).T
    weights = np.linalg.solve(kernel + strength * np.eye(len(kernel)), targets)
    return float((((x_test - mean) @ (x_train - mean).T @ weights).argmax(1) == y_test).mean())


def test_sample_is_small():
    files = list(sample_directory().glob("*.*z"))
    assert len(files) == 3
    assert sum(path.stat().st_size for path in files) < 350_000


def test_the_graph_is_zacharys():
    """Counts that the paper and later ones on the same club give."""
    met, club = load_sample_graph()
    assert met.shape == (34, 34)
    np.testing.assert_array_equal(met, met.T)
    assert not np.diagonal(met).any()
    assert met.sum() / 2 == 78
    assert np.trace(met @ met @ met) / 6 == 45  # triangles
    assert [int(met[i].sum()) for i in (0, 1, 2, 8, 32, 33)] == [16, 9, 10, 5, 12, 17]
    assert club.tolist().count(1) == 17
    assert club[[0, 8, 9, 33]].tolist() == [0, 0, 1, 1]


def test_images_are_ready_and_real():
    data = load_sample_images()
    assert data.x_train.shape == (160, 16, 16, 3)
    assert data.x_test.shape == (80, 16, 16, 3)
    assert data.x_train.dtype == np.float32
    np.testing.assert_allclose(data.x_train.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    assert np.bincount(data.y_train).tolist() == [40] * 4
    assert np.bincount(data.y_test).tolist() == [20] * 4
    flat = [x.reshape(len(x), -1) for x in (data.x_train, data.x_test)]
    # Chance is 0.25 with a standard error of 0.05.
    assert ridge_accuracy(flat[0], data.y_train, flat[1], data.y_test, 1000) > 0.42
    assert load_sample_images(standardise=False).x_train.dtype == np.uint8


def test_every_word_of_the_sentences_has_a_vector():
    frame, vectors, tokenizer = load_sample_sentences(), load_sample_vectors(), Tokenizer()
    words = {word for text in frame["text"] for word in tokenizer(text)}
    assert words == set(vectors.words)
    assert "not" in words
    assert frame["text"].is_unique
    assert frame["split"].value_counts().to_dict() == {"train": 400, "test": 200}


def test_texts_are_ready_and_real():
    data = load_sample_texts()
    assert data.mask_train is not None
    assert data.mask_test is not None
    assert (len(data.x_train), len(data.x_test)) == (400, 200)
    assert data.x_train.shape[2] == 100
    assert data.mask_train.sum(axis=1).min() >= 5
    assert data.class_names == ("negative", "positive")
    pooled = [
        x.sum(axis=1) / mask.sum(axis=1, keepdims=True)
        for x, mask in ((data.x_train, data.mask_train), (data.x_test, data.mask_test))
    ]
    # Chance is 0.5 with a standard error of 0.035.
    assert ridge_accuracy(pooled[0], data.y_train, pooled[1], data.y_test, 10) > 0.65
    assert load_sample_texts(length=7).x_train.shape == (400, 7, 100)


def test_sample_is_what_its_recipe_makes(real_data, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    make = importlib.import_module("make_sample")
    images = make.make_images(load_cifar10(real_data))
    sentences = read_frame(real_data / "rt_polarity.jsonl.gz")
    texts, vectors = make.make_texts(sentences, load_glove(real_data))
    make.write(images, texts, vectors, tmp_path)
    shipped = load_sample_images(standardise=False)
    np.testing.assert_array_equal(images.x_train, shipped.x_train)
    np.testing.assert_array_equal(images.y_test, shipped.y_test)
    assert texts["text"].tolist() == load_sample_sentences()["text"].tolist()
    stored = load_sample_vectors()
    assert stored.words == vectors.words
    half_step = np.abs(vectors.vectors).max(axis=0) / make.LEVELS / 2
    assert (np.abs(stored.vectors - vectors.vectors) <= half_step * 1.001).all()
    assert len(list(tmp_path.iterdir())) == 3


def test_provenance_is_beside_the_files():
    text = (sample_directory() / "README.md").read_text(encoding="utf-8")
    assert all(name in text for name in ("Krizhevsky", "Pang", "Pennington"))
