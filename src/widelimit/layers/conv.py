"""Convolution over positions of any dimension."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from ..errors import ShapeError
from ..options import choice, whole
from ..state import Example, Outline, Pair
from .base import Facts, Layer, Memo, Params, fenced
from .dense import (
    Parameterization,
    Weights,
    make_weights,
    require_channels,
)
from .windows import (
    Axis,
    Padding,
    extents,
    layout,
    slide,
    volume,
    window_mask,
)


class Conv(Layer):
    """`y_a = σ_w/√(n·K) Σ_o W_o x_{s·a−p+o} + σ_b b` over the K offsets of a window.

    κ_ab ← σ_w² (1/K) Σ_o κ_{s·a−p+o, s·b−p+o} + σ_b²: the average over offsets moved together in
    both position indices, then the dense rule; Θ likewise.
    """

    width: int = eqx.field(static=True)
    window: int | tuple[int, ...] = eqx.field(static=True)
    stride: int | tuple[int, ...] = eqx.field(static=True)
    padding: Padding = eqx.field(static=True)
    weights: Weights

    def __init__(
        self,
        width: int,
        window: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] = 1,
        padding: Padding | str = Padding.SAME,
        w_std: Any = 1.0,
        b_std: Any = 0.0,
        parameterization: Parameterization | str = Parameterization.NTK,
    ):
        """`window` and `stride`: one integer for all position axes, or one for each.

        `padding`: "same", "valid", "circular" or "balanced" (see `Padding`). The others are as in
        `Dense`.
        """
        self.width = whole("width", width)
        self.window = extents("window", window)
        self.stride = extents("stride", stride)
        self.padding = choice(Padding, padding, "padding")
        self.weights = make_weights(w_std, b_std, parameterization)

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, cuttable=self.padding is Padding.SAME)

    def axes(self, positions: tuple[int, ...]) -> tuple[Axis, ...]:
        """The windows on inputs with these positions."""
        return layout(positions, self.window, self.stride, self.padding)

    def outline(self, before: Outline) -> Outline:
        positions = tuple(axis.out for axis in self.axes(before.positions))
        return before.with_weights(positions=positions, channels=self.width)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        windows = tuple(axis.window for axis in self.axes(before.positions))
        return self.weights.draw(key, (*windows, before.channels, self.width))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        weight, bias = self.weights.scaled(params)
        require_channels(x, weight)
        axes = self.axes(x.shape[:-1])
        pads = [(axis.before, axis.after) for axis in axes]
        mode = "wrap" if self.padding is Padding.CIRCULAR else "constant"
        padded = jnp.pad(x, [*pads, (0, 0)], mode=mode)
        letters = "DHWXYZ"[: len(axes)]
        y = lax.conv_general_dilated(
            padded[None],
            weight,
            window_strides=[axis.stride for axis in axes],
            padding="VALID",
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        )[0]
        y = y[tuple(slice(axis.out) for axis in axes)]
        return y if bias is None else y + bias.reshape((1,) * len(axes) + (-1,))

    def mask(self, mask: Array) -> Array | None:
        if self.padding is Padding.CIRCULAR:
            raise ShapeError(
                "Circular padding met a mask: the two ends it joins are those of the array.",
                got="a mask, so lengths that vary inside one array",
                remedy="use padding='same', or call the kernel once per length without a mask",
            )
        return window_mask(mask, self.axes(mask.shape))

    def memo(self, example: Example) -> Memo:
        axes = self.axes(example.outline.positions)
        return self.weights.memo(None, volume(axes) * example.outline.channels)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        # Without the fence the layer below is computed anew for every offset of the window.
        pair = fenced(pair.forced(), self.weights.w_std)
        axes = self.axes(pair.nngp.shape[: pair.rank])

        def average(kernel: Array) -> Array:
            for i, axis in enumerate(axes):
                dims = (i, pair.rank + i) if pair.full else (i,)
                kernel = slide(kernel, axis, *dims)
            return kernel * (1.0 / volume(axes))

        return self.weights.cross(pair.each(average), memo1, memo2)
