"""Where examples and channels stand among the axes of an input."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ..errors import OptionError


class Layout(NamedTuple):
    """`batch_axis` and `channel_axis` of arrays with `ndim` axes, both counted from 0."""

    ndim: int
    batch: int
    channel: int

    @classmethod
    def of(cls, ndim: int, named: Sequence[tuple[int | None, int | None]]) -> "Layout":
        """From the axes that layers name, which must agree."""
        found = []
        for place, name, usual in ((0, "batch_axis", 0), (1, "channel_axis", -1)):
            given = {axis for axes in named if (axis := axes[place]) is not None} or {usual}
            axes = {axis % ndim for axis in given}
            if len(axes) > 1 or any(not -ndim <= axis < ndim for axis in given) or axes == {*found}:
                raise OptionError(
                    f"The layers of a network do not name one axis as its {name}, other than that "
                    "of examples.",
                    got=f"{name} {', '.join(map(str, sorted(given)))} for {ndim} axes",
                    remedy=f"give every layer before pooling the same {name}=, and different axes "
                    "for examples and channels",
                )
            found += axes
        return cls(ndim, *found)

    @property
    def order(self) -> tuple[int, ...]:
        """Examples, positions, channels: as axes of the array."""
        ends = (self.batch, self.channel)
        return (self.batch, *(i for i in range(self.ndim) if i not in ends), self.channel)

    def after(self, positions: int) -> "Layout":
        """The layout where this many position axes are left, the first ones."""
        kept = sorted([self.batch, *self.order[1 : 1 + positions], self.channel])
        return Layout(len(kept), kept.index(self.batch), kept.index(self.channel))

    def moved(self, x: Any) -> Any:
        """The array as (N, positions…, channels)."""
        return jnp.moveaxis(x, (self.batch, self.channel), (0, -1))

    def ordered(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape as (N, positions…, channels)."""
        return tuple(shape[axis] for axis in self.order)

    def restored(self, x: Array) -> Array:
        """(N, positions…, channels) as the array was, without axes that are gone."""
        _, batch, channel = self.after(x.ndim - 2)
        return jnp.moveaxis(x, (0, -1), (batch, channel))

    def restored_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape (N, positions…, channels) as that of the array was."""
        order = self.after(len(shape) - 2).order
        return tuple(shape[order.index(axis)] for axis in range(len(shape)))
