"""Sequences of different lengths: short ones do not pay for the padding of long ones.

Examples are sorted into a few groups by length, and each group is cut to its longest member. Every
pair of groups is compiled once, so groups are few and their lengths are eighths of the longest.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from .inputs import Inputs
from .layers.activations import Activation
from .layers.attention import Attention
from .layers.base import Layer
from .layers.branches import Residual, Sum
from .layers.compose import Serial
from .layers.conv import Conv
from .layers.dense import Dense, Embedding
from .layers.norm import Dropout, LayerNorm
from .layers.pool import MeanPool, SumPool
from .layers.scores import Causal, Local
from .layers.windows import Padding

_PARTS = 8
# Examples from which on another group is worth its compilations.
_WORTHWHILE = (32, 512, 2048)
# Arrays with fewer positions are not worth cutting.
_SHORTEST = 16


class Group(NamedTuple):
    """Some examples of a batch, and the length they are cut to (None: as they are)."""

    members: np.ndarray
    length: int | None

    def of(self, inputs: Inputs, members: np.ndarray) -> Inputs:
        """Members of the group, by their number in the batch."""
        chosen = inputs[members]
        if self.length is None:
            return chosen
        x, mask = chosen.x[:, : self.length], chosen.mask[:, : self.length]
        return Inputs(x, mask, inputs.tokens)


def whole(inputs: Inputs) -> Group:
    """All examples, at full length."""
    return Group(np.arange(inputs.size), None)


def groups(net: Layer, inputs: Inputs) -> list[Group]:
    """How a batch is cut; one group where padding is no matter, or is part of the result."""
    if not _may_be_cut(net, inputs):
        return [whole(inputs)]
    longest = inputs.mask.shape[1]
    lengths = longest - np.argmax(inputs.mask[:, ::-1], axis=1)
    ends = _ends(lengths, longest, 1 + sum(inputs.size >= least for least in _WORTHWHILE))
    order = np.argsort(lengths, kind="stable")
    bounds = np.searchsorted(lengths[order], ends, side="right")
    parts = np.split(order, bounds[:-1])
    return [Group(part, end) for part, end in zip(parts, ends, strict=True) if len(part)]


def _ends(lengths: np.ndarray, longest: int, count: int) -> tuple[int, ...]:
    """The group lengths that leave the least padding; the last is the longest example's."""
    marks = sorted({-(-longest * k // _PARTS) for k in range(1, _PARTS)})
    choices = itertools.chain.from_iterable(
        itertools.combinations(marks, extra) for extra in range(count)
    )
    return min(
        ((*choice, longest) for choice in choices),
        key=lambda ends: int(np.asarray(ends)[np.searchsorted(ends, lengths)].sum()),
    )


def _may_be_cut(net: Layer, inputs: Inputs) -> bool:
    """Whether positions at the right end that are padding can be left out."""
    mask = inputs.mask
    if mask is None or isinstance(mask, tuple) or mask.ndim != 2 or mask.shape[1] < _SHORTEST:
        return False
    if net.sampled() or net.outline(inputs.outline).positions:
        return False
    return all(_indifferent(layer) for layer in _layers(net))


def _layers(net: Layer) -> Iterator[Layer]:
    """The layer and all layers inside it."""
    yield net
    inner = jax.tree.leaves(net, is_leaf=lambda n: n is not net and isinstance(n, Layer))
    for node in inner:
        if isinstance(node, Layer):
            yield from _layers(node)


def _indifferent(layer: Layer) -> bool:
    """Whether a layer never asks how long the array is."""
    if isinstance(layer, Conv):
        return layer.padding is Padding.SAME
    if isinstance(layer, MeanPool | SumPool):
        return layer.window is None
    if isinstance(layer, Attention):
        free = layer.pattern is None or isinstance(layer.pattern, Causal | Local)
        return free and not layer.positions.biases
    known = (Serial, Residual, Sum, Dense, Embedding, Activation, LayerNorm, Dropout)
    return isinstance(layer, known)
