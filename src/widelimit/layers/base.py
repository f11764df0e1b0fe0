"""What a layer is: its finite forward pass and its infinite-width rule, side by side."""

import copy
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from ..errors import NetworkError, ShapeError
from ..options import cast as cast
from ..options import leaf as leaf
from ..printing import Written
from ..state import UNKNOWN, Example, Mean, Need, Outline, Pair
from .readings import Params, Readings

Memo = PyTree[Array]
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Facts:
    """What the library may assume of a layer. The defaults are safe, at worst slow or refused."""

    need: Need | None = None
    """What part of its input's covariance the rule looks at; None: as much as is asked of it."""
    need_own: Need = Need.NONE
    """What part of the example's covariance `memo` looks at."""
    random_scores: bool = False
    """Whether the limit depends on scores that are drawn: see `layers.attention.heads`."""
    noisy: bool = False
    """Whether passes of the finite network are random, as with dropout."""
    linear: bool = False
    """Whether the output is linear in the input (of branches: in what is merged)."""
    keeps_zeros: bool = False
    """Whether the rule itself leaves zeros at padding; if not, they are put there."""
    cuttable: bool = False
    """Whether padding at the end may be left out: nothing depends on the array's length."""
    streams: int = 1
    """How many arrays an input is a tuple of; 1: it is an array."""
    edges: bool = False
    """Whether `forward` takes the example's edges, as a last argument; see `layers.graph`."""
    vocabulary: int | None = None
    """Inputs are token ids below this number, without a channel axis; None: they are arrays."""


class Layer(Written, Readings):
    """One layer of a network, with two readings.

    Finite: `init_params` draws parameters, `forward` maps one example. Infinite: `memo` gathers
    what pairs will need from one example (done once per example), `cross` maps the kernels of one
    pair. `outline` says what happens to shapes, `facts` what else may be assumed. A layer may
    define only one of the readings. Layers never call each other: `compose.walk` brings examples
    and pairs through them, puts zeros at padding, and hands on to layers with random scores what
    was drawn for them, as a last argument of `memo`, `cross` and `own`.
    """

    @property
    def facts(self) -> Facts:
        """What may be assumed of this layer."""
        return Facts()

    @property
    def parts(self) -> tuple["Layer", ...]:
        """The layers inside this one: see `Serial`, `Parallel` and `Branches`."""
        return ()

    # --- shapes -----------------------------------------------------------------------------------

    @abstractmethod
    def outline(self, before: Any) -> Any:
        """Shape and facts after this layer; raises where the layer does not fit."""

    def require(self, before: Any) -> None:
        """Raise where the infinite-width rule does not hold for inputs of this outline."""

    def mask(self, mask: Any) -> Array | None:
        """Which output positions are real; None where no positions are left."""
        return mask

    # --- finite width -----------------------------------------------------------------------------

    def init_params(self, key: Key[Array, ""], before: Any) -> Params:
        """Draw the parameters for inputs of this outline."""
        return ()

    def forward(self, params: Params, x: Any, mask: Any, key: Key[Array, ""] | None) -> Any:
        """Map one example (positions…, channels); what it leaves at padding does not matter."""
        raise _one_reading(self, "finite", "forward")

    # --- infinite width ---------------------------------------------------------------------------

    def memo(self, example: Any) -> Memo:
        """What pairs will need from this example."""
        return None

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Pair:
        """The kernels of one pair after this layer."""
        raise _one_reading(self, "infinite", "cross")

    def own(self, pair: Any, memo: Memo) -> Pair:
        """The covariance of one example with itself after this layer."""
        return self.cross(pair, memo, memo)

    def mean(self, example: Any, memo: Memo) -> Mean:
        """Mean over channels after this layer; None where it is zero, as after fresh weights.

        Layers without fresh weights that leave this out cannot stand below LayerNorm, which needs
        it.
        """
        return UNKNOWN

    def features(self, example: Any) -> Float[Array, "*positions rank"] | None:
        """Exact feature rows after this layer, where they exist."""
        return None


class Positionwise(Layer):
    """A layer that maps every position by itself and leaves zeros at padding."""

    @property
    def facts(self) -> Facts:
        return Facts(keeps_zeros=True, cuttable=True)


