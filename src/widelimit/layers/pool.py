"""Layers that are linear over positions: pooling, slicing, resizing, flattening."""

import math
import operator
from abc import abstractmethod
from dataclasses import replace
from enum import Enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..errors import OptionError, ShapeError
from ..options import choice
from ..printing import brief
from ..state import Example, Mean, Need, Outline, Pair
from .base import Facts, Layer, Memo, RowMap, require_positions
from .windows import Axis, Padding, extents, layout, mask_windows, per_axis, slide, volume


class PositionMap(RowMap):
    """A linear map over positions that depends on the mask alone: κ ← L(x) κ L(x')ᵀ, Θ likewise.

    A subclass says once, by `mix`, what it does to (positions…, anything); the finite network, the
    kernels and pending maps all use that.
    """

    @property
    def facts(self) -> Facts:
        return Facts(need=Need.FULL, linear=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return self.mix(x, mask)

    def memo(self, example: Example) -> Memo:
        return example.mask

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return pair.map_positions(lambda f: self.mix(f, memo1), lambda f: self.mix(f, memo2))


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

    @property
    def facts(self) -> Facts:
        cuttable = self.window is None
        return Facts(need=Need.FULL, linear=True, keeps_zeros=True, cuttable=cuttable)

    def axes(self, positions: tuple[int, ...]) -> tuple[Axis, ...]:
        """The windows on inputs with these positions."""
        assert self.window is not None
        return layout(positions, self.window, self.stride or self.window, self.padding)

    def outline(self, before: Outline) -> Outline:
        if self.window is None:
            require_positions(before, type(self).__name__)
            return before.to(positions=())
        return before.to(positions=tuple(axis.out for axis in self.axes(before.positions)))

    def mask(self, mask: Array) -> Array | None:
        return None if self.window is None else mask_windows(mask, self.axes(mask.shape))

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        if self.window is not None or pair.terms is not None:
            return super().cross(pair, memo1, memo2)
        # Kernels are zero at padding: the sum over everything is that over real positions.
        shape, dtype = pair.nngp.shape, pair.nngp.dtype
        share = self.share(_count(memo1, shape[: pair.rank], dtype))
        share = share * self.share(_count(memo2, shape[pair.rank :], dtype))
        whole = pair.each(lambda kernel: jnp.sum(kernel) * share)
        return Pair(whole.nngp, whole.ntk, 0, True, settled=True, blank=whole.blank)

    def mix(self, f: Array, memo: Memo) -> Array:
        if self.window is None:
            share = self.share(_count(memo, f.shape[:-1], f.dtype))
            return jnp.sum(_hide(f, memo), axis=tuple(range(f.ndim - 1))) * share
        if memo is None and self.padding is Padding.VALID:
            return self.sums(f, None) * self.share(volume(self.axes(f.shape[:-1])))
        counts = self.sums(jnp.ones((*f.shape[:-1], 1), f.dtype), memo)
        return self.sums(f, memo) * self.share(counts)

    @abstractmethod
    def share(self, count: Any) -> Any:
        """What each position contributes where `count` are pooled."""

    def sums(self, f: Array, mask: Array | None) -> Array:
        """Sum over real positions of every window."""
        f = _hide(f, mask)
        for dim, axis in enumerate(self.axes(f.shape[:-1])):
            f = slide(f, axis, dim)
        return f if mask is None else _hide(f, mask_windows(mask, self.axes(mask.shape)))


def _hide(f: Array, mask: Array | None) -> Array:
    """Zero at padding; multiplying fuses better than selecting."""
    return f if mask is None else f * mask[..., None].astype(f.dtype)


def _count(mask: Array | None, positions: tuple[int, ...], dtype: Any) -> Any:
    """How many positions are real."""
    return math.prod(positions) if mask is None else jnp.sum(mask).astype(dtype)


class SumPool(_Pool):
    """Sum over the real positions of each window (by default: of everything)."""

    __init__ = _Pool.__init__  # type checkers take inherited fields for arguments

    def share(self, count: Any) -> Any:
        return 1.0


class MeanPool(_Pool):
    """Average over the real positions of each window (by default: of everything)."""

    __init__ = _Pool.__init__  # type checkers take inherited fields for arguments

    def share(self, count: Any) -> Any:
        return 1.0 / count if isinstance(count, int) else 1.0 / jnp.maximum(count, 1)


class Select(PositionMap):
    """One position (the first, the last real one, a given one), or a slice of every axis.

    `Select(0)` reads a class token, `Select(-1)` the last real position, `Select(slice(0, 9, 2))`
    every second of nine; `Select((slice(0, 2), 3))` leaves two rows of one column of an image.
    """

    index: tuple[Any, ...] = eqx.field(static=True)  # slices as (start, stop, step): hashable

    def __init__(self, index: int | slice | tuple[int | slice, ...] = 0):
        """NumPy's basic indices; negative ones count from the end of the real positions."""
        given = index if isinstance(index, tuple | list) else (index,)
        try:
            self.index = tuple(
                _plain((i.start, i.stop, i.step)) if isinstance(i, slice) else _plain((i,))[0]
                for i in given
            )
            good = given and all(i is not None and _bounds(i)[2:] != (0,) for i in self.index)
        except TypeError:
            good = False
        if not good:
            raise OptionError(
                "index= is not an integer or a slice of integers, nor one for each position axis.",
                got=f"index={index!r}",
                remedy="give an integer or a slice (sequences) or a tuple of them (images)",
            )

    def __repr__(self) -> str:
        words = [f"slice{brief(i)}" if isinstance(i, tuple) else brief(i) for i in self.index]
        return f"Select({words[0]})" if len(words) == 1 else f"Select(({', '.join(words)}))"

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "Select")
        kept = np.empty(before.positions, bool)[self._indices(before.positions)].shape
        if 0 in kept:
            raise ShapeError(
                "Select leaves no position of its input.",
                got=f"{self!r} for positions of shape {before.positions}",
                remedy="give slices that lie within the shape",
            )
        return before.to(positions=kept)

    def _indices(self, positions: tuple[int, ...]) -> tuple[int | slice, ...]:
        if len(self.index) != len(positions) or any(
            not isinstance(i, tuple) and not -extent <= i < extent
            for i, extent in zip(self.index, positions, strict=False)
        ):
            raise ShapeError(
                "The index of Select does not lie within the positions of its input.",
                got=f"{self!r} for positions of shape {positions}",
                remedy="give an integer (sequences) or a tuple (images) within the shape",
            )
        return tuple(slice(*i) if isinstance(i, tuple) else i for i in self.index)

    def mask(self, mask: Array) -> Array | None:
        if not any(isinstance(i, tuple) for i in self.index):
            return None
        return self.mix(mask[..., None], mask)[..., 0]

    def mix(self, f: Array, memo: Memo) -> Array:
        index = self._indices(f.shape[:-1])
        if memo is None or all(b is None or b >= 0 for i in self.index for b in _bounds(i)):
            return f[index]
        for dim in reversed(range(memo.ndim)):  # from the last, for an integer takes an axis away
            real = jnp.any(memo, axis=tuple(d for d in range(memo.ndim) if d != dim))
            part = index[dim]
            span = part if isinstance(part, slice) else slice(part, part + 1 or None)
            f = self._take(f, dim, span, real.size - jnp.argmax(real[::-1]))
            f = f if isinstance(part, slice) else jnp.squeeze(f, dim)
        return f

    def _take(self, f: Array, dim: int, part: slice, length: Array) -> Array:
        """What a slice takes of the first `length` positions of one axis, then zeros."""
        spans = [range(size)[part] for size in range(f.shape[dim] + 1)]
        most, step = len(spans[-1]), spans[-1].step
        if any(len(span) > most for span in spans):
            raise ShapeError(
                "A slice of Select takes more of a shorter sequence than of the whole array.",
                got=f"{self!r} with a mask over {f.shape[dim]} positions",
                remedy="count both bounds of the slice from the same end",
            )
        starts, counts = jnp.asarray([(span.start, len(span)) for span in spans]).T
        inside = jnp.arange(most) < counts[length]
        taken = jnp.where(inside, starts[length] + step * jnp.arange(most), 0)
        inside = inside.reshape(-1, *(1,) * (f.ndim - 1 - dim))
        return jnp.where(inside, jnp.take(f, taken, axis=dim), jnp.zeros((), f.dtype))


