"""Layers that are linear over positions: pooling, selecting a position, flattening."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..errors import OptionError, ShapeError
from ..options import choice
from ..printing import brief
from ..state import Example, Mean, Need, Outline, Pair
from .base import Facts, Layer, Memo, require_positions
from .windows import (
    Axis,
    Padding,
    extents,
    layout,
    slide,
    volume,
    window_mask,
)


class PositionMap(Layer):
    """A linear map over positions, the same for every channel: `f ← L(x) f`, `κ ← L(x) κ L(x')ᵀ`.

    A subclass says once what it does to (positions…, anything); the finite network, the kernels and
    pending maps all use that.
    """

    @abstractmethod
    def mix(self, f: Array, mask: Array | None) -> Array:
        """The map on an array with leading position axes."""

    @property
    def facts(self) -> Facts:
        return Facts(need=Need.FULL, linear=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return self.mix(x, mask)

    def memo(self, example: Example) -> Memo:
        return example.mask

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return pair.mixed(lambda f: self.mix(f, memo1), lambda f: self.mix(f, memo2))

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.mapped_mean(lambda m: self.mix(m[..., None], example.mask)[..., 0])

    def features(self, example: Example) -> Array | None:
        rows = example.features
        return None if rows is None else self.mix(rows, example.mask)


class _Pool(PositionMap):
    """Pooling over all positions, or over windows."""

    window: int | tuple[int, ...] | None = eqx.field(static=True)
    stride: int | tuple[int, ...] | None = eqx.field(static=True)
    padding: Padding = eqx.field(static=True)

    def __init__(
        self,
        window: int | tuple[int, ...] | None = None,
        *,
        stride: int | tuple[int, ...] | None = None,
        padding: Padding | str = Padding.VALID,
    ):
        """Without a window: over all (real) positions. `stride` defaults to the window."""
        self.window = None if window is None else extents("window", window)
        self.stride = None if stride is None else extents("stride", stride)
        self.padding = choice(Padding, padding, "padding")
        if self.padding is Padding.CIRCULAR:
            raise ShapeError(
                "padding='circular' is not known for pooling, whose windows do not wrap around.",
                got="padding='circular'",
                remedy="use padding='valid' or 'same'",
            )

    @property
    def facts(self) -> Facts:
        cuttable = self.window is None
        return Facts(need=Need.FULL, linear=True, keeps_zeros=True, cuttable=cuttable)

    def axes(self, positions: tuple[int, ...]) -> tuple[Axis, ...]:
        """The windows on inputs with these positions."""
        assert self.window is not None
        stride = self.window if self.stride is None else self.stride
        return layout(positions, self.window, stride, self.padding)

    def outline(self, before: Outline) -> Outline:
        if self.window is None:
            require_positions(before, type(self).__name__)
            return before.to(positions=())
        return before.to(positions=tuple(axis.out for axis in self.axes(before.positions)))

    def mask(self, mask: Array) -> Array | None:
        return None if self.window is None else window_mask(mask, self.axes(mask.shape))

    def memo(self, example: Example) -> Memo:
        mask = example.mask
        return mask, None if mask is None else jnp.sum(mask)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        if self.window is not None:
            return super().cross(pair, memo1[0], memo2[0])
        if pair.terms is not None:
            return pair.mixed(lambda f: self._pooled(f, *memo1), lambda f: self._pooled(f, *memo2))
        # Kernels are zero at padding: the sum over everything is that over real positions.
        sizes = pair.nngp.shape[: pair.rank], pair.nngp.shape[pair.rank :]
        shares = [
            self.share(math.prod(size) if real is None else real.astype(pair.nngp.dtype))
            for size, (_, real) in zip(sizes, (memo1, memo2), strict=True)
        ]
        whole = pair.each(lambda kernel: jnp.sum(kernel) * (shares[0] * shares[1]))
        return Pair(whole.nngp, whole.ntk, 0, True, settled=True, blank=whole.blank)

    def mix(self, f: Array, mask: Array | None) -> Array:
        if self.window is None:
            return self._pooled(f, mask, None if mask is None else jnp.sum(mask))
        return self.windowed(f, mask)

    def _pooled(self, f: Array, mask: Array | None, real: Array | None) -> Array:
        """Over all positions, of which `real` are real."""
        f = _hidden(f, mask)
        size = math.prod(f.shape[:-1]) if real is None else real.astype(f.dtype)
        return jnp.sum(f, axis=tuple(range(f.ndim - 1))) * self.share(size)

    @abstractmethod
    def share(self, count: Any) -> Any:
        """What each position contributes where `count` are pooled."""

    @abstractmethod
    def windowed(self, f: Array, mask: Array | None) -> Array:
        """Over every window."""

    def sums(self, f: Array, mask: Array | None) -> Array:
        """Sum over real positions of every window."""
        f = _hidden(f, mask)
        for dim, axis in enumerate(self.axes(f.shape[:-1])):
            f = slide(f, axis, dim)
        return f if mask is None else _hidden(f, window_mask(mask, self.axes(mask.shape)))


def _hidden(f: Array, mask: Array | None) -> Array:
    """Zero at padding; multiplying fuses better than selecting."""
    return f if mask is None else f * mask[..., None].astype(f.dtype)


class SumPool(_Pool):
    """Sum over the real positions of each window (by default: of everything)."""

    __init__ = _Pool.__init__  # type checkers take inherited fields for arguments

    def share(self, count: Any) -> Any:
        return 1.0

    def windowed(self, f: Array, mask: Array | None) -> Array:
        return self.sums(f, mask)


class MeanPool(_Pool):
    """Average over the real positions of each window (by default: of everything)."""

    __init__ = _Pool.__init__  # type checkers take inherited fields for arguments

    def share(self, count: Any) -> Any:
        return 1.0 / count if isinstance(count, int) else 1.0 / jnp.maximum(count, 1)

    def windowed(self, f: Array, mask: Array | None) -> Array:
        if mask is None and self.padding is Padding.VALID:
            return self.sums(f, None) * (1.0 / volume(self.axes(f.shape[:-1])))
        counts = self.sums(jnp.ones((*f.shape[:-1], 1), f.dtype), mask)
        return self.sums(f, mask) / jnp.maximum(counts, 1)


class Select(PositionMap):
    """One position: the first, the last real one, or a given index (a class token, a read-out)."""

    index: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, index: int | tuple[int, ...] = 0):
        """Negative indices count from the end of the real positions."""
        given = index if isinstance(index, tuple | list) else (index,)
        if not given or any(
            isinstance(i, bool) or not isinstance(i, int | np.integer) for i in given
        ):
            raise OptionError(
                "index= is not an integer, nor one for each position axis.",
                got=f"index={index!r}",
                remedy="give an integer (sequences) or a tuple (images)",
            )
        self.index = tuple(int(i) for i in given)

    def __repr__(self) -> str:
        return f"Select({brief(self.index[0] if len(self.index) == 1 else self.index)})"

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "Select")
        self._indices(before.positions)
        return before.to(positions=())

    def _indices(self, positions: tuple[int, ...]) -> tuple[int, ...]:
        index = self.index
        if len(index) != len(positions) or any(
            not -extent <= i < extent for i, extent in zip(index, positions, strict=False)
        ):
            raise ShapeError(
                "The index of Select does not lie within the positions of its input.",
                got=f"index {self.index!r} for positions of shape {positions}",
                remedy="give an integer (sequences) or a tuple (images) within the shape",
            )
        return index

    def mask(self, mask: Array) -> Array | None:
        return None

    def mix(self, f: Array, mask: Array | None) -> Array:
        index = self._indices(f.shape[:-1])
        if mask is None or all(i >= 0 for i in index):
            return f[index]
        if len(index) != 1:
            raise ShapeError(
                "A negative index of Select cannot be counted from the end of a masked image.",
                got=f"index {self.index!r} with a mask over {len(index)} position axes",
                remedy="select by non-negative indices",
            )
        last = f.shape[0] - 1 - jnp.argmax(mask[::-1])
        return jnp.take(f, last + 1 + index[0], axis=0)


class Flatten(Layer):
    """All positions and channels in one vector: κ ← (1/S) Σ_a κ_aa, the same for Θ.

    Only equal positions matter, so the layers below cost `O(S)` per pair instead of `O(S²)`.
    """

    def outline(self, before: Outline) -> Outline:
        size = math.prod(before.positions)
        return before.to(
            positions=(),
            channels=before.channels * size,
            gaussian=before.gaussian and size == 1,
            alike=before.alike and size == 1,
        )

    @property
    def facts(self) -> Facts:
        return Facts(need=Need.DIAGONAL, linear=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return x.reshape(-1)

    def mask(self, mask: Array) -> Array | None:
        raise ShapeError(
            "Flatten met a mask: it gives every position its own weights.",
            got="a mask",
            remedy="pool or select a position instead (MeanPool, Select), or pass no mask",
        )

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        flat = pair.diagonal()
        axes = tuple(range(pair.rank))
        averaged = flat.each(lambda kernel: jnp.mean(kernel, axis=axes) if axes else kernel)
        return Pair(averaged.nngp, averaged.ntk, 0, True)

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.mapped_mean(jnp.mean)

    def features(self, example: Example) -> Array | None:
        rows = example.features
        if rows is None:
            return None
        return rows.reshape(-1) / jnp.sqrt(jnp.asarray(math.prod(rows.shape[:-1]), rows.dtype))
