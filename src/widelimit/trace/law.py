"""The law of a traced model's outputs: Gaussian, or Gaussian given random scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..laws.law import JointLaw
from ..laws.marginal import average
from ..statistics import Estimate


class TracedLaw(JointLaw):
    """Joint law of a traced model's outputs on its inputs; made by `trace(...).limit()`.

    It answers as the law of a network does: densities, moments, kurtosis, quantiles, samples.
    Coordinates are `(example, *output index)`. `mean` is the outputs' mean; the law is that of
    deviations from it.
    """

    def __init__(
        self,
        kernels: np.ndarray,
        shape: tuple[int, ...],
        mean: np.ndarray,
        *,
        key: Any,
        redraw: Callable[[int, Any], np.ndarray],
        error: np.ndarray | None = None,
    ):
        """`kernels` (draws, n, n): one for each draw of the scalars or, where nothing is random,
        one with its `error`."""
        self._kernels = kernels
        super().__init__(np.ones(shape, bool), key, len(kernels))
        self.mean = mean.reshape(shape)
        self._draw, self._error = redraw, error

    def __repr__(self) -> str:
        kind = f"{len(self.kernels)} draws of the scalars" if self.random else "Gaussian"
        return f"TracedLaw(outputs of shape {self.shape}, {kind})"

    @property
    def random(self) -> bool:
        """Whether the outputs are Gaussian only given random scalars."""
        return self._error is None

    def covariance(self) -> Estimate:
        """The covariance of the outputs, (N, N, positions…, positions'…)."""
        if self.random:
            return super().covariance()
        found = self.flat_covariance()
        return Estimate(self._unflatten(found.value), self._unflatten(found.error))

    def flat_covariance(self) -> Estimate:
        """The covariance with all coordinates in one row, (n, n)."""
        found = average(self._kernels)
        return found if self._error is None else Estimate(found.value, self._error)

    def gaussian(self) -> TracedLaw:
        """The Gaussian law of the same covariance."""
        mean = self.kernels.mean(axis=0, keepdims=True)
        none = np.zeros(mean.shape[1:])
        return TracedLaw(
            mean, self.shape, self.mean, key=self.key, redraw=lambda count, key: mean, error=none
        )

    def _draw_kernels(self) -> np.ndarray:
        return self._kernels

    def _redraw(self, draws: int, key: Any) -> Iterator[np.ndarray]:
        yield self._draw(draws, key)
