"""What simpler methods reach on the same split: the comparison a user would make by hand."""

import time
from typing import Any, NamedTuple

import numpy as np

from ...sklearn.inputs import Examples
from . import scores
from .kinds import Task
from .scores import Score

FEWEST = 60
"""Training examples from which on others are asked too: with fewer, chance decides."""

_STRENGTHS = 10.0 ** np.arange(-3.0, 6.1, 0.5)
_WIDEST = 4000  # columns up to which ridge takes seconds
_WORTH_THREADS = 1_000_000  # numbers from which on boosting gains from threads
_MOST_CUTS = 20_000_000  # examples × columns × classes up to which boosting takes seconds


class Baseline(NamedTuple):
    """A method by name, its score on the test part, and what it took."""

    name: str
    score: Score
    seconds: float


def baselines(
    task: Task, train: Examples, y: np.ndarray, test: Examples, truth: np.ndarray
) -> tuple[Baseline, ...]:
    """Ridge regression and gradient boosting of scikit-learn, as they are.

    Both see the numbers that the network sees: all pixels or places, the average word vector.
    """
    if len(y) < FEWEST:
        return ()
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    x, new = _flat(train), _flat(test)
    classes, methods = len(np.unique(y)), (RidgeClassifierCV, HistGradientBoostingClassifier)
    if task is Task.REGRESS:
        unit, classes, methods = scores.largest(y), 1, (RidgeCV, HistGradientBoostingRegressor)
        y, truth = y / unit, truth / unit  # squares of extreme numbers do not fit
    ridge, boosting = methods
    chosen: dict[str, Any] = {}
    if x.shape[1] <= _WIDEST:  # the penalty with the smallest leave-one-out error
        chosen["ridge"] = ridge(_STRENGTHS)
    if x.size * classes <= _MOST_CUTS:
        chosen["histogram boosting"] = boosting(random_state=0)
    # Threads wait for each other in a loop: on little work, and on a busy machine, one is faster.
    threads, found = None if x.size >= _WORTH_THREADS else 1, []
    for name, method in chosen.items():
        begin = time.monotonic()
        with threadpool_limits(threads, user_api="openmp"):
            answers = method.fit(x, y).predict(new)
        score = scores.of_task(task, truth, answers)
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


def _flat(examples: Examples) -> np.ndarray:
    """One row of numbers per example."""
    streams = examples.x if isinstance(examples.x, tuple) else (examples.x,)
    masks = examples.mask if isinstance(examples.mask, tuple) else (examples.mask,) * len(streams)
    return np.concatenate([_rows(x, m) for x, m in zip(streams, masks, strict=True)], axis=1)


def _rows(x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    if mask is None:
        return np.reshape(x, (len(x), -1)).astype(np.float64)
    axes = tuple(range(1, mask.ndim))
    count = mask.sum(axis=axes)[:, None]
    return (np.where(mask[..., None], x, 0).sum(axis=axes) / count).astype(np.float64)
