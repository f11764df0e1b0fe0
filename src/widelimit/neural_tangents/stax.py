"""neural-tangents' `stax`: layers as triples `(init_fn, apply_fn, kernel_fn)`.

Every function names a layer of the library and translates its options; the mathematics stands
there.
"""

import functools
import inspect
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import duals
from .. import layers as wl
from ..errors import OptionError
from ..layers.base import with_fields
from ..options import choice, hyperparameter, whole
from .functions import Triple, parts_of, triple
from .layout import Layout
from .network import Axes, FanIn, Parallel, Wide
from .network import FanOut as Fork

# --- what options mean ----------------------------------------------------------------------------


Padding = Enum("Padding", {"CIRCULAR": "CIRCULAR", "SAME": "SAME", "VALID": "VALID"})
"""What windows see beyond the edge."""
PositionalEmbedding = Enum(
    "PositionalEmbedding", {"NONE": "NONE", "SUM": "SUM", "CONCAT": "CONCAT"}
)
"""How positional embeddings join the input of attention."""
AttentionMechanism = Enum(
    "AttentionMechanism",
    {"SOFTMAX": "SOFTMAX", "IDENTITY": "IDENTITY", "ABS": "ABS", "RELU": "RELU"},
)
"""The map from scores to attention weights."""
AggregateImplementation = Enum("AggregateImplementation", {"DENSE": "DENSE", "SPARSE": "SPARSE"})
"""How the pattern of a graph is given: a matrix, or a list of edges."""

_SCORE_MAPS = {
    AttentionMechanism.SOFTMAX: wl.Softmax,
    AttentionMechanism.IDENTITY: wl.IdentityMap,
    AttentionMechanism.ABS: lambda: wl.ElementwiseMap(wl.Abs()),
    AttentionMechanism.RELU: lambda: wl.ElementwiseMap(wl.Relu()),
}


def _unknown(layer: str, name: str, value: Any, remedy: str) -> OptionError:
    return OptionError(
        f"{name}= of stax.{layer} has no such value here.", got=f"{name}={value!r}", remedy=remedy
    )


def _weights(
    layer: str, W_std: Any, b_std: Any, parameterization: Any, s: Any
) -> Callable[..., Any]:
    """Checked options of weights, as a function that finishes a layer made with them."""
    hyperparameter(W_std, "W_std")
    if b_std is not None:
        hyperparameter(b_std, "b_std")
    word = str(parameterization).lower()
    if word not in ("ntk", "standard"):
        raise _unknown(layer, "parameterization", parameterization, "pass 'ntk' or 'standard'")
    before, after = (whole("s", factor) for factor in s)
    if (before, after) != (1, 1) and word == "ntk":
        raise _unknown(layer, "s", s, "leave it out: it belongs to parameterization='standard'")

    def make(kind: Any, width: int, *args: Any, **options: Any) -> Any:
        std = 0.0 if b_std is None else b_std
        made = kind(after * width, *args, w_std=W_std, b_std=std, parameterization=word, **options)
        # A bias of deviation 0 is trained all the same; None is what has no bias.
        weights = with_fields(made.weights, biased=b_std is not None, width_factor=before)
        return with_fields(made, weights=weights)

    return make


def _layer(name: str, layer: Any, axes: Axes = (None, None), **options: Any) -> Triple:
    return triple(Wide(name, lambda layout, padded: layer, axes, **options))


def _gone(positions: int) -> int:
    return 0


# --- composition ----------------------------------------------------------------------------------


def serial(*layers: Any) -> Triple:
    """Layers one after another."""
    return triple(*(part for layer in layers for part in parts_of(layer)))


def repeat(layer: Any, n: int) -> Triple:
    """A layer n times, each with parameters of its own."""
    return triple(*parts_of(layer) * whole("n", n, least=0))


def parallel(*layers: Any) -> Triple:
    """Layers side by side, on the outputs of `FanOut` or on a tuple of inputs."""
    if not layers:
        raise _unknown("parallel", "layers", layers, "pass one network or more")
    return triple(Parallel(tuple(parts_of(layer) for layer in layers)))


