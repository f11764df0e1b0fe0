"""Where word vectors come from: a file, the neighbourhood of the data, or the sample."""

from pathlib import Path
from typing import NamedTuple

from .places import data_root
from .sample import load_sample_vectors
from .vectors import WordVectors, load_vectors

_DIMENSIONS = (100, 300, 200, 50)


class FoundVectors(NamedTuple):
    """Word vectors, where they were found, and whether they are only the small sample's."""

    vectors: WordVectors
    place: str
    sample: bool


def find_vectors(given: Path | str | None = None, beside: Path | None = None) -> FoundVectors:
    """Vectors from the `given` file, else GloVe files in the data directory or beside the data."""
    if given is not None:
        return FoundVectors(load_vectors(given), str(given), False)
    for folder in dict.fromkeys((data_root(), beside or data_root())):
        for dimension in _DIMENSIONS:
            for form in ("glove_{}d.npz", "glove.6B.{}d.txt", "glove.6B.{}d.txt.gz"):
                path = folder / form.format(dimension)
                if path.is_file():
                    return FoundVectors(load_vectors(path), str(path), False)
    return FoundVectors(load_sample_vectors(), "the sample inside the package", True)
