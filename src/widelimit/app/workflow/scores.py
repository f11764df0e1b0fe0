"""Scores with what their number of examples allows to say."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from ...statistics import wilson_interval
from .kinds import Task

_RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Score:
    """A value and its 95 % interval; a `share` is shown in per cent."""

    value: float
    low: float
    high: float
    share: bool = False

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "not defined"
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f})"

    @property
    def shown(self) -> str:
        """The value alone, accuracies as percentages."""
        return f"{self.value:.1%}" if self.share else f"{self.value:.3f}"

    @property
    def interval(self) -> str:
        """The interval alone."""
        form = ".1%" if self.share else ".3f"
        return f"{self.low:{form}} to {self.high:{form}}"

    def numbers(self) -> dict[str, float]:
        """For machines."""
        return {"value": self.value, "low": self.low, "high": self.high}


def of_task(task: Task, truth: np.ndarray, answers: np.ndarray) -> Score:
    """Accuracy of classes or R² of numbers."""
    return accuracy(answers == truth) if task is Task.CLASSIFY else r_squared(truth, answers)


def value_of(task: Task, truth: np.ndarray, answers: np.ndarray) -> float:
    """The same without an interval; R² is not a number where all targets are equal."""
    if task is Task.CLASSIFY:
        return float(np.mean(answers == truth))
    unit = largest(truth)
    return _explained(truth / unit, answers / unit)


def accuracy(right: np.ndarray) -> Score:
    """The share that is right, with Wilson's interval."""
    low, high = wilson_interval(np.sum(right), len(right), level=LEVEL)
    return Score(float(np.mean(right)), float(low), float(high), share=True)


def r_squared(truth: np.ndarray, predicted: np.ndarray) -> Score:
    """`1 − Σ(y − ŷ)²/Σ(y − ȳ)²`; the interval by resampling the examples.

    Not a number where all targets are equal.
    """
    unit = largest(truth)
    return _resampled(truth / unit, predicted / unit, _explained)


def _explained(truth: np.ndarray, predicted: np.ndarray) -> float:
    spread = truth.var()
    return float(1 - np.mean((truth - predicted) ** 2) / spread) if spread > 0 else np.nan


def root_mean_square(truth: np.ndarray, predicted: np.ndarray) -> Score:
    """`√mean (y − ŷ)²`; the interval by resampling the examples."""
    unit = largest(truth)

    def score(truth: np.ndarray, predicted: np.ndarray) -> float:
        return unit * np.sqrt(np.mean((truth - predicted) ** 2))

    return _resampled(truth / unit, predicted / unit, score)


def typical_miss(truth: np.ndarray, predicted: np.ndarray | float) -> float:
    """`median |y − ŷ|`: half of the predictions are closer."""
    with np.errstate(over="ignore"):  # a difference of extreme numbers may be infinite
        return float(np.median(np.abs(truth - predicted)))


def largest(values: np.ndarray) -> float:
    """The largest size, by which numbers are divided: squares of extreme ones do not fit."""
    return float(np.abs(values).max()) or 1.0


def _resampled(truth: np.ndarray, predicted: np.ndarray, score: Callable[..., float]) -> Score:
    draws = np.random.default_rng(0).integers(len(truth), size=(_RESAMPLES, len(truth)))
    with np.errstate(over="ignore", under="ignore"):  # a score may be minus infinity
        value = float(score(truth, predicted))
        values = np.array([score(truth[rows], predicted[rows]) for rows in draws])
    values = values[np.isfinite(values)]  # a draw may hold equal targets only
    if not len(values):
        return Score(value, np.nan, np.nan)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Score(value, float(low), float(high))


def coverage(
    truth: np.ndarray, mean: np.ndarray, std: np.ndarray, levels: np.ndarray
) -> np.ndarray:
    """The share of targets inside the central interval of each level."""
    distance = np.abs(truth - mean) / std
    return np.array([np.mean(distance <= ndtri(0.5 + level / 2)) for level in levels])


def log_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean log probability of the true class."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.maximum(chosen, 1e-12))))
