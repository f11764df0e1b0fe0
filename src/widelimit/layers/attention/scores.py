"""From scores to attention weights: how scores are scaled, mapped, and which of them count."""

import math
from abc import abstractmethod
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...duals import Dual, Identity
from ...duals.base import as_module
from ...errors import NetworkError, ShapeError, WidelimitError
from ...options import whole
from ...printing import Written, brief
from ..activations import Activation, dual_of


class Scaling(Enum):
    """What the products of queries and keys are divided by.

    SQRT: 1/√d, independent queries and keys – the standard; scores stay random at infinite width.
    LINEAR: 1/d, queries and keys share their weights; scores become deterministic.
    UNTIED: 1/d, independent queries and keys, as in parameterisations that carry over from width
    to width; at initialisation the scores vanish, and only what is added to them is left.
    """

    SQRT = "sqrt"
    LINEAR = "linear"
    UNTIED = "untied"


class ScoreMap(Written, eqx.Module):
    """A map ζ from scores (query, key) to weights; keys that are not allowed get weight 0.

    To write your own, define `__call__(scores, allowed)`, a pure function of them and of the
    leaves of the map (see `Elementwise`). It may mix queries (as Sinkhorn's
    normalisation does): tangent kernels at 1/√d take its whole Jacobian, O(S⁴) numbers and
    O(S⁵) operations for each head and pair. A map of each query's scores by themselves is a
    `RowwiseMap`, and cheaper. A map of several independent scores in each head says how many by
    `fields = 2`, and is called with scores (field, query, key).
    """

    fields: ClassVar[int] = 1

    @abstractmethod
    def __call__(
        self, scores: Float[Array, "query key"], allowed: Bool[Array, "query key"] | None
    ) -> Float[Array, "query key"]:
        """The weights."""

    def weigh(
        self, scores: Float[Array, "field query key"], allowed: Bool[Array, "query key"] | None
    ) -> Float[Array, "query key"]:
        """The weights of all scores of one head."""
        return self(scores[0] if self.fields == 1 else scores, allowed)


class Softmax(ScoreMap):
    """`exp(g_ai) / Σ_k exp(g_ak)` over the allowed keys; a query without any gets weights 0."""

    def __call__(self, scores: Array, allowed: Array | None) -> Array:
        if allowed is None:
            weights = jnp.exp(scores - _largest(scores))
            return weights / jnp.sum(weights, axis=-1, keepdims=True)
        floor = jnp.finfo(scores.dtype).min
        scores = jnp.where(allowed, scores, floor)
        weights = jnp.where(allowed, jnp.exp(scores - _largest(scores)), 0)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        return weights / jnp.where(total == 0, 1, total)


def _largest(scores: Float[Array, "*batch query key"]) -> Float[Array, "*batch query 1"]:
    """What keeps `exp` finite. Weights do not depend on it, so no derivative goes through it: that
    of a maximum asks which entry equals it, and where a program computes scores twice, rounded
    differently, none may.
    """
    return jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))


class ElementwiseMap(ScoreMap):
    """`ζ(g_ai)` for each score on its own: ReLU, abs, erf, any function."""

    dual: Dual

    def __init__(self, fn: Activation | Dual | Callable[[Array], Array]):
        """An activation layer such as `Relu()`, a dual, or any elementwise function."""
        self.dual = dual_of(fn)

    def __repr__(self) -> str:
        identity = isinstance(self.dual, Identity)
        return "IdentityMap()" if identity else f"ElementwiseMap({self.dual!r})"

    def __call__(self, scores: Array, allowed: Array | None) -> Array:
        weights = self.dual.fn(scores)
        return weights if allowed is None else jnp.where(allowed, weights, 0)


