"""Scores with what their number of examples allows to say."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, norm

_RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Score:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f})"

    @property
    def percent(self) -> str:
        """As a percentage, for accuracies."""
        return f"{self.value:.1%}"

    @property
    def percent_interval(self) -> str:
        """The interval in percentages."""
        return f"{self.low:.1%} to {self.high:.1%}"

    def numbers(self) -> dict[str, float]:
        """For machines."""
        return {"value": self.value, "low": self.low, "high": self.high}


def accuracy(right: np.ndarray) -> Score:
    """The share that is right, with Wilson's interval."""
    count, total = int(np.sum(right)), len(right)
    interval = binomtest(count, total).proportion_ci(LEVEL, method="wilson")
    return Score(count / total, float(interval.low), float(interval.high))


def r_squared(truth: np.ndarray, predicted: np.ndarray) -> Score:
    """`1 − Σ(y − ŷ)²/Σ(y − ȳ)²`; the interval by resampling the examples."""
    unit = _unit(truth)
    return _resampled(truth / unit, predicted / unit, lambda t, p: 1 - _share(t, p))


def root_mean_square(truth: np.ndarray, predicted: np.ndarray) -> Score:
    """`√mean (y − ŷ)²`; the interval by resampling the examples."""
    unit = _unit(truth)

    def error(truth: np.ndarray, predicted: np.ndarray) -> float:
        return unit * float(np.sqrt(np.mean((truth - predicted) ** 2)))

    return _resampled(truth / unit, predicted / unit, error)


def _unit(truth: np.ndarray) -> float:
    """The size of the targets: squares of very large and very small numbers do not fit."""
    return float(np.abs(truth).max()) or 1.0


def _share(truth: np.ndarray, predicted: np.ndarray) -> float:
    spread = float(np.sum((truth - truth.mean()) ** 2))
    return float(np.sum((truth - predicted) ** 2)) / spread if spread > 0 else np.nan


def _resampled(truth: np.ndarray, predicted: np.ndarray, score) -> Score:
    rng = np.random.default_rng(0)
    draws = rng.integers(len(truth), size=(_RESAMPLES, len(truth)))
    values = np.array([score(truth[rows], predicted[rows]) for rows in draws])
    values = values[np.isfinite(values)]  # a draw may hold equal targets only
    if not len(values):
        return Score(score(truth, predicted), np.nan, np.nan)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Score(score(truth, predicted), float(low), float(high))


def coverage(
    truth: np.ndarray, mean: np.ndarray, std: np.ndarray, levels: np.ndarray
) -> np.ndarray:
    """The share of targets inside the central interval of each level."""
    distance = np.abs(truth - mean) / std
    return np.array([np.mean(distance <= norm.ppf(0.5 + level / 2)) for level in levels])


def log_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean log probability of the true class."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.maximum(chosen, 1e-12))))
