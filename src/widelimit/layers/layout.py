"""The order of entries in an input: channels first, images in patches, everything in a row."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array

from ..errors import NetworkError, ShapeError
from ..options import listed, whole
from ..state import Outline, Pair
from .base import Facts, Memo, RowMap


def _integers(name: str, values: Any) -> tuple[int, ...]:
    return tuple(whole(name, value, least=0) for value in listed(name, values))


class Rearrange(RowMap):
    """Entries of every example in another order, before all other layers.

    Axes of the input are split into `factors` (None: not at all), put into `order`, and merged in
    `groups`: the last group are the channels, the others positions. `Rearrange((1, 2, 0))` takes
    images with channels first; with `factors=((3,), (2, 4), (2, 4))`, `order=(1, 3, 2, 4, 0)` and
    `groups=(1, 1, 3)` it cuts images (3, 8, 8) into patches, a position each.
    """

    order: tuple[int, ...] = eqx.field(static=True)
    factors: tuple[tuple[int, ...], ...] | None = eqx.field(static=True)
    groups: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        order: Sequence[int],
        *,
        factors: Sequence[Sequence[int]] | None = None,
        groups: Sequence[int] | None = None,
    ):
        """See the class; `groups` are counts of axes, by default 1 for each."""
        self.order = _integers("order", order)
        self.groups = None if groups is None else _integers("groups", groups)
        self.factors = None
        if factors is not None:
            self.factors = tuple(_integers("factors", f) for f in listed("factors", factors))
        count = len(self.order) if self.factors is None else sum(map(len, self.factors))
        if sorted(self.order) != list(range(count)) or sum(self.merged) != count:
            raise NetworkError(
                "Rearrange does not use every axis once.",
                got=f"order={self.order}, factors={self.factors}, groups={self.groups}",
                remedy="let order name each axis once, and groups count them all",
            )

    @property
    def merged(self) -> tuple[int, ...]:
        """How many axes make a position axis each, and the channels."""
        return (1,) * len(self.order) if self.groups is None else self.groups

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """What an example of this shape becomes."""
        split, ends = self._split(shape), np.cumsum((0, *self.merged))
        moved = [split[axis] for axis in self.order]
        return tuple(math.prod(moved[a:b]) for a, b in itertools.pairwise(ends))

    def reorder(self, x: Any) -> Any:
        """A batch in the new order."""
        size, *shape = x.shape
        moved = x.reshape(size, *self._split(shape)).transpose(0, *(a + 1 for a in self.order))
        return moved.reshape(size, *self.shape(shape))

    def _split(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of all axes after splitting."""
        factors = [(n,) for n in shape] if self.factors is None else self.factors
        split = tuple(n for f in factors for n in f)
        if list(shape) != [math.prod(f) for f in factors] or len(split) != len(self.order):
            raise ShapeError(
                f"Examples of shape {tuple(shape)} do not fit the network's first layer.",
                got=repr(self),
                remedy="pass inputs (examples, …) of the layout that it takes",
            )
        return split

    def outline(self, before: Outline) -> Outline:
        """That of the rearranged inputs: this happens where inputs enter, not layer by layer."""
        return before

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, keeps_zeros=True, cuttable=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return x

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return pair

    def mix(self, f: Array, memo: Memo) -> Array:
        return f
