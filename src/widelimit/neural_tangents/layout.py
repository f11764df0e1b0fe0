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
            given = [axis for axes in named if (axis := axes[place]) is not None]
            axes = {axis % ndim for axis in given if -ndim <= axis < ndim} or {usual % ndim}
            if len(axes) > 1 or any(not -ndim <= axis < ndim for axis in given):
                raise OptionError(
                    f"The layers of a network do not name one {name} of its inputs.",
                    got=f"{name} {', '.join(map(str, sorted(set(given))))} for {ndim} axes",
                    remedy=f"give every layer before pooling the same {name}=",
                )
            found.append(axes.pop())
        if found[0] == found[1]:
            raise OptionError(
                "batch_axis and channel_axis are one axis.",
                got=f"axis {found[0]} of {ndim}",
                remedy="name two axes",
            )
        return cls(ndim, *found)

    @property
    def order(self) -> tuple[int, ...]:
        """Examples, positions, channels: as axes of the array."""
        ends = (self.batch, self.channel)
        return (self.batch, *(i for i in range(self.ndim) if i not in ends), self.channel)

    def moved(self, x: Any) -> Any:
        """The array as (N, positions…, channels)."""
        return x if self.order == tuple(range(self.ndim)) else jnp.transpose(x, self.order)

    def ordered(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape as (N, positions…, channels)."""
        return tuple(shape[axis] for axis in self.order)

    @property
    def _back(self) -> list[int]:
        return sorted(range(self.ndim), key=self.order.__getitem__)

    def restored(self, x: Array) -> Array:
        """(N, positions…, channels) as the array was."""
        return jnp.transpose(x, self._back)

    def restored_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape (N, positions…, channels) as that of the array was."""
        return tuple(shape[axis] for axis in self._back)

    def after(self, positions: int) -> "Layout":
        """The layout where this many position axes are left, the first ones."""
        kept = [self.batch, *self.order[1 : 1 + positions], self.channel]
        places = sorted(kept)
        return Layout(len(kept), places.index(self.batch), places.index(self.channel))
