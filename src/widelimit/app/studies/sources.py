"""The real data of the studies: from the user's directory, or for small sizes from the sample."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ...data import (
    ZCA,
    DataError,
    Dataset,
    Embedder,
    Empty,
    Keep,
    Labelled,
    MissingDataError,
    Standardise,
    WordVectors,
    data_root,
    downsample,
    load_cifar10,
    load_glove,
    load_imdb,
    load_sample_images,
    load_sample_sentences,
    load_sample_vectors,
    read_frame,
    stratified_order,
)
from ...data.embedding import phrases
from .study import Size

T = TypeVar("T")

STANDARD, WHITE = "standardised", "whitened"
PLAIN, UNIT = "plain", "unit length"
_SPLIT_SEED = 0


def real_or_sample(size: Size, real: Callable[[], T], sample: Callable[[], T]) -> tuple[T, bool]:
    """Real data and True; at small size without them the sample that ships, and False.

    Data that are there but damaged are an error at every size.
    """
    try:
        return real(), True
    except MissingDataError as error:
        if size is Size.SMALL:
            return sample(), False
        raise DataError(
            f"A study of size '{size}' lacks its data. {error.rule}",
            got=error.got,
            remedy="name the directory that holds it (also in the environment variable "
            "WIDELIMIT_DATA), or run the small size, which falls back on the sample in the package",
            option=("data_dir", "size"),
        ) from error


def images(size: Size, *, side: int, train: int, test: int) -> tuple[Dataset, str]:
    """CIFAR-10 shrunk to side×side pixels, and what to call it."""
    data, real = real_or_sample(size, load_cifar10, lambda: load_sample_images(standardise=False))
    name = f"{'CIFAR-10' if real else 'CIFAR-10 sample'} {side}×{side}"
    train, test = min(train, len(data.y_train)), min(test, len(data.y_test))
    data = data.subset(train=train, test=test, key=_SPLIT_SEED)
    return data.map(lambda x: downsample(x, (side, side))), name


def image_views(data: Dataset) -> dict[str, Dataset]:
    """Channels standardised, and all pixels whitened together; fitted on the training images."""
    standard = data.map(Standardise.per_channel(data.x_train))
    white = data.map(ZCA.fit(data.x_train, strength=1.0))
    return {STANDARD: standard, WHITE: white.map(Standardise.per_channel(white.x_train))}


def imdb(size: Size) -> tuple[Any, bool]:
    """Film reviews, as a table."""
    return real_or_sample(size, load_imdb, load_sample_sentences)


def rt_polarity(size: Size) -> tuple[Any, bool]:
    """Sentences about films; the last 1,662 of the file are for testing."""

    def real() -> Any:
        path = data_root() / "rt_polarity.jsonl.gz"
        if not path.exists():
            raise MissingDataError(
                "The sentences about films are not on this disk.",
                got=f"no file '{path}'",
                remedy="put rt_polarity.jsonl.gz into the data directory",
            )
        frame = read_frame(path)
        return frame.assign(split=np.where(np.arange(len(frame)) < 9000, "train", "test"))

    return real_or_sample(size, real, load_sample_sentences)


def glove(size: Size) -> WordVectors:
    """Word vectors of 100 components."""
    vectors, _ = real_or_sample(size, load_glove, load_sample_vectors)
    return vectors


def mean_of(view: str) -> str:
    """The name of the view that holds the mean vector of every text."""
    return f"mean of {view} vectors"


def text_views(
    texts: Any,
    vectors: WordVectors,
    *,
    length: int,
    phrase: int = 1,
    keep: Keep = Keep.FIRST,
    train: int,
    test: int,
) -> dict[str, Dataset]:
    """Sequences of word vectors, as they are and scaled to one length; and their means.

    Texts are cut to their first or last `length` words, of which `phrase` neighbours are averaged
    into a position.
    """
    numbers, rows = np.unique(texts["label"].astype(str), return_inverse=True)[1], []
    for part, most in (("train", train), ("test", test)):
        there = np.flatnonzero(texts["split"] == part)
        rows.append(there[stratified_order(numbers[there], key=_SPLIT_SEED)[:most]])
    chosen = texts.iloc[np.concatenate(rows)]
    views = {}
    for name, table in ((PLAIN, vectors), (UNIT, vectors.unit_rms())):
        embedder = Embedder(vectors=table, length=length, keep=keep, empty=Empty.MEAN)
        data = Dataset.of_texts(chosen, embedder)
        data = data.map(Standardise.per_channel(data.x_train, mask=data.mask_train))
        means = Dataset.join(*(_mean(part) for part in (data.train, data.test)))
        views[mean_of(name)] = means.map(Standardise.per_channel(means.x_train))
        data = Dataset.join(*(_in_phrases(part, phrase) for part in (data.train, data.test)))
        views[name] = data.map(Standardise.per_channel(data.x_train, mask=data.mask_train))
    return views


def _mean(part: Labelled) -> Labelled:
    assert part.mask is not None
    return replace(part, x=part.x.sum(axis=1) / part.mask.sum(axis=1)[:, None], mask=None)


def _in_phrases(part: Labelled, size: int) -> Labelled:
    assert part.mask is not None
    x, mask = phrases(part.x, part.mask, size)
    return replace(part, x=x, mask=mask)