def Identity() -> Triple:
    """The input itself."""
    return triple()


def FanOut(num: int) -> Triple:
    """The input `num` times."""
    return triple(Fork(whole("num", num)))


def FanInSum() -> Triple:
    """The sum of branches."""
    return triple(FanIn("FanInSum", wl.Sum))


def FanInProd() -> Triple:
    """The product of branches, entry by entry."""
    return triple(FanIn("FanInProd", wl.Product))


def FanInConcat(axis: int = -1) -> Triple:
    """Branches side by side along an axis, which is that of channels."""
    return triple(FanIn("FanInConcat", wl.Concat, axis))


# --- a user's own layers --------------------------------------------------------------------------


def layer(layer_fn: Callable[..., Any]) -> Callable[..., Triple]:
    """Decorates a function that returns `(init_fn, apply_fn, kernel_fn)`, Kernel to Kernel."""

    @functools.wraps(layer_fn)
    def made(*args: Any, **kwargs: Any) -> Triple:
        return triple(*parts_of(layer_fn(*args, **kwargs)))

    return made


def supports_masking(remask_kernel: bool) -> Callable[[Any], Any]:
    """Accepted, and without effect: kernels carry their masks."""
    return lambda layer_fn: layer_fn


def requires(**static_reqs: Any) -> Callable[[Any], Any]:
    """Accepted, and without effect: what parts of a covariance a layer needs is known."""
    return lambda kernel_fn: kernel_fn


def unmask_fn(fn: Any) -> Any:
    """The function itself: outputs here are plain arrays, zero at padding."""
    return fn


Bool = Enum("Bool", ["NO", "MAYBE", "YES"], start=0)
"""Accepted by `Diagonal`."""


class Diagonal(NamedTuple):
    """Accepted by `requires`, and without effect."""

    input: Any = Bool.YES
    output: Any = Bool.NO


# --- linear layers --------------------------------------------------------------------------------


def Dense(
    out_dim: int,
    W_std: float = 1.0,
    b_std: float | None = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
    parameterization: str = "ntk",
    s: tuple[int, int] = (1, 1),
) -> Triple:
    """Fresh weights onto `out_dim` channels."""
    made = _weights("Dense", W_std, b_std, parameterization, s)
    return _layer("Dense", made(wl.Dense, whole("out_dim", out_dim)), (batch_axis, channel_axis))


def _convolutional(kind: Any, formula: str) -> Callable[..., Triple]:
    """The function of `stax` for a layer of the library."""
    name = kind.__name__

    def layer(
        out_chan: int,
        filter_shape: Sequence[int],
        strides: Sequence[int] | None = None,
        padding: str = "VALID",
        W_std: float = 1.0,
        b_std: float | None = None,
        dimension_numbers: tuple[str, str, str] | None = None,
        parameterization: str = "ntk",
        s: tuple[int, int] = (1, 1),
    ) -> Triple:
        weights = _weights(name, W_std, b_std, parameterization, s)
        width = whole("out_chan", out_chan)
        window, stride = _window("filter_shape", filter_shape, strides)
        axes, order = _spec(name, dimension_numbers, len(window))
        window, stride = (tuple(of[place] for place in order) for of in (window, stride))

        def make(layout: Layout, padded: bool) -> wl.Layer:
            # "Same" of transposed convolutions is XLA's at every stride.
            how = _padding(padding, stride, padded or kind is wl.ConvTranspose)
            return weights(kind, width, window, stride=stride, padding=how)

        return _windowed(name, window, make, axes)

    layer.__name__ = layer.__qualname__ = name
    layer.__doc__ = formula
    return layer


Conv = _convolutional(wl.Conv, "A convolution.")
ConvLocal = _convolutional(wl.ConvLocal, "One with weights of its own at every position.")
ConvTranspose = _convolutional(wl.ConvTranspose, "A transposed one: positions spread over windows.")


