"""Inputs as users have them: arrays, lists of sequences, token ids; checked once, here."""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..compilation import require_own_jax
from ..data.batches import padded
from ..errors import NumericalError, OptionError, ShapeError
from ..layers.base import Layer
from ..layers.compose import Serial, layers_of, streams_of, takes_tokens, vocabulary_of
from ..layers.graph import Graph
from ..layers.layout import Rearrange
from ..state import Outline

# Squares of numbers between this and its inverse are far from the ends of single precision.
_SMALL = 1e-15

Data = Any  # an array (N, positions…, channels), or a list of arrays of different lengths


class Inputs(NamedTuple):
    """A checked batch: `x` (N, positions…, channels) or integer tokens (N, positions…).

    For networks of several streams `x` and `mask` are tuples, one entry for each.
    """

    x: Any
    mask: Any  # (N, positions…) or None
    tokens: bool

    @property
    def size(self) -> int:
        """How many examples there are."""
        return jax.tree.leaves(self.x)[0].shape[0]

    @property
    def outlines(self) -> tuple[Outline, ...]:
        """Shapes of one example in all streams; most inputs have one."""
        if self.tokens:
            return (Outline(self.x.shape[1:], 0),)
        return tuple(Outline(x.shape[1:-1], x.shape[-1]) for x in jax.tree.leaves(self.x))

    @property
    def outline(self) -> Any:
        """Shape of one example; a tuple for several streams."""
        return self.outlines if isinstance(self.x, tuple) else self.outlines[0]

    @property
    def kinds(self) -> list[tuple[int, int]]:
        """Channels and number of position axes of every stream: inputs of one network agree."""
        return [(outline.channels, len(outline.positions)) for outline in self.outlines]

    @property
    def words(self) -> str:
        """The shape, for messages."""
        shapes = [str(tuple(leaf.shape)) for leaf in jax.tree.leaves(self.x)]
        return f"shape {' and '.join(shapes)}"

    def area(self, net: Layer) -> int:
        """How many positions the longest stream has; edges of graphs have no kernels."""
        graph = any(isinstance(layer, Graph) for _, layer in layers_of(net))
        outlines = self.outlines[:1] if graph else self.outlines
        return max(math.prod(outline.positions) for outline in outlines)

    @property
    def nbytes(self) -> int:
        """Bytes of all examples."""
        return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(self.x))

    @property
    def dtype(self) -> Any:
        """The dtype of the numbers."""
        return jax.tree.leaves(self.x)[0].dtype

    @property
    def extreme(self) -> bool:
        """Whether squares of some example's numbers leave what single precision holds."""
        if self.tokens:
            return False
        for x in jax.tree.leaves(self.x):
            axes = tuple(range(1, x.ndim))
            size = np.maximum(x.max(axis=axes), -x.min(axis=axes))  # |x| would be a copy
            if ((size > 0) & ((size < _SMALL) | (size > 1 / _SMALL))).any():
                return True
        return False

    def astype(self, dtype: Any) -> "Inputs":
        """The same inputs in another precision; tokens stay integers."""
        if self.tokens or self.dtype == dtype:
            return self
        return self._replace(x=jax.tree.map(lambda a: a.astype(dtype), self.x))

    def on_device(self) -> tuple[Any, Any]:
        """x and mask as JAX arrays; other than `asarray`, this compiles nothing."""
        return jax.device_put((self.x, self.mask))

    def __getitem__(self, index: Any) -> "Inputs":
        x, mask = jax.tree.map(lambda a: a[index], (self.x, self.mask))
        return Inputs(x, mask, self.tokens)

    @property
    def traced(self) -> bool:
        """Whether these are abstract values inside a JAX transformation."""
        return is_traced((self.x, self.mask))


