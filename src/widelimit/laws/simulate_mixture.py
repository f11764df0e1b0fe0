"""The density of an output from simulated variances: an average of Gaussians, no histogram."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from ..errors import NumericalError

_BLOCK = 1 << 18
_NODES = 4096


class ScaleMixture:
    """`y = √v g` with `g ~ N(0,1)` and `v` uniform on the given variances.

    `density(y) = mean_r N(y; 0, v_r)` and `cdf(y) = mean_r Φ(y/√v_r)`: given the scores an
    attention output is Gaussian, so these are the law of the output, with an error from the finite
    number of variances that is far below that of a histogram of outputs.

    More than 4096 variances are shared out over that many evenly spaced values of `log v`, each
    between its two neighbours in proportion (relative error below 1e-5 at the far end of the
    tails, 1e-6 elsewhere): the cost of a point does not grow with the number of runs.
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
        weights = np.full(flat.size, 1.0 / flat.size)
        if flat.size > _NODES and np.ptp(flat) > 0.0:
            flat, weights = _shared_out(flat)
        self.scales, self.weights = np.sqrt(flat), weights

    def density(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """`E[N(y; 0, v)]`."""
        weights = self.weights / (np.sqrt(2.0 * np.pi) * self.scales)
        return self._mean(y, lambda z: np.exp(-0.5 * np.square(z)), weights)

    def cdf(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """`E[Φ(y/√v)]`."""
        return self._mean(y, ndtr, self.weights)

    def sf(self, y: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """`1 − cdf(y)`, accurate in the upper tail: the law is symmetric."""
        return self.cdf(-np.asarray(y))

    def _mean(
        self,
        y: Float[np.ndarray, " points"],
        fn: Callable[[np.ndarray], np.ndarray],
        weights: Float[np.ndarray, " nodes"],
    ) -> Float[np.ndarray, " points"]:
        """`Σ_r weights_r fn(y/√v_r)`, in blocks of points."""
        points = np.atleast_1d(np.asarray(y, dtype=np.float64)).ravel()
        size = max(1, _BLOCK // self.scales.size)
        parts = [
            np.einsum("pr,r->p", fn(points[i : i + size, None] / self.scales), weights)
            for i in range(0, len(points), size)
        ]
        return np.concatenate(parts).reshape(np.shape(y))


def _shared_out(
    variances: Float[np.ndarray, " runs"],
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """Values and weights of linear binning in `log v`, which keeps mass and mean of `log v`."""
    logs = np.log(variances)
    nodes = np.linspace(logs.min(), logs.max(), _NODES)
    place = (logs - nodes[0]) / (nodes[1] - nodes[0])
    lower = np.clip(place.astype(np.int64), 0, _NODES - 2)
    share = place - lower
    weights = np.bincount(lower, 1.0 - share, _NODES) + np.bincount(lower + 1, share, _NODES)
    used = weights > 0.0
    return np.exp(nodes[used]), weights[used] / variances.size
