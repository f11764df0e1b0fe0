"""What is simulated: one attention layer of finite width, and where its inputs come from."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from ..errors import NetworkError, NumericalError, ShapeError
from ..layers.attention.scores import Scaling, ScoreMap
from .simulate_random import bartlett, chi

CLIP = 100.0
"""Bound of the published input map `ψ(x) = min(max(x, −100), 100)`."""


_RANK_TOLERANCE = 1e-10
"""Eigenvalues of a Gram matrix below this share of the largest are rounding."""


def softmax(scores: Float[np.ndarray, "... keys"]) -> Float[np.ndarray, "... keys"]:
    """`exp(g_i) / Σ_j exp(g_j)` over the last axis, the keys."""
    # Reducing a short last axis is slow; over a leading axis the maximum is elementwise and fast.
    keys_first = np.ascontiguousarray(np.moveaxis(scores, -1, 0))
    weights = np.exp(scores - keys_first.max(axis=0)[..., None])
    weights /= np.einsum("...k->...", weights)[..., None]
    return weights


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """`max(x, 0)`: the input map of the second published setting."""
    return np.maximum(x, 0.0)


def positive_integer(value: int, *, name: str) -> int:
    """Return `value` as an int, or raise the error that names what must be a positive integer."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise NetworkError(
            f"The {name} must be a positive integer.",
            got=repr(value),
            remedy=f"give a whole number of at least 1 as the {name}",
        )
    return number


