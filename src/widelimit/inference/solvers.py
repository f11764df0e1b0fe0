"""How a process is conditioned on its data: one argument, `GP(net, solver=…)`.

| solver | kernel entries | work | memory | what it gives |
|---|---|---|---|---|
| `Cholesky()` | N² | N³/3 | 8 N² bytes | everything |
| `BlockedCholesky()` | N² | N³/3 | a row of blocks | everything; the factor is on disk |
| `ConjugateGradients()` | N² | N² per iteration | N × right-hand sides | evidence with an error |
| `Nystrom(landmarks=m)` | N·m | N m² | 8 N m bytes | an approximation, with an evidence bound |
"""

import abc
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import NumericalError, OptionError
from ..options import RandomKey, generator, positive, whole
from ..printing import written
from . import checks
from .blocked import factorise_in_blocks
from .checks import Values
from .gp import GPPosterior, KernelKind
from .iterative import Iterative
from .network_kernels import NetworkKernels, chosen
from .nystrom import NystromPosterior
from .pivots import pivoted
from .solve import Jitter

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


@dataclass(frozen=True, repr=False)
class Cholesky(Solver):
    """One exact factorisation in memory."""

    def condition(self, data, y, *, kind, noise, jitter):
        kernel = _kernel(data, kind)
        posterior = GPPosterior.condition(kernel, y, noise=noise, jitter=jitter, groups=data.groups)
        return data, posterior


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockedCholesky(Solver):
    """One exact factorisation in blocks on disk, by this process or by the engine's cluster.

    The factor takes 4 N² bytes: in a temporary folder that goes with the model, or in a `folder`,
    which workers of other machines must reach too. There it stays, and a run that was stopped goes
    on with its blocks. Two rows of blocks of `block` examples are in memory; a worker has five
    blocks. `progress(done, blocks)` is called as it goes.
    """

    folder: str | os.PathLike[str] | None = None
    block: int = 2048
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self):
        whole("block", self.block)

    def condition(self, data, y, *, kind, noise, jitter):
        kernel = _kernel(data, kind)
        factor = factorise_in_blocks(
            kernel,
            checks.variances(noise, "The noise", len(data)),
            folder=None if self.folder is None else os.fspath(self.folder),
            block=self.block,
            jitter=jitter or Jitter(),
            client=data.engine.client,
            progress=self.progress,
        )
        return data, GPPosterior.given(factor, y, noise=noise, groups=data.groups)


@dataclass(frozen=True, kw_only=True, repr=False)
class ConjugateGradients(Solver):
    """Iterations over the kernel, for one right-hand side per output and per test example.

    They stop at a relative residual of `tolerance`, and for variances where what is subtracted from
    the prior is known to that relative error. `rank` columns make the preconditioner (None: 4√N of
    them). `keep` is a file for the last iterate, from which a run that was stopped goes on.
    `progress(iteration, error)` is called after every iteration, of which the logger
    `widelimit.scale` keeps a record.
    """

    tolerance: float = 1e-10
    most_iterations: int = 1000
    rank: int | None = None
    keep: str | os.PathLike[str] | None = None
    key: RandomKey = 0
    progress: Callable[[int, float], None] | None = None

    def __post_init__(self):
        positive("tolerance", self.tolerance)
        whole("most_iterations", self.most_iterations)
        if self.rank is not None:
            whole("rank", self.rank)

    def condition(self, data, y, *, kind, noise, jitter):
        _refuse(jitter, "ConjugateGradients", "and noise is needed anyway")
        # Before the expensive part: kernels without noise are singular.
        variances = checks.positive_noise(noise, len(data), "Conjugate gradients")
        factor = Iterative.make(
            _kernel(data, kind),
            variances,
            rank=self.rank or max(16, 4 * int(np.sqrt(len(data)))),
            rng=generator(self.key),
            tolerance=self.tolerance,
            most_iterations=self.most_iterations,
            keep=self.keep,
            progress=self.progress,
        )
        return data, GPPosterior.given(factor, y, noise=noise, groups=data.groups)


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
        _refuse(jitter, "landmarks", "they are chosen so that it can")
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


def _refuse(jitter: Jitter | None, solver: str, why: str) -> None:
    if jitter is not None:
        raise OptionError(
            f"jitter= has no meaning with {solver}: nothing is factorised that could fail, {why}.",
            got=f"jitter={jitter!r}",
            remedy="leave it out, or solve with Cholesky() or BlockedCholesky()",
        )


def _kernel(data: NetworkKernels, kind: KernelKind) -> Any:
    return chosen(data.train(ntk=kind is KernelKind.NTK), kind)
