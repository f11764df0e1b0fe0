"""Masks on their way through a network, before anything is computed."""

from typing import Any

import jax
import numpy as np

from ..errors import ShapeError
from ..layers.base import Layer
from ..layers.branches import Branches
from ..layers.compose import Parallel, Serial
from ..layers.pool import Select


def require_real_positions(net: Layer, mask: Any, name: str) -> Any:
    """Raise where a layer leaves an example without any real position; the mask after the network.

    Valid windows shorten sequences: one that is shorter than the window has nothing left, and its
    kernels would be zero without a word.
    """
    if mask is None:
        return None
    if isinstance(net, Serial):
        for layer in net.layers:
            mask = require_real_positions(layer, mask, name)
        return mask
    if isinstance(net, Parallel):
        return tuple(
            require_real_positions(part, m, name)
            for part, m in zip(net.networks, mask, strict=True)
        )
    if isinstance(net, Branches):
        ends = [require_real_positions(branch, mask, name) for branch in net.branches]
        return ends[0]
    if isinstance(net, Select):
        _require_selected(net, mask, name)
        return None
    if isinstance(mask, tuple):  # a layer that joins streams keeps the queries' positions
        return mask[0]
    after = jax.vmap(net.mask)(mask)
    if after is None:
        return None
    found = np.asarray(after)
    empty = np.flatnonzero(~found.reshape(len(found), -1).any(axis=1))
    if empty.size:
        raise ShapeError(
            f"{type(net).__name__} leaves every example at least one real position.",
            got=f"{empty.size} examples of '{name}' too short for its window, the first at index "
            f"{empty[0]}",
            remedy="drop short sequences, use a smaller window, or padding='same'",
        )
    return after


def _require_selected(layer: Select, mask: Any, name: str) -> None:
    """Raise where the position to be read is padding."""
    read = jax.vmap(lambda m: layer.mix(m[..., None].astype(float), m))(mask)
    missing = np.flatnonzero(np.asarray(read) == 0)
    if missing.size:
        raise ShapeError(
            "Select reads a real position of every example.",
            got=f"index {layer.index!r}, beyond the end of {missing.size} examples of '{name}', "
            f"the first at index {missing[0]}",
            remedy="drop short sequences, or select a position that all have (0 or -1)",
        )
