"""A network's kernel inside scikit-learn: `GaussianProcessRegressor(NetworkKernel(net))`, `SVC`."""

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from ..engine.inputs import Inputs, read_inputs
from ..engine.sampling import Sampler
from ..errors import NetworkError, ShapeError
from ..inference import Engine, KernelKind, NetworkKernels
from ..inference.network_kernels import chosen, require_gaussian, require_layer
from ..layers.base import Layer
from ..layers.compose import is_sampled, takes_tokens
from ..options import choice

_ENGINE = Engine(dtype=np.float64)


class NetworkKernel(Kernel):
    """The NNGP or NTK kernel of a network as a scikit-learn kernel.

    It can be added to and multiplied with other kernels, whose parameters
    `GaussianProcessRegressor` fits, and is a function that `SVC(kernel=...)` takes. It has none of
    its own: `widelimit.tune` fits the scales of a network.
    """

    def __init__(
        self,
        network: Layer,
        *,
        kind: KernelKind | str = KernelKind.NNGP,
        shape: tuple[int, ...] | None = None,
        sampler: Sampler | None = None,
    ):
        """`shape` is that of one example, (positions…, channels), into which the rows of X are
        folded. Networks with sampled attention need a `sampler`: see `drawn_for`.
        """
        self.network = network
        self.kind = kind
        self.shape = shape
        self.sampler = sampler

    def drawn_for(self, X: Any) -> "NetworkKernel":
        """The same kernel with heads drawn for training data like X, shared by all its calls."""
        sampler = _ENGINE.sampler(self.network, self._inputs(X))
        return NetworkKernel(self.network, kind=self.kind, shape=self.shape, sampler=sampler)

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """The kernel matrix; with `eval_gradient` also its derivatives in no parameter."""
        data, ntk = self._data(X), self._kind is KernelKind.NTK
        if Y is not None:
            return chosen(self._data(Y).cross(data.inputs, ntk=ntk), self._kind)
        matrix = chosen(data.train(ntk=ntk), self._kind)
        return (matrix, np.empty((*matrix.shape, 0))) if eval_gradient else matrix

    def diag(self, X: Any) -> Any:
        """`k(x, x)` of every row."""
        data = self._data(X)
        return data.diagonal(data.inputs, self._kind)

    def is_stationary(self) -> Any:
        """Network kernels depend on more than differences of inputs."""
        return False

    def __repr__(self) -> str:
        return f"NetworkKernel({self._kind.value}, {self.network!r})"

    @property
    def _kind(self) -> KernelKind:
        return choice(KernelKind, self.kind, "kind")

    def _inputs(self, X: Any) -> Inputs:
        X = np.asarray(X)
        if self.shape is not None:
            if X.ndim < 1 or X.size != len(X) * int(np.prod(self.shape)):
                raise ShapeError(
                    f"Rows of X cannot be folded into examples of shape {tuple(self.shape)}.",
                    got=f"X of shape {X.shape}",
                    remedy=f"pass rows of {int(np.prod(self.shape))} numbers, or another shape=",
                )
            X = X.reshape(len(X), *self.shape)
        if takes_tokens(self.network) and np.array_equal(X, np.round(X)):
            X = X.astype(np.int64)  # scikit-learn hands integers over as floats
        return read_inputs(self.network, X, dtype=np.float64, name="X")

    def _data(self, X: Any) -> NetworkKernels:
        require_layer(self.network)
        require_gaussian(self.network)
        if is_sampled(self.network) and self.sampler is None:
            raise NetworkError(
                "The kernel of sampled attention has no heads to share among its calls.",
                got="a network with sampled attention and no sampler",
                remedy="pass NetworkKernel(net, ...).drawn_for(X_train)",
            )
        inputs = self._inputs(X)
        return NetworkKernels(self.network, inputs=inputs, sampler=self.sampler, engine=_ENGINE)
