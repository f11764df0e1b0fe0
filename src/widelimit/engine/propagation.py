"""Signal propagation: the kernel recursion read layer by layer, on a few inputs.

Does the signal explode, vanish or stay; do positions collapse onto one; how large is the tangent
kernel – as a function of depth. Each number is an average over examples and real positions:

- variance `κ_aa(x,x)`;
- correlation of positions, `κ_ab/√(κ_aa κ_bb)` for a ≠ b in one input: 1 is rank collapse;
- correlation of inputs, `κ_aa(x,x')/√(κ_aa κ'_aa)` for x ≠ x';
- tangent kernel `Θ_aa(x,x)`;
- effective rank of κ(x,x) over positions, `(tr κ)²/(S tr κ²)`: 1 for independent positions of equal
  variance, 1/S when one direction holds everything.
"""

import contextlib
from collections.abc import Callable
from enum import Enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..compilation import compiled
from ..errors import ShapeError
from ..figures import several_axes
from ..layers.attention.heads import Scheme
from ..layers.base import Layer
from ..layers.compose import Serial, is_sampled, streams_of
from ..options import RandomKey, as_key, choice, listed, whole
from ..progress import Callback, Progress
from ..state import Need
from .inputs import is_traced, read_inputs
from .phases import EncodedBlock, kernel_dtype, maker, precision, start, start_pair
from .walk import check_masks, cross, draw

_MOST_EXAMPLES = 32
_REPLICATES, _SAMPLES = 8, 32


class Quantity(Enum):
    """What a signal profile holds for every depth: averages over examples and real positions."""

    VARIANCE = "variance"
    """`κ_aa(x, x)`."""
    POSITIONS = "correlation of positions"
    """`κ_ab/√(κ_aa κ_bb)` for positions a ≠ b of one input: 1 is rank collapse."""
    INPUTS = "correlation of inputs"
    """`κ_aa(x, x')/√(κ_aa κ'_aa)` for inputs x ≠ x'."""
    TANGENT = "tangent kernel"
    """`Θ_aa(x, x)`."""
    RANK = "effective rank"
    """`(tr κ)²/(S tr κ²)` of κ(x, x) over S positions: from 1/S, all in one direction, to 1."""


class SignalProfile(eqx.Module):
    """The signal after each layer; errors are standard errors where heads were sampled.

    Inside a JAX transformation the arrays are JAX's: a profile can be differentiated.
    """

    labels: tuple[str, ...] = eqx.field(static=True)
    values: Float[np.ndarray | Array, "depth quantity"]
    errors: Float[np.ndarray | Array, "depth quantity"]

    def __getitem__(self, quantity: Quantity | str) -> np.ndarray | Any:
        """One quantity by depth, the input first; NaN where it has no meaning."""
        return self.values[:, list(Quantity).index(choice(Quantity, quantity, "quantity"))]

    def __repr__(self) -> str:
        rows = [f"{'':<16}" + "".join(f"{quantity.value:>26}" for quantity in Quantity)]
        for label, values in zip(self.labels, np.asarray(self.values), strict=True):
            rows.append(f"{label:<16}" + "".join(f"{value:>26.4g}" for value in values))
        return "\n".join(rows)

    def plot(self, axes: Any = None) -> np.ndarray:
        """One panel per quantity, on five given axes or new ones, which are returned."""
        axes = several_axes(axes, len(Quantity), (3.0, 2.8))
        depth = np.arange(len(self.labels))
        for ax, quantity, values, errors in zip(
            axes, Quantity, np.asarray(self.values).T, np.asarray(self.errors).T, strict=True
        ):
            ax.errorbar(depth, values, yerr=errors, color="#24527a", lw=1.5, ms=3, marker="o")
            ax.set_title(quantity.value, fontsize=10)
            ax.set_xlabel("layer")
            finite = values[np.isfinite(values)]
            grows = quantity in (Quantity.VARIANCE, Quantity.TANGENT) and (finite > 0).sum() > 1
            if grows and finite.max() / finite[finite > 0].min() > 100:
                ax.set_yscale("log")
            if quantity in (Quantity.POSITIONS, Quantity.INPUTS, Quantity.RANK):
                ax.set_ylim(min(-0.05, np.nanmin(values, initial=0) - 0.05), 1.05)
        return axes


def propagate(
    net: Layer, x: Any, mask: Any, key: RandomKey | None, samples: int, replicates: int
) -> SignalProfile:
    """Five numbers after the input and after every layer; options are those of `Layer.signal`."""
    inputs = read_inputs(net, x, mask)
    if inputs.size > _MOST_EXAMPLES or streams_of(net) > 1:
        raise ShapeError(
            f"The inputs are more than one stream of up to {_MOST_EXAMPLES} examples.",
            got=f"{inputs.size} examples, {streams_of(net)} streams",
            remedy="pass a few examples, e.g. x[:8]",
        )
    layers = _open_chains(net)
    net.outline(inputs.outline)  # raises where layers and inputs do not fit
    labels = ("input", *(repr(layer).partition("(")[0] for layer in layers))
    whole("samples", samples)
    whole("replicates", replicates)
    scheme = Scheme(samples, inputs.size * inputs.area(net), 0.0)
    key = as_key(key)
    copies = replicates if is_sampled(net) else 1
    traced = inputs.traced or is_traced(net)
    if not traced:
        check_masks(net, inputs.mask, "x")
    dtype = np.float32 if inputs.tokens else inputs.dtype
    with contextlib.nullcontext() if traced else precision(dtype):
        batch, real = inputs.on_device()
        profiles = [
            _profile(layers, batch, real, inputs.outline, subkey, scheme)
            for subkey in jax.random.split(key, copies)
        ]
    runs = jnp.stack(profiles) if traced else np.stack([np.asarray(run) for run in profiles])
    errors = runs.std(axis=0, ddof=1) / np.sqrt(copies) if copies > 1 else np.zeros(runs.shape[1:])
    return SignalProfile(labels, runs.mean(axis=0), errors)


