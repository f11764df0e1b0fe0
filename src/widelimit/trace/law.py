"""The law of a traced model's outputs: Gaussian, or Gaussian given random scalars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..laws.law import JointLaw
from ..laws.marginal import average
from ..programs.compare import Outputs
from ..programs.front import ProgramLaw
from ..programs.interpreter import Machine
from ..statistics import Estimate

if TYPE_CHECKING:
    from .program import Traced


class TracedLaw(JointLaw, ProgramLaw):
    """Joint law of a traced model's outputs on its inputs; made by `trace(...).limit()`.

    It answers as the law of a network does: densities, moments, kurtosis, quantiles, samples.
    Coordinates are `(example, *output index)`. `mean` is the outputs' mean; the law is that of
    deviations from it.
    """

    def __init__(
        self,
        traced: Traced,
        kernels: np.ndarray,
        mean: np.ndarray,
        *,
        key: Any,
        error: np.ndarray | None = None,
    ):
        """`kernels` (draws, n, n): one for each draw of the scalars or, where nothing is random,
        one with its `error`."""
        self.traced, self.name = traced, traced.name
        self._kernels, self.mean, self._error = kernels, mean, error
        super().__init__(np.ones(mean.shape, bool), key, len(kernels))

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
        kernel = self.kernels.mean(axis=0, keepdims=True)
        none = np.zeros(kernel.shape[1:])
        return TracedLaw(self.traced, kernel, self.mean, key=self.key, error=none)

    def outputs(self) -> Outputs:
        marginals = tuple(self.at(*place) for place in np.ndindex(self.shape))
        return Outputs(self.mean.ravel(), self.flat_covariance(), marginals)

    def machine(self) -> Machine:
        return self.traced.first_run[0]

    def _draw_kernels(self) -> np.ndarray:
        return self._kernels

    def _redraw(self, draws: int, key: Any) -> Iterator[np.ndarray]:
        yield self.traced.kernels(draws, key)[0]
