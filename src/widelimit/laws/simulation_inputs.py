"""Where the inputs of a simulated layer come from."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ..errors import NetworkError, ShapeError
from ..gaussians import covariance_root
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


@dataclass(frozen=True, eq=False, repr=False)
class GivenGram:
    """One fixed input X by its Gram matrix `XXᵀ/n` (S×S): all that the layer sees of X.

    This is the covariance κ of the inputs. `channels` is n, by default the layer's width.
    """

    gram: np.ndarray
    channels: int | None = None
    root: Float[np.ndarray, "S rank"] = field(init=False)

    def __repr__(self) -> str:
        return written(self)

    def __post_init__(self):
        gram = np.array(self.gram, dtype=np.float64)
        gram.flags.writeable = False
        object.__setattr__(self, "gram", gram)
        if self.channels is not None:
            whole("channels", self.channels)
        root = covariance_root(gram, tolerance=_RANK_TOLERANCE, drop=_RANK_TOLERANCE)
        object.__setattr__(self, "root", root)

    @property
    def positions(self) -> int:
        """Number of rows."""
        return self.gram.shape[0]

    def footprint(self, width: int) -> int:
        """Numbers held per draw while making one Gram factor."""
        return 1

    def factor(
        self, rng: np.random.Generator, draws: int, *, width: int, order: np.ndarray
    ) -> Float[np.ndarray, "1 S rank"]:
        """Lower-trapezoidal `L` with `LLᵀ = XXᵀ/n`, rows taken in `order`."""
        rank = self.root.shape[1]
        if rank > width:
            raise NetworkError(
                "The Gram matrix has a rank that no input of so few channels has.",
                got=f"rank {rank} and {width} channels",
                remedy=f"use channels={rank}, or a layer of at least that width",
            )
        return triangular_factor(self.root[None, order])


SimulatedInputs = GaussianInputs | GivenGram
"""What a layer is simulated on."""


def triangular_factor(x: Float[np.ndarray, "draws S n"]) -> Float[np.ndarray, "draws S rank"]:
    """Lower-trapezoidal `L` with `LLᵀ = xxᵀ` and `min(S, n)` columns, for any rank of `x`."""
    return np.swapaxes(np.linalg.qr(np.swapaxes(x, -1, -2), mode="r"), -1, -2)


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