def phase_diagram(
    make: Callable[[Any, Any], Layer],
    first: ArrayLike,
    second: ArrayLike,
    x: Any,
    mask: Any = None,
    *,
    quantity: Quantity | str = Quantity.POSITIONS,
    key: RandomKey | None = None,
    samples: int = _SAMPLES,
    replicates: int = _REPLICATES,
    progress: bool | Callback | None = None,
) -> Float[np.ndarray, "first second"]:
    """One quantity after the last layer of `make(a, b)`, for every a in `first` and b in `second`.

    `make` builds a network from two hyperparameters, integers where integers are given.
    `pyplot.pcolormesh(second, first, grid)` draws the result. `progress` is as elsewhere: None
    draws a bar on a terminal only, a function is called with `(networks done, networks)`. The other
    options are those of `Layer.signal`.
    """
    quantity = choice(Quantity, quantity, "quantity")
    rows, columns = listed("first", first), listed("second", second)
    cells = [(i, j) for i in range(len(rows)) for j in range(len(columns))]
    grid = np.empty((len(rows), len(columns)))
    bar = Progress.make(progress, "networks")
    for i, j in cells if bar is None else bar.track(cells):
        net = make(rows[i], columns[j])
        profile = net.signal(x, mask, key=key, samples=samples, replicates=replicates)
        grid[i, j] = profile[quantity][-1]
    return grid


def _open_chains(net: Layer) -> tuple[Layer, ...]:
    """Layers one after another, with nested chains opened."""
    if not isinstance(net, Serial):
        return (net,)
    return tuple(inner for part in net.parts for inner in _open_chains(part))


@compiled
def _profile(
    layers: tuple[Layer, ...], x: Any, mask: Any, outline: Any, key: Key[Array, ""], scheme: Scheme
) -> Float[Array, "depth quantity"]:
    """All quantities after the input and after every layer, with scores drawn from `key`."""
    block = EncodedBlock(x, mask, None)
    dtype = kernel_dtype(x)
    examples = jax.vmap(lambda a, m: start(a, m, outline, Need.FULL, block))(x, mask)
    pairs = jax.vmap(
        lambda one: jax.vmap(
            lambda two: start_pair(one, two, outline, Need.FULL, dtype, with_ntk=True)
        )(block)
    )(block)
    rows = [_quantities(pairs, examples.mask)]
    for layer, subkey in zip(layers, jax.random.split(key, len(layers)), strict=True):
        scores, memos, examples = draw(layer, examples, Need.FULL, subkey, maker(scheme))

        def step(pair: Any, one: Any, two: Any, layer: Any = layer, scores: Any = scores) -> Any:
            return cross(layer, pair, one, two, scores).compute()

        pairs = jax.vmap(
            lambda row, one, step=step, memos=memos: jax.vmap(
                lambda pair, two: step(pair, one, two)
            )(row, memos)
        )(pairs, memos)
        rows.append(_quantities(pairs, examples.mask))
    return jnp.stack(rows)


def _quantities(pairs: Any, mask: Array | None) -> Float[Array, "quantity"]:
    """One row of a profile from the kernels of all pairs."""
    nngp, ntk, rank = pairs.nngp, pairs.ntk, pairs.rank
    count = nngp.shape[0]
    size = int(np.prod(nngp.shape[2 : 2 + rank]))
    nngp, ntk = (kernel.reshape(count, count, size, size) for kernel in (nngp, ntk))
    real = jnp.ones((count, size), nngp.dtype)
    if mask is not None:
        real = mask.reshape(count, size).astype(nngp.dtype)
    own, own_ntk = (jnp.einsum("iiab->iab", kernel) for kernel in (nngp, ntk))
    variance = jnp.einsum("iaa->ia", own)
    root = jnp.sqrt(jnp.where(variance > 0, variance, 1))
    within = own / (root[:, :, None] * root[:, None, :])
    between = jnp.einsum("ijaa->ija", nngp) / (root[:, None, :] * root[None, :, :])
    apart = real[:, :, None] * real[:, None, :] * (1 - jnp.eye(size, dtype=own.dtype))[None]
    shared = real[:, None, :] * real[None, :, :]
    shared = shared * (1 - jnp.eye(count, dtype=own.dtype))[:, :, None]
    trace = jnp.sum(variance * real, axis=1)
    square = jnp.einsum("iab,iab->i", own, own)
    effective = trace**2 / jnp.where(square > 0, square, 1) / jnp.sum(real, axis=1)
    return jnp.stack(
        [
            _average(variance, real),
            _average(within, apart),
            _average(between, shared),
            _average(jnp.einsum("iaa->ia", own_ntk), real),
            jnp.mean(effective),
        ]
    )


def _average(values: Array, weights: Array) -> Array:
    """Weighted mean; NaN where there is nothing to average."""
    total = jnp.sum(weights)
    # Gradients of the other quantities must not meet 0/0.
    return jnp.where(total > 0, jnp.sum(values * weights) / jnp.where(total > 0, total, 1), jnp.nan)
