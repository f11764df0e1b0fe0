"""Widths and heads of the finite network, changed in a finished description."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

from ..layers.attention.heads import check_heads
from ..layers.base import Layer, with_fields
from ..layers.compose import Serial, map_layers
from ..options import whole

Net = TypeVar("Net", bound=Layer)

_WIDTHS = ("width", "key_width", "value_width")


def with_width(net: Net, width: int, *, outputs: int | None = None) -> Net:
    """The same network with hidden layers of another width.

    All hidden widths are multiplied by one factor, so that the narrowest becomes `width`: branches
    that are concatenated keep their shares. The layers that make the output keep their widths, or
    are scaled in the same way to `outputs` channels. Kernels in the NTK parameterisation do not
    change, but for two shares of channels: concatenated branches whose widths had to be rounded,
    and an encoding that counts as a stated number of channels (`Decay(combine="concat",
    channels=e)`), whose share `e/(c + e)` is that of the new width c.
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

    _resize(net, note, last=True)
    return _resize(net, scaled, last=True)[0]


def _resize(layer: Any, new: Callable[[int, bool], int], *, last: bool) -> tuple[Any, bool]:
    """The layer with widths `new(width, last)`, and whether the layer below comes last too.

    A layer comes last if no layer above it sets the number of channels: its width is that of the
    output. Widths that are None follow the input's.
    """
    if not layer.parts:
        given = {name: getattr(layer, name, None) for name in _WIDTHS}
        widths = {n: new(w, last and n == "width") for n, w in given.items() if w is not None}
        return with_fields(layer, **widths), last and given["width"] is None
    parts, below = [], False
    for part in reversed(layer.parts):
        made, under = _resize(part, new, last=last)
        parts.insert(0, made)
        below = below or under
        last = under if isinstance(layer, Serial) else last
    field = next(name for name, value in vars(layer).items() if value is layer.parts)
    return with_fields(layer, **{field: tuple(parts)}), last if isinstance(layer, Serial) else below


def with_heads(net: Net, heads: float) -> Net:
    """The same network with another number of heads in every attention layer.

    A network of `INFINITE` heads cannot be drawn, `with_heads(net, 8)` can. Grouped keys and values
    become separate ones.
    """
    count = check_heads(heads)

    def changed(layer: Layer) -> Layer:
        grouped = {"kv_heads": None} if hasattr(layer, "kv_heads") else {}
        return with_fields(layer, heads=count, **grouped) if hasattr(layer, "heads") else layer

    return map_layers(changed, net)
