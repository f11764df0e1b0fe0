"""The density of an output from simulated variances: an average of Gaussians, no histogram."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from widelimit.errors import NumericalError

_BLOCK = 1 << 20


class ScaleMixture:
    """`y = √v g` with `g ~ N(0,1)` and `v` uniform on the given variances.

    `density(y) = mean_r N(y; 0, v_r)` and `cdf(y) = mean_r Φ(y/√v_r)`: given the scores an
    attention output is Gaussian, so these are the law of the output, with an error from the finite
    number of variances that is far below that of a histogram of outputs.
    """

    def __init__(self, variances: Float[np.ndarray, " runs"]):
        """Keep the variances, which must be positive and finite."""
        flat = np.asarray(variances, dtype=np.float64).ravel()
        if flat.size == 0 or not (np.isfinite(flat).all() and flat.min() > 0.0):
            raise NumericalError(
                "The variances of a mixture of Gaussians must be positive and finite.",
                got=f"{flat.size} values, smallest {flat.min() if flat.size else 'none'}",
                remedy="drop runs whose output is constant",
            )
        self.scales = np.sqrt(flat)

    def density(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """`E[N(y; 0, v)]`."""
        norm = 1.0 / (np.sqrt(2.0 * np.pi) * self.scales)
        return self._mean(y, lambda z: norm * np.exp(-0.5 * np.square(z)))

    def cdf(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """`E[Φ(y/√v)]`."""
        return self._mean(y, ndtr)

    def sf(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """`1 − cdf(y)`, accurate in the upper tail: the law is symmetric."""
        return self.cdf(-np.asarray(y))

    def _mean(
        self, y: Float[np.ndarray, " points"], fn: Callable[[np.ndarray], np.ndarray]
    ) -> Float[np.ndarray, " points"]:
        """Mean over the variances of `fn(y/√v)`, in blocks of points."""
        points = np.atleast_1d(np.asarray(y, dtype=np.float64))
        size = max(1, _BLOCK // self.scales.size)
        parts = [
            fn(points[i : i + size, None] / self.scales).mean(axis=1)
            for i in range(0, len(points), size)
        ]
        return np.concatenate(parts).reshape(np.shape(y))