@dataclass(frozen=True, kw_only=True)
class FiniteAttention:
    """`y = H^{-1/2} Σ_h A_h X W_V,h W_O,h`, `A_h = ζ(c Q_hK_hᵀ)`, for an input `X` with S rows.

    `Q_h = X W_Q,h`, `K_h = X W_K,h` and all weights are independent `N(0, 1/fan_in)`, except that
    `tied` layers have `W_Q,h = W_K,h`. The factor `c` is `qk_std/√n_k` (SQRT) or `qk_std/n_k`
    (LINEAR), and `ov_std` multiplies `y`. LINEAR ties queries and keys unless `tied=False`.
    Widths: `X` has `width` channels, queries and keys `key_width`, values `value_width`, `y` has
    `output_width`; each is `width` unless given. Heads of low rank are
    `key_width = value_width = width/heads`.

    `score_map` (ζ) is a function on NumPy arrays from scores of shape `(..., queries, keys)` to
    weights of that shape, or a layer's score map such as `IdentityMap()`.
    """

    heads: int
    width: int
    key_width: int | None = None
    value_width: int | None = None
    output_width: int | None = None
    scaling: Scaling = Scaling.SQRT
    tied: bool | None = None
    score_map: Callable[[np.ndarray], np.ndarray] | ScoreMap = softmax
    qk_std: float = 1.0
    ov_std: float = 1.0

    def __post_init__(self):
        positive_integer(self.heads, name="number of heads")
        positive_integer(self.width, name="width")
        for value, name in zip(self.widths, ("key", "value", "output"), strict=True):
            positive_integer(value, name=f"{name} width")
        for name in ("qk_std", "ov_std"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise NetworkError(
                    f"The standard deviation {name} must be finite and not negative.",
                    got=repr(getattr(self, name)),
                    remedy="give a number such as 1.0",
                )

    @property
    def widths(self) -> tuple[int, int, int]:
        """Key, value and output width, with None resolved to `width`."""
        given = (self.key_width, self.value_width, self.output_width)
        key, value, output = (self.width if each is None else each for each in given)
        return key, value, output

    @property
    def shares_queries_and_keys(self) -> bool:
        """Whether `W_Q,h = W_K,h`."""
        return self.scaling is Scaling.LINEAR if self.tied is None else self.tied

    @property
    def score_factor(self) -> float:
        """The factor `c` in front of `QKᵀ`."""
        n_k = self.widths[0]
        return self.qk_std / (n_k if self.scaling is Scaling.LINEAR else np.sqrt(n_k))

    def weights(self, scores: Float[np.ndarray, "... q keys"]) -> Float[np.ndarray, "... q keys"]:
        """Apply the score map and check that it kept the shape."""
        if isinstance(self.score_map, ScoreMap):
            with jax.enable_x64(True):
                weights = np.asarray(self.score_map(jax.numpy.asarray(scores), None))
        else:
            weights = np.asarray(self.score_map(scores))
        if weights.shape != scores.shape:
            raise ShapeError(
                "A score map must return weights of the shape of its scores, (..., queries, keys).",
                got=f"{weights.shape} for scores of shape {scores.shape}",
                remedy="work on the last axis only, or ask for all positions if the map "
                "treats queries differently",
            )
        return weights


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
    input_map: Callable[[np.ndarray], np.ndarray] | None = None

    def __post_init__(self):
        positive_integer(self.positions, name="number of positions")

    def check_width(self, width: int) -> None:
        """Any width will do."""

    def footprint(self, width: int) -> int:
        """Numbers held per run while drawing one Gram factor."""
        return self.positions * (self.positions if self.input_map is None else width)

    def factor(
        self, rng: np.random.Generator, runs: int, *, width: int, order: np.ndarray
    ) -> Float[np.ndarray, "runs S rank"]:
        """Lower-trapezoidal `L` with `LLᵀ = XXᵀ/n`; rows are exchangeable, so `order` is moot."""
        scale = chi(rng, (runs, 1, 1), dof=width) / np.sqrt(width)
        if self.input_map is None:
            factor = bartlett(rng, (runs,), rows=self.positions, dof=width)
            factor *= scale / np.sqrt(width)
            return factor
        x = rng.standard_normal((runs, self.positions, width))
        x *= scale
        return triangular_factor(_mapped(self.input_map, x) / np.sqrt(width))

    def explicit(
        self, rng: np.random.Generator, runs: int, *, width: int
    ) -> Float[np.ndarray, "runs S n"]:
        """Inputs from explicit weights `W^i`."""
        h = rng.standard_normal((runs, 1, width, 1))
        w = rng.standard_normal((runs, self.positions, width, width))
        x = (w @ h)[..., 0] / np.sqrt(width)
        if self.input_map is None:
            return np.clip(x, -CLIP, CLIP)
        return _mapped(self.input_map, x)


@dataclass(frozen=True, eq=False)
class GivenInputs:
    """One fixed input matrix `x` of shape (positions, channels)."""

    x: Float[np.ndarray, "S n"]

    def __post_init__(self):
        object.__setattr__(self, "x", _finite_matrix(self.x, name="input"))

    @property
    def positions(self) -> int:
        """Number of rows."""
        return self.x.shape[0]

    def check_width(self, width: int) -> None:
        """Raise unless the input has as many channels as the layer expects."""
        if self.x.shape[1] != width:
            raise ShapeError(
                "The input must have as many channels as the layer's width.",
                got=f"{self.x.shape[1]} channels and width {width}",
                remedy="set the layer's width to the number of columns of x",
            )

    def footprint(self, width: int) -> int:
        """Numbers held per run while drawing one Gram factor."""
        return 1

    def factor(
        self, rng: np.random.Generator, runs: int, *, width: int, order: np.ndarray
    ) -> Float[np.ndarray, "1 S rank"]:
        """Lower-trapezoidal `L` with `LLᵀ = XXᵀ/n`, rows taken in `order`."""
        return triangular_factor(self.x[None, order] / np.sqrt(width))

    def explicit(
        self, rng: np.random.Generator, runs: int, *, width: int
    ) -> Float[np.ndarray, "1 S n"]:
        """Return the input itself."""
        return self.x[None]


@dataclass(frozen=True, eq=False)
class GivenGram:
    """A fixed Gram matrix `XXᵀ/n` (S×S, positive semi-definite): all that the layer sees of X."""

    gram: Float[np.ndarray, "S S"]

    def __post_init__(self):
        gram = _finite_matrix(self.gram, name="Gram matrix")
        if gram.shape[0] != gram.shape[1] or not np.allclose(gram, gram.T, rtol=1e-6, atol=0.0):
            raise ShapeError(
                "A Gram matrix must be square and symmetric.",
                got=f"shape {gram.shape}",
                remedy="pass x @ x.T / n, or the input itself as GivenInputs(x)",
            )
        object.__setattr__(self, "gram", gram)
        values = np.linalg.eigvalsh(gram)
        if values[0] < -_RANK_TOLERANCE * max(values[-1], 0.0):
            raise NumericalError(
                "A Gram matrix must be positive semi-definite.",
                got=f"smallest eigenvalue {values[0]:.3g}, largest {values[-1]:.3g}",
                remedy="pass x @ x.T / n, or the input itself as GivenInputs(x)",
            )

    @property
    def positions(self) -> int:
        """Number of rows."""
        return self.gram.shape[0]

    @functools.cached_property
    def root(self) -> Float[np.ndarray, "S rank"]:
        """A matrix `R` with `RRᵀ` the Gram matrix and as many columns as its rank."""
        values, vectors = np.linalg.eigh(self.gram)
        kept = values > _RANK_TOLERANCE * values[-1]
        return vectors[:, kept] * np.sqrt(values[kept])

    def check_width(self, width: int) -> None:
        """Raise unless an input of this width can have the Gram matrix."""
        rank = self.root.shape[1]
        if rank > width:
            raise NetworkError(
                "The Gram matrix of an S×n input has rank at most n.",
                got=f"rank {rank} and width {width}",
                remedy=f"use a width of at least {rank}",
            )

    def footprint(self, width: int) -> int:
        """Numbers held per run while drawing one Gram factor."""
        return 1

    def factor(
        self, rng: np.random.Generator, runs: int, *, width: int, order: np.ndarray
    ) -> Float[np.ndarray, "1 S rank"]:
        """Lower-trapezoidal `L` with `LLᵀ` the Gram matrix, rows taken in `order`."""
        return triangular_factor(self.root[None, order])

    def explicit(
        self, rng: np.random.Generator, runs: int, *, width: int
    ) -> Float[np.ndarray, "1 S n"]:
        """Return one input with this Gram matrix: `√n (R, 0)`."""
        x = np.zeros((1, self.positions, width))
        x[0, :, : self.root.shape[1]] = np.sqrt(width) * self.root
        return x


Inputs = GaussianInputs | GivenInputs | GivenGram


def triangular_factor(x: Float[np.ndarray, "runs S n"]) -> Float[np.ndarray, "runs S rank"]:
    """Lower-trapezoidal `L` with `LLᵀ = xxᵀ` and `min(S, n)` columns, for any rank of `x`."""
    return np.swapaxes(np.linalg.qr(np.swapaxes(x, -1, -2), mode="r"), -1, -2)


def _finite_matrix(value: np.ndarray, *, name: str) -> Float[np.ndarray, "rows columns"]:
    matrix = np.array(value, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ShapeError(
            f"The {name} must be a matrix.",
            got=f"shape {matrix.shape}",
            remedy="pass one example, of shape (positions, channels)",
        )
    if not np.isfinite(matrix).all():
        raise NumericalError(
            f"The {name} must be finite.",
            got="NaN or infinity",
            remedy="remove or impute the missing values first",
        )
    matrix.flags.writeable = False
    return matrix


def _mapped(
    fn: Callable[[np.ndarray], np.ndarray], x: Float[np.ndarray, "runs S n"]
) -> Float[np.ndarray, "runs S n"]:
    mapped = np.asarray(fn(x), dtype=np.float64)
    if mapped.shape != x.shape:
        raise ShapeError(
            "An input map must act on each entry.",
            got=f"shape {mapped.shape} for inputs of shape {x.shape}",
            remedy="pass a function that keeps the shape, such as relu",
        )
    return mapped
