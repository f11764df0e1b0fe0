"""What a tolerance takes: errors of sampled kernels, the heads they need, and when to give up.

Standard errors fall as 1/√heads, so that every further digit costs a hundred times the heads. A
pilot on a few examples tells how many a tolerance takes; whether that is more than a call may draw
is known before its work begins.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from ..errors import NumericalError
from ..state import Kernels

# How sure it is that errors are below a tolerance.
_CONFIDENCE = 0.95
# Heads drawn beyond what an estimate says, and the most by which they grow at once.
_MARGIN, _MOST_GROWTH = 1.2, 64.0
# A pilot with few heads overestimates what many take, as orthogonal heads come in: by no more.
_OVERESTIMATE = 16.0
# Share of the memory of a call that drawn heads may take.
_SHARE = 0.25


class ToleranceWarning(UserWarning):
    """A sampled kernel is less accurate than asked, and more heads may not be drawn."""


class DrawnHeads(NamedTuple):
    """What a sampler draws for a layer, in all copies."""

    heads: int
    nbytes: int
    replicates: int
    steps: int  # what grows, heads of a copy or copies, is a whole number


class Budget(NamedTuple):
    """A tolerance, and what may be spent on it: heads of a layer in all copies, and bytes."""

    tolerance: float
    most_heads: int
    memory: int

    def affordable(self, drawn: DrawnHeads) -> float:
        """How many times the heads that are drawn may be drawn."""
        by_memory = self.memory * _SHARE / max(drawn.nbytes, 1)
        most = min(self.most_heads / drawn.heads, by_memory)
        return max(1.0, math.floor(most * drawn.steps) / drawn.steps)

    def needed(self, drawn: DrawnHeads, reached: float) -> float:
        """How many times the heads it takes to bring a bound on errors to the tolerance."""
        errors = (_standard_error(bound, drawn.replicates) for bound in (reached, self.tolerance))
        return _MARGIN * (next(errors) / next(errors)) ** 2

    def growth(self, drawn: DrawnHeads, reached: float) -> float | None:
        """By what factor heads should grow; None where what may be drawn does not suffice."""
        needed, affordable = self.needed(drawn, reached), self.affordable(drawn)
        if needed <= affordable:
            return min(max(needed, 1.5), _MOST_GROWTH, affordable)
        return None if affordable < 1.1 or needed > _OVERESTIMATE * affordable else affordable

    def _advice(self, drawn: DrawnHeads, reached: float) -> tuple[str, str]:
        """What was found, and what to do."""
        needed = self.needed(drawn, reached)
        heads, nbytes = drawn.heads * needed, drawn.nbytes * needed / _SHARE
        raised = [f"memory= to about {_count(nbytes)} bytes"] if nbytes > self.memory else []
        if heads > self.most_heads or not raised:
            raised.insert(0, f"most_heads={self.most_heads:_}")
        error = _standard_error(reached, drawn.replicates)
        error *= math.sqrt(_MARGIN / self.affordable(drawn))
        within = f"{_bound(error, drawn.replicates):.1g}"
        found = f"{reached:.2g} with {drawn.heads:,} heads, and about {_count(heads)} needed"
        return found, f"ask for tolerance={within} or more, or raise {' and '.join(raised)}"

    def out_of_reach(self, drawn: DrawnHeads, reached: float) -> NumericalError:
        """What to raise before the work begins."""
        found, remedy = self._advice(drawn, reached)
        return NumericalError(
            f"A relative error of {self.tolerance:g} is not within reach of the heads allowed.",
            got=f"an error of {found}",
            remedy=f"{remedy}; or set samples= yourself",
        )

    def warning(self, drawn: DrawnHeads, reached: float) -> ToleranceWarning:
        """What to say when the work is done and would have to be done again with too many heads."""
        found, remedy = self._advice(drawn, reached)
        return ToleranceWarning(
            f"Errors of this kernel are up to {found} for the tolerance of {self.tolerance:g} "
            f"(95 %). Remedy: {remedy}."
        )


def error_bound(kernels: Kernels, replicates: int) -> float:
    """A bound on all errors, relative to the largest entry of their kernel: 95 % confidence.

    With e the largest relative standard error of r replicates: `t_{r−1} e + r e²`, Student's
    two-sided quantile for what varies, and the square of what one replicate varies for the bias
    that nonlinear layers make of it. For all entries together, as their errors go together: true
    errors were below it in 92 to 97 of 100 draws.
    """
    worst = 0.0
    for value, error in ((kernels.nngp, kernels.nngp_error), (kernels.ntk, kernels.ntk_error)):
        if error is not None and np.any(value):
            worst = max(worst, float(error.max() / np.abs(value).max()))
    return _bound(worst, replicates)


def _bound(error: float, replicates: int) -> float:
    return _quantile(replicates) * error + replicates * error**2


def _standard_error(bound: float, replicates: int) -> float:
    """The standard error that has this bound: the root of `t e + r e² = bound`, without loss."""
    quantile = _quantile(replicates)
    return 2 * bound / (quantile + math.sqrt(quantile**2 + 4 * replicates * bound))


def _quantile(replicates: int) -> float:
    return float(stdtrit(replicates - 1, (1 + _CONFIDENCE) / 2))


def _count(number: float) -> str:
    return f"{math.ceil(number):,}" if number < 1e7 else f"{number:.0e}"
