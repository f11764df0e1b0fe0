"""A small real sample: photographs, film opinions and a graph that need no other file."""

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..datasets import Dataset
from ..embedding import Embedder
from ..frames import read_frame
from ..imdb import opinions
from ..npz import load_npz_split
from ..preprocess import Standardise
from ..vectors import WordVectors, load_vectors

if TYPE_CHECKING:
    from pandas import DataFrame

IMAGES, SENTENCES, VECTORS = "cifar10_16x16.npz", "rt_polarity.jsonl.gz", "glove.npz"
GRAPH = "karate_club.txt"


def load_sample_images(*, standardise: bool = True) -> Dataset:
    """160 training and 80 test photographs, `(N, 16, 16, 3)`, of four CIFAR-10 classes.

    `float32`, each channel with mean 0 and deviation 1 over the training images; with
    `standardise=False` the `uint8` pixels.
    """
    with as_file(files(__name__) / IMAGES) as path:
        data = load_npz_split(path)
    return data.map(Standardise.per_channel(data.x_train)) if standardise else data


def load_sample_sentences() -> "DataFrame":
    """600 sentences about films: `text`, `label` (negative, positive), `split` (train, test)."""
    with as_file(files(__name__) / SENTENCES) as path:
        return opinions(read_frame(path), path)


def load_sample_vectors() -> WordVectors:
    """GloVe vectors (100 components) of exactly the words in the sample sentences."""
    with as_file(files(__name__) / VECTORS) as path:
        return load_vectors(path)


def load_sample_texts(*, length: int | None = None) -> Dataset:
    """The sample sentences as sequences of word vectors with masks, at most `length` words."""
    embedder = Embedder(vectors=load_sample_vectors(), length=length)
    return Dataset.of_texts(load_sample_sentences(), embedder)


def load_sample_graph() -> tuple[np.ndarray, np.ndarray]:
    """Zachary's karate club: who met whom outside of it, and which club they chose when it split.

    Ones and zeros `(34, 34)`, symmetric; classes `(34,)`, 0 the instructor's and 1 the officers'.
    """
    lines = (files(__name__) / GRAPH).read_text(encoding="utf-8").splitlines()
    met = np.zeros((len(lines), len(lines)))
    for member, line in enumerate(lines):
        met[member, [int(other) for other in line.split()[1:]]] = 1
    return met + met.T, np.array([int(line.partition(":")[0]) for line in lines])


def sample_directory() -> Path:
    """The folder of the sample files in an ordinary installation, e.g. to try the command line."""
    return Path(__file__).parent
