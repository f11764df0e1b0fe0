"""Noise as a variance, as a share of what the network varies, or chosen by leave-one-out.

One eigendecomposition answers for every noise variance (`Spectrum`). Multiplying kernel and noise
by `s` keeps every left-out mean and multiplies every variance, so that the best amplitude `s` of a
noise is the mean of `residual²/variance`. Equal inputs are left out together (`repeats`). Models,
estimators and the command line choose in this one way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..errors import OptionError
from ..options import positive, whole
from . import checks
from .calibration import Temperature
from .checks import Values
from .repeats import Groups
from .spectrum import Spectrum

NOISES = 10.0 ** np.arange(-5.0, 1.6, 0.5)
"""Noise variances that are tried, in units of the kernel's mean diagonal."""

_SMALLEST_AMPLITUDE = 1e-12
_SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class Relative:
    """A noise variance of `share · mean_i k(x_i, x_i)` over the training examples.

    It does not change when inputs or readouts are scaled; neural-tangents calls it `diag_reg`.
    """

    share: float

    def __post_init__(self):
        object.__setattr__(self, "share", positive("share", self.share))

    def of(self, diagonal: np.ndarray) -> float:
        """The variance, from the kernel's diagonal."""
        return self.share * float(np.mean(diagonal, dtype=np.float64))


@dataclass(frozen=True)
class LeaveOneOutNoise:
    """A noise variance chosen by leave-one-out, and with it the scale of the network's outputs.

    The last weights of the network take the scale where they can (`amplify`); means do not
    depend on it, variances do. At most `examples` training examples, drawn at random, choose.
    """

    examples: int = 2000

    def __post_init__(self):
        whole("examples", self.examples, least=2)


Noise = Values | Relative | LeaveOneOutNoise
"""A variance, one for each example, a share of the prior's variance, or one that is chosen."""


def settled(noise: Noise, diagonal: Callable[[], np.ndarray]) -> Values:
    """The noise as variances; the diagonal of the training kernel is computed if it is needed."""
    if isinstance(noise, LeaveOneOutNoise):
        raise OptionError(
            f"{noise!r} is for models that leave one example out, GP and Classifier.",
            got=f"noise={noise!r}",
            remedy="pass a variance, or fit GP(net, noise=LeaveOneOutNoise()) and take its noise",
        )
    return noise.of(diagonal()) if isinstance(noise, Relative) else noise


class NoiseTrial(NamedTuple):
    """One noise variance, the amplitude that suits it, and the mean leave-one-out log score.

    `noise` is for the kernel as it was computed; the process has `amplitude` times both.
    """

    noise: float
    amplitude: float
    score: float


def best_trial(trials: tuple[NoiseTrial, ...]) -> NoiseTrial:
    """The one with the best score."""
    return max(trials, key=lambda trial: trial.score)


def noise_trials(
    kernel: Values | Spectrum,
    targets: Values,
    *,
    groups: Groups | None = None,
    labels: Int[np.ndarray, " n"] | None = None,
    amplitude: float | None = None,
    noises: Values | None = None,
    counts: Float[np.ndarray, " n"] | None = None,
) -> tuple[NoiseTrial, ...]:
    """Leave-one-out log scores of noise variances, `NOISES` of the mean diagonal by default.

    `groups` has the same number for examples that are the same input (see `input_groups`). With
    `labels`, column numbers of the targets, the score is that of probabilities with a fitted
    temperature; without, it is the log density of the targets. `amplitude` None takes the best.
    An example that `counts` c times has the noise variance ρ/c, and c times the say.
    """
    spectrum = kernel if isinstance(kernel, Spectrum) else Spectrum.of(np.asarray(kernel), counts)
    columns, _ = checks.targets(targets, len(spectrum.values))
    total = len(columns) if spectrum.counts is None else float(spectrum.counts.sum())
    mean_diagonal = float(np.sum(spectrum.values)) / total  # the trace, however it is summed
    levels = NOISES * (mean_diagonal or 1.0) if noises is None else np.atleast_1d(noises)

    def tried(noise: float) -> NoiseTrial:
        left_out, counts = spectrum.leave_one_out(columns, noise, groups), spectrum.counts
        squares = (columns - left_out.mean) ** 2 / left_out.variance[:, None]
        ratio = float(np.average(squares.mean(axis=1), weights=counts))
        scale = max(ratio, _SMALLEST_AMPLITUDE) if amplitude is None else amplitude
        if labels is not None:
            temperature = Temperature.fit(left_out, labels, counts=counts)
            table = temperature.probabilities(left_out.mean, left_out.variance)
            true = np.maximum(table[np.arange(len(labels)), labels], _SMALLEST_PROBABILITY)
            return NoiseTrial(noise, scale, float(np.average(np.log(true), weights=counts)))
        density = (left_out.log_density + 0.5 * squares).mean(axis=1)
        score = float(np.average(density, weights=counts)) - 0.5 * (np.log(scale) + ratio / scale)
        return NoiseTrial(noise, scale, score)

    return tuple(tried(float(noise)) for noise in levels)
