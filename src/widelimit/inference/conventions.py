"""What "noise", "loss" and "time" mean, and how many examples are left out, in one place.

`NOISE` is the noise variance of every model that is not given one (`GP`, `MixtureGP`, classifiers
and estimators): a tenth, for targets that are scaled to variance 1 or are one-hot. Scale others, or
give `noise=`; `tune` fits it. Functions of kernel matrices add no noise by themselves, and
`Training` has none: its `ridge` is 0.

The loss of N examples with D outputs each is `c · Σ_i ℓ(f(x_i), y_i)` with `ℓ = ½‖f − y‖²` or the
cross-entropy; training moves the weights by `θ̇ = −η ∂loss/∂θ`, or by steps of that size. In the
limit of infinite width the outputs then obey `ḟ = −η c Θ ∂ℓ/∂f`.
"""

import enum

import numpy as np
from jaxtyping import Float

from ..errors import NumericalError
from .checks import Values

NOISE = 0.1
"""The noise variance of models that are not given one."""

LEFT_OUT = 256
"""Training examples that are left out in turn, where all of them would cost too much."""


class Reduction(enum.Enum):
    """The factor `c` in front of the summed loss."""

    SUM = "sum"
    """`c = 1`, the default: `½ Σ_i ‖f(x_i) − y_i‖²`."""

    MEAN_OVER_EXAMPLES = "mean over examples"
    """`c = 1/N`."""

    MEAN_OVER_ENTRIES = "mean over entries"
    """`c = 1/(N·D)`: the mean over examples and outputs."""

    def factor(self, examples: int, outputs: int) -> float:
        """`c` for this many examples and outputs."""
        counts = {Reduction.SUM: 1, Reduction.MEAN_OVER_EXAMPLES: examples}
        return 1.0 / counts.get(self, examples * outputs)


class Optimizer(enum.Enum):
    """How the weights move."""

    GRADIENT_FLOW = "gradient flow"
    """Continuous time: `t` is time, any number ≥ 0."""

    GRADIENT_DESCENT = "gradient descent"
    """Full-batch steps of size `learning_rate`: `t` is the number of steps, a whole number."""

    def check(self, times: Values) -> Float[np.ndarray, " *times"]:
        """`times` as float64, refused where this optimiser has no such time."""
        try:
            array = np.asarray(times, dtype=np.float64)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        if np.isnan(array).any() or (array < 0).any():
            raise NumericalError(
                "Training times are numbers that start at 0.",
                got=f"{times!r}",
                remedy="pass times or step counts that are zero or larger; numpy.inf is allowed",
            )
        finite = array[np.isfinite(array)]
        if self is Optimizer.GRADIENT_DESCENT and (finite != np.round(finite)).any():
            raise NumericalError(
                "Gradient descent is measured in whole steps.",
                got=f"{array}",
                remedy="pass whole numbers, or use Optimizer.GRADIENT_FLOW",
            )
        return array
