"""What a layer is: its finite forward pass and its infinite-width rule, side by side."""

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from ..errors import NetworkError, OptionError, ShapeError
from ..options import Range, within
from ..printing import written
from ..state import UNKNOWN, Example, Mean, Need, Outline, Pair
from .labels import Arrangement, Family, Label
from .readings import Params, Readings

Memo = PyTree[Array]


def hyperparameter(value: Any, name: str, *, scalar: bool = True) -> Any:
    """A differentiable leaf: kept in double precision, cast to the dtype of the call.

    One number, or where it is not a `scalar` an array of them.
    """
    if isinstance(value, jax.Array):  # traced ones too, which have no numbers to look at
        good = jnp.issubdtype(value.dtype, jnp.number)
        whole = jnp.issubdtype(value.dtype, jnp.integer)
        number = value.astype(float) if whole else value
    else:
        try:
            number = np.asarray(value)
        except ValueError:  # lists of different lengths
            number = np.asarray(None)
        good = number.dtype.kind in "iuf" and bool(np.isfinite(number).all())
        number = number.astype(np.float64) if good else number
    if not good or (scalar and number.shape != ()):
        kind = "a finite real number" if scalar else "an array of finite real numbers"
        raise OptionError(
            f"{name}= is {kind}.", got=f"{name}={value!r}", remedy=f"give {kind}, such as 1.5"
        )
    return number


def leaf(
    name: str,
    *,
    where: "Range | Callable[[Any], Range]" = Range.REAL,
    tuned: bool = True,
    scalar: bool = True,
    **field: Any,
) -> Any:
    """A field that holds a hyperparameter: `eps: Any = leaf("eps", where=Range.POSITIVE)`.

    It is checked, converted, and known to `tune` by its name. `where` is its range, or a function
    from the layer to its range. Constants of a formula (`tuned=False`) and numbers of any sign
    (`Range.REAL`, the default) are tuned only where `tune(select=…)` names them.
    """
    converter = functools.partial(hyperparameter, name=name, scalar=scalar)
    metadata = within(where, tuned=tuned)
    return eqx.field(converter=converter, metadata=metadata, kw_only=True, **field)


def option(default: Any = None, **kwargs: Any) -> Any:
    """A keyword-only dataclass field that is part of the network's structure, not tuned."""
    return eqx.field(default=default, static=True, kw_only=True, **kwargs)


def cast(value: Any, like: Array) -> Array:
    """A hyperparameter in the dtype of the arrays it meets."""
    return jnp.asarray(value, like.dtype)


