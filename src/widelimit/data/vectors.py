"""Word vectors: GloVe-format text files and `.npz` files."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..printing import counted
from .arrays import read_npz
from .download import GLOVE
from .errors import DataError
from .files import lines, require_file
from .limits import require
from .places import locate

_COUNT = re.compile(r"[0-9]{1,9}")
NO_VECTOR = -1  # the row of a word that is not known


@dataclass(frozen=True, eq=False)
class WordVectors:
    """`vectors[i]`, `float32`, belongs to `words[i]`."""

    words: tuple[str, ...]
    vectors: np.ndarray

    def __repr__(self) -> str:
        return f"WordVectors({counted(len(self), 'word')}, {self.dimension} components)"

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def __getitem__(self, word: str) -> np.ndarray:
        return self.vectors[self._index[word]]

    @property
    def dimension(self) -> int:
        """The number of components."""
        return self.vectors.shape[1]

    def find(self, tokens: Sequence[str]) -> np.ndarray:
        """Row numbers of `tokens`; `NO_VECTOR` where a token has none."""
        return np.array([self._index.get(token, NO_VECTOR) for token in tokens], dtype=np.int64)

    def coverage(self, tokens: Sequence[str]) -> float:
        """The share of `tokens` that have a vector."""
        return float(np.mean(self.find(tokens) != NO_VECTOR)) if tokens else 0.0

    def unit_rms(self) -> "WordVectors":
        """Each vector scaled to `‖v‖² = d`, so that the input kernel `v·v/d` is one."""
        size = np.sqrt(np.mean(self.vectors**2, axis=1, keepdims=True))
        return replace(self, vectors=self.vectors / np.where(size > 0, size, 1))

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean of all vectors, a stand-in for a word without one."""
        return self.vectors.mean(axis=0)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}


def load_vectors(
    path: Path | str,
    *,
    vocabulary: Collection[str] | None = None,
    encoding: str = "utf-8",
    member: str = "",
) -> WordVectors:
    """Word vectors from a file; with `vocabulary` only those of its words, which is faster.

    Text files (`.gz` too; in a `.zip` the file `member`) have lines `word v1 … vd`, with or
    without a first line `count d`. An `.npz` file holds `words` (text), `vectors` (any float,
    or whole numbers with a `scale` per component that multiplies them).
    """
    path = Path(path)
    require_file(path)
    if path.suffix == ".npz":
        return _from_npz(path, vocabulary)
    words: list[str] = []
    rows: list[np.ndarray] = []
    seen: set[str] = set()
    for word, row in _text_rows(path, vocabulary, encoding, member):
        if word not in seen:
            seen.add(word)
            words.append(word)
            rows.append(row)
    return _checked(path, words, np.stack(rows) if rows else np.empty((0, 0), np.float32))


def load_glove(
    directory: Path | str | None = None,
    *,
    dimension: int = 100,
    vocabulary: Collection[str] | None = None,
    download: bool = False,
) -> WordVectors:
    """GloVe vectors of 50, 100, 200 or 300 components, from whichever form is found.

    Reads `glove_<d>d.npz`, `glove.6B.<d>d.txt` (`.gz` too) and the official `glove.6B.zip`,
    searched for as in `load_cifar10`.
    """
    text = f"glove.6B.{dimension}d.txt"
    forms = (f"glove_{dimension}d.npz", text, f"{text}.gz", GLOVE.name)
    path = locate("GloVe", forms, directory, source=GLOVE, download=download)
    return load_vectors(path, vocabulary=vocabulary, member=text)


def _text_rows(
    path: Path, vocabulary: Collection[str] | None, encoding: str, member: str
) -> Iterator[tuple[str, np.ndarray]]:
    dimension = 0
    for number, line in enumerate(lines(path, encoding=encoding, member=member), start=1):
        # A few words of large GloVe files contain spaces: the last d fields are the vector.
        fields = line.rstrip().split(" ")
        require("rows", number, f"'{path}'")
        if number == 1 and len(fields) == 2 and all(map(_COUNT.fullmatch, fields)):
            dimension = int(fields[1])
            continue
        dimension = dimension or len(fields) - 1
        word = " ".join(fields[:-dimension])
        if not word or not dimension:
            raise _bad_line(path, number, f"{len(fields)} fields, expected {dimension + 1}")
        if vocabulary is not None and word not in vocabulary:
            continue
        try:
            with np.errstate(over="ignore"):  # numbers that do not fit are refused below
                yield word, np.array([float(f) for f in fields[-dimension:]]).astype(np.float32)
        except ValueError as error:
            raise _bad_line(path, number, str(error)) from error


def _from_npz(path: Path, vocabulary: Collection[str] | None) -> WordVectors:
    arrays = read_npz(path, "words", "vectors")
    named, vectors = arrays["words"], arrays["vectors"]
    scale = arrays.get("scale", np.ones(1))
    fits = vectors.ndim == 2 and named.shape == vectors.shape[:1] and vectors.shape[1]
    numbers = vectors.dtype.kind in "iuf" and scale.dtype.kind in "iuf"
    if not fits or not numbers or scale.shape not in ((1,), vectors.shape[1:]):
        raise DataError(
            f"Words, vectors and their scale do not fit each other in '{path}'.",
            got=f"words {named.shape} and vectors {vectors.shape} {vectors.dtype}, "
            f"scale {scale.shape} {scale.dtype}",
            remedy="save `words` (words,), numbers `vectors` (words, components), and a `scale` "
            "(components,) or none",
        )
    words = named.astype(str).tolist()
    if vocabulary is not None:
        rows = [i for i, word in enumerate(words) if word in vocabulary]
        words, vectors = [words[i] for i in rows], vectors[rows]
    with np.errstate(over="ignore"):  # numbers that do not fit are refused below
        vectors = vectors.astype(np.float32) * scale.astype(np.float32)
    return _checked(path, words, vectors)


def _checked(path: Path, words: list[str], vectors: np.ndarray) -> WordVectors:
    if not len(words) or not np.isfinite(vectors).all():
        raise DataError(
            f"'{path}' holds no finite vectors for the words asked for.",
            got=f"{len(words)} words" + (", some not finite" if len(words) else ""),
            remedy="check the file and the vocabulary (most vectors are for lower-case words)",
        )
    return WordVectors(tuple(words), vectors)


def _bad_line(path: Path, number: int, why: str) -> DataError:
    return DataError(
        f"Line {number} of '{path}' is no word with as many numbers as the others have.",
        got=why,
        remedy="the file is cut off there or has another format: get it again",
    )
