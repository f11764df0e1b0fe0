"""A network's kernel inside scikit-learn: `GaussianProcessRegressor(NetworkKernel(net))`, `SVC`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..compilation import compiled
from ..engine.inputs import Inputs, read_inputs
from ..engine.sampling import Sampler
from ..errors import MissingExtraError, NetworkError, OptionError, ShapeError
from ..inference import (
    Engine,
    Hyperparameter,
    KernelKind,
    NetworkKernels,
    hyperparameters,
)
from ..inference.leaves import Range, replaced
from ..inference.network_kernels import chosen, require_gaussian, require_layer
from ..layers.base import Layer
from ..layers.compose import is_sampled, takes_tokens
from ..options import choice, positive

try:
    from sklearn.gaussian_process.kernels import Hyperparameter as SklearnHyperparameter
    from sklearn.gaussian_process.kernels import Kernel
except ImportError as missing:
    raise MissingExtraError("scikit-learn", "sklearn") from missing

_ENGINE = Engine(dtype=np.float64)
_LOGIT_BOUND = 5.0


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
        bounds_ratio: float | None = 100.0,
        sampler: Sampler | None = None,
    ):
        """`shape` is that of one example, (positions…, channels), into which the rows of X are
        folded. Fitting keeps scales within a factor `bounds_ratio` of 1; None fixes them. Networks
        with sampled attention need a `sampler`: see `drawn_for`.
        """
        self.network = network
        self.kind = kind
        self.shape = shape
        self.bounds_ratio = bounds_ratio
        self.sampler = sampler

    def drawn_for(self, X: Any) -> "NetworkKernel":
        """The same kernel with heads drawn for training data like X, shared by all its calls."""
        sampler = _ENGINE.sampler(self.network, self._inputs(X))
        return NetworkKernel(
            self.network,
            kind=self.kind,
            shape=self.shape,
            bounds_ratio=self.bounds_ratio,
            sampler=sampler,
        )

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """The kernel matrix; with `eval_gradient` also its derivatives (n, n, dims) in theta."""
        if eval_gradient and Y is not None:
            raise NetworkError(
                "There is no gradient of a kernel between two sets of examples.",
                got="eval_gradient=True and Y",
                remedy="leave out Y, or the gradient",
            )
        data = self._data(X)
        kind = self._kind
        ntk = kind is KernelKind.NTK
        if Y is not None:
            other = NetworkKernels(
                self.network, inputs=self._inputs(Y), sampler=self.sampler, engine=_ENGINE
            )
            return chosen(other.cross(data.inputs, ntk=ntk), kind)
        matrix = chosen(data.train(ntk=ntk), kind)
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
        ends = [tuple(h.range.bounded(bound) for bound in self._bounds(h)) for h in self._free()]
        return [
            SklearnHyperparameter(h.name, "numeric", end)
            for h, end in zip(self._free(), ends, strict=True)
        ]

    @property
    def n_dims(self) -> int:
        """How many numbers theta holds."""
        return len(self._free())

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
        return np.array([self._bounds(h) for h in self._free()]).reshape(-1, 2)

    def __repr__(self) -> str:
        scales = ", ".join(f"{h.name}={float(h.value):.3g}" for h in self._free())
        return f"NetworkKernel({self._kind.value}, {scales})"

    @property
    def _kind(self) -> KernelKind:
        return choice(KernelKind, self.kind, "kind")

    def _bounds(self, parameter: Hyperparameter) -> tuple[float, float]:
        if parameter.range is Range.UNIT or self.bounds_ratio is None:
            return -_LOGIT_BOUND, _LOGIT_BOUND
        reach = float(np.log(positive("bounds_ratio", self.bounds_ratio)))
        if reach <= 0:
            raise OptionError(
                "bounds_ratio= is no factor above 1, by which scales may differ from 1.",
                got=f"bounds_ratio={self.bounds_ratio!r}",
                remedy="for instance bounds_ratio=100.0, or None to fix the scales",
            )
        return -reach, reach

    def _free(self) -> list[Hyperparameter]:
        if self.bounds_ratio is None:
            return []
        return [
            h
            for h in hyperparameters(self.network)
            if h.scale and not h.absent and not h.value.ndim
        ]

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
        if not free:
            return np.empty((len(data), len(data), 0))

        with jax.enable_x64(True):
            values = jnp.asarray([float(h.value) for h in free])
            names = tuple(h.name for h in free)
            gradient = np.asarray(
                _jacobian(
                    values, self.network, data.inputs, self.sampler, names=names, kind=self._kind
                )
            )
        return gradient * np.array([h.range.slope(h.value) for h in free])


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