def is_traced(tree: Any) -> bool:
    """Whether some array of a tree is abstract: inside a JAX transformation."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def as_streams(x: Any, mask: Any, streams: int, **options: Any) -> Inputs:
    """Check inputs of several streams: a tuple of arrays, and masks likewise."""
    name = options.get("name", "x")
    if not isinstance(x, tuple) or len(x) != streams:
        raise ShapeError(
            f"'{name}' is not a tuple of {streams} streams.",
            got=type(x).__name__,
            remedy="pass x as a tuple of arrays (N, positions…, channels), masks likewise",
        )
    masks = (None,) * streams if mask is None else mask
    parts = [as_inputs(a, m, **options) for a, m in zip(x, masks, strict=True)]
    if len({part.size for part in parts}) > 1:
        raise ShapeError(
            f"The streams of '{name}' do not hold the same examples.",
            got=" and ".join(str(part.size) for part in parts) + " examples",
            remedy="pass streams with equal first axes",
        )
    dtype = common_dtype(*parts)
    masks = tuple(part.mask for part in parts)
    return Inputs(
        tuple(part.astype(dtype).x for part in parts),
        None if all(m is None for m in masks) else masks,
        False,
    )


def as_inputs(
    x: Data, mask: Any = None, *, tokens: bool = False, dtype: Any = None, name: str = "x"
) -> Inputs:
    """Check and convert what a user passed."""
    if isinstance(x, Inputs):
        return x
    if isinstance(x, list | tuple):
        x, mask = _from_list(x, mask, tokens=tokens, name=name)
    _check_dtype(dtype)
    traced = is_traced((x, mask))
    x = jnp.asarray(x) if traced else unmasked(x, name)
    _check_shape(x, tokens, name)
    _check_numbers(x.dtype, tokens, name)
    if traced:
        if dtype is not None and not tokens:
            if in_jax(dtype) != dtype:
                raise OptionError(
                    f"dtype={np.dtype(dtype)} inside a JAX transformation (grad, jit, vmap) is not "
                    "to be had: JAX has made its arrays float32.",
                    got="a traced array",
                    remedy="put `with jax.enable_x64(True):` around the transformation",
                )
            x = x.astype(dtype)
        elif not tokens and not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(float)
        if mask is not None:
            mask = jnp.asarray(mask)
            x = jnp.where(mask if tokens else mask[..., None], x, jnp.zeros((), x.dtype))
        return Inputs(x, mask, tokens)
    if not tokens:
        wide = x.dtype == np.float64
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused
            x = x.astype(dtype or (np.float64 if wide else np.float32))
    if mask is not None:
        mask = _checked_mask(mask, x, tokens, name)
        # Padding may hold anything, also NaN: it never takes part.
        hidden = ~mask if tokens else ~mask[..., None]
        x = np.where(hidden, np.zeros((), x.dtype), x)
        if mask.all():
            mask = None
    if tokens:
        if x.min() < 0 or x.max() > np.iinfo(np.int32).max:
            raise ShapeError(
                f"'{name}' holds token ids that do not count from 0, or do not fit into 32 bits.",
                got=f"{x.min()} to {x.max()}",
                remedy="renumber the ids; positions that are not real belong to the mask",
            )
        return Inputs(x.astype(np.int32), mask, tokens)
    if not np.isfinite(x).all():
        bad = np.argwhere(~np.isfinite(x))
        raise NumericalError(
            f"'{name}' holds {len(bad)} values that are not finite numbers.",
            got=f"{x[tuple(bad[0])]} at {tuple(map(int, bad[0]))}",
            remedy="remove or impute them; positions that are not real belong to the mask",
        )
    return Inputs(x, mask, tokens)


def _check_dtype(dtype: Any) -> None:
    try:
        good = dtype is None or np.dtype(dtype) in (np.float32, np.float64)
    except (TypeError, ValueError):  # no dtype at all
        good = False
    if not good:
        raise OptionError(
            f"dtype={dtype!r} is neither single nor double precision.",
            got=f"dtype={dtype!r}",
            remedy="pass dtype=np.float32 or np.float64",
        )


def in_jax(dtype: Any) -> np.dtype:
    """What JAX makes of a dtype: float32 of float64, unless 64-bit numbers are enabled."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def common_dtype(*parts: Inputs) -> np.dtype:
    """The dtype of a call: the widest of its inputs'; what JAX has, where one of them is traced."""
    widest = np.result_type(*(part.dtype for part in parts))
    return in_jax(widest) if any(part.traced for part in parts) else widest


