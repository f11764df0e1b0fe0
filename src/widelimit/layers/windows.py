"""Sliding windows over positions: the arithmetic shared by convolutions and pooling.

Output position `a` of one axis covers input positions `stride·a − before + offset` for
`offset = 0 … window−1`. "Same" padding is fixed on the left, `before = (window−1)//2`, whatever the
stride and the length, so that padding a sequence at the right changes nothing.

Transposed windows lead the other way: input position `i` covers output positions
`stride·i − before + offset`, with `before = (window−stride)//2` for "same" and "circular" padding.
"""

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from ..errors import ShapeError
from ..options import whole


class Padding(Enum):
    """What a window sees beyond the edge."""

    SAME = "same"
    """Zeros; the output has length ⌈length/stride⌉."""
    VALID = "valid"
    """Nothing: windows lie inside."""
    CIRCULAR = "circular"
    """The other end."""
    BALANCED = "balanced"
    """Zeros, equally many on both sides: XLA's "same". Beyond stride 1 the windows depend on the
    length, so that it takes no masks."""


def extents(name: str, value: Any) -> int | tuple[int, ...]:
    """A positive integer, or one for each position axis."""
    if isinstance(value, tuple | list) and value:
        return tuple(whole(name, extent) for extent in value)
    return whole(name, value)


def per_axis(value: int | tuple[int, ...], rank: int, name: str) -> tuple[int, ...]:
    """One extent per position axis; a single integer serves for all."""
    values = (value,) * rank if isinstance(value, int) else value
    if len(values) != rank:
        raise ShapeError(
            f"'{name}' is not a positive integer, nor one for each position axis.",
            got=f"{name}={value!r} for inputs with {rank} position axes",
            remedy=f"give an integer, or a tuple of {rank}",
        )
    return values


