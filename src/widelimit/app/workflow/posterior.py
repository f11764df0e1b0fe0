"""From a kernel matrix to a tested posterior: noise, folds, learning curve, held-out score.

Everything here is linear algebra on one kernel matrix that was computed before: parts of the
training set are blocks of it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...data import stratified_order
from ...inference import (
    GPPosterior,
    NoiseTrial,
    Prediction,
    Temperature,
    centred_one_hot,
    noise_trials,
)
from ...inference.choice import MOST_EXAMPLES, best_trial
from ...inference.nystrom import NystromPosterior
from ...inference.repeats import Groups
from ...inference.spectrum import Spectrum
from . import scores
from .kinds import SILENT, Listener, Task
from .scores import Score

_CURVE_PARTS = 6
_SHORTEST_CURVE = 8
BEGINNING = MOST_EXAMPLES
"""Training examples that choose the noise."""


@dataclass(frozen=True, eq=False)
class Targets:
    """What the process is conditioned on: `columns` of the labels, or a normalised target.

    Predictions are `mean·scale + shift`; classes have scale 1 and shift 0.
    """

    columns: np.ndarray
    labels: np.ndarray
    task: Task
    shift: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, y: np.ndarray, task: Task, train: np.ndarray) -> "Targets":
        """For all examples; normalised by the training part."""
        if task is Task.CLASSIFY:
            return cls(centred_one_hot(y)[0], y, task)
        # In units of the largest: squares of very large and very small numbers do not fit.
        unit = float(np.abs(y[train]).max()) or 1.0
        seen = y[train] / unit
        shift, scale = float(seen.mean()), float(seen.std()) or 1.0
        columns = (y / unit - shift)[:, None] / scale
        return cls(columns, y, task, shift * unit, scale * unit)


class CurvePoint(NamedTuple):
    """The score on the test part after learning from `size` examples."""

    size: int
    score: Score


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions with their uncertainty, for examples in some order.

    Classes: `probabilities` (m, classes). Numbers: `mean` and `std` of a new observation.
    """

    mean: np.ndarray
    std: np.ndarray
    probabilities: np.ndarray | None

    @classmethod
    def of(
        cls, found: Prediction, targets: Targets, temperature: Temperature | None, noise: float
    ) -> "Predicted":
        """From means and variances of the process, in the units of the targets."""
        variance = found.variance + noise
        if temperature is not None:
            table = temperature.probabilities(found.mean, variance)
            return cls(found.mean, np.sqrt(variance), table)
        mean = found.mean[:, 0] * targets.scale + targets.shift
        return cls(mean, np.sqrt(variance) * targets.scale, None)

    @property
    def labels(self) -> np.ndarray:
        """The most probable class."""
        assert self.probabilities is not None
        return self.probabilities.argmax(axis=1)

    @property
    def confidence(self) -> np.ndarray:
        """Its probability."""
        assert self.probabilities is not None
        return self.probabilities.max(axis=1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A posterior, how it was chosen, and how it does."""

    posterior: GPPosterior | NystromPosterior
    temperature: Temperature | None
    noise: float
    amplitude: float
    """What the kernel was multiplied by; `noise` and `eigenvalues` are after it."""
    trials: tuple[NoiseTrial, ...]
    eigenvalues: np.ndarray
    test: Predicted
    score: Score
    """Accuracy or R² on the test part."""
    folds: Score | None
    """The same by cross-validation inside the training part."""
    curve: tuple[CurvePoint, ...]


def noise_scores(
    spectrum: Spectrum,
    targets: Targets,
    train: np.ndarray,
    groups: Groups | None,
    noise: float | None = None,
) -> tuple[NoiseTrial, ...]:
    """Leave-one-out log scores over a grid of noise variances, or of one."""
    labels = targets.labels[train] if targets.task is Task.CLASSIFY else None
    columns, noises = targets.columns[train], None if noise is None else [noise]
    return noise_trials(spectrum, columns, groups=groups, labels=labels, noises=noises)


def evaluate(
    kernel: np.ndarray,
    targets: Targets,
    train: np.ndarray,
    test: np.ndarray,
    *,
    noise: float | None = None,
    folds: int = 5,
    groups: Groups | None = None,
    listener: Listener = SILENT,
) -> Outcome:
    """Condition on the training part, chosen by leave-one-out, and predict the test part.

    `kernel` is that of all examples; `train` is in an order whose beginnings are fair samples, and
    `groups` are those of the training examples, in that order, that are the same input.
    """
    first = train[:BEGINNING]
    some = None if groups is None else groups[:BEGINNING]
    with listener.bar("noise, folds, test") as advance:
        steps = 4
        spectrum = Spectrum.of(kernel[np.ix_(first, first)])
        trials = noise_scores(spectrum, targets, first, some)
        given = trials if noise is None else noise_scores(spectrum, targets, first, some, noise)
        chosen = best_trial(given)
        best = chosen.noise * chosen.amplitude
        kernel = kernel * np.asarray(chosen.amplitude, kernel.dtype)
        advance(1, steps)
        posterior, temperature = _fitted(kernel, targets, train, best, groups)
        predicted = _predicted(kernel, targets, posterior, temperature, train, test, best)
        advance(2, steps)
        score = scored(targets, predicted, test)
        crossed = _cross_validated(posterior, targets, train, folds) if folds > 1 else None
        advance(3, steps)
        curve = _learning_curve(kernel, targets, train, test, best, score)
        advance(steps, steps)
    return Outcome(
        posterior,
        temperature,
        best,
        chosen.amplitude,
        tuple(t._replace(noise=t.noise * chosen.amplitude) for t in trials),
        spectrum.values[::-1] * chosen.amplitude,
        predicted,
        score,
        crossed,
        curve,
    )


def _fitted(
    kernel: np.ndarray,
    targets: Targets,
    train: np.ndarray,
    noise: float,
    groups: Groups | None,
) -> tuple[GPPosterior, Temperature | None]:
    columns = targets.columns[train]
    posterior = GPPosterior.condition(
        kernel[np.ix_(train, train)], columns, noise=noise, groups=groups
    )
    if targets.task is Task.REGRESS:
        return posterior, None
    return posterior, Temperature.of(posterior, targets.labels[train])


def _predicted(
    kernel: np.ndarray,
    targets: Targets,
    posterior: GPPosterior,
    temperature: Temperature | None,
    train: np.ndarray,
    test: np.ndarray,
    noise: float,
) -> Predicted:
    found = posterior.predict(kernel[np.ix_(test, train)], np.diagonal(kernel)[test])
    return Predicted.of(found, targets, temperature, noise)


def scored(targets: Targets, predicted: Predicted, test: np.ndarray) -> Score:
    """Accuracy or R² of predictions for the examples `test`."""
    if targets.task is Task.CLASSIFY:
        return scores.accuracy(predicted.labels == targets.labels[test])
    return scores.r_squared(targets.labels[test], predicted.mean)


def _cross_validated(
    posterior: GPPosterior, targets: Targets, train: np.ndarray, folds: int
) -> Score:
    """Every training example predicted by a posterior that has not seen its fold."""
    order = stratified_order(targets.labels[train], key=1)
    parts = np.empty(len(order), int)
    parts[order] = np.arange(len(order)) % folds
    values = answers(targets, posterior.with_groups(parts).leave_one_out.mean)
    return agreement(targets, values, targets.labels[train])


def _learning_curve(
    kernel: np.ndarray,
    targets: Targets,
    train: np.ndarray,
    test: np.ndarray,
    noise: float,
    score: Score,
) -> tuple[CurvePoint, ...]:
    """The first training examples alone, with the same noise: blocks of the same kernel.

    The `score` of all of them is known.
    """
    sizes = [len(train) // 2**k for k in reversed(range(1, _CURVE_PARTS))]
    curve = []
    for size in sizes:
        if size < _SHORTEST_CURVE:
            continue
        seen = train[:size]
        columns = targets.columns[seen]
        posterior = GPPosterior.condition(kernel[np.ix_(seen, seen)], columns, noise=noise)
        found = answers(targets, posterior.mean(kernel[np.ix_(test, seen)]))
        curve.append(CurvePoint(size, agreement(targets, found, targets.labels[test])))
    if len(train) >= _SHORTEST_CURVE:
        curve.append(CurvePoint(len(train), score))
    return tuple(curve)


def answers(targets: Targets, mean: np.ndarray) -> np.ndarray:
    """Classes or numbers from the means of the process."""
    if targets.task is Task.CLASSIFY:
        return mean.argmax(axis=1)
    return mean[:, 0] * targets.scale + targets.shift


def agreement(targets: Targets, found: np.ndarray, truth: np.ndarray) -> Score:
    """Accuracy of classes or R² of numbers."""
    if targets.task is Task.CLASSIFY:
        return scores.accuracy(found == truth)
    return scores.r_squared(truth, found)
