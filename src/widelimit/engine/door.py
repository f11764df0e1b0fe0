"""The one door through which users' inputs enter: read for a network, checked against it."""

import operator
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..forks import require_own_jax
from ..layers.base import Layer
from ..layers.compose import streams_of, takes_tokens, vocabulary_of
from ..layers.layout import rearrangement
from ..state import Outline
from .inputs import Inputs, as_inputs, as_streams, common_dtype, is_traced


def outline_of(net: Layer, shape: Any, *, entered: bool = False) -> Any:
    """The outline of one example of this shape; shapes and outlines are tuples for streams.

    `entered`: the shape is that of an example that has been rearranged, where the network does so.
    """
    count = streams_of(net)
    if count == 1:
        order = None if entered else rearrangement(net)
        shape = shape if order is None else order.shape(tuple(shape))
        return _outline(shape, tokens=takes_tokens(net))
    if not isinstance(shape, tuple | list) or len(shape) != count:
        raise ShapeError(
            f"The shape is not that of {count} streams, which this network takes.",
            got=_described(shape),
            remedy="pass tuple(part.shape[1:] for part in x)",
        )
    return tuple(_outline(part, tokens=False) for part in shape)


def _described(shape: Any) -> str:
    return f"an array of shape {shape.shape}" if hasattr(shape, "shape") else repr(shape)


def _outline(given: Any, *, tokens: bool) -> Outline:
    try:
        shape = tuple(operator.index(extent) for extent in given)
    except TypeError:
        raise ShapeError(
            "The shape is not that of one example, a tuple of integers (positions…, channels).",
            got=_described(given),
            remedy="pass x.shape[1:]",
        ) from None
    if any(extent < 1 for extent in shape):
        raise ShapeError(
            "The shape of one example does not have at least one position and one channel.",
            got=f"shape {shape}",
            remedy="pass x.shape[1:]",
        )
    if tokens:
        return Outline(shape, 0)
    if not shape:
        raise ShapeError(
            "The shape is not that of one example, (positions…, channels).",
            got="()",
            remedy="pass x.shape[1:]",
        )
    return Outline(shape[:-1], shape[-1])


def read_inputs(
    net: Layer, x: Any, mask: Any = None, *, dtype: Any = None, name: str = "x"
) -> Inputs:
    """Check a user's inputs for this network."""
    require_own_jax()
    if isinstance(x, Inputs):
        return x
    if streams_of(net) > 1:
        return as_streams(x, mask, streams_of(net), dtype=dtype, name=name)
    inputs = as_inputs(entered(net, x), mask, tokens=takes_tokens(net), dtype=dtype, name=name)
    if inputs.tokens and not inputs.traced:
        _require_vocabulary(net, inputs, name)
    return inputs


def entered(net: Layer, x: Any) -> Any:
    """Inputs in the order of entries that the network's layers take."""
    order = rearrangement(net)
    if order is None:
        return x
    return order.entered(x if is_traced(x) else np.asarray(x))


def _require_vocabulary(net: Layer, inputs: Inputs, name: str) -> None:
    """Beyond its table an embedding has no row, in the finite network or in the limit."""
    size, largest = vocabulary_of(net), int(inputs.x.max())
    if size is not None and largest >= size:
        raise ShapeError(
            f"'{name}' holds token ids that are not smaller than the vocabulary.",
            got=f"{largest}, and Embedding(vocabulary={size})",
            remedy="give Embedding a larger vocabulary, or map rare tokens to one id",
        )


def agreed(rows: Inputs, columns: Inputs) -> tuple[Inputs, Inputs]:
    """Two batches that can meet: equal channels, equally many position axes, one dtype."""
    if rows.kinds != columns.kinds:
        raise ShapeError(
            "x1 and x2 do not have the same channels and the same number of position axes.",
            got=f"x1 of {rows.words} and x2 of {columns.words}",
            remedy="bring both to the shape (N, positions…, channels) of the network's input",
        )
    dtype = common_dtype(rows, columns)
    return rows.astype(dtype), columns.astype(dtype)
