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

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..data import save_figure
from ..errors import MissingExtraError, ShapeError
from ..layers.attention.heads import Scheme
from ..layers.base import Layer
from ..layers.compose import Serial
from ..layers.readings import reading
from ..options import RandomKey, as_key
from ..state import Need
from .door import read_inputs
from .phases import precision
from .start import Encoding, kernel_dtype, start, start_pair

_MOST_EXAMPLES = 32
_REPLICATES, _SAMPLES = 8, 32


class Quantity(Enum):
    """What a signal profile holds for every depth."""

    VARIANCE = "variance"
    POSITIONS = "correlation of positions"
    INPUTS = "correlation of inputs"
    TANGENT = "tangent kernel"
    RANK = "effective rank"


class SignalProfile(eqx.Module):
    """The signal after each layer; errors are standard errors where heads were sampled."""

    labels: tuple[str, ...] = eqx.field(static=True)
    values: Float[np.ndarray, "depth quantity"]
    errors: Float[np.ndarray, "depth quantity"]

    def __getitem__(self, quantity: Quantity) -> np.ndarray:
        """One quantity by depth, the input first; NaN where it has no meaning."""
        return self.values[:, list(Quantity).index(quantity)]

    def plot(self, path: str | Path | None = None, *, title: str = "Signal by depth") -> Any:
        """One small panel per quantity; saved to `path` if given."""
        plt = _pyplot()
        figure, axes = plt.subplots(1, len(Quantity), figsize=(3 * len(Quantity), 2.8))
        depth = np.arange(len(self.labels))
        for axis, quantity, values, errors in zip(
            axes, Quantity, self.values.T, self.errors.T, strict=True
        ):
            axis.errorbar(depth, values, yerr=errors, color="#24527a", lw=1.5, ms=3, marker="o")
            axis.set_title(quantity.value, fontsize=10)
            axis.set_xlabel("layer")
            finite = values[np.isfinite(values)]
            grows = quantity in (Quantity.VARIANCE, Quantity.TANGENT) and (finite > 0).sum() > 1
            if grows and finite.max() / finite[finite > 0].min() > 100:
                axis.set_yscale("log")
            if quantity in (Quantity.POSITIONS, Quantity.INPUTS, Quantity.RANK):
                axis.set_ylim(min(-0.05, np.nanmin(values, initial=0) - 0.05), 1.05)
        figure.suptitle(title)
        figure.tight_layout()
        if path is not None:
            save_figure(figure, path)
            plt.close(figure)
        return figure


@reading
def signal(
    net: Layer,
    x: Any,
    mask: Any = None,
    *,
    key: RandomKey | None = None,
    samples: int = _SAMPLES,
    replicates: int = _REPLICATES,
) -> SignalProfile:
    """The signal after the input and after every layer of `net` (nested Serials are opened)."""
    inputs = read_inputs(net, x, mask)
    if inputs.size > _MOST_EXAMPLES or net.streams() > 1:
        raise ShapeError(
            f"Signal propagation looks at one stream of up to {_MOST_EXAMPLES} examples together.",
            got=f"{inputs.size} examples, {net.streams()} streams",
            remedy="pass a few examples, e.g. x[:8]",
        )
    layers = _opened(net)
    outline = inputs.outline
    labels = ["input"]
    for layer in layers:
        labels.append(type(layer).__name__)
        outline = layer.outline(outline)
    scheme = Scheme(samples, inputs.size * inputs.area, 0.0)
    key = as_key(key)
    copies = replicates if net.sampled() else 1
    with precision(inputs.dtype if not inputs.tokens else np.float32):
        batch, real = inputs.on_device()
        runs = np.stack(
            [
                np.asarray(_profile(layers, batch, real, inputs.outline, subkey, scheme))
                for subkey in jax.random.split(key, copies)
            ]
        )
    errors = runs.std(axis=0, ddof=1) / np.sqrt(copies) if copies > 1 else np.zeros_like(runs[0])
    return SignalProfile(tuple(labels), runs.mean(axis=0), errors)


def phase_diagram(
    make: Callable[[float, float], Layer],
    first: ArrayLike,
    second: ArrayLike,
    x: Any,
    *,
    quantity: Quantity = Quantity.POSITIONS,
    mask: Any = None,
    **options: Any,
) -> Float[np.ndarray, "first second"]:
    """The quantity at the end of `make(a, b)` for all pairs of two hyperparameters' values."""
    rows, columns = np.asarray(first, float), np.asarray(second, float)
    grid = np.empty((len(rows), len(columns)))
    for i, a in enumerate(rows):
        for j, b in enumerate(columns):
            grid[i, j] = signal(make(a, b), x, mask, **options)[quantity][-1]
    return grid


def plot_phase_diagram(
    grid: np.ndarray,
    first: ArrayLike,
    second: ArrayLike,
    path: str | Path | None = None,
    *,
    names: tuple[str, str],
    quantity: Quantity = Quantity.POSITIONS,
) -> Any:
    """A phase diagram as a picture, the first hyperparameter upwards."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(5, 4))
    mesh = axis.pcolormesh(second, first, grid, shading="nearest", cmap="viridis")
    figure.colorbar(mesh, label=quantity.value)
    axis.set(xlabel=names[1], ylabel=names[0])
    for given, scale in ((second, axis.set_xscale), (first, axis.set_yscale)):
        values = np.asarray(given, float)
        if values.min() > 0 and values.max() / values.min() > 20:
            scale("log")
    figure.tight_layout()
    if path is not None:
        save_figure(figure, path)
        plt.close(figure)
    return figure


def _opened(net: Layer) -> tuple[Layer, ...]:
    """Layers one after another, with nested Serials opened."""
    if not isinstance(net, Serial):
        return (net,)
    return tuple(inner for layer in net.layers for inner in _opened(layer))


@eqx.filter_jit
def _profile(
    layers: tuple[Layer, ...], x: Any, mask: Any, outline: Any, key: Key[Array, ""], scheme: Scheme
) -> Float[Array, "depth quantity"]:
    """All quantities after the input and after every layer, with scores drawn from `key`."""
    block = Encoding(x, mask, None)
    dtype = kernel_dtype(x)
    crowd = jax.vmap(lambda a, m: start(a, m, outline, Need.FULL, block))(x, mask)
    pairs = jax.vmap(
        lambda one: jax.vmap(
            lambda two: start_pair(one, two, outline, Need.FULL, dtype, with_ntk=True)
        )(block)
    )(block)
    rows = [_quantities(pairs, crowd.mask)]
    for layer, subkey in zip(layers, jax.random.split(key, len(layers)), strict=True):
        drawn, memos, crowd = layer.draw(crowd, Need.FULL, subkey, scheme)

        def step(pair: Any, one: Any, two: Any, layer: Layer = drawn) -> Any:
            return layer.step(pair, one, two, Need.FULL).forced()

        pairs = jax.vmap(
            lambda row, one, step=step, memos=memos: jax.vmap(
                lambda pair, two: step(pair, one, two)
            )(row, memos)
        )(pairs, memos)
        rows.append(_quantities(pairs, crowd.mask))
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
    return jnp.sum(values * weights) / jnp.sum(weights)


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    return plt
