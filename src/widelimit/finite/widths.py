"""Widths and heads of the finite network, changed in a finished description."""

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import jax

from ..layers.attention.cross import QueriedAttention
from ..layers.attention.layer import Attention, checked_heads
from ..layers.base import Layer
from ..layers.branches import Branches
from ..layers.compose import Parallel, Serial
from ..options import whole

Net = TypeVar("Net", bound=Layer)

_ATTENTION = (Attention, QueriedAttention)

# The fields that count channels of the finite network; None follows another width.
_FIELDS = ("width", "key_width", "value_width")


def with_width(net: Net, width: int, *, outputs: int | None = None) -> Net:
    """The same network with hidden layers of another width.

    All hidden widths are multiplied by one factor, so that the narrowest becomes `width`: branches
    that are concatenated keep their shares. The layers that make the output keep their widths, or
    are scaled in the same way to `outputs` channels. Kernels in the NTK parameterisation do not
    change.
    """
    last_width = None if outputs is None else whole("outputs", outputs)
    targets = {False: whole("width", width), True: last_width}
    found: dict[bool, list[int]] = {False: [], True: []}

    def note(old: int, last: bool) -> int:
        found[last].append(old)
        return old

    def scaled(old: int, last: bool) -> int:
        target = targets[last]
        return old if target is None else round(old * Fraction(target, min(found[last])))

    _resized(net, note, last=True)
    return _resized(net, scaled, last=True)[0]


def _resized(layer: Any, new: Callable[[int, bool], int], *, last: bool) -> tuple[Any, bool]:
    """The layer with `new(width, last)` channels, and whether the layer below it comes `last` too.

    A layer comes last if no layer above it sets the number of channels.
    """
    if isinstance(layer, Serial):
        layers = []
        for one in reversed(layer.layers):
            one, last = _resized(one, new, last=last)
            layers.append(one)
        return Serial(*reversed(layers)), last
    if isinstance(layer, Parallel):
        streams = [_resized(net, new, last=last) for net in layer.networks]
        return Parallel(*(net for net, _ in streams)), any(below for _, below in streams)
    if isinstance(layer, Branches):
        ends = [_resized(branch, new, last=last) for branch in layer.branches]
        return layer.rebuilt(tuple(branch for branch, _ in ends)), any(below for _, below in ends)
    if not hasattr(layer, "width"):
        return layer, last
    changed = copy.copy(layer)
    for name in _FIELDS:
        value = getattr(layer, name, None)
        if value is not None:
            object.__setattr__(changed, name, new(value, last and name == "width"))
    return changed, last and layer.width is None


def with_heads(net: Net, heads: float) -> Net:
    """The same network with another number of heads in every attention layer.

    `with_heads(net, 8)` of a description with `INFINITE` heads can be drawn; grouped keys and
    values become separate ones.
    """
    heads = checked_heads(heads)

    def changed(layer: Any) -> Any:
        if not isinstance(layer, _ATTENTION):
            return layer
        other = copy.copy(layer)
        object.__setattr__(other, "heads", heads)
        if isinstance(layer, Attention):
            object.__setattr__(other, "kv_heads", None)
        return other

    return jax.tree.map(changed, net, is_leaf=lambda node: isinstance(node, _ATTENTION))
