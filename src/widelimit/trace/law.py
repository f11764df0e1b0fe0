"""The law of a traced model's outputs: Gaussian, or Gaussian given random scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import NetworkError
from ..laws.law import Law
from ..laws.marginal import averaged
from ..laws.points import DrawPlan, Points
from ..options import RandomKey
from ..statistics import Estimate


class TracedLaw(Law):
    """Joint law of a traced model's outputs on its inputs; made by `trace(...).limit()`.

    It answers as a `Law` does: densities, moments, kurtosis, quantiles, samples. Coordinates are
    `(example, *output index)`. `mean` is the outputs' mean; the law is that of deviations from it.
    """

    def __init__(
        self,
        kernels: np.ndarray,
        shape: tuple[int, ...],
        mean: np.ndarray,
        *,
        key: Any,
        random: bool,
        redraw: Callable[[int, Any], np.ndarray],
    ):
        """`kernels` (draws, n, n): one for each draw of the scalars or, if nothing is `random`,
        one for each independent estimate of the one kernel."""
        self.key, self.mean = key, mean.reshape(shape)
        self.real = np.ones(shape, bool)
        self.replicates = None if random else kernels
        """Independent estimates of a kernel that is not random."""
        self._redraw = redraw
        shown = kernels if random else kernels.mean(axis=0, keepdims=True)
        self.points = DrawPlan(Points.RANDOM, len(shown), len(shown))
        vars(self)["kernels"] = shown

    def __repr__(self) -> str:
        kind = f"{len(self.kernels)} draws of the scalars" if self.random else "Gaussian"
        return f"TracedLaw(outputs of shape {self.shape}, {kind})"

    @property
    def random(self) -> bool:
        """Whether the outputs are Gaussian only given random scalars."""
        return self.replicates is None

    @property
    def net(self) -> Any:
        raise _no_layers("a network of layers")

    @property
    def inputs(self) -> Any:
        raise _no_layers("checked inputs")

    def covariance(self) -> Estimate:
        """The covariance of the outputs, (N, N, positions…, positions'…)."""
        if self.replicates is None:
            return super().covariance()
        found = averaged(self.replicates)
        return Estimate(self._unflattened(found.value), self._unflattened(found.error))

    def gaussian(self, *, samples: int = 1024) -> TracedLaw:
        """The Gaussian law of the same covariance."""
        mean = self.kernels.mean(axis=0, keepdims=True)
        return TracedLaw(
            mean, self.shape, self.mean, key=self.key, random=False, redraw=lambda count, key: mean
        )

    def sample_ntk(
        self, draws: int, *, key: RandomKey | None = None, channels: int = 1
    ) -> np.ndarray:
        raise _no_layers("tangent kernels")

    def ntk(self, *, draws: int = 256, key: RandomKey | None = None) -> Estimate:
        raise _no_layers("tangent kernels")

    def _fresh(self, draws: int, key: Any) -> np.ndarray:
        if self.replicates is not None:
            return np.broadcast_to(self.kernels, (draws, *self.kernels.shape[1:]))
        return self._redraw(draws, key)


def _no_layers(what: str) -> NetworkError:
    return NetworkError(
        "A traced law holds the distribution of the outputs, nothing else.",
        got=f"a request for {what}",
        remedy="ask the traced program, for instance trace(make, x).ntk()",
    )
