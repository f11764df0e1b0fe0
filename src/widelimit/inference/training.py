"""Training without training, from a network: `Training(net).fit(x, y).predict(x_test, t=t)`."""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from ..engine.inputs import Data
from ..engine.phases import refuse_finite_heads
from ..errors import NumericalError, ShapeError
from ..layers.base import Layer
from ..options import RandomKey, choice, positive
from ..printing import counted, written
from . import checks
from .checks import Values
from .classify import centred_one_hot
from .conventions import Optimizer, Reduction
from .cross_entropy import CrossEntropyPath, cross_entropy_path, sample_initial_functions
from .dynamics import Dynamics
from .gp import KernelKind, Prediction
from .network_kernels import Engine, NetworkKernels, joined, require_layer


@dataclass(frozen=True, eq=False)
class Training:
    """How an infinitely wide network is trained; all its weights move.

    The loss is `c·½ Σ‖f(x_i) − y_i‖²` with `c` from `reduction` (default: the sum, `c = 1`),
    plus `c·½ ridge ‖θ − θ₀‖²`; see `inference.conventions` for what time means. `optimizer` is
    gradient flow (times are real) or full-batch gradient descent (times are whole steps of
    `learning_rate`).
    """

    net: Layer
    _: KW_ONLY
    learning_rate: float = 1.0
    optimizer: Optimizer = Optimizer.GRADIENT_FLOW
    reduction: Reduction = Reduction.SUM
    ridge: float = 0.0
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self):
        require_layer(self.net)
        object.__setattr__(self, "optimizer", choice(Optimizer, self.optimizer, "optimizer"))
        object.__setattr__(self, "reduction", choice(Reduction, self.reduction, "reduction"))
        positive("learning_rate", self.learning_rate)

    def __repr__(self) -> str:
        return written(self)

    def fit(self, x: Data, y: Values, mask: Any = None) -> "FittedTraining":
        """Compute both kernels of the training set and decompose the NTK, once for all times."""
        data = self._read(x, mask)
        checks.targets(y, len(data))  # before the expensive part
        nngp, ntk = data.train(ntk=True)
        dynamics = Dynamics.decompose(ntk, y, nngp=nngp, ridge=self.ridge, **self._options)
        return FittedTraining(self, data, dynamics)

    def cross_entropy(
        self,
        x: Data,
        labels: Any,
        times: Values,
        x_test: Data | None = None,
        *,
        mask: Any = None,
        mask_test: Any = None,
        members: int | None = None,
        key: RandomKey = 0,
    ) -> CrossEntropyPath:
        """Train on class labels under the cross-entropy, by integrating the outputs.

        Without `members` the mean network is trained, which starts at zero; otherwise `members`
        networks that are drawn at initialisation. The result has the logits of the training
        examples and of `x_test` at all `times`.
        """
        if self.ridge:
            raise NumericalError(
                "Training under the cross-entropy has no ridge.",
                got=f"ridge={self.ridge}",
                remedy="use ridge=0.0 and stop early instead",
            )
        if x_test is None and mask_test is not None:
            raise ShapeError(
                "A mask of test examples belongs to test examples.",
                got="mask_test= without x_test=",
                remedy="pass x_test= too, or leave out its mask",
            )
        data = self._read(x, mask)
        targets, classes = centred_one_hot(labels)
        checks.targets(targets, len(data))
        other = None if x_test is None else data.read(x_test, mask_test)
        start, start_test = None, None
        if members is not None:
            both = data.inputs if other is None else joined(data.inputs, other)
            drawn = sample_initial_functions(
                data.corner(both, ntk=False).nngp, outputs=len(classes), draws=members, key=key
            )
            start, start_test = drawn[:, : len(data)], drawn[:, len(data) :]
        path = cross_entropy_path(
            data.train(ntk=True).ntk,
            targets + 1.0 / len(classes),
            times,
            start=start,
            **self._options,
        )
        if other is not None:
            test = path.logits(data.cross(other, ntk=True).ntk, start=start_test)
            path = replace(path, test=test)
        return replace(path, classes=classes)

    @property
    def _options(self) -> dict[str, Any]:
        names = ("learning_rate", "optimizer", "reduction")
        return {name: getattr(self, name) for name in names}

    def _read(self, x: Data, mask: Any) -> NetworkKernels:
        refuse_finite_heads(self.net, "Training in closed form")
        return NetworkKernels.make(self.net, x, mask, engine=self.engine)


@dataclass(frozen=True, eq=False, repr=False)
class FittedTraining:
    """The ensemble of infinitely wide networks in training, at any time; made by `Training.fit`.

    `dynamics` answers what concerns the training set (`mean`, `predict`, `covariance`, `curve` at
    times, and the largest stable learning rate), and `on(x)` the same at other examples.
    Times may be a number or an array, and infinity; results have shape
    `times.shape + (examples[, outputs])`.
    """

    training: Training
    data: NetworkKernels
    dynamics: Dynamics

    def __repr__(self) -> str:
        return f"FittedTraining({counted(len(self.data), 'example')}, {self.training!r})"

    def on(self, x: Data, mask: Any = None, *, covariance: bool = False) -> Dynamics:
        """The dynamics at other examples: kernels are computed here, once for all times.

        With `covariance=True` full covariances can be asked for, not only variances.
        """
        other = self.data.read(x, mask)
        cross = self.data.cross(other, ntk=True)
        if covariance:
            prior = self.data.corner(other, ntk=False).nngp
        else:
            prior = self.data.diagonal(other, KernelKind.NNGP)
        return self.dynamics.on(cross.ntk, cross.nngp, prior)

    def predict(self, x: Data, mask: Any = None, *, t: Values = np.inf) -> Prediction:
        """Mean and standard deviation over the ensemble at times t: `mean, std = ...`.

        Memory is bounded for any number of examples.
        """
        other = self.data.read(x, mask)
        parts = [self.on(part).predict(t) for _, part in self.data.blocks(other)]
        return Prediction.joined(parts, axis=np.ndim(np.asarray(t)))
