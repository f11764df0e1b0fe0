"""The three readings of a network, as functions: draw and run it, or take its kernels."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Key

from .errors import ShapeError, WidelimitError
from .inputs import Data, Inputs, as_inputs, as_streams
from .kernels import Kernels, Realisation, cross_tile, encode_block, precision
from .laws.refusals import refuse_factorised_ntk
from .layers.base import Layer, Params
from .layers.dense import Embedding
from .masks import require_real_positions
from .progress import Callback, Progress
from .sampling import (
    Sampler,
    covering,
    make_sampler,
    not_reached,
    realisations,
    refined,
    relative_error,
)
from .start import Encoding, kernel_dtype
from .state import Outline
from .tiles import Plan, Tile, tiles

_DEFAULT_MEMORY = 2**30
# How often a whole kernel may be computed anew to meet a tolerance.
_MOST_ROUNDS = 4

Sink = Callable[[slice, slice, np.ndarray, np.ndarray | None], None]


def outline_of(net: Layer, shape: Any) -> Any:
    """The outline of one example of this shape; shapes and outlines are tuples for streams."""
    if net.streams() > 1:
        return tuple(_outline(tuple(part), tokens=False) for part in shape)
    return _outline(tuple(shape), tokens=net.takes_tokens())


def _outline(shape: tuple[int, ...], *, tokens: bool) -> Outline:
    shape = tuple(int(extent) for extent in shape)
    if tokens:
        return Outline(shape, 0)
    if not shape:
        raise ShapeError(
            "The shape of one example is (positions…, channels).",
            got="()",
            remedy="pass x.shape[1:]",
        )
    return Outline(shape[:-1], shape[-1])


def init(net: Layer, key: Key[Array, ""], shape: Any) -> Params:
    """Draw the parameters of the finite network for examples of this shape."""
    before = outline_of(net, shape)
    net.outline(before)
    return net.init_params(key, before)


def apply(
    net: Layer, params: Params, x: Any, mask: Any = None, *, key: Key[Array, ""] | None = None
) -> Array:
    """Run the finite network on a batch (N, positions…, channels)."""
    leaves = jax.tree.leaves((x, mask))
    if isinstance(x, list) or not any(isinstance(leaf, Tracer) for leaf in leaves):
        inputs = read_inputs(net, x, mask)
        x, mask = inputs.x, inputs.mask
    if net.streams() > 1:
        masks = (None,) * len(x) if mask is None else mask
        x = tuple(_entering(a, m, tokens=False) for a, m in zip(x, masks, strict=True))
    else:
        x = _entering(x, mask, tokens=net.takes_tokens())
    mask = jax.tree.map(jnp.asarray, mask)
    shapes = jax.tree.map(lambda a: a.shape[1:], x)
    net.outline(outline_of(net, shapes))
    size = jax.tree.leaves(x)[0].shape[0]
    keys = None if key is None else jax.random.split(key, size)
    return jax.vmap(lambda a, m, k: net.forward(params, a, m, k)[0])(x, mask, keys)


def _entering(x: Any, mask: Any, *, tokens: bool) -> Array:
    """An array ready for the first layer: numbers, zero at padding."""
    x = jnp.asarray(x)
    x = x if tokens or jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
    if mask is None:
        return x
    mask = jnp.asarray(mask)
    return jnp.where(mask if tokens else mask[..., None], x, jnp.zeros((), x.dtype))


def read_inputs(
    net: Layer, x: Any, mask: Any = None, *, dtype: Any = None, name: str = "x"
) -> Inputs:
    """Check a user's inputs for this network."""
    if isinstance(x, Inputs):
        return x
    if net.streams() > 1:
        return as_streams(x, mask, net.streams(), dtype=dtype, name=name)
    inputs = as_inputs(x, mask, tokens=net.takes_tokens(), dtype=dtype, name=name)
    if inputs.tokens and not inputs.traced:
        _require_vocabulary(net, inputs, name)
    return inputs


