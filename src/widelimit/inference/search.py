"""Choose a network, a kernel and a noise level by their predictions on a validation set.

Every example is encoded once per network: one kernel call gives both kernels of all training and
validation examples.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.inputs import Data
from ..errors import NetworkError, NumericalError, ShapeError
from ..layers.base import Layer
from ..options import choice, listed
from ..progress import Callback, Progress
from . import checks
from .checks import Values
from .gp import GPPosterior, KernelKind, Prediction
from .network_kernels import Engine, NetworkKernels, chosen, joined, require_gaussian, require_layer
from .process import GP

Score = Callable[[Prediction, np.ndarray, float], float]
"""A function of (prediction, targets, noise variance); larger is better."""


def negative_error(prediction: Prediction, targets: np.ndarray, noise: float) -> float:
    """Minus the mean squared error."""
    return -float(np.mean((prediction.mean - targets) ** 2))


def log_density(prediction: Prediction, targets: np.ndarray, noise: float) -> float:
    """The mean log density of the targets, noise included."""
    variance = (prediction.variance + noise).reshape(-1, *(1,) * (targets.ndim - 1))
    gap = (prediction.mean - targets) ** 2
    return -0.5 * float(np.mean(gap / variance + np.log(2.0 * np.pi * variance)))


def accuracy(prediction: Prediction, targets: np.ndarray, noise: float) -> float:
    """How often the largest output is the largest target: for one-hot targets."""
    if targets.shape[-1] < 2:
        raise ShapeError(
            "Accuracy compares outputs with each other: targets have one column per class.",
            got=f"targets of shape {targets.shape}, with one output",
            remedy="pass centred_one_hot(labels)[0] as targets",
        )
    return float(np.mean(prediction.mean.argmax(axis=-1) == targets.argmax(axis=-1)))


@dataclass(frozen=True, eq=False)
class Trial:
    """One combination, and how well it predicted the validation set."""

    label: Any
    gp: GP
    score: float


def search(
    candidates: Iterable[tuple[Any, Layer]],
    x: Data,
    y: Values,
    x_validation: Data,
    y_validation: Values,
    *,
    mask: Any = None,
    mask_validation: Any = None,
    kinds: Sequence[KernelKind | str] = (KernelKind.NNGP,),
    noises: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0),
    score: Score = negative_error,
    engine: Engine | None = None,
    progress: bool | Callback | None = None,
) -> tuple[Trial, ...]:
    """Try every (label, network) pair with every kernel and every noise variance; the best first.

    `grid` makes such pairs from one network. All are fitted to (x, y)
    and scored on the validation set by `score(prediction, targets, noise)`, larger is better: minus
    the mean squared error by default, or `log_density`, `accuracy`, a function of your own. Each
    network costs one kernel, however many `noises` there are.
    """
    pairs = _pairs(candidates)
    chosen_kinds = [choice(KernelKind, kind, "kinds") for kind in listed("kinds", kinds)]
    levels = listed("noises", noises)
    numbers = all(isinstance(one, int | float | np.number) and 0 < one < np.inf for one in levels)
    if not pairs or not chosen_kinds or not levels or not numbers:
        raise NumericalError(
            "A search tries at least one network, one kernel and one positive noise variance.",
            got=f"{len(pairs)} networks, {len(chosen_kinds)} kernels, noises {levels}",
            remedy="pass pairs (label, network), for instance from grid(net, {...}), and finite "
            "noise variances above 0",
        )
    engine = engine or Engine()
    if engine.store is not None:
        raise NetworkError(
            "A store holds the kernel of one network, and a search computes those of several.",
            got=f"Engine(store={engine.store!r})",
            remedy="search without a store, and fit the best model with one",
        )
    bar = Progress.make(progress, "search")
    trials = []
    for label, net in bar.track(pairs) if bar else pairs:
        require_gaussian(net)
        data = NetworkKernels.make(net, x, mask, engine=engine)
        other = data.read(x_validation, mask_validation)
        targets, _ = checks.targets(y, len(data))
        wanted, _ = checks.targets(y_validation, other.size)
        checks.matrix(wanted, "The validation targets", columns=targets.shape[1])
        kernels = data.corner(joined(data.inputs, other), ntk=KernelKind.NTK in chosen_kinds)
        for kind in chosen_kinds:
            whole, size = chosen(kernels, kind), len(data)
            square, cross, prior = whole[:size, :size], whole[size:, :size], np.diagonal(whole)
            for noise in map(float, levels):
                posterior = GPPosterior.condition(square, targets, noise=noise)
                prediction = posterior.predict(cross, prior[size:])
                value = score(prediction, wanted, noise)
                if np.ndim(value) or np.isnan(value):
                    raise NumericalError(
                        "A score is one number, larger where predictions are better.",
                        got=f"{value!r} for {label!r} with {kind.value} and noise {noise:g}",
                        remedy="return a number, minus infinity where nothing can be said",
                    )
                gp = GP(net, kind=kind, noise=noise, engine=engine)
                trials.append(Trial(label, gp, float(value)))
    return tuple(sorted(trials, key=lambda trial: -trial.score))


def _pairs(candidates: Any) -> list[tuple[Any, Layer]]:
    """The candidates, each a label and a network."""
    found = list(candidates) if isinstance(candidates, Iterable) else [candidates]
    for pair in found:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise NetworkError(
                "A search tries pairs (label, network).",
                got=f"{pair!r}",
                remedy="pass [('name', net)], list(networks.items()), or grid(net, {...})",
            )
        require_layer(pair[1])
    return found
