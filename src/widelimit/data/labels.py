"""Names of classes and their numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .errors import DataError, some


@dataclass(frozen=True)
class LabelNames:
    """Class `i` is called `names[i]`. Fit on training labels, kept for prediction."""

    names: tuple[str, ...]

    @classmethod
    def fit(cls, labels: Iterable[str]) -> "LabelNames":
        """The distinct labels in order: by value if all are whole numbers, else alphabetical."""
        distinct = set(labels)
        if len(distinct) < 2:
            raise DataError(
                "Classification needs at least two different labels.",
                got=f"only {', '.join(map(repr, distinct)) or 'none'}",
                remedy="check that the label column is the right one and the file is complete",
            )
        try:
            return cls(tuple(sorted(distinct, key=lambda label: (int(label), label))))
        except ValueError:
            return cls(tuple(sorted(distinct)))

    def encode(self, labels: Sequence[str]) -> np.ndarray:
        """Numbers of `labels`, `int64`; every label must be a known name."""
        unknown = [
            f"{label!r} (example {i})"
            for i, label in enumerate(labels)
            if label not in self._numbers
        ]
        if unknown:
            raise DataError(
                f"Labels must be among the known ones: {', '.join(self.names)}.",
                got=some(unknown),
                remedy="correct or remove these rows, or train with examples of these labels",
            )
        return np.array([self._numbers[label] for label in labels], dtype=np.int64)

    def decode(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Names of class numbers."""
        return tuple(self.names[int(number)] for number in numbers)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}