def _require_vocabulary(net: Layer, inputs: Inputs, name: str) -> None:
    """Beyond its table an embedding has no row, in the finite network or in the limit."""
    nodes = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Embedding))
    sizes = [node.vocabulary for node in nodes if isinstance(node, Embedding)]
    largest = int(inputs.x.max())
    if sizes and largest >= min(sizes):
        raise ShapeError(
            "Token ids are smaller than the vocabulary.",
            got=f"{largest} in '{name}', and Embedding(vocabulary={min(sizes)})",
            remedy="give Embedding a larger vocabulary, or map rare tokens to one id",
        )


def kernel(
    net: Layer,
    x1: Data,
    x2: Data | None = None,
    *,
    mask1: Any = None,
    mask2: Any = None,
    key: Key[Array, ""] | None = None,
    samples: int | None = None,
    tolerance: float | None = None,
    sampler: Sampler | None = None,
    ntk: bool = True,
    dtype: Any = None,
    memory: int = _DEFAULT_MEMORY,
    progress: bool | Callback | None = None,
    out: tuple[np.ndarray, np.ndarray | None] | None = None,
    sink: Sink | None = None,
) -> Kernels:
    """NNGP and tangent kernels of all pairs; see `Layer.kernel`."""
    rows = read_inputs(net, x1, mask1, dtype=dtype, name="x1")
    columns = None
    if x2 is not None:
        columns = read_inputs(net, x2, mask2, dtype=dtype, name="x2")
        rows, columns = agreed(rows, columns)
    elif mask2 is not None:
        raise ShapeError(
            "mask2 belongs to x2.", got="mask2 without x2", remedy="pass x2, or only mask1"
        )
    _check_memory(memory)
    if ntk:
        refuse_factorised_ntk(net)
    fitted = net.sampled() and sampler is None
    if fitted:
        # The columns are where training data stands in kernel(test, train).
        fit = rows if columns is None else covering(columns, rows)
        sampler = make_sampler(net, fit, key=key, samples=samples, tolerance=tolerance)
    if rows.traced or (columns is not None and columns.traced) or _traced(net):
        return _traced_kernel(net, rows, columns, sampler, ntk)
    for side, name in ((rows, "x1"), (columns, "x2")):
        if side is not None:
            require_real_positions(net, side.mask, name)
    dtype = (dtype or np.float32) if rows.tokens else rows.dtype
    shape = _result_shape(net, rows, columns)
    if out is not None:
        _checked_out(out, shape, ntk)
    bar = Progress.make(progress, "kernel")
    options = {"dtype": dtype, "with_ntk": ntk, "memory": memory, "progress": bar}
    options["by_length"] = sink is None
    with precision(dtype):
        for _ in range(_MOST_ROUNDS):
            walk = tiles(realisations(net, sampler, dtype), rows, columns, **options)
            if sink is not None:
                for tile in walk:
                    sink(tile.rows, tile.columns, *tile.kernels)
                return Kernels(None, None)
            result = _assembled(walk, columns is None, shape, out)
            if sampler is None or not fitted or tolerance is None:
                return result
            # The sampler was sized on a few examples: all of them have the last word.
            worst = relative_error(result)
            if worst <= tolerance:
                return result
            sampler = refined(net, sampler, worst / tolerance)
    assert sampler is not None
    assert tolerance is not None
    raise not_reached(sampler, tolerance)


def sampler(net: Layer, x: Any, mask: Any = None, **options: Any) -> Sampler:
    """Fit a sampler to (training) data; see `Layer.sampler`."""
    return make_sampler(net, read_inputs(net, x, mask), **options)


def agreed(rows: Inputs, columns: Inputs) -> tuple[Inputs, Inputs]:
    """Two batches that can meet: equal channels, equally many position axes, one dtype."""
    facts = [[(o.channels, len(o.positions)) for o in side.outlines] for side in (rows, columns)]
    if facts[0] != facts[1]:
        shapes = [jax.tree.map(lambda a: tuple(a.shape), side.x) for side in (rows, columns)]
        raise ShapeError(
            "x1 and x2 have the same channels and the same number of position axes.",
            got=f"x1 of shape {shapes[0]} and x2 of shape {shapes[1]}",
            remedy="bring both to the shape (N, positions…, channels) of the network's input",
        )
    dtype = np.result_type(rows.dtype, columns.dtype)
    return rows.astype(dtype), columns.astype(dtype)