class Axis(NamedTuple):
    """The window on one position axis of known length."""

    window: int
    stride: int
    padding: Padding
    length: int

    @property
    def out(self) -> int:
        """Number of output positions."""
        if self.padding is Padding.VALID:
            return (self.length - self.window) // self.stride + 1
        return -(-self.length // self.stride)

    @property
    def before(self) -> int:
        """How many positions are padded on the left."""
        if self.padding is Padding.BALANCED:
            return max((self.out - 1) * self.stride + self.window - self.length, 0) // 2
        return 0 if self.padding is Padding.VALID else (self.window - 1) // 2

    @property
    def after(self) -> int:
        """How many positions are padded on the right."""
        return max((self.out - 1) * self.stride + self.window - self.length - self.before, 0)


class TransposedAxis(NamedTuple):
    """The same for windows on the output: every input position is spread over one."""

    window: int
    stride: int
    padding: Padding
    length: int

    @property
    def reach(self) -> int:
        """Number of positions that windows and the gaps between them cover."""
        return (self.length - 1) * self.stride + max(self.window, self.stride)

    @property
    def out(self) -> int:
        """Number of output positions."""
        return self.reach if self.padding is Padding.VALID else self.length * self.stride

    def spread(self, array: Array, *dims: int) -> Array:
        """Add every entry to its window, moved along all of `dims`: the transpose of `slide`."""
        axes = [self._replace(length=array.shape[dim]) for dim in dims]
        parts = []
        for offset in range(self.window):
            widths = [(0, 0, 0)] * array.ndim
            for dim, axis in zip(dims, axes, strict=True):
                end = offset + (axis.length - 1) * self.stride + 1
                widths[dim] = (offset, axis.reach - end, self.stride - 1)
            parts.append(lax.pad(array, jnp.zeros((), array.dtype), widths))
        total = functools.reduce(operator.add, parts)
        for dim, axis in zip(dims, axes, strict=True):
            total = axis.fitted(total, dim)
        return total

    def fitted(self, array: Array, dim: int) -> Array:
        """Of all that windows cover, the output: the middle (same), or all, wound around."""
        if self.padding is Padding.VALID:
            return array
        before = max(self.window - self.stride, 0) // 2
        if self.padding is Padding.SAME:
            return lax.slice_in_dim(array, before, before + self.out, axis=dim)
        widths = [(0, 0)] * array.ndim
        widths[dim] = (0, -array.shape[dim] % self.out)
        shape = (*array.shape[:dim], -1, self.out, *array.shape[dim + 1 :])
        wound = jnp.pad(array, widths).reshape(shape).sum(axis=dim)
        return jnp.roll(wound, -before, axis=dim)


Kind = TypeVar("Kind", Axis, TransposedAxis)


def layout(
    positions: tuple[int, ...],
    window: int | tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: Padding,
    kind: type[Kind] = Axis,
) -> tuple[Kind, ...]:
    """The windows on every axis of `positions`."""
    if not positions:
        raise ShapeError(
            "The input has no positions: convolution and pooling move over positions.",
            got="an input without position axes, shape (N, channels)",
            remedy="give inputs (N, positions…, channels), or put the layer before Flatten",
        )
    windows = per_axis(window, len(positions), "window")
    strides = per_axis(stride, len(positions), "stride")
    parts = zip(windows, strides, positions, strict=True)
    axes = tuple(kind(w, s, padding, length) for w, s, length in parts)
    for axis in axes:
        if axis.out < 1:
            raise ShapeError(
                "The window is longer than the positions, which padding='valid' does not allow.",
                got=f"a window of {axis.window} on {axis.length} positions",
                remedy="use a smaller window, longer inputs, or padding='same'",
            )
    return axes


def slide(array: Array, axis: Axis, *dims: int) -> Array:
    """Sum over the window's offsets, moved together along all of `dims`.

    One dim: a sliding sum. Two dims (a position axis of either input): the sum
    `Σ_o κ[s·a−p+o, s·b−p+o]` that a convolution makes of a covariance.
    """
    return functools.reduce(operator.add, _offsets(array, axis, *dims))


def patches(x: Array, axes: tuple[Axis, ...]) -> Array:
    """All that each window covers, (windows…, channels·offsets), of (positions…, channels)."""
    for dim, axis in enumerate(axes):
        x = jnp.stack(list(_offsets(x, axis, dim)), axis=-1)
    return x.reshape(*x.shape[: len(axes)], -1)


def _offsets(array: Array, axis: Axis, *dims: int) -> Iterator[Array]:
    """What stands at each offset of the windows along `dims`."""
    extents = [axis._replace(length=array.shape[d]) for d in dims]
    widths = [(0, 0)] * array.ndim
    for d, extent in zip(dims, extents, strict=True):
        widths[d] = (extent.before, extent.after)
    if any(pad != (0, 0) for pad in widths):
        mode = "wrap" if axis.padding is Padding.CIRCULAR else "constant"
        array = jnp.pad(array, widths, mode=mode)
    for offset in range(axis.window):
        index = [slice(None)] * array.ndim
        for d, extent in zip(dims, extents, strict=True):
            end = offset + (extent.out - 1) * axis.stride + 1
            index[d] = slice(offset, end, axis.stride)
        yield array[tuple(index)]


def window_mask(mask: Bool[Array, "*positions"], axes: tuple[Axis, ...]) -> Bool[Array, "*windows"]:
    """Which windows are real: all of it (valid), or its centre (same)."""
    if axes[0].padding is Padding.BALANCED:
        raise ShapeError(
            "Balanced padding met a mask: its windows depend on the length of the array.",
            got="a mask, so lengths that vary inside one array",
            remedy="use padding='same', or call the kernel once per length without a mask",
        )
    if axes[0].padding is Padding.VALID:
        counts = mask.astype(jnp.int32)
        for dim, axis in enumerate(axes):
            counts = slide(counts, axis, dim)
        return counts == volume(axes)
    return mask[tuple(slice(None, None, axis.stride) for axis in axes)]


def spread_mask(
    mask: Bool[Array, "*positions"], axes: tuple[TransposedAxis, ...]
) -> Bool[Array, "*out"]:
    """Which output positions are real: those the real positions alone would have."""
    for dim, axis in enumerate(axes):
        # "Same" padding makes `stride` positions of each, "valid" all that windows cover.
        reach = axis.stride if axis.padding is Padding.SAME else max(axis.window, axis.stride)
        covered = axis._replace(window=reach, padding=Padding.VALID)
        mask = covered.spread(mask.astype(jnp.int32), dim) > 0
    return mask


def volume(axes: Sequence[Axis | TransposedAxis]) -> int:
    """How many positions a window covers."""
    return math.prod(axis.window for axis in axes)