class Layer(Readings):
    """One layer of a network, with two readings.

    Finite: `init_params` draws parameters, `forward` maps one example. Infinite: `memo` gathers
    what pairs will need from one example (done once per example), `cross` maps the kernels of one
    pair. `outline` says what happens to shapes, `need` what part of the input's covariance the
    output's needs, `need_own` what `memo` looks at. A layer may define only one of the readings.

    The facts below are everything else that the library asks of a layer. Their defaults are safe: a
    layer that leaves them out is correct, at worst slower, or refused in some combinations.
    """

    # --- facts ------------------------------------------------------------------------------------

    @abstractmethod
    def outline(self, before: Outline) -> Outline:
        """Shape and facts after this layer; raises where the layer does not fit."""

    def require(self, before: Outline) -> None:
        """Raise where the infinite-width rule does not hold for inputs of this outline."""

    @property
    def parts(self) -> tuple["Layer", ...]:
        """The layers inside this one (see `Composite`)."""
        return ()

    @property
    def arrangement(self) -> Arrangement:
        """How the parts stand to each other."""
        return Arrangement.SINGLE

    def streams(self) -> int:
        """How many streams an input has: 1 is an array, more are a tuple of arrays."""
        return 1

    def takes_tokens(self) -> bool:
        """Whether inputs are integer token ids, without a channel axis."""
        return False

    @property
    def vocabulary_size(self) -> int | None:
        """Token ids are smaller than this; None where there is no table of tokens."""
        return None

    def sampled(self) -> bool:
        """Whether this layer's limit is random, or an average over random scores."""
        return False

    @property
    def noisy(self) -> bool:
        """Whether passes of the finite network are random, as with dropout."""
        return False

    @property
    def linear(self) -> bool:
        """Whether the output is linear in the input or the parts' outputs, given the weights."""
        return False

    @property
    def keeps_zeros(self) -> bool:
        """Whether the rule itself leaves zeros at padding; if not, they are put there."""
        return False

    @property
    def cuttable(self) -> bool:
        """Whether padding at the end may be left out: the layer never asks for the array's length.

        Examples of different lengths are then computed in groups, each cut to its longest member.
        """
        return False

    @property
    def label(self) -> Label:
        """What diagrams say about the layer."""
        return Label(type(self).__name__, "", Family.OTHER)

    def __repr__(self) -> str:
        return written(self)

    def mapped(self, function: "Callable[[Layer], Layer]") -> "Layer":
        """The same network with a function applied to every layer that has no parts."""
        return function(self)

    def resized(self, new: Callable[[int, bool], int], *, last: bool) -> tuple["Layer", bool]:
        """The layer with other widths, and whether the layer below comes last too.

        `new(width, last)` is the new width. A layer comes last if no layer above it sets the number
        of channels: its width is that of the output.
        """
        return self, last

    def with_heads(self, heads: float) -> "Layer":
        """The layer with another number of attention heads."""
        return self

    def amplified(self, amplitude: float) -> "Layer":
        """The network with `amplitude` times the kernels: its last, linear layer is scaled."""
        raise NetworkError(
            "Kernels are scaled by the network's last weights.",
            got=f"a network that ends in {type(self).__name__}",
            remedy="end the network in Dense",
        )

    def changed(self, **fields: Any) -> Self:
        """A copy with other values of some fields, unchecked."""
        other = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        return other

    # --- which part of a covariance is looked at -------------------------------------------------

    @property
    def need_own(self) -> Need:
        """Which part of the example's covariance `memo` looks at."""
        return Need.NONE

    def need(self, out: Need) -> Need:
        """Which part of the input's covariance the part `out` of the output's depends on."""
        return out

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        """The same for the encode phase, where `memo` looks at the covariance too.

        `noisy`: a layer below drops entries, so that an example's own covariance is not the one
        between two passes of it.
        """
        return max(self.need(out) if out else Need.NONE, self.need_own)

    # --- finite width -----------------------------------------------------------------------------

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        """Draw the parameters for inputs of this outline."""
        return ()

    def forward(self, params: Params, x: Any, mask: Any, key: Key[Array, ""] | None) -> Any:
        """Map one example (positions…, channels); what it leaves at padding does not matter."""
        raise _one_reading(self, "finite", "forward")

    def mask(self, mask: Any) -> Array | None:
        """Which output positions are real; None where no positions are left."""
        return mask

    def checked_mask(self, mask: Any, name: str) -> Any:
        """The mask of a batch after this layer; raises where an example has no real position left.

        Valid windows shorten sequences: one that is shorter than the window has nothing left, and
        its kernels would silently be zero.
        """
        after = None if mask is None else jax.vmap(self.mask)(mask)
        if after is None:
            return None
        found = np.asarray(after)
        empty = np.flatnonzero(~found.reshape(len(found), -1).any(axis=1))
        if empty.size:
            raise ShapeError(
                f"{type(self).__name__} leaves every example at least one real position.",
                got=f"{empty.size} examples of '{name}' too short for its window, the first at "
                f"index {empty[0]}",
                remedy="drop short sequences, use a smaller window, or padding='same'",
            )
        return after

    def run(self, params: Params, x: Any, mask: Any, key: Key[Array, ""] | None) -> tuple[Any, Any]:
        """One example through the finite layer, zero at padding, and its mask after it."""
        after = None if mask is None else self.mask(mask)
        return remask(self.forward(params, x, mask, key), after), after

    # --- infinite width ---------------------------------------------------------------------------

    def memo(self, example: Example) -> Memo:
        """What pairs will need from this example."""
        return None

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        """The kernels of one pair after this layer."""
        raise _one_reading(self, "infinite", "cross")

    def own(self, pair: Pair, memo: Memo) -> Pair:
        """The covariance of one example with itself after this layer."""
        return self.cross(pair, memo, memo)

    def mean(self, example: Example, memo: Memo) -> Mean:
        """Mean over channels after this layer; None where it is zero.

        Layers that leave this out cannot stand below LayerNorm, which needs it.
        """
        return UNKNOWN

    def features(self, example: Example) -> Float[Array, "*positions rank"] | None:
        """Exact feature rows after this layer, where they exist."""
        return None

    def attention_map(self, memo: Memo) -> Float[Array, "query key"] | None:
        """The expected size of the weights of the first attention layer; None without attention.

        `memo` is what `encode` returned.
        """
        return None

    def masked_memo(self, example: Example) -> "MaskedMemo":
        """The memo, and where zeros must be put after this layer."""
        mask = None if example.mask is None or self.keeps_zeros else self.mask(example.mask)
        return MaskedMemo(self.memo(example), mask)

    def encode(self, example: Example, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        """One step of the encode phase: the memo, and the example after this layer.

        `anchors` are the memos of the landmark inputs at this layer, stacked.
        """
        self.require(example.outline)
        after = self.outline(example.outline)
        memo = self.masked_memo(example)
        nngp, full = None, False
        if need is not Need.NONE:
            pair = self.own(example.pair(), memo.own).masked(memo.mask, memo.mask).forced()
            pair = pair.diagonal() if need is Need.DIAGONAL else pair
            nngp, full = pair.nngp, pair.full
        landmarks = example.landmarks
        if landmarks is not None:
            landmarks = jax.vmap(lambda p, m: self._crossed(p, memo, m).forced())(
                landmarks, anchors
            )
        mask = None if example.mask is None else self.mask(example.mask)
        mean = self.mean(example, memo.own)
        if isinstance(mean, jax.Array):
            mean = remask(mean, memo.mask, axes=0)
        features = self.features(example)
        features = None if features is None else remask(features, memo.mask)
        return memo, Example(nngp, mean, mask, features, landmarks, full, after)

    def step(self, pair: Pair, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        """One step of the cross phase, trimmed to what the layers above will look at."""
        pair = self._crossed(pair, memo1, memo2)
        return pair.diagonal() if need is Need.DIAGONAL and pair.full else pair

    def _crossed(self, pair: Pair, memo1: "MaskedMemo", memo2: "MaskedMemo") -> Pair:
        return self.cross(pair, memo1.own, memo2.own).masked(memo1.mask, memo2.mask)

    # --- random scores (see `attention.heads`): most layers have none ----------------------------

    def drawn(self, examples: Example, key: Key[Array, ""], scheme: Any) -> "Layer":
        """This layer with its random scores drawn for these examples (stacked)."""
        return self

    def draw(
        self, examples: Any, need: Need, key: Key[Array, ""], scheme: Any
    ) -> tuple["Layer", Memo, Any]:
        """Encode stacked examples jointly, drawing random scores on the way.

        Their `landmarks` are the same examples: kernels of all pairs of them.
        """
        layer = self.drawn(examples, key, scheme)
        memos = jax.vmap(layer.masked_memo)(examples)
        return layer, memos, jax.vmap(lambda one: layer.encode(one, need, memos)[1])(examples)


class Positionwise(Layer):
    """A layer that maps every position by itself and leaves zeros at padding."""

    @property
    def keeps_zeros(self) -> bool:
        return True

    @property
    def cuttable(self) -> bool:
        return True


def require_positions(before: Outline, name: str) -> None:
    """Raise where the layer `name` is given inputs without positions."""
    if not before.positions:
        raise ShapeError(
            f"{name} works over positions.",
            got="an input without position axes, shape (N, channels)",
            remedy="give inputs of shape (N, positions…, channels), or leave the layer out",
        )


def _one_reading(layer: Layer, width: str, method: str) -> NetworkError:
    return NetworkError(
        f"A layer of {width} networks defines {method}().",
        got=f"{type(layer).__name__}, which does not",
        remedy=f"define {method}() of {type(layer).__name__}, or leave the layer out",
    )


class MaskedMemo(eqx.Module):
    """What pairs need of one example at one layer, and where zeros are put after the layer."""

    own: Memo
    mask: Array | None  # None: there is no padding, or the layer keeps it zero


def remask(x: Array, mask: Array | None, *, axes: int = 1) -> Array:
    """Zero where positions are not real; `axes` are those after the positions (channels)."""
    if mask is None:
        return x
    return jnp.where(mask.reshape(*mask.shape, *(1,) * axes), x, jnp.zeros((), x.dtype))


def fenced(pair: Pair, witness: Any) -> Pair:
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
    ntk = pair.ntk if pair.blank else ntk
    return Pair(
        nngp, ntk, pair.rank, pair.full, pair.terms, pair.biases, settled=True, blank=pair.blank
    )


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
