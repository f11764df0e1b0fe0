"""From texts, images, sequences and dates to what networks take, as scikit-learn transformers.

Texts and sequences become arrays of different lengths, one in every cell of a column (N, 1): so
they pass through pipelines, and stand beside columns of numbers in a `ColumnTransformer`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import check_is_fitted

from ..data import (
    DataError,
    Embedder,
    Empty,
    Holds,
    Keep,
    Standardise,
    Tokenizer,
    WordVectors,
    column_holds,
    downsample,
    find_vectors,
    read_images,
)
from ..options import choice, whole

_POSITIONS = 60  # of most texts, where neighbouring words share one
_FREQUENT_WORDS = 40_000  # kept beside the words of the texts, for texts yet to come
_PERIODS = {"day": 1.0, "week": 7.0, "year": 365.2425}  # in days


class WordVectorizer(TransformerMixin, BaseEstimator):
    """Texts as sequences of word vectors, each of length √d: arrays (words, d) in cells (N, 1)."""

    def __init__(
        self,
        vectors: WordVectors | Path | str | None = None,
        *,
        length: int | None = 400,
        keep: Keep | str = "first",
        phrase: int | None = None,
    ):
        """`vectors`: word vectors or their file; None looks for GloVe in the data directory, and
        takes the small sample of this package where there is none. Texts are cut to their `length`
        "first" or "last" words. `phrase` neighbouring words share a position; None is as few as
        leave nine of ten texts with at most 60 positions.
        """
        self.vectors = vectors
        self.length = length
        self.keep = keep
        self.phrase = phrase

    def fit(self, X: Any, y: Any = None) -> Self:
        """Keep the vectors of the words in these texts, and of frequent ones."""
        texts, tokenizer = _texts(X), Tokenizer()
        vectors, self.place_ = self.vectors, "the given vectors"
        if not isinstance(vectors, WordVectors):
            vectors, self.place_, _ = find_vectors(vectors)
        tokens = [tokenizer(text) for text in texts]
        known = Counter(word for words in tokens for word in words)
        rows = [i for i, w in enumerate(vectors.words) if i < _FREQUENT_WORDS or w in known]
        kept = WordVectors(tuple(vectors.words[i] for i in rows), vectors.vectors[rows])
        phrase = self.phrase
        if phrase is None:
            most = np.inf if self.length is None else float(self.length)
            read = np.minimum([len(words) for words in tokens], most)
            phrase = max(1, math.ceil(float(np.quantile(read, 0.9)) / _POSITIONS))
        self.embedder_ = Embedder(
            vectors=kept.unit_rms(),
            tokenizer=tokenizer,
            length=self.length,
            keep=choice(Keep, self.keep, "keep"),
            phrase=whole("phrase", phrase),
            empty=Empty.MEAN,
        )
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Cells (N, 1), each an array (positions, components)."""
        check_is_fitted(self)
        x, mask = self.embedder_(_texts(X))
        return as_cells([one[real] for one, real in zip(x, mask, strict=True)])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """One column of word vectors."""
        return np.array(["words"] if input_features is None else input_features, dtype=object)


class SequenceScaler(TransformerMixin, BaseEstimator):
    """Sequences of different lengths, channels with mean 0 and deviation 1, in cells (N, 1)."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Means and deviations over all positions of all sequences."""
        self.scale_ = Standardise.per_channel(np.concatenate(_sequences(X)))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Cells (N, 1), each an array (positions, channels)."""
        check_is_fitted(self)
        return as_cells([self.scale_(one) for one in _sequences(X)])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """One column of sequences."""
        return np.array(["sequence"] if input_features is None else input_features, dtype=object)


class ImageResizer(TransformerMixin, BaseEstimator):
    """Images of one size (N, height, width, channels): files that are read, or arrays.

    Each side is made smaller to at most `size` pixels by area averaging; None keeps the size.
    """

    def __init__(self, size: int | None = 8, *, grey: bool = False):
        """`grey` reads files with one channel."""
        self.size = size
        self.grey = grey

    def fit(self, X: Any, y: Any = None) -> Self:
        """The size of arrays is that of all to come."""
        self.size_ = None
        if self.size is not None:
            most = whole("size", self.size)
            height, width = (most, most) if _are_paths(X) else np.shape(X)[1:3]
            self.size_ = (min(most, height), min(most, width))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Arrays (N, height, width, channels)."""
        check_is_fitted(self)
        if _are_paths(X):
            return read_images(list(np.ravel(X)), size=self.size_, grey=self.grey)
        x = np.asarray(X)
        return x if self.size_ in (None, x.shape[1:3]) else downsample(x, self.size_)


