"""Both predictors of a network from one computation of its kernels.

Kernels of both kinds come out of one walk through the network. `fit_both` conditions a Bayesian
network (NNGP) and kernel regression (NTK) on one training kernel each from that walk, and
`FittedBoth.predict` asks both with one walk over the test examples.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..engine.inputs import Data
from ..errors import NumericalError
from . import checks
from .checks import Values
from .gp import GPPosterior, KernelKind, Prediction
from .network_kernels import NetworkKernels, chosen, require_gaussian
from .noise import settled
from .process import GP, FittedGP
from .solvers import Cholesky


class BothPredictions(NamedTuple):
    """What each of the two kernels predicts."""

    nngp: Prediction
    ntk: Prediction


@dataclass(frozen=True, eq=False)
class FittedBoth:
    """The NNGP and the NTK posterior of one network; made by `fit_both`."""

    nngp: FittedGP
    ntk: FittedGP

    def predict(self, x: Data, mask: Any = None) -> BothPredictions:
        """Means and standard deviations of both, as `FittedGP.predict` gives them."""
        data, sides = self.nngp.data, (self.nngp, self.ntk)
        other = data.read(x, mask)
        priors = data.diagonals(other, ntk=True)
        parts: list[list[Prediction]] = [[], []]
        for span, block in data.blocks(other):
            cross = data.cross(block, ntk=True)
            for side, found in zip(sides, parts, strict=True):
                kind = side.gp.kind
                prior = chosen(priors, kind)[span]
                found.append(side.posterior.predict(chosen(cross, kind), prior))
        return BothPredictions(*map(Prediction.joined, parts))


def fit_both(gp: GP, x: Data, y: Values, mask: Any = None) -> FittedBoth:
    """Condition a network on targets under both its kernels, which are computed once.

    `gp` says what both share: network, noise, jitter and engine. A `Relative` noise is a share of
    each kernel's own diagonal. The two fits are those of `GP(net, kind=...).fit`.
    """
    require_gaussian(gp.net)
    if not isinstance(gp.solver, Cholesky):
        raise NumericalError(
            "Both predictors share kernels that are held in memory.",
            got=f"solver={gp.solver!r}",
            remedy="leave out the solver, or fit GP(net, kind=...) for each kind",
        )
    data = NetworkKernels.make(gp.net, x, mask, engine=gp.engine)
    checks.targets(y, len(data))
    kernels = data.train(ntk=True)
    return FittedBoth(*(_fitted(gp, kind, data, kernels, y) for kind in KernelKind))


def _fitted(gp: GP, kind: KernelKind, data: NetworkKernels, kernels: Any, y: Values) -> FittedGP:
    kernel = np.asarray(chosen(kernels, kind))
    noise = settled(gp.noise, lambda: data.diagonal(data.inputs, kind))
    posterior = GPPosterior.condition(kernel, y, noise=noise, jitter=gp.jitter)
    return replace(gp, kind=kind).fitted(data, posterior, noise)
