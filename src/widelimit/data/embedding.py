"""Texts as sequences of word vectors."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum

import numpy as np

from ..options import whole
from ..printing import written
from .batches import pad
from .errors import DataError, some
from .tokens import Tokenizer
from .vectors import WordVectors

NO_WORD = -2  # the row of a text without words


class Empty(Enum):
    """What to do with a text that has no word with a vector."""

    ERROR = "error"
    """Raise a `DataError` that names the text."""
    MEAN = "mean"
    """Give it one position, the mean of all vectors."""


class Keep(StrEnum):
    """Which words of a long text are kept."""

    FIRST = "first"
    LAST = "last"
    """Where reviews reach their verdict."""


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """Texts to padded arrays: tokenise, look up, keep the first or last `length` words.

    Words without a vector are left out. A position is a word, or the mean of `phrase` neighbouring
    ones. One embedder serves training and prediction alike.
    """

    vectors: WordVectors
    tokenizer: Callable[[str], list[str]] = field(default_factory=Tokenizer)
    length: int | None = None
    keep: Keep = Keep.FIRST
    phrase: int = 1
    empty: Empty = Empty.ERROR

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise DataError(
                f"length={self.length} leaves no word of a text.",
                got=str(self.length),
                remedy="give a positive number of words, or None for all",
                option="length",
            )
        whole("phrase", self.phrase)

    def __repr__(self) -> str:
        return written(self)

    def __call__(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """`x` `(N, positions, components)` and the mask `(N, positions)`."""
        texts = list(texts)
        rows = [self.vectors.find(self.words(text)) for text in texts]
        empty = [i for i, row in enumerate(rows) if not len(row)]
        if empty and self.empty is Empty.ERROR:
            raise DataError(
                "Some texts have no word with a vector.",
                got=some([f"text {i} ({texts[i][:40]!r})" for i in empty]),
                remedy="remove these texts, use vectors with more words, or pass empty=Empty.MEAN",
            )
        for i in empty:
            rows[i] = np.array([NO_WORD])
        # Row numbers are padded, not vectors: the large array is made once.
        padded, mask = pad([row[:, None] for row in rows])
        padded = padded[:, :, 0]
        x = self.vectors.vectors[np.maximum(padded, 0)]
        x[padded == NO_WORD] = self.vectors.mean
        x[~mask] = 0
        return phrases(x, mask, self.phrase)

    def words(self, text: str) -> list[str]:
        """The words of a text that have a vector, at most `length` from the end that is kept."""
        words = [word for word in self.tokenizer(text) if word in self.vectors]
        if self.length is None:
            return words
        return words[: self.length] if self.keep is Keep.FIRST else words[-self.length :]

    def positions(self, text: str) -> list[str]:
        """The words at every position of a text."""
        words = self.words(text)
        return [" ".join(words[i : i + self.phrase]) for i in range(0, len(words), self.phrase)]


def phrases(x: np.ndarray, mask: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Means of `size` neighbouring words of texts `(N, words, components)`, and their mask.

    The last phrase of a text may have fewer words.
    """
    size = min(size, x.shape[1])
    if size == 1:
        return x, mask
    gap = -x.shape[1] % size
    x = np.pad(x, [(0, 0), (0, gap), (0, 0)])
    counts = np.pad(mask, [(0, 0), (0, gap)]).reshape(len(x), -1, size).sum(axis=2)
    sums = x.reshape(len(x), counts.shape[1], size, x.shape[-1]).sum(axis=2)
    return sums / np.maximum(counts, 1)[..., None].astype(x.dtype), counts > 0