def _check_shape(x: Any, tokens: bool, name: str) -> None:
    axes = "(N, positions…)" if tokens else "(N, positions…, channels)"
    if x.ndim < (1 if tokens else 2) or 0 in x.shape:
        raise ShapeError(
            f"'{name}' does not have the axes {axes}, each of them at least one long.",
            got=f"shape {x.shape}",
            remedy="pass at least one example (x[None] adds its axis) with at least one position "
            "and one channel; drop empty sequences",
        )


def unmasked(values: Any, name: str) -> np.ndarray:
    """`values` as a NumPy array; one with masked entries is refused, since these would be lost."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ShapeError(
            f"'{name}' is a NumPy masked array, whose hidden entries have no value.",
            got=f"{np.ma.count_masked(values)} hidden entries",
            remedy="pass values.filled(0) or impute them; positions that are not real belong to "
            "mask=, True where a position is real",
        )
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:  # lists of different lengths, keys of random numbers
        raise ShapeError(
            f"'{name}' is nothing that NumPy can turn into an array.",
            got=f"{type(values).__name__} ({str(error)[:80]})",
            remedy="pass an array, or nested lists of equal lengths",
        ) from error


def _check_numbers(dtype: Any, tokens: bool, name: str) -> None:
    if tokens and not np.issubdtype(dtype, np.integer):
        raise ShapeError(
            f"'{name}' does not hold integer token ids, for a network that starts with Embedding.",
            got=f"dtype {dtype}",
            remedy="pass integers of shape (N, positions…), or start with Dense for vectors",
        )
    kind = np.dtype(dtype).kind
    if kind not in "biuf" and dtype != jnp.bfloat16:
        raise ShapeError(
            f"'{name}' does not hold {'real ' if kind == 'c' else ''}numbers.",
            got=f"dtype {dtype}",
            remedy="convert to a float array: real and imaginary parts are channels, ragged "
            "sequences a plain list of arrays",
        )


def _checked_mask(mask: Any, x: np.ndarray, tokens: bool, name: str) -> np.ndarray:
    mask = unmasked(mask, f"the mask of {name}")
    expected = x.shape if tokens else x.shape[:-1]
    if mask.dtype != bool:
        raise ShapeError(
            f"The mask of '{name}' is not boolean: True where a position is real.",
            got=f"dtype {mask.dtype}",
            remedy="convert it, e.g. mask.astype(bool)",
        )
    if mask.shape != expected or mask.ndim < 2:
        raise ShapeError(
            f"The mask of '{name}' does not have one entry for each position.",
            got=f"a mask of shape {mask.shape} for shape {x.shape}",
            remedy=f"give a mask of shape {expected}",
        )
    empty = np.flatnonzero(~mask.reshape(mask.shape[0], -1).any(axis=1))
    if empty.size:
        raise ShapeError(
            f"{empty.size} examples of '{name}' do not have at least one real position.",
            got=f"a mask that is False throughout, first at example {empty[0]}",
            remedy="drop empty sequences, or give them one position (e.g. a padding token)",
        )
    return mask


def _from_list(sequences: Sequence[Any], mask: Any, *, tokens: bool, name: str):
    """A padded array and its mask from sequences of different lengths."""
    if len(sequences) == 0:
        return np.empty((0, 0)), mask  # refused as an empty array is
    arrays = [unmasked(s, name) for s in sequences]
    positions = [a.shape if tokens else a.shape[:-1] for a in arrays]
    channels = {a.shape[-1] if not tokens and a.ndim else 0 for a in arrays}
    if len({a.ndim for a in arrays}) > 1 or len(channels) > 1:
        raise ShapeError(
            f"The sequences of '{name}' do not differ in length only.",
            got=f"shapes {sorted({a.shape for a in arrays})}",
            remedy="give every sequence the shape (positions…, channels) with equal channels",
        )
    if len(set(positions)) == 1:
        return np.stack(arrays), mask
    if mask is not None:
        raise ShapeError(
            f"A mask is given beside '{name}', a list of sequences that makes its own mask.",
            got="a list and a mask",
            remedy="pass the list alone, or a padded array with the mask",
        )
    return padded(arrays, len(positions[0]))


# --- read for a network, and checked against it ---------------------------------------------------


def outline_of(net: Layer, shape: Any) -> Any:
    """The outline of one example of this shape; shapes and outlines are tuples for streams."""
    count = streams_of(net)
    if count == 1:
        order = rearrangement(net)
        shape = shape if order is None else order.shape(tuple(shape))
        return _outline(shape, tokens=takes_tokens(net))
    if not isinstance(shape, tuple | list) or len(shape) != count:
        raise ShapeError(
            f"The shape is not that of {count} streams, which this network takes.",
            got=_describe(shape),
            remedy="pass tuple(part.shape[1:] for part in x)",
        )
    return tuple(_outline(part, tokens=False) for part in shape)


def _describe(shape: Any) -> str:
    return f"an array of shape {shape.shape}" if hasattr(shape, "shape") else repr(shape)


def _outline(given: Any, *, tokens: bool) -> Outline:
    try:
        shape = tuple(operator.index(extent) for extent in given)
    except TypeError:
        shape = (0,)
    if min(shape, default=1) < 1 or not (shape or tokens):
        raise ShapeError(
            "The shape is not that of one example: positive integers (positions…, channels).",
            got=_describe(given),
            remedy="pass x.shape[1:]",
        )
    return Outline(shape, 0) if tokens else Outline(shape[:-1], shape[-1])


def read_inputs(
    net: Layer, x: Any, mask: Any = None, *, dtype: Any = None, name: str = "x"
) -> Inputs:
    """Check a user's inputs for this network."""
    require_own_jax()
    if isinstance(x, Inputs):
        return x
    if streams_of(net) > 1:
        return as_streams(x, mask, streams_of(net), dtype=dtype, name=name)
    order = rearrangement(net)
    if order is not None:
        x = order.reorder(x if is_traced(x) else np.asarray(x))
    inputs = as_inputs(x, mask, tokens=takes_tokens(net), dtype=dtype, name=name)
    if inputs.tokens and not inputs.traced:
        _require_vocabulary(net, inputs, name)
    return inputs


