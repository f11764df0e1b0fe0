"""What simpler methods reach on the same split: the comparison a user would make by hand."""

import importlib.util
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .kinds import Task
from .posterior import Targets, agreement, answers
from .preparation import Batch
from .scores import Score

FEWEST = 60
"""Training examples from which on others are asked too: with fewer, chance decides."""

_STRENGTHS = 10.0 ** np.arange(-6.0, 3.1, 0.5)  # in units of the mean eigenvalue
_WIDEST = 4000  # columns up to which ridge takes seconds
_WORTH_THREADS = 1_000_000  # numbers from which on boosting gains from threads
_MOST_CUTS = 20_000_000  # examples × columns × classes up to which boosting takes seconds


class Baseline(NamedTuple):
    """A method by name, its score on the test part, and what it took."""

    name: str
    score: Score
    seconds: float


def baselines(
    batch: Batch, targets: Targets, train: np.ndarray, test: np.ndarray
) -> tuple[Baseline, ...]:
    """Ridge regression, and gradient boosting where scikit-learn is installed.

    Both see the numbers that the network sees: all pixels or places, the average word vector.
    """
    if len(train) < FEWEST:
        return ()
    methods: dict[str, Callable[..., np.ndarray]] = {}
    x = _flat(batch)
    if x.shape[1] <= _WIDEST:
        methods["ridge"] = _ridge
    classes = targets.columns.shape[1]
    small = len(train) * x.shape[1] * classes <= _MOST_CUTS
    if small and importlib.util.find_spec("sklearn") is not None:
        methods["histogram boosting"] = _boosting
    found = []
    for name, method in methods.items():
        begin = time.monotonic()
        values = method(x, targets, train, test)
        score = agreement(targets, values, targets.labels[test])
        found.append(Baseline(name, score, time.monotonic() - begin))
    return tuple(found)


def advice(score: Score, others: tuple[Baseline, ...]) -> str | None:
    """Whether something simpler does better, as far as the test examples can tell."""
    if not others:
        return None
    best = max(others, key=lambda other: other.score.value)
    if best.score.low > score.value:
        return f"{best.name} does better on these data: use it"
    if score.low > best.score.value:
        return f"better than {best.name}, as far as the test examples can tell"
    return f"the test examples cannot tell it from {best.name}"


def _flat(batch: Batch) -> np.ndarray:
    """One row of numbers per example."""
    streams = batch.x if isinstance(batch.x, tuple) else (batch.x,)
    masks = batch.mask if isinstance(batch.mask, tuple) else (batch.mask,) * len(streams)
    return np.concatenate([_rows(x, m) for x, m in zip(streams, masks, strict=True)], axis=1)


def _rows(x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    if mask is None:
        return np.reshape(x, (len(x), -1)).astype(np.float64)
    axes = tuple(range(1, mask.ndim))
    count = mask.sum(axis=axes)[:, None]
    return (np.where(mask[..., None], x, 0).sum(axis=axes) / count).astype(np.float64)


def _ridge(x: np.ndarray, targets: Targets, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Least squares with the penalty whose leave-one-out error is smallest."""
    shift, middle = x[train].mean(axis=0), targets.columns[train].mean(axis=0)
    rows, columns = x[train] - shift, targets.columns[train] - middle
    values, vectors = np.linalg.eigh(rows.T @ rows)
    rotated = rows @ vectors
    inner, squares = rotated.T @ columns, rotated**2
    best, chosen = np.inf, np.zeros_like(inner)
    for strength in _STRENGTHS * max(float(values.mean()), np.finfo(float).tiny):
        shrink = 1.0 / (np.maximum(values, 0.0) + strength)
        weights = shrink[:, None] * inner
        leverage = 1.0 / len(train) + squares @ shrink
        left_out = (columns - rotated @ weights) / np.maximum(1.0 - leverage, 1e-6)[:, None]
        if (error := float(np.mean(left_out**2))) < best:
            best, chosen = error, weights
    return answers(targets, (x[test] - shift) @ (vectors @ chosen) + middle)


def _boosting(x: np.ndarray, targets: Targets, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Histogram gradient boosting of scikit-learn, as it is."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    # Threads wait for each other in a loop: on little work, and on a busy machine, one is faster.
    threads = None if x[train].size >= _WORTH_THREADS else 1
    with threadpool_limits(threads, user_api="openmp"):
        if targets.task is Task.CLASSIFY:
            model = HistGradientBoostingClassifier(random_state=0)
            return model.fit(x[train], targets.labels[train]).predict(x[test])
        model = HistGradientBoostingRegressor(random_state=0)
        found = model.fit(x[train], targets.columns[train][:, 0]).predict(x[test])
        return answers(targets, found[:, None])
