"""What loaders return: small frozen records of arrays or texts with their labels.

`y` holds class numbers (`int64`, class `i` is `class_names[i]`) or, with no class names, the
real-valued targets of a regression (`float64`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ..options import RandomKey, generator, whole
from ..printing import counted
from .embedding import Embedder
from .errors import DataError

_SHOWN = 4

Map = Callable[[np.ndarray], np.ndarray]


class _Examples(ABC):
    """What labelled examples of every kind can do: be chosen from."""

    y: np.ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    @abstractmethod
    def take(self, indices: np.ndarray) -> Self:
        """The examples at `indices`."""

    def __repr__(self) -> str:
        examples = counted(len(self), "example")
        return f"{type(self).__name__}({examples}{self._facts()}{_classes(self.class_names)})"

    def _facts(self) -> str:
        return ""

    def subset(self, size: int, *, key: RandomKey = 0) -> Self:
        """`size` examples, classes in proportion; subsets from one key are nested."""
        if not 0 < size <= len(self):
            raise DataError(
                "A subset has between 1 and all examples.",
                got=f"size={size} of {len(self)} examples",
                remedy=f"ask for at most {len(self)}",
            )
        return self.take(stratified_order(self.y, key=key)[:size])

    def _divided(self, test: float | int, key: RandomKey) -> tuple[Self, Self]:
        """A training and a test part, stratified."""
        count = test if isinstance(test, int) else round(test * len(self))
        if not 0 < count < len(self):
            raise DataError(
                "A split needs at least one example in each part.",
                got=f"test={test} of {len(self)} examples",
                remedy="give a fraction between 0 and 1, or a number below the number of examples",
            )
        order = stratified_order(self.y, key=key)
        return self.take(order[count:]), self.take(order[:count])


@dataclass(frozen=True, eq=False, repr=False)
class Labelled(_Examples):
    """Examples `x` `(N, positions…, channels)` with `y` `(N,)`; `mask` marks real positions."""

    x: np.ndarray
    y: np.ndarray
    class_names: tuple[str, ...]
    mask: np.ndarray | None = None

    def _facts(self) -> str:
        return _arrays(self.x, self.mask)

    def take(self, indices: np.ndarray) -> Self:
        """The examples at `indices`."""
        mask = None if self.mask is None else self.mask[indices]
        return replace(self, x=self.x[indices], y=self.y[indices], mask=mask)

    @property
    def real(self) -> np.ndarray:
        """The mask `(N, positions…)`, all True where there is no padding."""
        return np.ones(self.x.shape[:-1], bool) if self.mask is None else self.mask

    def map(self, change: Map) -> Self:
        """Apply `change`, e.g. a fitted `Standardise`, to the inputs; padding stays zero."""
        x = change(self.x)
        if self.mask is not None:
            x = np.where(self.mask[..., None], x, 0).astype(x.dtype)
        return replace(self, x=x)

    def split(self, test: float | int, *, key: RandomKey = 0) -> "Dataset":
        """Hold out `test` examples, classes in proportion: a share (0.2) or a number (an int)."""
        return Dataset.join(*self._divided(test, key))


@dataclass(frozen=True, eq=False, repr=False)
class LabelledTexts(_Examples):
    """Texts with their labels."""

    texts: tuple[str, ...]
    y: np.ndarray
    class_names: tuple[str, ...]

    def take(self, indices: np.ndarray) -> Self:
        """The examples at `indices`."""
        return replace(self, texts=tuple(self.texts[i] for i in indices), y=self.y[indices])

    def split(self, test: float | int, *, key: RandomKey = 0) -> "TextDataset":
        """Hold out `test` examples, classes in proportion: a share (0.2) or a number (an int)."""
        return TextDataset.join(*self._divided(test, key))

    def embed(self, embedder: Embedder) -> Labelled:
        """Word vectors in place of words, padded, with the mask."""
        x, mask = embedder(self.texts)
        return Labelled(x, self.y, self.class_names, mask)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test examples `(N, positions…, channels)` with labels; masks when padded."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...]
    mask_train: np.ndarray | None = None
    mask_test: np.ndarray | None = None

    def __repr__(self) -> str:
        parts = f"{len(self.y_train):,} training and {len(self.y_test):,} test examples"
        facts = _arrays(self.x_train, self.mask_train) + _classes(self.class_names)
        return f"Dataset({parts}{facts})"

    @classmethod
    def join(cls, train: Labelled, test: Labelled) -> "Dataset":
        """Two labelled parts as one dataset."""
        names = train.class_names
        return cls(train.x, train.y, test.x, test.y, names, train.mask, test.mask)

    @property
    def train(self) -> Labelled:
        """The training part."""
        return Labelled(self.x_train, self.y_train, self.class_names, self.mask_train)

    @property
    def test(self) -> Labelled:
        """The test part."""
        return Labelled(self.x_test, self.y_test, self.class_names, self.mask_test)

    def subset(self, *, train: int, test: int, key: RandomKey = 0) -> "Dataset":
        """`train` and `test` examples of the two parts, classes in proportion, drawn from `key`."""
        return Dataset.join(self.train.subset(train, key=key), self.test.subset(test, key=key))

    def map(self, change: Map) -> "Dataset":
        """Apply `change`, fitted on the training part, to the inputs of both parts."""
        return Dataset.join(self.train.map(change), self.test.map(change))


@dataclass(frozen=True, eq=False, repr=False)
class TextDataset:
    """Training and test texts with labels."""

    texts_train: tuple[str, ...]
    y_train: np.ndarray
    texts_test: tuple[str, ...]
    y_test: np.ndarray
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        parts = f"{len(self.y_train):,} training and {len(self.y_test):,} test texts"
        return f"TextDataset({parts}{_classes(self.class_names)})"

    @classmethod
    def join(cls, train: LabelledTexts, test: LabelledTexts) -> "TextDataset":
        """Two labelled parts as one dataset."""
        return cls(train.texts, train.y, test.texts, test.y, train.class_names)

    @property
    def train(self) -> LabelledTexts:
        """The training part."""
        return LabelledTexts(self.texts_train, self.y_train, self.class_names)

    @property
    def test(self) -> LabelledTexts:
        """The test part."""
        return LabelledTexts(self.texts_test, self.y_test, self.class_names)

    def subset(self, *, train: int, test: int, key: RandomKey = 0) -> "TextDataset":
        """`train` and `test` examples of the two parts, classes in proportion, drawn from `key`."""
        return TextDataset.join(self.train.subset(train, key=key), self.test.subset(test, key=key))

    def embed(self, embedder: Embedder) -> Dataset:
        """Word vectors in place of words, padded part by part, with masks."""
        return Dataset.join(self.train.embed(embedder), self.test.embed(embedder))


def _arrays(x: np.ndarray, mask: np.ndarray | None) -> str:
    """Shape and kind of one example, for printing."""
    return f" of shape {x.shape[1:]} {x.dtype}" + ("" if mask is None else ", with masks")


def _classes(names: tuple[str, ...]) -> str:
    """The first names of classes, for printing."""
    if not names:
        return ", real-valued targets"
    return f", classes {', '.join(names[:_SHOWN])}" + (", …" if len(names) > _SHOWN else "")


def stratified_order(y: np.ndarray, *, key: RandomKey = 0) -> np.ndarray:
    """Row numbers in a shuffled order: the first n hold the classes in proportion, for every n.

    The `r`-th of the `n_c` shuffled examples of class `c` gets the place `(r + ½)/n_c`; examples
    are sorted by place, ties at random. So subsets of different sizes are nested, as learning
    curves need. Real-valued targets are only shuffled.
    """
    # An integer is NumPy's own seed, so that splits stay those of earlier versions.
    integer = isinstance(key, int | np.integer)
    rng = np.random.default_rng(whole("key", key, least=0)) if integer else generator(key)
    shuffled = rng.permutation(len(y))
    if not np.issubdtype(y.dtype, np.integer):
        return shuffled
    place = np.empty(len(y))
    for label in np.unique(y):
        members = shuffled[y[shuffled] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    return shuffled[np.argsort(place[shuffled], kind="stable")]
