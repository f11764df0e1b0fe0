"""A small real sample: photographs and film opinions that need no other file."""

from importlib.resources import as_file, files
from pathlib import Path

from ..datasets import Dataset, TextDataset
from ..embedding import Embedder
from ..npz import load_npz_split
from ..preprocess import Standardise
from ..texts import load_texts_split
from ..vectors import WordVectors, load_vectors

IMAGES, SENTENCES, VECTORS = "cifar10_16x16.npz", "rt_polarity.jsonl.gz", "glove.npz"
SENTIMENTS = ("negative", "positive")


def load_sample_images(*, standardise: bool = True) -> Dataset:
    """160 training and 80 test photographs, `(N, 16, 16, 3)`, of four CIFAR-10 classes.

    `float32`, each channel with mean 0 and deviation 1 over the training images; with
    `standardise=False` the `uint8` pixels.
    """
    with as_file(files(__name__) / IMAGES) as path:
        data = load_npz_split(path)
    return data.map(Standardise.per_channel(data.x_train)) if standardise else data


def load_sample_sentences() -> TextDataset:
    """400 training and 200 test sentences about films, negative (0) or positive (1)."""
    with as_file(files(__name__) / SENTENCES) as path:
        data = load_texts_split(path)
    return TextDataset(data.texts_train, data.y_train, data.texts_test, data.y_test, SENTIMENTS)


def load_sample_vectors() -> WordVectors:
    """GloVe vectors (100 components) of exactly the words in the sample sentences."""
    with as_file(files(__name__) / VECTORS) as path:
        return load_vectors(path)


def load_sample_texts(*, length: int | None = None) -> Dataset:
    """The sample sentences as sequences of word vectors with masks, at most `length` words."""
    return load_sample_sentences().embed(Embedder(vectors=load_sample_vectors(), length=length))


def sample_directory() -> Path:
    """The folder of the sample files in an ordinary installation, e.g. to try the command line."""
    return Path(__file__).parent
