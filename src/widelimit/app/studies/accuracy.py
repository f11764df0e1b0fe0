"""How well a kernel classifies: ridge by leave-one-out, test accuracy, honest intervals.

Labels are regressed on as centred one-hot vectors. The ridge is chosen on the training examples
alone: each is predicted from all others, which comes in closed form from one factorisation.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from ...inference import GPPosterior, centred_one_hot
from ...inference.checks import Values
from ...inference.spectrum import Spectrum
from ..workflow import scores

RIDGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Noise variances that are tried, in units of the mean kernel diagonal."""

_MOST_LEFT_OUT = 2000  # training examples from which the ridge is chosen


class Validated(NamedTuple):
    """The best ridge and the leave-one-out accuracy it reaches on the training examples."""

    ridge: float
    accuracy: float


class Accuracy(NamedTuple):
    """A classifier on held-out examples: which of them it gets right.

    `correct` is (example,), or of networks trained from several random starts (start, example).
    """

    validated: Validated
    correct: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of test examples that are classified correctly."""
        return float(np.mean(self.correct))

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the 95 % interval: Wilson's, or that over starts and examples."""
        if self.correct.ndim == 2:
            found = over_starts(self.correct)
            return max(0.0, found.low), min(1.0, found.high)
        score = scores.accuracy(self.correct)
        return score.low, score.high


class Gap(NamedTuple):
    """Difference of two accuracies on the same test examples, with its 95 % interval."""

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the interval allows to say of the first against the second."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no clear difference"


def gap(first: Accuracy, second: Accuracy) -> Gap:
    """Paired: the spread is that of the examples on which the two disagree.

    One disagreement is added to each side (Agresti and Min), so that two classifiers that agree
    everywhere are not taken to be known exactly.
    """
    if first.correct.ndim == 2:
        return over_starts(first.correct.astype(float) - second.correct)
    wins = int(np.sum(first.correct & ~second.correct)) + 1
    losses = int(np.sum(second.correct & ~first.correct)) + 1
    total = len(first.correct) + 2
    difference = (wins - losses) / total
    spread = np.sqrt((wins + losses) / total - difference**2) / np.sqrt(total)
    half = float(ndtri(0.5 + scores.LEVEL / 2) * spread)
    return Gap(first.accuracy - second.accuracy, difference - half, difference + half)


def over_starts(values: np.ndarray) -> Gap:
    """The mean over (start, example) with its 95 % interval.

    Examples and starts are both drawn: `Var = Var_examples/n + Var_starts/s`, of the means over
    the other. Student's quantile has Satterthwaite's degrees of freedom.
    """
    parts = [(values.mean(axis=axis), values.shape[1 - axis]) for axis in (0, 1)]
    variances = [float(np.var(means, ddof=1)) / count for means, count in parts]
    total = sum(variances)
    spread = sum(v**2 / (count - 1) for v, (_, count) in zip(variances, parts, strict=True))
    half = 0.0
    if total:
        half = float(stdtrit(total**2 / spread, 0.5 + scores.LEVEL / 2)) * math.sqrt(total)
    middle = float(values.mean())
    return Gap(middle, middle - half, middle + half)


def validate(kernel: Values, labels: np.ndarray, ridges: tuple[float, ...] = RIDGES) -> Validated:
    """The ridge with the best leave-one-out accuracy, climbing from the middle of the ladder.

    Of many examples the first 2,000 decide."""
    count = min(len(labels), _MOST_LEFT_OUT)
    whole, labels = np.asarray(kernel)[:count, :count], labels[:count]
    spectrum, unit = Spectrum.of(whole), float(np.mean(np.diagonal(whole)))
    targets, classes = centred_one_hot(labels)

    def accuracy(ridge: float) -> float:
        left_out = spectrum.leave_one_out(targets, ridge * unit)
        return float(np.mean(classes[np.argmax(left_out.mean, axis=1)] == labels))

    return climbed(accuracy, ridges)


def climbed(score: Callable[[float], float], ridges: tuple[float, ...]) -> Validated:
    """The ridge with the best score, climbing from the middle of the ladder."""
    known: dict[int, float] = {}

    def at(step: int) -> float:
        if step not in known:
            known[step] = score(ridges[step])
        return known[step]

    best = len(ridges) // 2
    for direction in (1, -1):
        while 0 <= best + direction < len(ridges) and at(best + direction) > at(best):
            best += direction
    return Validated(ridges[best], at(best))


def evaluate(
    kernel: Values, train: np.ndarray, wanted: np.ndarray, ridges: tuple[float, ...] = RIDGES
) -> Accuracy:
    """Accuracy from a kernel (n + m, n) whose last m rows are the test examples."""
    whole = np.asarray(kernel)
    square, cross = whole[: len(train)], whole[len(train) :]
    validated = validate(square, train, ridges)
    targets, classes = centred_one_hot(train)
    noise = validated.ridge * float(np.mean(np.diagonal(square)))
    mean = GPPosterior.condition(square, targets, noise=noise).mean(cross)
    return Accuracy(validated, classes[np.argmax(mean, axis=1)] == wanted)


def linear_kernel(x: np.ndarray, train: int) -> np.ndarray:
    """`x·x'` plus one for an intercept, of all examples against the first `train`.

    Features are centred and scaled by the training examples' overall deviation.
    """
    flat = x.reshape(len(x), -1).astype(np.float64)
    flat = flat - flat[:train].mean(axis=0)
    flat = flat / (np.sqrt(flat.shape[1]) * flat[:train].std())
    return flat @ flat[:train].T + 1.0


def row(name: str, kind: str, tested: Accuracy, **facts: Any) -> dict[str, Any]:
    """One line of a table of accuracies."""
    low, high = tested.interval
    return {
        "kernel": name,
        "kind": kind,
        **facts,
        "accuracy": tested.accuracy,
        "low": low,
        "high": high,
        "validation": tested.validated.accuracy,
        "ridge": tested.validated.ridge,
    }
