"""Where the inputs of a simulated layer come from."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import NetworkError, NumericalError, ShapeError
from ..gaussians import psd_root
from ..options import whole
from ..printing import written
from .wishart import bartlett, chi

CLIP = 100.0
"""Bound of the published input map `ψ(x) = min(max(x, −100), 100)`."""

_RANK_TOLERANCE = 1e-10
"""Eigenvalues of a Gram matrix below this share of the largest are rounding."""


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """`max(x, 0)`: the input map of the second published setting."""
    return np.maximum(x, 0.0)


@dataclass(frozen=True, kw_only=True)
class GaussianInputs:
    """Random inputs `x^i = ψ(W^i h)`, i = 1…S, with `h ~ N(0, I_n)` and `W^i_jk ~ N(0, 1/n)`.

    Given `h` the rows are independent `ψ(N(0, (|h|²/n) I_n))`, and `|h|² ~ χ²_n`. For the
    published clipped identity (`input_map=None`, bound 100) the Gram matrix is therefore
    `XXᵀ/n = (χ²_n/n) TTᵀ/n` in law, `T` the Bartlett factor of an `S×n` Gaussian matrix: the bound
    is reached with probability below 1e-40 per entry (an entry is a product of a normal and
    `|h|/√n`; the worst case n=1 decays as `e^{-100}`) and is left out. Any other map, such as
    `relu`, has no such reduction: the `S×n` input is drawn, the weights `W^i` still are not.
    """

    positions: int
    channels: int | None = None
    """n; by default the layer's width."""
    input_map: Callable[[np.ndarray], np.ndarray] | None = None

    def __repr__(self) -> str:
        return written(self)

    def __post_init__(self):
        whole("positions", self.positions)
        if self.channels is not None:
            whole("channels", self.channels)

    def footprint(self, width: int) -> int:
        """Numbers held per draw while making one Gram factor."""
        return self.positions * (self.positions if self.input_map is None else width)

    def factor(
        self, rng: np.random.Generator, draws: int, *, width: int, order: np.ndarray
    ) -> Float[np.ndarray, "draws S rank"]:
        """Lower-trapezoidal `L` with `LLᵀ = XXᵀ/n`; rows are exchangeable, so `order` is moot."""
        scale = chi(rng, (draws, 1, 1), dof=width) / np.sqrt(width)
        if self.input_map is None:
            factor = bartlett(rng, (draws,), rows=self.positions, dof=width)
            factor *= scale / np.sqrt(width)
            return factor
        x = rng.standard_normal((draws, self.positions, width))
        x *= scale
        return triangular_factor(_map_inputs(self.input_map, x) / np.sqrt(width))

    def explicit(
        self, rng: np.random.Generator, draws: int, *, width: int
    ) -> Float[np.ndarray, "draws S n"]:
        """Inputs from explicit weights `W^i`."""
        h = rng.standard_normal((draws, 1, width, 1))
        w = rng.standard_normal((draws, self.positions, width, width))
        x = (w @ h)[..., 0] / np.sqrt(width)
        if self.input_map is None:
            return np.clip(x, -CLIP, CLIP)
        return _map_inputs(self.input_map, x)


class _Given(ABC):
    """One fixed input: all that a layer sees of X is a matrix R with `RRᵀ = XXᵀ/n`."""

    def __repr__(self) -> str:
        return written(self)

    @abstractmethod
    def root(self, width: int) -> Float[np.ndarray, "S columns"]:
        """R, of at most `width` columns."""

    def footprint(self, width: int) -> int:
        """Numbers held per draw while making one Gram factor."""
        return 1

    def factor(
        self, rng: np.random.Generator, draws: int, *, width: int, order: np.ndarray
    ) -> Float[np.ndarray, "1 S rank"]:
        """Lower-trapezoidal `L` with `LLᵀ = RRᵀ`, rows taken in `order`."""
        return triangular_factor(self.root(width)[None, order])

    def explicit(
        self, rng: np.random.Generator, draws: int, *, width: int
    ) -> Float[np.ndarray, "1 S n"]:
        """One input with this Gram matrix: `√n (R, 0)`."""
        root = np.sqrt(width) * self.root(width)
        return np.pad(root, ((0, 0), (0, width - root.shape[1])))[None]