def _check_memory(memory: Any) -> None:
    if isinstance(memory, bool) or not isinstance(memory, int | np.integer) or memory < 1:
        raise WidelimitError(
            "'memory' is the number of bytes a call may use beyond inputs and result.",
            got=f"memory={memory!r}",
            remedy="give a positive integer, such as 2**30 for 1 GiB",
        )


def _traced(net: Layer) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(net))


def _traced_kernel(
    net: Layer, rows: Inputs, columns: Inputs | None, sampler: Sampler | None, ntk: bool
) -> Kernels:
    """The kernel inside a JAX transformation: rows are mapped, and recomputed for gradients."""
    x, mask = rows.on_device()
    dtype = kernel_dtype(x)
    plan = Plan.make(net, [rows] if columns is None else [rows, columns], dtype, _DEFAULT_MEMORY)

    def matrix(real: Realisation) -> tuple[Array, Array | None]:
        one = encode_block(real, x, mask, rows.outline)
        two = one
        if columns is not None:
            two = encode_block(real, *columns.on_device(), columns.outline)

        def row(encoding: Encoding) -> tuple[Array, Array | None]:
            single = jax.tree.map(lambda leaf: leaf[None], encoding)
            nngp, theta = cross_tile(real.net, single, two, rows.outline, with_ntk=ntk)
            return nngp[0], None if theta is None else theta[0]

        # As many rows at once as have the pairs of one cell, or of one tile that has none.
        columns_count = jax.tree.leaves(two.x)[0].shape[0]
        rows_at_once = max(1, (plan.cell or plan.tile**2) // columns_count)
        return jax.lax.map(jax.checkpoint(row), one, batch_size=rows_at_once)

    results = [matrix(real) for real in realisations(net, sampler, dtype)]
    mean = jax.tree.map(lambda *values: sum(values[1:], values[0]) / len(values), *results)
    return Kernels(*mean)


def _assembled(
    walk: Iterator[Tile],
    symmetric: bool,
    shape: tuple[int, ...],
    out: tuple[np.ndarray, np.ndarray | None] | None,
) -> Kernels:
    """The whole matrices from their tiles; a symmetric one from its upper half."""
    arrays: list[Any] = [None] * 4 if out is None else [*out, None, None]
    for tile in walk:
        parts = tile.kernels
        for i, part in enumerate((parts.nngp, parts.ntk, parts.nngp_error, parts.ntk_error)):
            if part is None:
                continue
            if arrays[i] is None:
                arrays[i] = np.empty(shape, part.dtype)
            half = (part.ndim - 2) // 2
            mirrored = (1, 0, *range(2 + half, part.ndim), *range(2, 2 + half))
            if tile.diagonal:  # exactly symmetric, whatever rounding says
                lower = np.tril_indices(len(part), -1)
                part[lower] = np.transpose(part, mirrored)[lower]
            arrays[i][_block(tile.rows, tile.columns)] = part
            if symmetric and not tile.diagonal:
                arrays[i][_block(tile.columns, tile.rows)] = np.transpose(part, mirrored)
    return Kernels(*arrays)


def _block(rows: Any, columns: Any) -> tuple[Any, Any]:
    """The index of all pairs rows × columns; either is a slice or numbers of examples."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return rows, columns
    return rows[:, None], columns


def _result_shape(net: Layer, rows: Inputs, columns: Inputs | None) -> tuple[int, ...]:
    other = rows if columns is None else columns
    ends = [net.outline(side.outline).positions for side in (rows, other)]
    return (rows.size, other.size, *ends[0], *ends[1])


def _checked_out(out: Any, shape: tuple[int, ...], ntk: bool) -> None:
    arrays = (out[0], out[1]) if ntk else (out[0],)
    for array in arrays:
        if array is None or tuple(array.shape) != shape:
            raise ShapeError(
                "Output arrays have the shape of the result.",
                got=f"{None if array is None else tuple(array.shape)}",
                remedy=f"allocate arrays (or memory maps) of shape {shape} as out=(nngp, ntk)",
            )