def rearrangement(net: Layer) -> Rearrange | None:
    """The order in which a network takes its inputs, where it is another than theirs."""
    while isinstance(net, Serial) and net.layers:
        net = net.layers[0]
    return net if isinstance(net, Rearrange) else None


def _require_vocabulary(net: Layer, inputs: Inputs, name: str) -> None:
    """Beyond its table an embedding has no row, in the finite network or in the limit."""
    size, largest = vocabulary_of(net), int(inputs.x.max())
    if size is not None and largest >= size:
        raise ShapeError(
            f"'{name}' holds token ids that are not smaller than the vocabulary.",
            got=f"{largest}, and Embedding(vocabulary={size})",
            remedy="give Embedding a larger vocabulary, or map rare tokens to one id",
        )


def match_inputs(rows: Inputs, columns: Inputs) -> tuple[Inputs, Inputs]:
    """Two batches that can meet: equal channels, equally many position axes, one dtype."""
    if rows.kinds != columns.kinds:
        raise ShapeError(
            "x1 and x2 do not have the same channels and the same number of position axes.",
            got=f"x1 of {rows.words} and x2 of {columns.words}",
            remedy="bring both to the shape (N, positions…, channels) of the network's input",
        )
    dtype = common_dtype(rows, columns)
    return rows.astype(dtype), columns.astype(dtype)