class DateFeatures(TransformerMixin, BaseEstimator):
    """Dates as numbers: days since 1970, and sine and cosine of the times that come around.

    Those are the day, the week and the year, as far as the training rows go through them.
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Periods that the training rows span at least twice over, a year half."""
        self.feature_names_in_ = np.array(list(X.columns), dtype=object)
        self.n_features_in_ = len(X.columns)
        self.periods_, self.fill_ = [], []
        for days in _days(X).T:
            there = days[np.isfinite(days)]
            span = float(np.ptp(there)) if len(there) else 0.0
            goes = {"day": (there % 1 != 0).any(), "week": span >= 14, "year": span >= 183}
            self.periods_.append([period for period in _PERIODS if goes[period]])
            self.fill_.append(float(np.median(there)) if len(there) else 0.0)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Numbers (N, features); a missing date is the median one."""
        check_is_fitted(self)
        columns = []
        for days, periods, fill in zip(_days(X).T, self.periods_, self.fill_, strict=True):
            columns.append(np.where(np.isfinite(days), days, fill))
            turns = [2 * np.pi * columns[-1] / _PERIODS[period] for period in periods]
            columns += [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
        return np.stack(columns, axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """`date_days`, `date_week_sin`, …"""
        names = []
        for name, periods in zip(self.feature_names_in_, self.periods_, strict=True):
            ends = [f"{period}_{wave}" for period in periods for wave in ("sin", "cos")]
            names += [f"{name}_{end}" for end in ("days", *ends)]
        return np.array(names, dtype=object)


def prepare_columns(
    frame: Any, *, text: str | None = None, vectorizer: WordVectorizer | None = None
) -> ColumnTransformer:
    """What makes numbers of the columns of a frame, by what they hold (see `column_holds`).

    Missing numbers are the median, and a column of zeros and ones says where; categories, yes and
    no and what is missing among them are zeros and ones; dates are `DateFeatures`; the column
    `text` is word vectors. Columns that hold nothing usable are left out.
    """
    holds = {name: column_holds(frame[name]) for name in frame.columns if name != text}
    steps: list[tuple[str, Any, Any]] = []
    if text is not None:
        steps.append(("words", vectorizer or WordVectorizer(), [text]))
    for kind, step in (
        (Holds.NUMBERS, SimpleImputer(strategy="median", add_indicator=True)),
        (Holds.CATEGORIES, OneHotEncoder(handle_unknown="ignore", sparse_output=False)),
        (Holds.DATES, DateFeatures()),
    ):
        if names := [name for name, found in holds.items() if found is kind]:
            steps.append((kind.value, step, names))
    if not steps:
        raise DataError(
            "No column holds numbers, categories, dates or texts.",
            got=", ".join(f"{name!r} ({found})" for name, found in holds.items()) or "no column",
            remedy="name the column of texts, or the columns to use",
            option=("text", "feature"),
        )
    return ColumnTransformer(steps, sparse_threshold=0.0, verbose_feature_names_out=False)


def as_cells(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays as a column (N, 1) of objects."""
    cells = np.empty((len(arrays), 1), dtype=object)
    for row, array in enumerate(arrays):
        cells[row, 0] = array
    return cells


def _texts(X: Any) -> list[str]:
    """Texts from a list, a series, or a frame of one column; what is missing is empty."""
    values = np.asarray(X, dtype=object)
    if values.ndim > 1 and values.shape[1:] != (1,):
        raise DataError(
            "Texts are not one column.",
            got=f"an array of shape {values.shape}",
            remedy="pass a list of texts, or one column of a frame",
        )
    column = values.reshape(-1).tolist()
    missing = [one is None or one != one for one in column]
    pairs = zip(column, missing, strict=True)
    if wrong := [one for one, gone in pairs if not gone and not isinstance(one, str)]:
        raise DataError(
            f"{wrong[0]!r} is no text.",
            got=f"a {type(wrong[0]).__name__} among {len(column)} texts",
            remedy="pass strings",
        )
    return [one if isinstance(one, str) else "" for one in column]


def _sequences(X: Any) -> list[np.ndarray]:
    cells = X.to_numpy(object) if hasattr(X, "to_numpy") else X
    flat = np.ravel(cells) if getattr(cells, "dtype", "") == "O" else cells
    return [np.asarray(one) for one in flat]


def _are_paths(X: Any) -> bool:
    first = next(iter(np.ravel(np.asarray(X, dtype=object)[:1])), None)
    return isinstance(first, str | Path)


def _days(X: Any) -> np.ndarray:
    """Days since 1970 (N, columns), not a number where there is no date."""
    dates = np.stack([np.asarray(X[name], "datetime64[s]") for name in X.columns], axis=1)
    return np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 86400.0)
