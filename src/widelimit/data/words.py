"""Where word vectors come from: a file, the neighbourhood of the data, or the sample."""

from pathlib import Path
from typing import NamedTuple

from .places import data_root
from .sample import load_sample_vectors
from .vectors import WordVectors, load_vectors

SAMPLE = "the sample inside the package"
_DIMENSIONS = (100, 300, 200, 50)


class FoundVectors(NamedTuple):
    """Word vectors, where they were found, and whether they are only the small sample's."""

    vectors: WordVectors
    place: str
    sample: bool


def find_vectors(given: Path | str | None = None, beside: Path | None = None) -> FoundVectors:
    """Vectors from the `given` file, else GloVe files in the data directory or beside the data."""
    place = given or glove_file(data_root()) or (beside and glove_file(beside))
    if place is None:
        return FoundVectors(load_sample_vectors(), SAMPLE, True)
    return FoundVectors(load_vectors(place), str(place), False)


def glove_file(folder: Path) -> Path | None:
    """The GloVe file of a folder, if it has one."""
    forms = ("glove_{}d.npz", "glove.6B.{}d.txt", "glove.6B.{}d.txt.gz")
    paths = (folder / form.format(size) for size in _DIMENSIONS for form in forms)
    return next((path for path in paths if path.is_file()), None)
