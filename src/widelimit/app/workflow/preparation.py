"""From examples to arrays a network takes; fitted on training examples, kept with the model."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ...data import (
    DataError,
    Embedder,
    Empty,
    Keep,
    Standardise,
    Tokenizer,
    WordVectors,
    downsample,
)
from ...data.limits import require
from .examples import Examples
from .features import Feature, deviations, fitted_feature, joined
from .kinds import Kind

_POSITIONS = 60  # of most texts, where neighbouring words share one
_FREQUENT_WORDS = 40_000  # kept beside the words of the texts, for texts yet to come


class Batch(NamedTuple):
    """Arrays (N, positions…, channels), and the mask of real positions where they are padded.

    Both are tuples where examples have several streams.
    """

    x: Any
    mask: Any

    def take(self, indices: Any) -> "Batch":
        """Some of the examples."""
        return Batch(*jax.tree.map(lambda a: a[indices], tuple(self)))

    @property
    def shape(self) -> Any:
        """The shape of one example; a tuple of shapes for several streams."""
        several = isinstance(self.x, tuple)
        return tuple(x.shape[1:] for x in self.x) if several else self.x.shape[1:]


@dataclass(frozen=True, eq=False)
class TextPreparation:
    """Words to word vectors, each of length √d, up to the length of the embedder."""

    embedder: Embedder
    column: str | None
    dtype = np.float32
    kind = Kind.TEXT

    @classmethod
    def fit(
        cls,
        examples: Examples,
        vectors: WordVectors,
        *,
        length: int | None,
        keep: Keep,
        phrase: int | None = None,
        column: str | None,
    ) -> "TextPreparation":
        """Keep the vectors of the words in these texts, and of frequent ones.

        Without a `phrase`, most texts have at most 60 positions.
        """
        tokenizer = Tokenizer()
        tokens = [tokenizer(text) for text in examples.content]
        known = Counter(word for words in tokens for word in words)
        rows = [i for i, w in enumerate(vectors.words) if i < _FREQUENT_WORDS or w in known]
        kept = WordVectors(tuple(vectors.words[i] for i in rows), vectors.vectors[rows])
        embedder = Embedder(
            vectors=kept.unit_rms(),
            tokenizer=tokenizer,
            length=length,
            keep=keep,
            phrase=phrase or _usual_phrase([len(words) for words in tokens], length),
            empty=Empty.MEAN,
        )
        return cls(embedder, column)

    def __call__(self, examples: Examples) -> Batch:
        """Word vectors with their mask."""
        return Batch(*self.embedder(examples.content))

    def words(self, text: str) -> list[str]:
        """The words of a text that have a place in its array, by position."""
        return self.embedder.positions(text)

    def notes(self, examples: Examples) -> list[str]:
        """What was lost on the way: unknown words, texts without any, texts cut short."""
        tokens = [self.embedder.tokenizer(text) for text in examples.content]
        share = self.embedder.vectors.coverage([word for text in tokens for word in text])
        known = [len(self.words(text)) for text in examples.content]
        notes = [f"{share:.1%} of the words have a vector"]
        if empty := sum(count == 0 for count in known):
            notes.append(f"{empty} texts have no word with a vector: they stand for an average one")
        length = self.embedder.length
        if length is not None and (cut := sum(len(text) > length for text in tokens)):
            notes.append(
                f"{cut} texts are cut to their {self.embedder.keep} {length} words "
                "(--length and --keep change that)"
            )
        if self.embedder.phrase > 1:
            notes.append(
                f"long texts: {self.embedder.phrase} neighbouring words are averaged into one "
                "position (--phrase changes that)"
            )
        return notes


def _usual_phrase(counts: list[int], length: int | None) -> int:
    """As few words at a position as leave nine of ten texts with at most 60 positions."""
    read = np.minimum(counts, length or np.inf)
    return max(1, math.ceil(float(np.quantile(read, 0.9)) / _POSITIONS))


@dataclass(frozen=True, eq=False)
class TablePreparation:
    """Columns side by side, each with mean 0 and deviation 1 over the training rows."""

    features: tuple[Feature, ...]
    scale: Standardise
    dtype = np.float64
    kind = Kind.TABLE

    @classmethod
    def fit(cls, examples: Examples) -> "TablePreparation":
        """Means, deviations, categories, and what stands for missing values, of these rows."""
        features: tuple[Feature, ...] = ()
        if isinstance(examples.content, dict):
            features = tuple(
                fitted_feature(name, column, examples.given.get(name))
                for name, column in examples.content.items()
            )
        scale = Standardise.per_pixel(_joined(features, examples))
        return cls(features, replace(scale, std=deviations(features, scale.std)))

    def __call__(self, examples: Examples) -> Batch:
        """Standardised rows."""
        rows = _joined(self.features, examples)
        if rows.shape[1:] != self.scale.mean.shape:
            raise _other_shape(rows.shape[1:], self.scale.mean.shape)
        return Batch((rows - self.scale.mean) / self.scale.std, None)

    def notes(self, examples: Examples) -> list[str]:
        """Values that are missing, and categories that were not there in training."""
        told = [n for f in self.features for n in f.notes(examples.content[f.name])]
        new = [note for note in told if note.startswith("new in ")]
        missing = [note for note in told if note not in new]
        if not missing:
            return new
        return [
            f"missing values: {', '.join(missing)}; in their place stands the median of the "
            "training rows (a missing word is a category), and a column of its own says where "
            "(--skip leaves such rows out)",
            *new,
        ]


def _joined(features: tuple[Feature, ...], examples: Examples) -> np.ndarray:
    if not features:
        require("bytes", examples.content.size * 8, "the examples as floating-point numbers")
        return np.asarray(examples.content, np.float64)
    width = sum(len(f.binary) for f in features)
    require("bytes", len(examples) * width * 8, f"{width:,} columns with categories apart")
    return joined(features, examples.content)


@dataclass(frozen=True, eq=False)
class MixedPreparation:
    """Two streams: the words of the text, and the columns beside it."""

    text: TextPreparation
    table: TablePreparation
    dtype = np.float32
    kind = Kind.MIXED

    def __call__(self, examples: Examples) -> Batch:
        """Word vectors with their mask, and standardised rows."""
        words, rows = self.text(examples.texts), self.table(examples.columns)
        return Batch((words.x, rows.x), (words.mask, None))

    def notes(self, examples: Examples) -> list[str]:
        """What was lost on the way of both."""
        return [*self.text.notes(examples.texts), *self.table.notes(examples.columns)]


@dataclass(frozen=True, eq=False)
class ArrayPreparation:
    """Sequences and images: images are made smaller, channels get mean 0 and deviation 1."""

    kind: Kind
    size: tuple[int, int] | None
    scale: Standardise
    positions: tuple[int, ...]
    dtype = np.float32

    @classmethod
    def fit(cls, examples: Examples, *, size: int | None) -> "ArrayPreparation":
        """Means and deviations of these examples' channels."""
        small = None
        if examples.kind is Kind.IMAGE and size is not None:
            height, width = examples.content.shape[1:3]
            small = (min(size, height), min(size, width))
            small = None if small == (height, width) else small
        x = _smaller(examples.content, small)
        scale = Standardise.per_channel(x, mask=examples.mask)
        return cls(examples.kind, small, scale, examples.content.shape[1:])

    def __call__(self, examples: Examples) -> Batch:
        """Standardised arrays; padding stays zero."""
        shape = examples.content.shape[1:]
        fixed = self.kind is Kind.IMAGE
        if (shape if fixed else shape[-1:]) != (self.positions if fixed else self.positions[-1:]):
            raise _other_shape(shape, self.positions)
        x = self.scale(_smaller(examples.content, self.size))
        if examples.mask is not None:
            x = np.where(examples.mask[..., None], x, 0).astype(x.dtype)
        return Batch(x, examples.mask)

    def notes(self, examples: Examples) -> list[str]:
        """Whether images were made smaller."""
        if self.size is None:
            return []
        height, width = examples.content.shape[1:3]
        small = f"{self.size[0]}×{self.size[1]}"
        return [f"images are shrunk from {height}×{width} to {small} (--image-size changes that)"]


Preparation = TextPreparation | TablePreparation | MixedPreparation | ArrayPreparation


def _smaller(x: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    if size is None:
        require("bytes", x.size * 4, "the examples as floating-point numbers")
        return x
    return downsample(x, size)


def _other_shape(got: tuple[int, ...], wanted: tuple[int, ...]) -> DataError:
    return DataError(
        "Examples must have the shape of those the model learned from.",
        got=f"shape {got}, where training had {wanted}",
        remedy="prepare them in the same way",
    )
