"""Sliding windows over positions: the arithmetic shared by convolutions and pooling.

Output position `a` of one axis covers input positions `stride·a − before + offset` for
`offset = 0 … window−1`. "Same" padding is fixed on the left, `before = (window−1)//2`, whatever the
stride and the length, so that padding a sequence at the right changes nothing.

Transposed windows lead the other way: input position `i` covers output positions
`stride·i − before + offset`, with `before = (window−stride)//2` for "same" and "circular" padding.
They slide by single steps over an input with gaps of zeros.
"""

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

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
    """The windows on one position axis of known length."""

    window: int
    stride: int
    padding: Padding
    length: int
    transposed: bool = False

    @property
    def out(self) -> int:
        """Number of output positions."""
        valid = self.padding is Padding.VALID
        if self.transposed:
            # Windows and the gaps between them cover more than the stride of the last position.
            rest = max(self.window - self.stride, 0) if valid else 0
            return self.length * self.stride + rest
        if valid:
            return (self.length - self.window) // self.stride + 1
        return -(-self.length // self.stride)

    @property
    def step(self) -> int:
        """How far windows are apart on the padded input."""
        return 1 if self.transposed else self.stride

    @property
    def widths(self) -> tuple[int, int, int]:
        """How many positions are padded on the left, on the right, and between positions."""
        if self.transposed:
            return self.window - 1, max(self.window, self.stride) - 1, self.stride - 1
        if self.padding is Padding.VALID:
            return 0, 0, 0
        both = max((self.out - 1) * self.stride + self.window - self.length, 0)
        before = both // 2 if self.padding is Padding.BALANCED else (self.window - 1) // 2
        return before, max(both - before, 0), 0

    def fit(self, array: Array, dim: int) -> Array:
        """Of all that transposed windows cover: the middle (same), or all, wound around."""
        if not self.transposed or self.padding is Padding.VALID:
            return array
        before = max(self.window - self.stride, 0) // 2
        if self.padding is Padding.SAME:
            return lax.slice_in_dim(array, before, before + self.out, axis=dim)
        widths = [(0, 0)] * array.ndim
        widths[dim] = (0, -array.shape[dim] % self.out)
        shape = (*array.shape[:dim], -1, self.out, *array.shape[dim + 1 :])
        wound = jnp.pad(array, widths).reshape(shape).sum(axis=dim)
        return jnp.roll(wound, -before, axis=dim)


def layout(
    positions: tuple[int, ...],
    window: int | tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: Padding,
    *,
    transposed: bool = False,
) -> tuple[Axis, ...]:
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
    axes = tuple(Axis(w, s, padding, length, transposed) for w, s, length in parts)
    for axis in axes:
        if axis.out < 1:
            raise ShapeError(
                "The window is longer than the positions, which padding='valid' does not allow.",
                got=f"a window of {axis.window} on {axis.length} positions",
                remedy="use a smaller window, longer inputs, or padding='same'",
            )
    return axes


def pad(array: Array, axes: Sequence[Axis], dims: Sequence[int]) -> Array:
    """What the windows of each axis slide over, along its dimension."""
    widths = [(0, 0, 0)] * array.ndim
    for dim, axis in zip(dims, axes, strict=True):
        widths[dim] = axis.widths
    if all(width == (0, 0, 0) for width in widths):
        return array
    if axes[0].padding is Padding.CIRCULAR and not axes[0].transposed:
        return jnp.pad(array, [width[:2] for width in widths], mode="wrap")
    return lax.pad(array, jnp.zeros((), array.dtype), widths)


def slide(array: Array, axis: Axis, *dims: int) -> Array:
    """Sum over the window's offsets, moved together along all of `dims`.

    One dim: a sliding sum. Two dims (a position axis of either input): the sum
    `Σ_o κ[s·a−p+o, s·b−p+o]` that a convolution makes of a covariance.
    """
    total = functools.reduce(operator.add, _offsets(array, axis, *dims))
    for dim in dims:
        total = axis._replace(length=array.shape[dim]).fit(total, dim)
    return total


def patches(x: Array, axes: tuple[Axis, ...]) -> Array:
    """All that each window covers, (windows…, channels·offsets), of (positions…, channels)."""
    for dim, axis in enumerate(axes):
        x = jnp.stack(list(_offsets(x, axis, dim)), axis=-1)
    return x.reshape(*x.shape[: len(axes)], -1)


def _offsets(array: Array, axis: Axis, *dims: int) -> Iterator[Array]:
    """What stands at each offset of the windows along `dims`."""
    array = pad(array, [axis._replace(length=array.shape[dim]) for dim in dims], dims)
    for offset in range(axis.window):
        index = [slice(None)] * array.ndim
        for dim in dims:
            end = array.shape[dim] - axis.window + offset + 1
            index[dim] = slice(offset, end, axis.step)
        yield array[tuple(index)]


def mask_windows(mask: Bool[Array, "*positions"], axes: Sequence[Axis]) -> Bool[Array, "*windows"]:
    """Which windows are real: all of it (valid), or its centre (same).

    Of transposed ones: the output positions that the real positions alone would have.
    """
    padding = axes[0].padding
    if padding in (Padding.BALANCED, Padding.CIRCULAR):
        why = {
            Padding.BALANCED: "its windows depend on the length of the array",
            Padding.CIRCULAR: "the two ends it joins are those of the array",
        }
        raise ShapeError(
            f"{padding.value.capitalize()} padding met a mask: {why[padding]}.",
            got="a mask, so lengths that vary inside one array",
            remedy="use padding='same', or call the kernel once per length without a mask",
        )
    if axes[0].transposed:
        for dim, axis in enumerate(axes):
            # "Same" padding makes `stride` positions of each, "valid" all that windows cover.
            reach = axis.stride if padding is Padding.SAME else max(axis.window, axis.stride)
            covered = axis._replace(window=reach, padding=Padding.VALID)
            mask = slide(mask.astype(jnp.int32), covered, dim) > 0
        return mask
    if padding is Padding.VALID:
        counts = mask.astype(jnp.int32)
        for dim, axis in enumerate(axes):
            counts = slide(counts, axis, dim)
        return counts == volume(axes)
    return mask[tuple(slice(None, None, axis.stride) for axis in axes)]


def volume(axes: Sequence[Axis]) -> int:
    """How many positions a window covers."""
    return math.prod(axis.window for axis in axes)
