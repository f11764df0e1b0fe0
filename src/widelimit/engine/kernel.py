"""The infinite reading of a network: NNGP and tangent kernels of all pairs."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..compilation import compiled
from ..errors import PrecisionError, ShapeError, WidelimitError, warn
from ..layers.base import Layer
from ..layers.readings import DEFAULT_HEADS, DEFAULT_MEMORY, read, reading
from ..options import RandomKey, as_key, whole
from ..progress import Callback, Progress
from ..state import Kernels
from .budget import Budget, error_bound
from .door import agreed, read_inputs
from .inputs import Data, Inputs, is_traced
from .phases import (
    Realisation,
    cross_tile,
    encode_block,
    mirrored,
    precision,
    symmetrise,
)
from .refusals import refuse_factorised_ntk
from .sampling import Sampler, check_sampler, covering, drawn, grown, realisations
from .sampling import sampler as fitted_sampler
from .start import EncodedBlock, kernel_dtype
from .tiles import Tile, TilePlan, tiles

Sink = Callable[[slice, slice, np.ndarray, np.ndarray | None], None]


@reading
def kernel(
    net: Layer,
    x1: Data,
    x2: Data | None = None,
    *,
    mask: Any = None,
    mask2: Any = None,
    key: RandomKey | None = None,
    samples: int | None = None,
    tolerance: float | None = None,
    most_heads: int = DEFAULT_HEADS,
    sampler: Sampler | None = None,
    ntk: bool = True,
    dtype: Any = None,
    memory: int = DEFAULT_MEMORY,
    progress: bool | Callback | None = None,
    out: tuple[np.ndarray, np.ndarray | None] | None = None,
    sink: Sink | None = None,
    store: Any = None,
    tile: int | None = None,
    client: Any = None,
) -> Kernels:
    """NNGP and tangent kernels of all pairs; see `Layer.kernel`."""
    rows = read_inputs(net, x1, mask, dtype=dtype, name="x1")
    columns = None
    if x2 is not None:
        columns = read_inputs(net, x2, mask2, dtype=dtype, name="x2")
        rows, columns = agreed(rows, columns)
    elif mask2 is not None:
        raise ShapeError(
            "mask2 belongs to x2.", got="mask2 without x2", remedy="pass x2, or mask= for x1"
        )
    whole("memory", memory)
    key = None if key is None else as_key(key)
    _check_destination(store, out=out, sink=sink, tolerance=tolerance, tile=tile, client=client)
    if ntk:
        refuse_factorised_ntk(net)
    check_sampler(sampler, rows, key=key, samples=samples, tolerance=tolerance)
    fitted = net.sampled() and sampler is None
    if fitted:
        # The columns are where training data stands in kernel(test, train).
        fit = rows if columns is None else covering(columns, rows)
        drawing = {"key": key, "samples": samples, "most_heads": most_heads, "memory": memory}
        sampler = fitted_sampler(net, fit, tolerance=tolerance, **drawing)
    if rows.traced or (columns is not None and columns.traced) or is_traced(net):
        return _traced_kernel(net, rows, columns, sampler, ntk, memory)
    for side, name in ((rows, "x1"), (columns, "x2")):
        if side is not None:
            net.checked_mask(side.mask, name)
    dtype = (dtype or np.float32) if rows.tokens else rows.dtype
    if store is not None:
        return read(
            "stored_kernel",
            net,
            rows,
            columns,
            sampler=sampler,
            ntk=ntk,
            dtype=dtype,
            memory=memory,
            store=store,
            tile=tile,
            client=client,
            progress=progress,
        )
    shape = _result_shape(net, rows, columns)
    if out is not None:
        _checked_out(out, shape, ntk)
    options = {"with_ntk": ntk, "memory": memory, "by_length": sink is None}
    while True:
        label = "kernel" if sampler is None else f"kernel of {sampler.heads:,} heads"
        bar = Progress.make(progress, label)
        walk = _walk(net, sampler, rows, columns, dtype, progress=bar, **options)
        if sink is not None:
            for done in walk:
                sink(done.rows, done.columns, *done.kernels)
            return Kernels(None, None)
        result = _assembled(walk, columns is None, shape, out)
        if sampler is None or not fitted or tolerance is None:
            return result
        # The sampler was sized on a few examples: all of them have the last word.
        reached = error_bound(result, sampler.replicates)
        if reached <= tolerance:
            return result
        budget, found = Budget(tolerance, most_heads, memory), drawn(net, sampler, dtype)
        factor = budget.growth(found, reached)
        if factor is None:
            warn(budget.warning(found, reached))
            return result
        sampler = grown(net, sampler, factor)


def _walk(
    net: Layer,
    sampler: Sampler | None,
    rows: Inputs,
    columns: Inputs | None,
    dtype: Any,
    **options: Any,
) -> Iterator[Tile]:
    """Tiles in the precision asked for; in double precision inside, where single has no digits."""
    sides = [rows] if columns is None else [rows, columns]
    for inside in precisions(dtype, sides):
        try:
            with precision(inside):
                reals = realisations(net, sampler, inside)
                mine = [side.astype(inside) for side in sides]
                walk = tiles(reals, mine[0], *mine[1:] or (None,), dtype=inside, **options)
                for tile in walk:
                    yield tile._replace(kernels=rounded(tile.kernels, dtype))
            return
        except PrecisionError:  # before the first tile
            if np.dtype(inside) == np.float64:
                raise


def precisions(dtype: Any, sides: list[Inputs]) -> list[Any]:
    """In what precision to compute kernels of this dtype, and in what else if that has no digits.

    `Pairs` raises a `PrecisionError` where the first one has none.
    """
    wide = np.dtype(np.float64)
    if np.dtype(dtype) == wide:
        return [wide]
    return [wide] if any(side.extreme for side in sides) else [dtype, wide]


def rounded(kernels: Kernels, dtype: Any) -> Kernels:
    """Kernels in a narrower precision, if it holds them."""
    if kernels.nngp.dtype == dtype:
        return kernels
    for kernel in (kernels.nngp, kernels.ntk):
        largest = 0.0 if kernel is None else float(np.abs(kernel).max())
        limits = np.finfo(dtype)
        if largest and not float(limits.tiny) <= largest <= float(limits.max):
            raise PrecisionError(
                f"{np.dtype(dtype)} holds numbers from {limits.tiny:.1e} to {limits.max:.1e}.",
                got=f"kernels of about {largest:.2g}",
                remedy="pass dtype=np.float64, or scale the inputs",
            )
    return jax.tree.map(lambda kernel: kernel.astype(dtype), kernels)


def _check_destination(store: Any, **options: Any) -> None:
    """A kernel goes to one place, and only a store has tiles and workers."""
    with_store, without = ("tile", "client"), ("out", "sink", "tolerance")
    wrong = with_store if store is None else without
    given = [name for name in wrong if options[name] is not None]
    if given:
        raise WidelimitError(
            f"{given[0]}= is for kernels {'in a' if store is None else 'without a'} store.",
            got=f"{given[0]}={options[given[0]]!r}"
            + ("" if store is None else f", store={store!r}"),
            remedy="pass store= too"
            if store is None
            else "size the heads first: sampler=net.sampler(x, tolerance=...)"
            if given[0] == "tolerance"
            else "leave one of them out; a stored kernel is read with kernel.nngp[rows, columns]",
        )


def _traced_kernel(
    net: Layer,
    rows: Inputs,
    columns: Inputs | None,
    sampler: Sampler | None,
    ntk: bool,
    memory: int,
) -> Kernels:
    """The kernel inside a JAX transformation: rows are mapped, and recomputed for gradients."""
    sides = [rows] if columns is None else [rows, columns]
    arrays = [(*side.on_device(), side.outline) for side in sides]
    dtype = kernel_dtype(arrays[0][0])
    plan = TilePlan.make(net, sides, dtype, memory)
    # As many rows at once as have the pairs of one cell, or of one tile that has none.
    rows_at_once = max(1, (plan.cell or plan.tile**2) // sides[-1].size)
    found = [
        _traced_matrix(real, arrays[0], arrays[1:], rows_at_once=rows_at_once, with_ntk=ntk)
        for real in realisations(net, sampler, dtype)
    ]
    return mean_kernels(found)


@compiled  # also where only `jax.grad` is around it: its steps one by one take three times as long
def _traced_matrix(
    real: Realisation, rows: Any, columns: list[Any], *, rows_at_once: int, with_ntk: bool
) -> tuple[Array, Array | None]:
    one = encode_block(real, *rows)
    two = encode_block(real, *columns[0]) if columns else one
    outline = rows[-1]

    def row(encoding: EncodedBlock) -> tuple[Array, Array | None]:
        single = jax.tree.map(lambda leaf: leaf[None], encoding)
        nngp, theta = cross_tile(real.net, single, two, outline, with_ntk=with_ntk)
        return nngp[0], None if theta is None else theta[0]

    return jax.lax.map(jax.checkpoint(row), one, batch_size=rows_at_once)


def mean_kernels(found: list[tuple[Array, Array | None]]) -> Kernels:
    """The mean over realisations of the network."""
    mean = jax.tree.map(lambda *values: sum(values[1:], values[0]) / len(values), *found)
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
            if tile.diagonal:
                symmetrise(part)
            arrays[i][_block(tile.rows, tile.columns)] = part
            if symmetric and not tile.diagonal:
                arrays[i][_block(tile.columns, tile.rows)] = mirrored(part)
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
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise ShapeError(
            "Results are written to a pair of arrays.",
            got=f"out= of type {type(out).__name__}",
            remedy="pass out=(nngp, ntk), or out=(nngp, None) with ntk=False",
        )
    for array in out if ntk else out[:1]:
        if unfit := _unfit(array, shape):
            raise ShapeError(
                "Output arrays are writeable, of floating-point numbers, and have the shape of "
                "the result.",
                got=unfit,
                remedy=f"allocate float32 or float64 arrays (or memory maps) of shape {shape}",
            )


def _unfit(array: Any, shape: tuple[int, ...]) -> str:
    """Why results cannot be written to an array; empty where they can."""
    if getattr(array, "dtype", None) not in (np.float32, np.float64):
        return f"{type(array).__name__} of dtype {getattr(array, 'dtype', None)}"
    fixed = isinstance(array, np.ndarray) and not array.flags.writeable
    if fixed or isinstance(array, jax.Array):
        return "an array that cannot be written to"
    return "" if tuple(array.shape) == shape else f"shape {tuple(array.shape)}"
