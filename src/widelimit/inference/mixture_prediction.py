"""What a mixture of Gaussian processes predicts: a mixture of Gaussians at every test example."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from ..errors import ShapeError
from . import checks
from .checks import Values

_BISECTIONS = 60


@dataclass(frozen=True, eq=False, repr=False)
class MixturePrediction:
    """Predictions of the function: a mixture of Gaussians at every test example.

    Axes of the components: (draws, tests[, outputs]); the variances of a draw are shared by the
    outputs. `effective` is how many independent draws of the scores the mixture is worth.
    """

    means: Float[np.ndarray, " draws *points"]
    variances: Float[np.ndarray, "draws tests"]
    weights: Float[np.ndarray, " draws"]
    effective: float

    def __repr__(self) -> str:
        std = self.std
        spread = f"{std.min():.3g} to {std.max():.3g}" if std.size else "none"
        draws = f"{self.effective:.0f} effective of {len(self.weights)} draws"
        return f"MixturePrediction(mean of shape {std.shape}, std {spread}, {draws})"

    def __iter__(self) -> Iterator[np.ndarray]:
        """`mean, std = fitted.predict(x)`."""
        return iter((self.mean, self.std))

    @property
    def mean(self) -> Float[np.ndarray, " *points"]:
        """`E[f | y]`."""
        return np.tensordot(self.weights, self.means, axes=1)

    @property
    def variance(self) -> Float[np.ndarray, " *points"]:
        """`Var[f | y]`: within the draws, and between them."""
        between = np.square(self.means - self.mean)
        return np.tensordot(self.weights, self._spread() + between, axes=1)

    @property
    def std(self) -> Float[np.ndarray, " *points"]:
        """Standard deviation of the function."""
        return np.sqrt(self.variance)

    def _spread(self, noise: Values = 0.0) -> np.ndarray:
        """Variances in the shape of the means."""
        extra = (1,) * (self.means.ndim - self.variances.ndim)
        noise = checks.variances(noise, "The noise", self.variances.shape[1])
        return (self.variances + noise).reshape(*self.variances.shape, *extra)

    def cdf(self, y: Values, *, noise: Values = 0.0) -> Float[np.ndarray, " *points"]:
        """`P(f ≤ y)` at every test example, for y a number or of the shape of the mean.

        With `noise`, one variance for all or one for each example: of a new observation.
        """
        at = checks.real_array(y, "The values")
        if at.shape not in ((), self.means.shape[1:]):
            raise ShapeError(
                "Probabilities are asked for at one value, or at one for every prediction.",
                got=f"shape {at.shape}, where the predictions have {self.means.shape[1:]}",
                remedy="pass a number, or an array shaped like .mean",
            )
        scale = np.sqrt(np.maximum(self._spread(noise), np.finfo(float).tiny))
        z = (at - self.means) / scale
        return np.tensordot(self.weights, ndtr(z), axes=1)

    def interval(
        self, level: float, *, noise: Values = 0.0
    ) -> tuple[Float[np.ndarray, " *points"], Float[np.ndarray, " *points"]]:
        """Ends of the central interval that holds `level` of the probability, by bisection."""
        checks.level(level)
        low, high = (1 - level) / 2, (1 + level) / 2
        return self._quantile(low, noise), self._quantile(high, noise)

    def _quantile(self, probability: float, noise: Values) -> np.ndarray:
        reach = 40 * np.sqrt(self._spread(noise)).max() + 1e-12
        low, high = self.means.min(axis=0) - reach, self.means.max(axis=0) + reach
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle, noise=noise) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)