class RowMap(Layer):
    """Linear and the same for every channel: `f ← L f` on arrays (positions…, anything)."""

    @property
    def facts(self) -> Facts:
        return Facts(linear=True)

    @abstractmethod
    def mix(self, f: Array, memo: Memo) -> Array:
        """The map on an array with leading position axes, given what `memo` gathered."""

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.map_mean(lambda m: self.mix(m[..., None], memo)[..., 0])

    def features(self, example: Example) -> Float[Array, "*positions rank"] | None:
        return None if example.features is None else self.mix(example.features, self.memo(example))


def with_fields(layer: Thing, **fields: Any) -> Thing:
    """A copy of a layer, or a part of one, with other values of some fields, unchecked."""
    other = copy.copy(layer)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other


def require_streams(before: Any, count: int, name: str, streams: str) -> None:
    """Raise where the layer `name` is not given as many streams as it takes."""
    if not isinstance(before, tuple) or len(before) != count:
        raise ShapeError(
            f"{name} did not get {count} streams, {streams}.",
            got=repr(before),
            remedy=f"pass x as a tuple of {count} arrays, and begin with {name} or Parallel",
        )


def require_drawn(extents: tuple[int, ...], drawn: tuple[int, ...], what: str) -> None:
    """Raise where inputs have positions for which nothing was drawn."""
    if any(extent > most for extent, most in zip(extents, drawn, strict=True)):
        raise ShapeError(
            f"{what} drawn for fewer positions than the input has, and holds for no more.",
            got=f"{' × '.join(map(str, extents))}, drawn for {' × '.join(map(str, drawn))}",
            remedy="pad what the model is fitted with (or the sampler, or the weights drawn) to "
            "the longest inputs that will come",
        )


def require_positions(before: Outline, name: str) -> None:
    """Raise where the layer `name` is given inputs without positions."""
    if not before.positions:
        raise ShapeError(
            f"{name} met an input without positions.",
            got="an input without position axes, shape (N, channels)",
            remedy="give inputs of shape (N, positions…, channels), or leave the layer out",
        )


def _one_reading(layer: Layer, width: str, method: str) -> NetworkError:
    return NetworkError(
        f"{type(layer).__name__} does not define {method}(), as layers of {width} networks do.",
        got="a layer with one of the two readings",
        remedy=f"define {method}() of {type(layer).__name__}, or leave the layer out",
    )


def remask(x: Array, mask: Array | None, *, axes: int = 1) -> Array:
    """Zero where positions are not real; `axes` are those after the positions (channels)."""
    if mask is None:
        return x
    return jnp.where(mask.reshape(*mask.shape, *(1,) * axes), x, jnp.zeros((), x.dtype))


def fence(pair: Pair, witness: Any) -> Pair:
    """The same pair, behind a fence that the compiler does not fuse across (CPU only).

    XLA on CPU copies a producer into each of its consumers. Without fences every layer of a deep
    network is computed anew from the input on: 50 dense layers took minutes to compile, and 5 ran
    half as fast; an activation inside a sum over positions is not vectorised, and takes eight times
    as long. A loop that runs only if a hyperparameter in `witness` is NaN stops it, and leaves the
    arrays where they are (a conditional would copy them). Without hyperparameters there is no
    fence.
    """
    found = [leaf for leaf in jax.tree.leaves(witness) if isinstance(leaf, Tracer)]
    if pair.settled or not found:
        return pair
    first = found[0].reshape(-1)[0]
    kernels = pair.nngp, None if pair.blank else pair.ntk
    nngp, ntk = _behind_loop(kernels, first != first)
    return replace(pair, nngp=nngp, ntk=pair.ntk if pair.blank else ntk, settled=True)


@jax.custom_jvp
@jax.jit  # every layer has one: they are traced once
def _behind_loop(kernels: Any, broken: Array) -> Any:
    """The arrays themselves, unless `broken`: then anything, for NaN spoils what follows."""

    def once(state: tuple[Any, Array]) -> tuple[Any, Array]:
        return jax.tree.map(jnp.negative, state[0]), jnp.zeros_like(state[1])

    def looped(kernels: Any, broken: Array) -> Any:
        return jax.lax.while_loop(lambda state: state[1], once, (kernels, broken))[0]

    return jax.lax.platform_dependent(
        kernels, broken, cpu=looped, default=lambda kernels, broken: kernels
    )


@_behind_loop.defjvp
def _behind_loop_jvp(primals: tuple[Any, Array], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _behind_loop(*primals), tangents[0]
