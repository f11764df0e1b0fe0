"""What loaders return: small frozen records of arrays with their labels.

`y` holds class numbers (`int64`, class `i` is `class_names[i]`) or, with no class names, the
real-valued targets of a regression (`float64`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..options import RandomKey, generator, whole
from ..printing import counted
from .embedding import Embedder
from .errors import DataError
from .labels import class_names, class_numbers

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = 4

Map = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False, repr=False)
class Labelled:
    """Examples `x` `(N, positions…, channels)` with `y` `(N,)`; `mask` marks real positions."""

    x: np.ndarray
    y: np.ndarray
    class_names: tuple[str, ...]
    mask: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        facts = _arrays(self.x, self.mask) + _classes(self.class_names)
        return f"Labelled({counted(len(self), 'example')}{facts})"

    def take(self, indices: np.ndarray) -> "Labelled":
        """The examples at `indices`."""
        mask = None if self.mask is None else self.mask[indices]
        return replace(self, x=self.x[indices], y=self.y[indices], mask=mask)

    def subset(self, size: int, *, key: RandomKey = 0) -> "Labelled":
        """`size` examples, classes in proportion; subsets from one key are nested."""
        if not 0 < size <= len(self):
            raise DataError(
                f"There is no subset of {size} examples.",
                got=f"size={size} of {len(self)} examples",
                remedy=f"ask for at most {len(self)}",
            )
        return self.take(stratified_order(self.y, key=key)[:size])

    def split(self, test: float | int, *, key: RandomKey = 0) -> "Dataset":
        """Hold out `test` examples, classes in proportion: a share (0.2) or a number (an int)."""
        count = test if isinstance(test, int) else round(test * len(self))
        if not 0 < count < len(self):
            raise DataError(
                f"A split with test={test} leaves no example in one part.",
                got=f"{len(self)} examples",
                remedy="give a fraction between 0 and 1, or a number below the number of examples",
            )
        order = stratified_order(self.y, key=key)
        return Dataset.join(self.take(order[count:]), self.take(order[:count]))

    def map(self, change: Map) -> "Labelled":
        """Apply `change`, e.g. a fitted `Standardise`, to the inputs; padding stays zero."""
        x = change(self.x)
        if self.mask is not None:
            x = np.where(self.mask[..., None], x, 0).astype(x.dtype)
        return replace(self, x=x)


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

    @classmethod
    def of_texts(cls, frame: "DataFrame", embedder: Embedder) -> "Dataset":
        """Word vectors of the column `text`, by the columns `label` and `split` (train or test)."""
        labels = [str(label) for label in frame["label"]]
        names = class_names(labels)
        y, texts, split = class_numbers(labels, names), list(frame["text"]), frame["split"]
        parts = []
        for rows in (np.flatnonzero(split == "train"), np.flatnonzero(split == "test")):
            x, mask = embedder([texts[row] for row in rows])
            parts.append(Labelled(x, y[rows], names, mask))
        return cls.join(*parts)

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
