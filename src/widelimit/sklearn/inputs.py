"""What estimators are given, as arrays that networks take.

| given | one example is |
|---|---|
| matrix or frame (N, features) | a row of a table |
| array (N, positions, channels), list of arrays (positions, channels) | a sequence |
| array (N, height, width, channels) | an image |
| matrix or frame with arrays in the cells of a column, as `WordVectorizer` makes them | a text |
| such a column beside columns of numbers, as `ColumnTransformer` joins them | both |
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ..data import Standardise, pad
from ..errors import ShapeError
from .networks import Kind

RAREST = 0.2
"""The smallest deviation by which a column of zeros and ones is divided: rare categories would
outweigh everything by their own."""


class Examples(NamedTuple):
    """Arrays (N, positions…, channels) with the mask of real positions where they are padded.

    Both are tuples where examples have several streams. `kind` is None for what a network of one's
    own takes as it is: token ids, and tuples of streams.
    """

    x: Any
    mask: Any
    kind: Kind | None

    def take(self, rows: Any) -> "Examples":
        """Some of the examples."""
        x, mask = jax.tree.map(lambda a: a[rows], (self.x, self.mask))
        return Examples(x, mask, self.kind)

    @property
    def padded(self) -> bool:
        """Whether some position is not real."""
        return not all(mask.all() for mask in jax.tree.leaves(self.mask))


def is_table(x: Any) -> bool:
    """Whether scikit-learn's checks for matrices apply: everything without positions or cells."""
    if isinstance(x, list | tuple):
        return not len(x) or np.ndim(x[0]) < 2
    return len(getattr(x, "shape", ())) < 3 and not _cells(x)


def arranged(x: Any, mask: Any) -> Examples:
    """Sequences, images, and frames with arrays in cells."""
    if isinstance(x, list | tuple):
        x, mask = pad([np.asarray(one) for one in x])
        return Examples(x, mask, Kind.SEQUENCE if x.ndim == 3 else Kind.IMAGE)
    if columns := _cells(x):
        return _from_cells(np.asarray(x, dtype=object).reshape(len(x), -1), columns)
    x = np.asarray(x)
    kinds = {3: Kind.SEQUENCE, 4: Kind.IMAGE}
    if x.dtype.kind in "biu":  # pixels
        x = x.astype(np.float32)
    return Examples(x, None if mask is None else np.asarray(mask), kinds.get(x.ndim))


def _cells(x: Any) -> list[int]:
    """Which columns of a frame or an array of objects hold arrays with positions."""
    if not (hasattr(x, "iloc") or getattr(x, "dtype", "") == "O") or not len(x):
        return []
    first = np.asarray(x[:1], dtype=object).reshape(-1)
    return [place for place, cell in enumerate(first) if np.ndim(cell) >= 2]


def _from_cells(table: np.ndarray, columns: list[int]) -> Examples:
    """A padded stream for every column of arrays, and one for all columns of numbers."""
    streams: list[tuple[Any, Any]] = [pad(list(table[:, column])) for column in columns]
    rest = np.delete(table, columns, axis=1)
    if rest.shape[1]:
        try:
            streams.append((rest.astype(np.float64), None))
        except (TypeError, ValueError) as error:
            raise ShapeError(
                "Columns beside a text hold something else than numbers.",
                got=str(error),
                remedy="encode them, for instance with prepare_columns(frame)",
            ) from error
    if len(streams) == 1:
        return Examples(*streams[0], Kind.TEXT)
    x, mask = (tuple(part) for part in zip(*streams, strict=True))
    return Examples(x, mask, Kind.MIXED if len(streams) == 2 and rest.shape[1] else None)


@dataclass(frozen=True, eq=False)
class Scaler:
    """Columns and channels with mean 0 and deviation 1 over the training examples.

    Arrays in cells stay as they are: whoever made them has scaled them.
    """

    scale: Standardise | None

    @classmethod
    def fit(cls, examples: Examples, weights: np.ndarray | None) -> "Scaler":
        """Means and deviations of real positions; `weights` count examples."""
        numbers, mask = _numbers(examples)
        if numbers is None:
            return cls(None)
        scale = Standardise.per_channel(numbers, mask=mask, weights=weights)
        rows = numbers.reshape(-1, numbers.shape[-1]) if mask is None else numbers[mask]
        binary = np.isin(rows, (0, 1)).all(axis=0)
        return cls(replace(scale, std=np.where(binary, np.maximum(scale.std, RAREST), scale.std)))

    def __call__(self, examples: Examples) -> Examples:
        """The same examples, scaled; padding stays zero."""
        numbers, mask = _numbers(examples)
        if numbers is None or self.scale is None:
            return examples
        if numbers.dtype == np.float64:
            x = (numbers - self.scale.mean) / self.scale.std
        else:
            x = self.scale(numbers)
        x = x if mask is None else np.where(mask[..., None], x, 0).astype(x.dtype)
        return examples._replace(x=(*examples.x[:-1], x) if examples.kind is Kind.MIXED else x)


def _numbers(examples: Examples) -> tuple[Any, Any]:
    """The part that is measured in someone's units, and its mask."""
    if examples.kind is Kind.MIXED:
        return examples.x[-1], None
    if examples.kind in (None, Kind.TEXT):
        return None, None
    return examples.x, examples.mask
