"""Training and test parts, as scikit-learn makes them."""

from typing import Any

import numpy as np

from .kinds import Task


def split(
    rows: np.ndarray, y: Any, task: Task, seed: int, train: int, test: int
) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's `train_test_split`; classes keep their shares where they are not too few."""
    from sklearn.model_selection import train_test_split

    keeps = stratified(y[rows], task, train, test)
    parts: list[Any] = train_test_split(
        rows,
        train_size=train,
        test_size=test,
        random_state=seed,
        stratify=y[rows] if keeps else None,
    )
    return parts[0], parts[1]


def stratified(y: np.ndarray, task: Task, train: int, test: int) -> bool:
    """Whether every class can be in both parts."""
    if task is Task.REGRESS:
        return False
    counts = np.unique(y, return_counts=True)[1]
    return bool(counts.min() >= 2) and min(train, test) >= len(counts)