class RowwiseMap(ScoreMap):
    """`ζ(g_a1, …, g_aS)` for the scores of each query on their own: softmax's many relatives."""

    fn: Any

    def __init__(self, fn: Callable[[Array, Array], Array]):
        """`fn(scores, allowed)`: one query's scores (key,) and which keys count, to weights (key,).

        An Equinox module keeps its own leaves. Weights of keys that do not count are set to 0.
        """
        if not callable(fn):
            raise NetworkError(
                "RowwiseMap did not get a function of one query's scores and of which keys count.",
                got=repr(fn),
                remedy="e.g. RowwiseMap(lambda g, allowed: jax.nn.softmax(g, where=allowed))",
            )
        self.fn = as_module(fn)

    def row(self, scores: Float[Array, "key"], allowed: Bool[Array, "key"]) -> Float[Array, "key"]:
        """The weights of one query."""
        return jnp.where(allowed, self.fn(scores, allowed), 0)

    def __call__(self, scores: Array, allowed: Array | None) -> Array:
        keys = jnp.ones(scores.shape, bool) if allowed is None else allowed
        return jax.vmap(self.row)(scores, keys)


def IdentityMap() -> ElementwiseMap:
    """The scores themselves are the weights."""
    return ElementwiseMap(Identity())


def check_score_map(score_map: Any) -> ScoreMap:
    """A score map; by default softmax."""
    if score_map is not None and not isinstance(score_map, ScoreMap):
        raise WidelimitError(
            "score_map= is none of Softmax(), IdentityMap(), ElementwiseMap(fn), RowwiseMap(fn), "
            "nor a ScoreMap of your own.",
            got=repr(score_map),
            remedy="wrap a function: ElementwiseMap(Relu())",
        )
    return Softmax() if score_map is None else score_map


class Pattern(Written, eqx.Module):
    """Which keys a query may see, whatever the input."""

    any_length: ClassVar[bool] = False
    """Whether the pattern of a longer input contains that of a shorter one."""

    @abstractmethod
    def allowed(self, positions: tuple[int, ...]) -> Bool[np.ndarray, "query key"]:
        """True where the query may look at the key (positions flattened)."""


class Causal(Pattern):
    """A query sees its own position and those before it."""

    any_length: ClassVar[bool] = True

    def allowed(self, positions: tuple[int, ...]) -> np.ndarray:
        return np.tri(math.prod(positions), dtype=bool)


class Local(Pattern):
    """A query sees keys within `radius` of it along every position axis."""

    any_length: ClassVar[bool] = True

    radius: int = eqx.field(static=True, converter=partial(whole, "radius", least=0))
    """A radius of 0 leaves only the query itself."""

    def allowed(self, positions: tuple[int, ...]) -> np.ndarray:
        places = coordinates(positions)
        gaps = np.abs(places[:, None, :] - places[None, :, :])
        return gaps.max(axis=-1) <= self.radius


class Allowed(Pattern):
    """Any pattern, given as a boolean matrix (query, key) over flattened positions."""

    matrix: tuple[tuple[bool, ...], ...] = eqx.field(static=True)

    def __init__(self, matrix: Any):
        """True where the query may look at the key."""
        array = np.asarray(matrix)
        if array.ndim != 2 or array.shape[0] != array.shape[1] or array.dtype != bool:
            raise ShapeError(
                "The attention pattern is no square boolean matrix (query, key).",
                got=f"shape {array.shape}, dtype {array.dtype}",
                remedy="flatten the positions and convert to bool",
            )
        self.matrix = tuple(map(tuple, array.tolist()))

    def __repr__(self) -> str:
        return f"Allowed({brief(np.array(self.matrix, bool))})"

    def allowed(self, positions: tuple[int, ...]) -> np.ndarray:
        array = np.array(self.matrix, bool)
        size = math.prod(positions)
        if len(array) != size:
            raise ShapeError(
                "The attention pattern does not have one row and one column for each position.",
                got=f"a pattern of {array.shape} for {size} positions",
                remedy="give a matrix of that size, or use Causal or Local, which fit any length",
            )
        return array


def coordinates(positions: tuple[int, ...]) -> np.ndarray:
    """Coordinates of all positions in row-major order, (positions, axes)."""
    return np.indices(positions).reshape(len(positions), -1).T
