"""Names of classes and their numbers: class `i` is called `names[i]`."""

from collections.abc import Iterable, Sequence

import numpy as np

from .errors import DataError, some


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order: by value if all are whole numbers, else alphabetical."""
    distinct = set(labels)
    if len(distinct) < 2:
        raise DataError(
            "There are no two different labels to classify by.",
            got=f"only {', '.join(map(repr, distinct)) or 'none'}",
            remedy="check that the label column is the right one and the file is complete",
        )
    try:
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(distinct))


def class_numbers(labels: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Numbers of `labels`, `int64`; every label must be a known name."""
    numbers = {name: i for i, name in enumerate(names)}
    rows = enumerate(labels)
    if unknown := [f"{label!r} (example {i})" for i, label in rows if label not in numbers]:
        raise DataError(
            f"Some labels are not among the known ones: {', '.join(names)}.",
            got=some(unknown),
            remedy="correct or remove these rows, or train with examples of these labels",
        )
    return np.array([numbers[label] for label in labels], dtype=np.int64)
