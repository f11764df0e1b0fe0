"""Convolutions over positions of any dimension: shared weights, transposed, and of one's own."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from ..errors import OptionError, ShapeError
from ..options import choice, whole
from ..state import Example, Need, Outline, Pair
from .base import Facts, Layer, Memo, Params, fence
from .dense import Parameterization, Weights, add_bias, make_weights, require_channels
from .windows import Axis, Padding, extents, layout, mask_windows, pad, patches, slide, volume


class Convolution(Layer):
    """Fresh weights on what a window covers, at every position."""

    transposed: ClassVar[bool] = False
    """Whether windows stand on the output."""

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

    def axes(self, positions: tuple[int, ...]) -> tuple[Axis, ...]:
        """The windows on inputs with these positions."""
        return layout(positions, self.window, self.stride, self.padding, transposed=self.transposed)

    def outline(self, before: Outline) -> Outline:
        positions = tuple(axis.out for axis in self.axes(before.positions))
        return before.with_weights(positions=positions, channels=self.width)

    def mask(self, mask: Array) -> Array | None:
        return mask_windows(mask, self.axes(mask.shape))

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        windows = tuple(axis.window for axis in self.axes(before.positions))
        return self.weights.draw(key, (*windows, before.channels, self.width))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        axes = self.axes(x.shape[:-1])
        weight, bias = self.weights.scaled(params)
        require_channels(x, weight)
        letters = "DHWXYZ"[: len(axes)]
        y = lax.conv_general_dilated(
            pad(x, axes, range(len(axes)))[None],
            weight,
            window_strides=[axis.step for axis in axes],
            padding="VALID",
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        )[0]
        for dim, axis in enumerate(axes):
            y = axis.fit(y, dim)
        return add_bias(y, bias)

    def memo(self, example: Example) -> Memo:
        axes = self.axes(example.outline.positions)
        return self.weights.memo(None, volume(axes) * example.outline.channels)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        # Without the fence the layer below is computed anew for every offset of the window.
        pair = fence(pair.compute(), self.weights.w_std)
        axes = self.axes(pair.nngp.shape[: pair.rank])

        def average(kernel: Array) -> Array:
            for i, axis in enumerate(axes):
                dims = (i, pair.rank + i) if pair.full else (i,)
                kernel = slide(kernel, axis, *dims)
            return kernel * (1.0 / volume(axes))

        return self.weights.cross(pair.each(average), memo1, memo2)


class Conv(Convolution):
    """`y_a = σ_w/√(n·K) Σ_o W_o x_{s·a−p+o} + σ_b b` over the K offsets of a window.

    κ_ab ← σ_w² (1/K) Σ_o κ_{s·a−p+o, s·b−p+o} + σ_b²: the average over offsets moved together in
    both position indices, then the dense rule; Θ likewise.
    """

    __init__ = Convolution.__init__  # type checkers take inherited fields for arguments

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, cuttable=self.padding is Padding.SAME)


class ConvTranspose(Convolution):
    """`y_a = σ_w/√(n·K) Σ_{s·i−p+o = a} W_o x_i + σ_b b`: a position spreads over a window.

    `s` output positions come of each, with "valid" padding also the rest of the last window.
    κ_ab ← σ_w² (1/K) Σ_o κ_ij + σ_b² over offsets o with s·i − p + o = a and s·j − p + o = b: the
    transpose of what `Conv` does; Θ likewise. `p = ⌊(K−s)/2⌋`, 0 for "valid" and where K < s.
    """

    transposed: ClassVar[bool] = True

    __init__ = Convolution.__init__  # type checkers take inherited fields for arguments

    def __check_init__(self) -> None:
        if self.padding is Padding.BALANCED:
            raise OptionError(
                "padding='balanced' is not known for ConvTranspose, where 'same' is XLA's.",
                got="padding='balanced'",
                remedy="use padding='same', 'valid' or 'circular'",
            )

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, cuttable=self.padding is not Padding.CIRCULAR)


class ConvLocal(Conv):
    """`y_a = σ_w/√(n·K) Σ_o W_ao x_{s·a−p+o} + σ_b b_a`: every position has weights of its own.

    κ_ab ← δ_ab (σ_w² (1/K) Σ_o κ_{s·a−p+o, s·a−p+o} + σ_b²), Θ likewise. Only equal positions
    matter, so the layers below cost `O(S)` per pair instead of `O(S²)`.
    """

    __init__ = Conv.__init__  # type checkers take inherited fields for arguments

    @property
    def facts(self) -> Facts:
        return Facts(need=Need.DIAGONAL, linear=True)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        axes = self.axes(before.positions)
        keys = jax.random.split(key, math.prod(axis.out for axis in axes))
        shape = (before.channels * volume(axes), self.width)
        return jax.vmap(lambda own: self.weights.draw(own, shape))(keys)

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        axes = self.axes(x.shape[:-1])
        covered = patches(x, axes).reshape(-1, x.shape[-1] * volume(axes))
        weight, bias = jax.vmap(self.weights.scaled)(params)
        if weight.shape[:2] != covered.shape:
            raise ShapeError(
                "The parameters of ConvLocal were drawn for other positions or channels.",
                got=f"windows of shape {covered.shape}, and weights for {weight.shape[:2]}",
                remedy="call init with the shape of one example, x.shape[1:]",
            )
        y = jnp.einsum("ak,akc->ac", covered, weight)
        return add_bias(y, bias).reshape(*(axis.out for axis in axes), self.width)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        same = super().cross(pair.diagonal(), memo1, memo2)
        shape = same.nngp.shape * 2
        spread = same.each(lambda kernel: jnp.diag(kernel.reshape(-1)).reshape(shape))
        return replace(spread, full=True)
