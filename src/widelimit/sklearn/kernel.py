"""A network's kernel inside scikit-learn: `GaussianProcessRegressor(NetworkKernel(net))`, `SVC`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.gaussian_process.kernels import Hyperparameter as SklearnHyperparameter
from sklearn.gaussian_process.kernels import Kernel

from ..compilation import compiled
from ..engine.inputs import Inputs, read_inputs
from ..engine.sampling import Sampler
from ..errors import NetworkError, ShapeError
from ..inference import Engine, Hyperparameter, KernelKind, NetworkKernels, hyperparameters
from ..inference.leaves import Range, replaced
from ..inference.network_kernels import chosen, require_gaussian, require_layer
from ..layers.base import Layer
from ..layers.compose import is_sampled, takes_tokens
from ..options import choice

_ENGINE = Engine(dtype=np.float64)
_LOGIT_BOUND, _LOG_BOUND = 5.0, float(np.log(100.0))
"""How far from 0 the coordinates of weights between 0 and 1, and of other scales, may go."""


class NetworkKernel(Kernel):
    """The NNGP or NTK kernel of a network as a scikit-learn kernel, with gradients.

    Its `theta` are the scales of the network (standard deviations and rates as logarithms, weights
    between 0 and 1 as logits), so that `GaussianProcessRegressor` fits them by evidence; it can be
    added to and multiplied with other kernels, and is a function that `SVC(kernel=...)` takes.
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
        """The kernel matrix; with `eval_gradient` also its derivatives (n, n, dims) in theta."""
        if eval_gradient and Y is not None:
            raise NetworkError(
                "There is no gradient of a kernel between two sets of examples.",
                got="eval_gradient=True and Y",
                remedy="leave out Y, or the gradient",
            )
        data, ntk = self._data(X), self._kind is KernelKind.NTK
        if Y is not None:
            return chosen(self._data(Y).cross(data.inputs, ntk=ntk), self._kind)
        matrix = chosen(data.train(ntk=ntk), self._kind)
        return (matrix, self._gradient(data)) if eval_gradient else matrix

    def diag(self, X: Any) -> Any:
        """`k(x, x)` of every row."""
        data = self._data(X)
        return data.diagonal(data.inputs, self._kind)

    def is_stationary(self) -> Any:
        """Network kernels depend on more than differences of inputs."""
        return False

    @property
    def hyperparameters(self) -> list[Any]:
        """The scales of the network, as scikit-learn describes hyperparameters."""
        return [
            SklearnHyperparameter(h.name, "numeric", tuple(map(h.range.bounded, ends)))
            for h, ends in zip(self._free(), self.bounds, strict=True)
        ]

    @property
    def theta(self) -> Float[np.ndarray, " dims"]:
        """The free coordinates of the network's scales."""
        return np.array([float(h.range.free(h.value)) for h in self._free()])

    @theta.setter
    def theta(self, theta: Any) -> None:
        free = self._free()
        values = [h.range.bounded(u) for h, u in zip(free, theta, strict=True)]
        self.network = replaced(self.network, [h.name for h in free], map(np.asarray, values))

    @property
    def bounds(self) -> Float[np.ndarray, "dims 2"]:
        """Where theta may go."""
        ends = [_LOGIT_BOUND if h.range is Range.UNIT else _LOG_BOUND for h in self._free()]
        return np.outer(ends, [-1.0, 1.0])

    def __repr__(self) -> str:
        scales = ", ".join(f"{h.name}={float(h.value):.3g}" for h in self._free())
        return f"NetworkKernel({self._kind.value}, {scales})"

    @property
    def _kind(self) -> KernelKind:
        return choice(KernelKind, self.kind, "kind")

    def _free(self) -> list[Hyperparameter]:
        found = hyperparameters(self.network)
        return [h for h in found if h.scale and not h.absent and not h.value.ndim]

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

    def _gradient(self, data: NetworkKernels) -> Float[np.ndarray, "n n dims"]:
        free = self._free()
        names, kind = tuple(h.name for h in free), self._kind
        with jax.enable_x64(True):
            values = jnp.asarray([float(h.value) for h in free])
            found = _jacobian(
                values, self.network, data.inputs, self.sampler, names=names, kind=kind
            )
        return np.asarray(found) * np.array([h.range.slope(h.value) for h in free])


@compiled
def _jacobian(
    values: Float[Array, " dims"],
    net: Layer,
    inputs: Inputs,
    sampler: Sampler | None,
    *,
    names: tuple[str, ...],
    kind: KernelKind,
) -> Float[Array, "n n dims"]:
    """Derivatives of the kernel matrix in the named hyperparameters."""

    def matrix(moved: Array) -> Array:
        kernels = replaced(net, names, list(moved)).kernel(
            inputs, sampler=sampler, ntk=kind is KernelKind.NTK
        )
        return chosen(kernels, kind)

    return jax.jacfwd(matrix)(values)