def _window(
    name: str, window: Sequence[int], strides: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents of a window, and its strides, by default 1."""
    if not isinstance(window, tuple | list) or not window:
        raise OptionError(
            f"{name}= does not hold an extent for each position axis.",
            got=f"{name}={window!r}",
            remedy="pass a tuple, such as (3, 3)",
        )
    steps = tuple(whole("strides", step) for step in strides or (1,) * len(window))
    return tuple(whole(name, extent) for extent in window), steps


def _windowed(
    name: str, window: tuple[int, ...], make: Callable[[Layout, bool], wl.Layer], axes: Axes
) -> Triple:
    """A layer with such windows; made once now, so that options are refused at once."""
    make(Layout(len(window) + 2, 0, len(window) + 1), True)
    return triple(Wide(name, make, axes))


def _padding(padding: Any, strides: tuple[int, ...], padded: bool) -> str:
    """The library's padding; beyond stride 1, "same" is XLA's, unless lengths vary."""
    word = choice(Padding, padding, "padding").value.lower()
    return "balanced" if word == "same" and max(strides) > 1 and not padded else word


def _spec(layer: str, dimension_numbers: Any, rank: int) -> tuple[Axes, Sequence[int]]:
    """From a specification such as ('NCHW', 'OIHW', 'NCHW'): `batch_axis` and `channel_axis`.

    And where the extent of a window along each position axis stands in the order of the weights.
    """
    if dimension_numbers is None:
        return (0, -1), range(rank)
    inputs, weights, outputs = dimension_numbers
    places = [letter for letter in inputs if letter not in "NC"]
    if inputs != outputs or sorted([*places, *"OI"]) != sorted(weights) or len(places) != rank:
        raise _unknown(layer, "dimension_numbers", dimension_numbers, "let outputs be as inputs")
    extents = [letter for letter in weights if letter not in "OI"]
    return (inputs.index("N"), inputs.index("C")), [extents.index(letter) for letter in places]


def Flatten(batch_axis: int = 0, batch_axis_out: int = 0) -> Triple:
    """All positions and channels in one vector."""
    if batch_axis_out not in (0, -2):
        raise _unknown("Flatten", "batch_axis_out", batch_axis_out, "pass 0")
    return _layer("Flatten", wl.Flatten(), (batch_axis, None), kept=_gone)


def GlobalAvgPool(batch_axis: int = 0, channel_axis: int = -1) -> Triple:
    """The mean over all positions."""
    return _layer("GlobalAvgPool", wl.MeanPool(), (batch_axis, channel_axis), kept=_gone)


def GlobalSumPool(batch_axis: int = 0, channel_axis: int = -1) -> Triple:
    """The sum over all positions."""
    return _layer("GlobalSumPool", wl.SumPool(), (batch_axis, channel_axis), kept=_gone)


def AvgPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    normalize_edges: bool = False,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Triple:
    """The mean over windows; at edges over what is inside with `normalize_edges`."""

    def make(window: Any, padded: bool, **how: Any) -> wl.Layer:
        if normalize_edges or padded or how["padding"] == "valid":
            return wl.MeanPool(window, **how)
        return wl.Serial(wl.SumPool(window, **how), wl.Scale(1 / math.prod(window)))

    return _pool("AvgPool", make, (window_shape, strides, padding), (batch_axis, channel_axis))


def SumPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Triple:
    """The sum over windows."""

    def make(window: Any, padded: bool, **how: Any) -> wl.Layer:
        return wl.SumPool(window, **how)

    return _pool("SumPool", make, (window_shape, strides, padding), (batch_axis, channel_axis))


def _pool(name: str, pool: Any, windows: Any, axes: Axes) -> Triple:
    window_shape, strides, padding = windows
    window, stride = _window("window_shape", window_shape, strides)

    def make(layout: Layout, padded: bool) -> wl.Layer:
        return pool(window, padded, stride=stride, padding=_padding(padding, stride, padded))

    return _windowed(name, window, make, axes)


Slice = np.s_
"""`Slice[:, 0]` is the index it is called with."""


def Index(idx: Any, batch_axis: int = 0, channel_axis: int = -1) -> Triple:
    """Positions by NumPy's basic indexing, `Index(Slice[:, 0, ::2])`, over all axes of inputs."""
    given = idx if isinstance(idx, tuple) else (idx,)

    def entries(ndim: int) -> list[Any]:
        if Ellipsis in given:
            at = given.index(Ellipsis)
            missing = ndim - len(given) + 1
            return [*given[:at], *(slice(None),) * missing, *given[at + 1 :]]
        return [*given, *(slice(None),) * (ndim - len(given))]

    def make(layout: Layout, padded: bool) -> wl.Layer:
        found = entries(layout.ndim)
        batch, *positions, channel = (found[axis] for axis in layout.order)
        if batch != slice(None) or channel != slice(None):
            raise _unknown("Index", "idx", idx, "take all examples and all channels, Slice[:, 0]")
        if all(position == slice(None) for position in positions):
            return wl.Serial()
        return wl.Select(tuple(positions))

    def kept(positions: int) -> int:
        # Examples and channels are slices, or refused above.
        return sum(isinstance(entry, slice) for entry in entries(positions + 2)) - 2

    return triple(Wide("Index", make, (batch_axis, channel_axis), kept))


def Aggregate(
    aggregate_axis: int | Sequence[int] | None = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
    to_dense: Callable[[Any], Any] | None = lambda pattern: pattern,
    implementation: str = "DENSE",
) -> Triple:
    """Sums over predecessors in the graph that calls hand over as `pattern=`.

    A matrix (N, tails…, heads…) after `to_dense`, or edges (N, edges, axes, 2), tail and head; a
    negative head is no edge.
    """
    kind = choice(AggregateImplementation, implementation, "implementation")

    def make(layout: Layout, padded: bool) -> wl.Layer:
        positions = layout.order[1:-1]
        axes = positions if aggregate_axis is None else aggregate_axis
        axes = (axes,) if isinstance(axes, int) else axes
        if tuple(axis % layout.ndim for axis in axes) != positions[: len(axes)] or not axes:
            raise _unknown(
                "Aggregate", "aggregate_axis", aggregate_axis, "name the first position axes"
            )
        return wl.Aggregate()

    def edges(pattern: Any, nodes: tuple[int, ...]) -> Any:
        if kind is AggregateImplementation.SPARSE:
            pattern = _dense(jnp.asarray(pattern), nodes)
        elif to_dense is not None:
            pattern = to_dense(pattern)
        half = (jnp.ndim(pattern) - 1) // 2
        heads, tails = range(1 + half, 1 + 2 * half), range(1, 1 + half)
        return jnp.transpose(jnp.asarray(pattern, float), (0, *heads, *tails))[..., None]

    return triple(Wide("Aggregate", make, (batch_axis, channel_axis), edges=edges))


def _dense(pattern: Any, nodes: tuple[int, ...]) -> Any:
    """How many edges lead from every tail to every head."""
    pattern = pattern[:, :, None] if pattern.ndim == 3 else pattern
    size, _, axes, _ = pattern.shape
    real = (pattern >= 0).all(axis=(2, 3)).astype(float)
    places = jnp.moveaxis(pattern, (2, 3), (1, 0)).reshape(2 * axes, size, -1)
    rows = jnp.arange(size)[:, None]
    return jnp.zeros((size, *nodes[:axes] * 2)).at[rows, *places].add(real)


def ImageResize(
    shape: Sequence[int],
    method: Any,
    antialias: bool = True,
    precision: Any = jax.lax.Precision.HIGHEST,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Triple:
    """Positions interpolated, as `jax.image.resize` does; `precision` is accepted."""
    word = str(getattr(method, "name", method)).lower()
    known = {"triangle": "linear", "keyscubic": "cubic"}
    word = known.get(word, word.removeprefix("bi").removeprefix("tri"))

    def make(layout: Layout, padded: bool) -> wl.Layer:
        sizes = [shape[axis] for axis in layout.order] if len(shape) == layout.ndim else [0]
        if sizes[0] != -1 or sizes[-1] != -1 or min(sizes[1:-1], default=0) < 1:
            raise _unknown(
                "ImageResize", "shape", shape, "give -1 for examples and channels, and all others"
            )
        return wl.Resize(tuple(sizes[1:-1]), method=word, antialias=antialias)

    return triple(Wide("ImageResize", make, (batch_axis, channel_axis)))


def DotGeneral(
    *,
    lhs: Any = None,
    rhs: Any = None,
    dimension_numbers: Any = (((), ()), ((), ())),
    precision: Any = None,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Triple:
    """The input times a number, or summed over positions with the weights of an array.

    `precision` is accepted, and without effect.
    """
    if lhs is None and rhs is None:
        return triple()
    if lhs is not None and rhs is not None:
        raise _unknown("DotGeneral", "lhs", lhs, "pass one of lhs= and rhs=")
    array: Any = rhs if lhs is None else lhs
    sums, shared = dimension_numbers
    own, other = (sums if rhs is None else sums[::-1]) if np.ndim(array) else ((), ())
    if sorted(own) != list(range(np.ndim(array))) or any(map(len, shared)):
        got = f"{dimension_numbers} with an array of {np.ndim(array)} axes"
        remedy = "sum over every axis of the array, and over positions of the input"
        raise _unknown("DotGeneral", "dimension_numbers", got, remedy)

    def make(layout: Layout, padded: bool) -> wl.Layer:
        if not np.ndim(array):
            return wl.Scale(array)
        positions = layout.order[1:-1]
        if not set(other) <= set(positions):
            raise _unknown("DotGeneral", "dimension_numbers", other, "sum over positions alone")
        letters = {axis: string.ascii_lowercase[axis] for axis in positions}
        met = [letters[axis] for _, axis in sorted(zip(own, other, strict=True))]
        left = [letter for axis, letter in letters.items() if axis not in other]
        return wl.Contract(array, f"{''.join(met)},{''.join(letters.values())}->{''.join(left)}")

    axes = batch_axis, channel_axis
    return triple(Wide("DotGeneral", make, axes, kept=lambda positions: positions - len(own)))


def GlobalSelfAttention(
    n_chan_out: int,
    n_chan_key: int,
    n_chan_val: int,
    n_heads: int,
    linear_scaling: bool = True,
    W_key_std: float = 1.0,
    W_value_std: float = 1.0,
    W_query_std: float = 1.0,
    W_out_std: float = 1.0,
    b_std: float | None = None,
    attention_mechanism: str = "SOFTMAX",
    pos_emb_type: str = "NONE",
    pos_emb_p_norm: float = 2,
    pos_emb_decay_fn: Callable[[Any], Any] | None = None,
    n_chan_pos_emb: int | None = None,
    W_pos_emb_std: float = 1.0,
    val_pos_emb: bool = False,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Triple:
    """Self-attention; its limit is that of infinitely many heads, `n_heads` are the finite ones."""
    mechanism = choice(AttentionMechanism, attention_mechanism, "attention_mechanism")
    kind = choice(PositionalEmbedding, pos_emb_type, "pos_emb_type")
    stds = {
        "W_key_std": W_key_std,
        "W_value_std": W_value_std,
        "W_query_std": W_query_std,
        "W_out_std": W_out_std,
        "W_pos_emb_std": W_pos_emb_std,
        "b_std": 0.0 if b_std is None else b_std,
    }
    for name, value in stds.items():
        hyperparameter(value, name)
    if n_chan_pos_emb is not None and kind is PositionalEmbedding.SUM:
        remedy = "leave it out, or pass pos_emb_type='CONCAT'"
        raise _unknown("GlobalSelfAttention", "n_chan_pos_emb", n_chan_pos_emb, remedy)
    positions = None
    if kind is not PositionalEmbedding.NONE:
        positions = wl.Decay(
            strength=W_pos_emb_std,
            profile=_Distance(pos_emb_decay_fn, pos_emb_p_norm),
            norm=float(pos_emb_p_norm),
            combine=kind.value.lower(),
            channels=None if n_chan_pos_emb is None else whole("n_chan_pos_emb", n_chan_pos_emb),
            on_values=val_pos_emb,
        )
    attention = wl.Attention(
        whole("n_chan_out", n_chan_out),
        heads=whole("n_heads", n_heads),
        scaling=wl.Scaling.LINEAR if linear_scaling else wl.Scaling.SQRT,
        score_map=_SCORE_MAPS[mechanism](),
        qk_std=W_query_std * W_key_std,
        ov_std=W_value_std * W_out_std,
        b_std=stds["b_std"],
        positions=positions,
        key_width=whole("n_chan_key", n_chan_key),
        value_width=whole("n_chan_val", n_chan_val),
    )
    return _layer("GlobalSelfAttention", attention, (batch_axis, channel_axis))


@dataclass(frozen=True)
class _Distance:
    """neural-tangents' decay, a function of `Σ|Δ|^p`, as one of the distance."""

    decay: Callable[[Any], Any] | None
    norm: float

    def __call__(self, distance: Any) -> Any:
        if self.decay is None:
            return (distance == 0).astype(distance.dtype)
        # The root and the power again leave rounding: distances of whole numbers are whole.
        return self.decay(jnp.round(distance**self.norm, 9))


def LayerNorm(
    axis: int | Sequence[int] = -1,
    eps: float = 1e-12,
    batch_axis: int = 0,
    channel_axis: int = -1,
) -> Triple:
    """Normalisation over channels, and over positions whose axes are named beside them."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    wl.LayerNorm(eps=eps)  # options are refused at once

    def make(layout: Layout, padded: bool) -> wl.Layer:
        named = {one % layout.ndim for one in axes}
        if layout.channel not in named or layout.batch in named:
            raise _unknown("LayerNorm", "axis", axis, "name the channel axis, and not the batch's")
        positions = [place for place, one in enumerate(layout.order[1:-1]) if one in named]
        return wl.LayerNorm(eps=eps, axes=tuple(positions))

    return triple(Wide("LayerNorm", make, (batch_axis, channel_axis)))


def Dropout(rate: float, mode: str = "train") -> Triple:
    """Entries are kept with probability `rate`; in mode 'test' all of them."""
    if not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise _unknown(
            "Dropout", "rate", rate, "pass the probability of keeping an entry, in (0, 1]"
        )
    if mode not in ("train", "test"):
        raise _unknown("Dropout", "mode", mode, "pass 'train' or 'test'")
    return triple() if mode == "test" else _layer("Dropout", wl.Dropout(1 - rate))


# --- nonlinearities -------------------------------------------------------------------------------


def Elementwise(
    fn: Callable[[Any], Any] | None = None,
    nngp_fn: Callable[[Any, Any, Any], Any] | None = None,
    d_nngp_fn: Callable[[Any, Any, Any], Any] | None = None,
) -> Triple:
    """Any function, with its kernel `nngp_fn(cov12, var1, var2)`, or by quadrature without one."""
    if nngp_fn is not None:
        return _layer("Elementwise", wl.Activation(duals.Given(fn, nngp_fn, d_nngp_fn)))
    if fn is None or d_nngp_fn is not None:
        raise _unknown("Elementwise", "nngp_fn", None, "pass nngp_fn=, or fn= alone")
    return _layer("Elementwise", wl.Elementwise(fn))


def ElementwiseNumerical(
    fn: Callable[[Any], Any], deg: int, df: Callable[[Any], Any] | None = None
) -> Triple:
    """Any function by quadrature; the library's own, whatever `deg` and `df` are."""
    whole("deg", deg)
    return _layer("ElementwiseNumerical", wl.Elementwise(fn))


def _nonlinearity(make: Callable[..., wl.Layer], *ignored: str, **names: str) -> Any:
    """The function of `stax` for a layer of the library whose options have other names there.

    `ignored` are accepted and not needed; by default they are False.
    """
    known = inspect.signature(make).parameters
    kind, formula = inspect.Parameter.POSITIONAL_OR_KEYWORD, make.__doc__ or ""
    options = [inspect.Parameter(o, kind, default=known[t].default) for o, t in names.items()]
    options += [inspect.Parameter(name, kind, default=False) for name in ignored]

    def nonlinearity(*args: Any, **given: Any) -> Triple:
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        found = {theirs: bound.arguments[ours] for ours, theirs in names.items()}
        for ours, theirs in names.items():
            if ours != theirs:
                hyperparameter(found[theirs], ours, scalar=ours != "coef")
        return _layer(make.__name__, make(**found))

    for ours, theirs in names.items():
        formula = formula.replace(theirs, ours)
    signature = inspect.Signature(options)
    for name, value in {
        "__name__": make.__name__,
        "__qualname__": make.__name__,
        "__doc__": formula,
        "__signature__": signature,
    }.items():
        setattr(nonlinearity, name, value)
    return nonlinearity


Relu = _nonlinearity(wl.Relu, "do_stabilize")
ABRelu = _nonlinearity(wl.ABRelu, "do_stabilize", a="negative", b="positive")
Abs = _nonlinearity(wl.Abs, "do_stabilize")
Sign = _nonlinearity(wl.Sign)
Erf = _nonlinearity(wl.Erf, a="scale", b="rate", c="shift")
Sin = _nonlinearity(wl.Sin, a="scale", b="rate", c="phase")
Cos = _nonlinearity(wl.Cos, a="scale", b="rate", c="phase")
Exp = _nonlinearity(wl.Exp, a="scale", b="rate")
Hermite = _nonlinearity(wl.Hermite, degree="degree")
Monomial = _nonlinearity(wl.Monomial, degree="degree")
Polynomial = _nonlinearity(wl.Polynomial, coef="coefficients")


def LeakyRelu(alpha: float, do_stabilize: bool = False) -> Triple:
    """`max(x, 0) + alpha·min(x, 0)`; `do_stabilize` is accepted, and not needed."""
    return _layer("LeakyRelu", wl.LeakyRelu(hyperparameter(alpha, "alpha")))


def Gaussian(a: float = 1.0, b: float = -1.0) -> Triple:
    """`a·exp(b·x²)`, b negative."""
    return _layer(
        "Gaussian", wl.Gaussian(scale=hyperparameter(a, "a"), rate=-hyperparameter(b, "b"))
    )


def Sigmoid_like() -> Triple:
    """`(erf(x/2.402…) + 1)/2`, near the logistic function."""
    return _layer("Sigmoid_like", wl.Erf(scale=0.5, rate=1 / 2.4020563531719796, shift=0.5))


def Gabor() -> Triple:
    """`exp(−x²)·sin(x)`."""
    return _layer("Gabor", wl.Activation(duals.gabor()))


def ExpNormalized(gamma: float = 1.0, shift: float = -1.0, do_clip: bool = False) -> Triple:
    """Known by its kernel alone: `√(q₁q₂) exp(γ(c + shift))` at correlation c."""
    dual = duals.normalised_exponential(gamma, shift, clip=do_clip)
    return _layer("ExpNormalized", wl.Activation(dual))


class _ApproximateGelu(duals.Gelu):
    """The kernel of GELU beside finite networks of its approximation."""

    def fn(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=True)


def Gelu(approximate: bool = False) -> Triple:
    """`x·P(z ≤ x)`; with `approximate` finite networks use tanh, the kernel stays."""
    return _layer("Gelu", wl.Activation(_ApproximateGelu() if approximate else duals.Gelu()))


def Rbf(gamma: float = 1.0) -> Triple:
    """`√2·sin(√(2γ)·x + π/4)`, whose kernel is `exp(−γ‖x − x'‖²)`."""
    hyperparameter(gamma, "gamma")
    return _layer("Rbf", wl.Sin(scale=2**0.5, rate=(2 * gamma) ** 0.5, phase=np.pi / 4))


def RectifiedMonomial(degree: int) -> Triple:
    """`max(x, 0)^degree`; of degree 0 the step function."""
    if whole("degree", degree, least=0) == 0:
        return _layer("RectifiedMonomial", wl.Activation(duals.step()))
    made = wl.Relu() if degree == 1 else wl.Activation(duals.RectifiedMonomial(degree))
    return _layer("RectifiedMonomial", made)
