"""Widths and heads of the finite network, changed in a finished description."""

from fractions import Fraction
from typing import TypeVar, cast

from ..layers.attention.heads import checked_heads
from ..layers.base import Layer
from ..options import whole

Net = TypeVar("Net", bound=Layer)


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

    net.resized(note, last=True)
    return cast(Net, net.resized(scaled, last=True)[0])


def with_heads(net: Net, heads: float) -> Net:
    """The same network with another number of heads in every attention layer.

    A network of `INFINITE` heads cannot be drawn, `with_heads(net, 8)` can. Grouped keys and values
    become separate ones.
    """
    return cast(Net, net.with_heads(checked_heads(heads)))
