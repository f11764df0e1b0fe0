"""Texts, sequences, images, dates and columns on their way to networks."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from widelimit.data import DataError, Embedder, Empty, WordVectors, downsample
from widelimit.errors import OptionError
from widelimit.sklearn import (
    DateFeatures,
    ImageResizer,
    InfiniteNetworkClassifier,
    InfiniteNetworkRegressor,
    SequenceScaler,
    WordVectorizer,
    prepare_columns,
)

RNG = np.random.default_rng(0)
VECTORS = WordVectors(("good", "bad", "film", "not"), RNG.normal(size=(4, 6)).astype(np.float32))
TEXTS = ["A good film", "not a good film, not at all", "bad", "zzz"]


def test_texts_become_word_vectors_in_cells():
    cells = WordVectorizer(VECTORS).fit_transform(TEXTS)
    assert cells.shape == (4, 1)
    assert [cell.shape for cell in cells[:, 0]] == [(2, 6), (4, 6), (1, 6), (1, 6)]
    x, mask = Embedder(vectors=VECTORS.unit_rms(), empty=Empty.MEAN)(TEXTS)
    for cell, row, real in zip(cells[:, 0], x, mask, strict=True):
        np.testing.assert_array_equal(cell, row[real])
    frame = pd.DataFrame({"text": [*TEXTS, None]})
    assert WordVectorizer(VECTORS).fit_transform(frame)[4, 0].shape == (1, 6)
    last = WordVectorizer(VECTORS, length=2, keep="last").fit_transform(TEXTS)
    np.testing.assert_array_equal(last[1, 0], cells[1, 0][-2:])
    pairs = WordVectorizer(VECTORS, phrase=2).fit_transform(TEXTS)
    np.testing.assert_allclose(pairs[1, 0][0], cells[1, 0][:2].mean(axis=0), rtol=1e-6)


def test_long_texts_share_positions():
    long = [" ".join(["good", "film"] * 100)] * 10
    assert WordVectorizer(VECTORS).fit_transform(long)[0, 0].shape == (50, 6)
    huge = {"length": 10**30, "phrase": 10**15}  # no number is too large to mean "all"
    assert WordVectorizer(VECTORS, **huge).fit_transform(long)[0, 0].shape == (1, 6)


def test_texts_in_pipelines_and_searches():
    texts = ["good film", "good not film", "bad film"] * 8  # the first word does not decide
    y = ["up", "down", "down"] * 8
    model = make_pipeline(WordVectorizer(VECTORS), InfiniteNetworkClassifier("mean"))
    assert clone(model).fit(texts, y).score(texts, y) == 1.0
    found = GridSearchCV(model, {"wordvectorizer__length": [1, 4]}, cv=2).fit(texts, y)
    assert found.best_params_ == {"wordvectorizer__length": 4}


def test_texts_beside_columns():
    """The text decides, or the numbers do: leave-one-out finds out which."""
    rng = np.random.default_rng(1)
    words = rng.choice(["good film", "bad film"], 40)
    size, city = rng.normal(size=40), rng.choice(["a", "b"], 40)
    frame = pd.DataFrame({"text": words, "size": size, "city": city})
    columns = prepare_columns(frame, text="text", vectorizer=WordVectorizer(VECTORS))
    model = make_pipeline(columns, InfiniteNetworkClassifier("linear"))
    by_text = np.where(words == "good film", "up", "down")
    by_size = np.where(frame["size"] > 0, "up", "down")
    assert model.fit(frame, by_text).score(frame, by_text) == 1.0
    assert "the text counts 100%" in model[-1].summary_ or "90%" in model[-1].summary_
    assert clone(model).fit(frame, by_size).score(frame, by_size) > 0.9
    names = columns.set_output(transform="pandas").fit_transform(frame).columns
    assert names.tolist() == ["text", "size", "city_a", "city_b"]


def test_sequences_are_scaled_and_stand_beside_columns():
    rng = np.random.default_rng(0)
    lists = [5 + 2 * rng.normal(size=(n, 3)) for n in rng.integers(2, 6, 20)]
    cells = SequenceScaler().fit_transform(lists)
    every = np.concatenate(cells[:, 0].tolist())
    np.testing.assert_allclose(every.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(every.std(axis=0), 1, rtol=1e-5)
    column = np.empty(20, dtype=object)
    column[:] = lists
    frame = pd.DataFrame({"signal": column, "size": rng.normal(size=20)})
    y = frame["size"].to_numpy()
    both = make_column_transformer(
        (SequenceScaler(), ["signal"]), ("passthrough", ["size"]), sparse_threshold=0
    )
    model = make_pipeline(both, InfiniteNetworkRegressor("linear")).fit(frame, y)
    assert model.score(frame, y) > 0.9


def test_images_are_read_and_made_smaller(tmp_path):
    pixels = RNG.integers(0, 256, (3, 16, 12, 3), dtype=np.uint8)
    small = ImageResizer(8).fit(pixels)
    np.testing.assert_array_equal(small.transform(pixels), downsample(pixels, (8, 8)))
    assert ImageResizer(None).fit_transform(pixels).shape == pixels.shape
    assert ImageResizer(14).fit_transform(pixels).shape == (3, 14, 12, 3)
    paths = []
    for i, image in enumerate(pixels):
        paths.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(image).save(paths[-1])
    assert ImageResizer(4, grey=True).fit_transform(paths).shape == (3, 4, 4, 1)
    np.testing.assert_array_equal(ImageResizer(None).fit_transform(paths), pixels)


def test_dates_become_numbers():
    days = pd.DataFrame({"day": pd.date_range("2023-01-01", periods=400, freq="D")})
    days.loc[5, "day"] = pd.NaT
    features = DateFeatures().fit(days)
    x = features.transform(days)
    assert features.get_feature_names_out().tolist() == [
        "day_days", "day_week_sin", "day_week_cos", "day_year_sin", "day_year_cos",
    ]  # fmt: skip
    assert x[0, 0] == 19358  # days from 1970 to 2023
    assert np.isfinite(x).all()
    assert x[5, 0] == np.median(np.delete(x[:, 0], 5))
    np.testing.assert_allclose(x[7:-7, 1], x[14:, 1], atol=1e-9)  # a week later it is the same
    hours = pd.DataFrame({"at": pd.date_range("2023-01-01", periods=48, freq="h")})
    assert "at_day_sin" in DateFeatures().fit(hours).get_feature_names_out()


def test_columns_are_prepared_by_what_they_hold():
    frame = pd.DataFrame(
        {
            "age": [1.0, np.nan, 3.0, 5.0] * 5,
            "city": ["a", "b", None, "a"] * 5,
            "seen": [True, False, True, True] * 5,
            "name": [f"n{i}" for i in range(20)],
        }
    )
    prepare = prepare_columns(frame).set_output(transform="pandas")
    found = prepare.fit_transform(frame)
    assert found.columns.tolist() == [
        "age", "missingindicator_age", "city_a", "city_b", "city_nan", "seen_False", "seen_True",
    ]  # fmt: skip
    assert found["age"].iloc[1] == 3.0  # the median
    new = frame.iloc[:1].assign(city="elsewhere")
    cities = prepare.transform(new)[["city_a", "city_b", "city_nan"]]
    assert cities.to_numpy().tolist() == [[0, 0, 0]]
    with pytest.raises(DataError, match="No column holds") as caught:
        prepare_columns(frame[["name"]])
    assert caught.value.options == ("text", "feature")


def test_rare_categories_do_not_outweigh_the_rest():
    """A column of zeros with a single one is divided by 0.2, not by its own deviation."""
    x = np.zeros((200, 2))
    x[:, 0], x[3, 1] = RNG.normal(size=200), 1.0
    model = InfiniteNetworkRegressor("linear").fit(x, x[:, 0])
    assert model.scaler_.scale.std[1] == 0.2
    assert model.scaler_.scale.std[0] == pytest.approx(x[:, 0].std())


def test_mistakes_are_named():
    with pytest.raises(DataError, match="not one column"):
        WordVectorizer(VECTORS).fit(np.array([["a", "b"]], dtype=object))
    with pytest.raises(DataError, match="3 is no text"):
        WordVectorizer(VECTORS).fit(["a", 3])
    with pytest.raises(OptionError, match="keep="):
        WordVectorizer(VECTORS, keep="middle").fit(TEXTS)
    with pytest.raises(OptionError, match="phrase="):
        WordVectorizer(VECTORS, phrase=0).fit(TEXTS)
    with pytest.raises(OptionError, match="size="):
        ImageResizer(0).fit(np.zeros((1, 4, 4, 3)))
