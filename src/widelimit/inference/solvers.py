"""How a process is conditioned on its data: one argument, `GP(net, solver=…)`.

| solver | kernel entries | work | memory | what it gives |
|---|---|---|---|---|
| `Cholesky()` | N² | N³/3 | 8 N² bytes | everything |
| `BlockedCholesky()` | N² | N³/3 | a row of blocks | everything; the factor is on disk |
| `ConjugateGradients()` | N² | N² per iteration | N × right-hand sides | evidence with an error |
| `Nystrom(landmarks=m)` | N·m | N m² | 8 N m bytes | an approximation, with an evidence bound |
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.inputs import unmasked
from ..errors import NumericalError, OptionError
from ..options import RandomKey, generator, whole
from ..printing import written
from . import checks
from .checks import Values
from .gp import GPPosterior, KernelKind
from .network_kernels import NetworkKernels, chosen
from .nystrom import NystromPosterior
from .pivots import pivoted
from .solve import Inverse, Jitter, factorise

Posterior = GPPosterior | NystromPosterior


class Solver(abc.ABC):
    """A way to condition a process on its data."""

    def __repr__(self) -> str:
        return written(self)

    @abc.abstractmethod
    def condition(
        self,
        data: NetworkKernels,
        y: Values,
        *,
        kind: KernelKind,
        noise: Values,
        jitter: Jitter | None,
    ) -> tuple[NetworkKernels, Posterior]:
        """The posterior, and the examples whose kernels with test examples it takes."""


class ExactSolver(Solver):
    """One that takes the whole kernel."""

    def condition(self, data, y, *, kind, noise, jitter):
        variances = checks.variances(noise, "The noise", len(data))
        self.check(variances, jitter)  # before the expensive part
        kernel = chosen(data.train(ntk=kind is KernelKind.NTK), kind)
        factor = self.factor(kernel, variances, jitter or Jitter(), data.engine.client)
        return data, GPPosterior.given(factor, y, noise=variances, groups=data.groups)

    def check(self, noise: np.ndarray, jitter: Jitter | None) -> None:
        """Refuse what this solver has no use for, or cannot do without."""

    @abc.abstractmethod
    def factor(self, kernel: Any, noise: np.ndarray, jitter: Jitter, client: Any) -> Inverse:
        """What answers for `(kernel + noise)⁻¹`; the kernel is in memory or in a store."""


def refuse_jitter(jitter: Jitter | None, solver: str, why: str) -> None:
    """Refuse an option that some solvers have no use for."""
    if jitter is not None:
        raise OptionError(
            f"jitter= has no meaning with {solver}: nothing is factorised that could fail, {why}.",
            got=f"jitter={jitter!r}",
            remedy="leave it out, or solve with Cholesky() or BlockedCholesky()",
        )


@dataclass(frozen=True, repr=False)
class Cholesky(ExactSolver):
    """One exact factorisation in memory."""

    def factor(self, kernel, noise, jitter, client):
        return factorise(unmasked(kernel, "The kernel"), noise=noise, jitter=jitter)


@dataclass(frozen=True, kw_only=True, repr=False)
class Nystrom(Solver):
    """`landmarks` training examples stand for all: `N·m` kernel entries are computed, not `N²`.

    They are drawn by randomly pivoted Cholesky. `progress(chosen, landmarks)` is called as it goes.
    """

    landmarks: int
    key: RandomKey = 0
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self):
        whole("landmarks", self.landmarks)

    def condition(self, data, y, *, kind, noise, jitter):
        refuse_jitter(jitter, "landmarks", "they are chosen so that it can")
        # Before the expensive part: what landmarks miss must be explained by noise.
        checks.positive_noise(noise, len(data), "Landmarks")
        ntk, inputs = kind is KernelKind.NTK, data.inputs
        diagonal = data.diagonal(inputs, kind)

        def columns(numbers: np.ndarray) -> np.ndarray:
            return chosen(data.cross(inputs[numbers], ntk=ntk), kind).T

        def corner(numbers: np.ndarray) -> np.ndarray:
            marks = replace(data, inputs=inputs[numbers])
            block = np.array(chosen(marks.cross(marks.inputs, ntk=ntk), kind), np.float64)
            np.fill_diagonal(block, diagonal[numbers])
            return block

        unit = float(np.finfo(data.engine.dtype).eps)
        drawing = {"rng": generator(self.key), "unit": unit, "progress": self.progress}
        found = pivoted(diagonal, columns, corner, self.landmarks, **drawing)
        if not len(found.pivots):
            raise NumericalError(
                "Landmarks are examples of which the network varies.",
                got=f"a prior variance of {float(np.max(diagonal)):g} at all {len(data)} examples",
                remedy="give the network biases (b_std=), drop examples that are all zero, or "
                "choose another solver",
            )
        posterior = NystromPosterior.condition(
            found, diagonal, y, noise=noise, unit=unit, groups=data.groups
        )
        return replace(data, inputs=inputs[found.pivots]), posterior
