"""Loaders, word vectors and the small steps from files to arrays.

Loaders of arrays return frozen records: `Labelled` with one part that `.split` divides, `Dataset`
with a training and a test part; texts are tables, pandas' frames. Large datasets are looked for in
a directory given by the user, then in the environment variable `WIDELIMIT_DATA`, then in the
cache; `download=True` fetches the official archive and checks its SHA-256.
"""

from .arrays import read_npz, save_npz
from .batches import pad
from .cifar import CIFAR10_CLASSES, load_cifar10
from .datasets import (
    Dataset,
    Labelled,
    stratified_order,
)
from .download import CIFAR10, GLOVE, IMDB, RemoteFile, fetch
from .embedding import Embedder, Empty, Keep
from .errors import DataError, MissingDataError
from .files import save_figure, write_text, writing
from .frames import Holds, column_holds, find_leaks, read_frame
from .imdb import load_imdb
from .npz import load_npz, load_npz_split
from .pictures import (
    load_image_folder,
    load_image_folder_split,
    read_image,
    read_images,
)
from .places import data_root
from .preprocess import ZCA, Standardise, downsample
from .sample import (
    load_sample_graph,
    load_sample_images,
    load_sample_sentences,
    load_sample_texts,
    load_sample_vectors,
    sample_directory,
)
from .tokens import Tokenizer
from .vectors import WordVectors, load_glove, load_vectors
from .words import FoundVectors, find_vectors

__all__ = [
    "CIFAR10",
    "CIFAR10_CLASSES",
    "GLOVE",
    "IMDB",
    "ZCA",
    "DataError",
    "Dataset",
    "Embedder",
    "Empty",
    "FoundVectors",
    "Holds",
    "Keep",
    "Labelled",
    "MissingDataError",
    "RemoteFile",
    "Standardise",
    "Tokenizer",
    "WordVectors",
    "column_holds",
    "data_root",
    "downsample",
    "fetch",
    "find_leaks",
    "find_vectors",
    "load_cifar10",
    "load_glove",
    "load_image_folder",
    "load_image_folder_split",
    "load_imdb",
    "load_npz",
    "load_npz_split",
    "load_sample_graph",
    "load_sample_images",
    "load_sample_sentences",
    "load_sample_texts",
    "load_sample_vectors",
    "load_vectors",
    "pad",
    "read_frame",
    "read_image",
    "read_images",
    "read_npz",
    "sample_directory",
    "save_figure",
    "save_npz",
    "stratified_order",
    "write_text",
    "writing",
]