@dataclass(frozen=True, eq=False, repr=False)
class GivenInputs(_Given):
    """One fixed input matrix `x` of shape (positions, channels)."""

    x: np.ndarray

    def __post_init__(self):
        object.__setattr__(self, "x", _finite_matrix(self.x, name="input"))

    @property
    def positions(self) -> int:
        """Number of rows."""
        return self.x.shape[0]

    @property
    def channels(self) -> int:
        """Number of columns."""
        return self.x.shape[1]

    def root(self, width: int) -> Float[np.ndarray, "S n"]:
        return self.x / np.sqrt(width)


@dataclass(frozen=True, eq=False, repr=False)
class GivenGram(_Given):
    """A fixed Gram matrix `XXᵀ/n` (S×S, positive semi-definite): all that the layer sees of X.

    This is the covariance κ of the inputs. `channels` is n, by default the layer's width.
    """

    gram: np.ndarray
    channels: int | None = None

    def __post_init__(self):
        gram = _finite_matrix(self.gram, name="Gram matrix")
        remedy = "pass x @ x.T / n, or the input itself as GivenInputs(x)"
        if gram.shape[0] != gram.shape[1] or not np.allclose(gram, gram.T, rtol=1e-6, atol=0.0):
            raise ShapeError(
                "The Gram matrix is not square and symmetric.",
                got=f"shape {gram.shape}",
                remedy=remedy,
            )
        if self.channels is not None:
            whole("channels", self.channels)
        object.__setattr__(self, "gram", gram)
        values = np.linalg.eigvalsh(gram)
        if values[0] < -_RANK_TOLERANCE * max(values[-1], 0.0):
            raise NumericalError(
                "The Gram matrix is not positive semi-definite.",
                got=f"smallest eigenvalue {values[0]:.3g}, largest {values[-1]:.3g}",
                remedy=remedy,
            )

    @property
    def positions(self) -> int:
        """Number of rows."""
        return self.gram.shape[0]

    @functools.cached_property
    def _root(self) -> Float[np.ndarray, "S rank"]:
        return psd_root(self.gram, tolerance=_RANK_TOLERANCE, drop=_RANK_TOLERANCE)

    def root(self, width: int) -> Float[np.ndarray, "S rank"]:
        """As many columns as the rank of the matrix, which no input of fewer channels has."""
        rank = self._root.shape[1]
        if rank > width:
            raise NetworkError(
                "The Gram matrix has a rank that no input of so few channels has.",
                got=f"rank {rank} and {width} channels",
                remedy=f"use channels={rank}, or a layer of at least that width",
            )
        return self._root


SimulatedInputs = GaussianInputs | GivenInputs | GivenGram
"""What a layer is simulated on."""


def triangular_factor(x: Float[np.ndarray, "draws S n"]) -> Float[np.ndarray, "draws S rank"]:
    """Lower-trapezoidal `L` with `LLᵀ = xxᵀ` and `min(S, n)` columns, for any rank of `x`."""
    return np.swapaxes(np.linalg.qr(np.swapaxes(x, -1, -2), mode="r"), -1, -2)


def _finite_matrix(value: np.ndarray, *, name: str) -> Float[np.ndarray, "rows columns"]:
    matrix = np.array(value, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ShapeError(
            f"The {name} is no matrix.",
            got=f"shape {matrix.shape}",
            remedy="pass one example, of shape (positions, channels)",
        )
    if not np.isfinite(matrix).all():
        raise NumericalError(
            f"The {name} is not finite.",
            got="NaN or infinity",
            remedy="remove or impute the missing values first",
        )
    matrix.flags.writeable = False
    return matrix


def _map_inputs(
    fn: Callable[[np.ndarray], np.ndarray], x: Float[np.ndarray, "draws S n"]
) -> Float[np.ndarray, "draws S n"]:
    mapped = np.asarray(fn(x), dtype=np.float64)
    if mapped.shape != x.shape:
        raise ShapeError(
            "The input map does not keep the shape of its argument.",
            got=f"shape {mapped.shape} for inputs of shape {x.shape}",
            remedy="pass a function that keeps the shape, such as relu",
        )
    return mapped