def _plain(bounds: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Bounds of slices as Python's integers; TypeError for anything else."""
    if any(isinstance(bound, bool) for bound in bounds):
        raise TypeError
    return tuple(None if bound is None else operator.index(bound) for bound in bounds)


def _bounds(index: Any) -> tuple[int | None, ...]:
    return index if isinstance(index, tuple) else (index,)


class Resampling(Enum):
    """How positions between given ones are filled."""

    NEAREST = "nearest"
    """The nearest position."""
    LINEAR = "linear"
    """The line between neighbours."""
    CUBIC = "cubic"
    """Keys' cubic polynomials through four neighbours."""
    LANCZOS3 = "lanczos3"
    """A windowed sine of radius 3."""
    LANCZOS5 = "lanczos5"
    """A windowed sine of radius 5."""


class Resize(PositionMap):
    """Positions brought to another shape by interpolation, `y_a = Σ_i L_ai x_i`.

    κ ← L κ L'ᵀ, Θ ← L Θ L'ᵀ with a fixed L for every axis, from n to m positions. "nearest":
    `L_ai = 1` at `i = ⌊(a + ½)n/m⌋`. Others: `L_ai ∝ w(((a + ½)n/m − ½ − i) / max(1, n/m))` with
    rows that sum to 1; for "linear" `w(t) = max(0, 1 − |t|)`, for "cubic" Keys' kernel, for
    "lanczos3" and "lanczos5" `w(t) = sinc(t) sinc(t/r)` within the radius r. Without `antialias`
    the divisor is 1: of many positions, all but the nearest few are left out.
    """

    shape: int | tuple[int, ...] = eqx.field(static=True)
    method: Resampling = eqx.field(static=True)
    antialias: bool = eqx.field(static=True)

    def __init__(
        self,
        shape: int | tuple[int, ...],
        *,
        method: Resampling | str = Resampling.LINEAR,
        antialias: bool = True,
    ):
        """`shape`: how many positions to make, an integer for all axes or one for each.

        `antialias`: fewer positions than before are averages over wider windows.
        """
        self.shape = extents("shape", shape)
        self.method = choice(Resampling, method, "method")
        if not isinstance(antialias, bool | np.bool_):
            raise OptionError(
                "antialias= is neither True nor False.",
                got=f"antialias={antialias!r}",
                remedy="pass antialias=False, or leave it out",
            )
        self.antialias = bool(antialias)

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "Resize")
        return before.to(positions=per_axis(self.shape, len(before.positions), "shape"))

    def mask(self, mask: Array) -> Array | None:
        raise ShapeError(
            "Resize met a mask: what it makes of a position depends on the length of the array.",
            got="a mask, so lengths that vary inside one array",
            remedy="resize before padding, or call the kernel once per length without a mask",
        )

    def mix(self, f: Array, memo: Memo) -> Array:
        shape = (*per_axis(self.shape, f.ndim - 1, "shape"), f.shape[-1])
        return jax.image.resize(f, shape, self.method.value, antialias=self.antialias)


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
        averaged = pair.diagonal().each(jnp.mean)
        return replace(averaged, rank=0, full=True)

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.map_mean(jnp.mean)

    def features(self, example: Example) -> Array | None:
        rows = example.features
        return None if rows is None else rows.reshape(-1) / math.prod(rows.shape[:-1]) ** 0.5
