"""Bookkeeping on families: reshape, transpose, slices, gathers, concatenation.

Arrays stand with their width axes shrunk to one entry for every cell; an operation is then run on
the numbers of the members. Where an operation cuts a width axis, layouts are refined first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from .extents import Extent, Wide
from .layout import Layout
from .matrices import WideMatrix
from .scalars import WideScalar
from .steps import Step
from .vectors import WideVector

Value = WideScalar | WideVector | WideMatrix


def layouts_of(value: Value) -> dict[int, Layout]:
    """Width axes and how they are cut."""
    if isinstance(value, WideVector):
        return {value.axis: value.layout}
    return {} if isinstance(value, WideScalar) else value.layouts


def numbers_of(value: WideVector | WideMatrix) -> np.ndarray:
    """The flat number of every member."""
    return np.arange(math.prod(value.shape)).reshape(value.shape)


def refined(value: Any, axis: int, layout: Layout) -> Any:
    """The value with one width axis cut further."""
    return value.refined(layout) if isinstance(value, WideVector) else value.refined(axis, layout)


def rebuilt(value: WideVector | WideMatrix, index: np.ndarray, axes: dict[int, int]) -> Any:
    """New members; `axes` maps old width axes to new ones."""
    if isinstance(value, WideVector):
        return value.reindexed(index, axes[value.axis])
    return value.reindexed(index, axes)


def cut_refused(step: Step, got: str) -> Exception:
    """A width axis is taken apart in a way that is not understood."""
    return step.refuse(
        "A width axis is cut into equal or proportional blocks of channels.",
        got=got,
        remedy="split channels at fixed fractions of the width, in one order throughout",
    )


def transpose(step: Step, value: Any) -> Any:
    """Axes in another order."""
    return permuted(value, step.params[0]["permutation"])


def permuted(value: Any, order: Sequence[int]) -> Any:
    """The value with its axes in the given order."""
    places = [int(p) for p in order]
    axes = {old: places.index(old) for old in layouts_of(value)}
    return rebuilt(value, numbers_of(value).transpose(places), axes)


def squeeze(step: Step, value: Any) -> Any:
    """Axes of length one removed."""
    gone = {int(d) % len(value.shape) for d in step.params[0]["dimensions"]}
    axes = {old: old - sum(d < old for d in gone) for old in layouts_of(value)}
    return rebuilt(value, np.squeeze(numbers_of(value), tuple(gone)), axes)


def take(step: Step, value: Any) -> Any:
    """One entry of the first axis: a scanned array's row."""
    axes = {old: old - 1 for old in layouts_of(value)}
    return rebuilt(value, numbers_of(value)[step.params[0]["index"]], axes)


def reverse(step: Step, value: Any) -> Any:
    """Finite axes backwards."""
    dimensions = tuple(int(d) for d in step.params[0]["dimensions"])
    if set(dimensions) & set(layouts_of(value)):
        raise cut_refused(step, "channels in reversed order")
    return rebuilt(value, np.flip(numbers_of(value), dimensions), {a: a for a in layouts_of(value)})


def tile(step: Step, value: Any) -> Any:
    """Axes repeated; channels side by side with themselves."""
    repeats = [tuple(int(r) for r in p["reps"]) for p in step.params]
    if len(set(repeats)) > 1:
        raise cut_refused(step, "an array repeated as often as the width")
    for axis in layouts_of(value):
        if repeats[0][axis] > 1:
            value = concatenate(step, [value] * repeats[0][axis], axis)
    axes = {a: a for a in layouts_of(value)}
    finite = [1 if a in axes else times for a, times in enumerate(repeats[0])]
    return rebuilt(value, np.tile(numbers_of(value), finite), axes)


def broadcast(step: Step, value: Any) -> Any:
    """`broadcast_in_dim` of a value that has its width axes already."""
    places = [int(d) for d in step.params[0]["broadcast_dimensions"]]
    axes = {old: places[old] for old in layouts_of(value)}
    target = step.results[0].shape
    if len(step.results[0].wide_axes) > len(axes):
        raise step.refuse(
            "A value has one width axis.",
            got="a vector repeated along a second width axis",
            remedy="contract with weights instead of broadcasting over channels",
        )
    shape = []
    by_place = {new: value.shape[old] for old, new in axes.items()}
    for i, extent in enumerate(target):
        shape.append(by_place[i] if i in by_place else int(extent))  # pyright: ignore
    lifted = [1] * len(shape)
    for old, new in enumerate(places):
        lifted[new] = value.shape[old]
    index = np.broadcast_to(numbers_of(value).reshape(lifted), shape)
    return rebuilt(value, index, axes)


def reshape(step: Step, value: Any, old: tuple[Extent, ...]) -> Any:
    """Merges and splits of axes; a group of axes holds at most one width axis."""
    new = step.results[0].shape
    order = step.params[0].get("dimensions")
    if order is not None:
        value, old = permuted(value, order), tuple(old[a] for a in order)
    groups = _matched(old, new)
    if groups is None:
        raise cut_refused(step, f"a reshape from {_shown(old)} to {_shown(new)}")
    for left, right in groups:
        wide = [a for a in left if isinstance(old[a], Wide)]
        if wide:
            value = _cut_for(step, value, wide[0], left, right, old, new)
    shape: list[int] = []
    axes: dict[int, int] = {}
    moved: dict[int, Layout] = {}
    for left, right in groups:
        wide = [a for a in left if isinstance(old[a], Wide)]
        if not wide:
            shape += [int(new[b]) for b in right]  # pyright: ignore[reportArgumentType]
            continue
        layout, axis = layouts_of(value)[wide[0]], wide[0]
        before, after = _product(old, left, axis)
        target = next(b for b in right if isinstance(new[b], Wide))
        lead, trail = _product(new, right, target)
        major, minor = before * layout.major // lead, after * layout.minor // trail
        for b in right:
            if b == target:
                axes[axis] = len(shape)
                moved[axis] = Layout(major, minor, layout.unit)
                shape.append(major * minor)
            else:
                shape.append(int(new[b]))  # pyright: ignore[reportArgumentType]
    # Within a group the order is (leading axes, major, minor, trailing axes), old and new.
    index = numbers_of(value).reshape(shape)
    result = rebuilt(value, index, axes)
    return _relaid(result, {axes[a]: moved[a] for a in axes})


def _cut_for(
    step: Step,
    value: Any,
    axis: int,
    left: list[int],
    right: list[int],
    old: tuple[Extent, ...],
    new: tuple[Extent, ...],
) -> Any:
    """Cut a width axis as finely as the new axes around it need."""
    layout = layouts_of(value)[axis]
    before, after = _product(old, left, axis)
    target = next(b for b in right if isinstance(new[b], Wide))
    lead, trail = _product(new, right, target)
    major, minor = layout.major, layout.minor
    k = lead // math.gcd(before * major, lead)
    m = trail // math.gcd(after * minor, trail)
    return refined(value, axis, layout.finer(k, m))


def _product(shape: tuple[Extent, ...], group: list[int], axis: int) -> tuple[int, int]:
    before = math.prod(int(shape[a]) for a in group if a < axis)  # pyright: ignore
    after = math.prod(int(shape[a]) for a in group if a > axis)  # pyright: ignore
    return before, after


def _matched(
    old: tuple[Extent, ...], new: tuple[Extent, ...]
) -> list[tuple[list[int], list[int]]] | None:
    """Groups of consecutive axes with equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [], []
        a, b = (Fraction(1), 0), (Fraction(1), 0)
        while True:
            if a == b and (left or right):
                break
            smaller = (a[1], a[0]) <= (b[1], b[0])
            if smaller and i < len(old):
                a = _times(a, old[i])
                left.append(i)
                i += 1
            elif j < len(new):
                b = _times(b, new[j])
                right.append(j)
                j += 1
            elif i < len(old):
                a = _times(a, old[i])
                left.append(i)
                i += 1
            else:
                return None
        if a[1] > 1:
            return None
        groups.append((left, right))
    return groups


def _times(total: tuple[Fraction, int], extent: Extent) -> tuple[Fraction, int]:
    if isinstance(extent, Wide):
        return total[0] * extent.share, total[1] + 1
    return total[0] * extent, total[1]


def _shown(shape: tuple[Extent, ...]) -> str:
    return f"({', '.join(str(extent) for extent in shape)})"


def slices(step: Step, value: Any, widths: tuple[int, ...]) -> Any:
    """`slice`; along width axes at fixed fractions of the width."""
    starts = [p["start_indices"] for p in step.params]
    limits = [p["limit_indices"] for p in step.params]
    strides = step.params[0]["strides"] or (1,) * len(value.shape)
    return _sliced(step, value, starts, limits, strides, widths)


def _sliced(
    step: Step, value: Any, starts: Any, limits: Any, strides: Any, widths: tuple[int, ...]
) -> Any:
    chosen: list[Any] = [
        slice(int(a), int(b), int(s)) for a, b, s in zip(starts[0], limits[0], strides, strict=True)
    ]
    after: dict[int, Layout] = {}
    for axis in list(layouts_of(value)):
        layout = layouts_of(value)[axis]
        begin = [int(s[axis]) for s in starts]
        end = [int(s[axis]) for s in limits]
        stride = int(strides[axis])
        whole = [layout.extent * w for w in widths]
        if stride == 1 and all(b == 0 for b in begin) and end == whole:
            chosen[axis] = slice(None)
            continue
        if stride > 1:
            if (
                len(set(begin)) != 1
                or begin[0] >= stride
                or any(w - stride >= e for w, e in zip(whole, end, strict=True))
            ):
                raise cut_refused(step, f"every {stride}th channel from {begin[0]}")
            value = refined(value, axis, layout.finer(1, stride // math.gcd(layout.minor, stride)))
            layout = layouts_of(value)[axis]
            minor = np.arange(layout.cells) % layout.minor
            keep = np.flatnonzero(minor % stride == begin[0])
            chosen[axis] = keep
            after[axis] = Layout(layout.major, layout.minor // stride, layout.unit)
            continue
        shares = [
            {Fraction(e, w) for e, w in zip(ends, widths, strict=True)} for ends in (begin, end)
        ]
        if any(len(s) != 1 for s in shares) or layout.minor > 1:
            raise cut_refused(step, f"channels {begin[0]} to {end[0]} of {whole[0]}")
        low, high = (s.pop() for s in shares)
        pieces = math.lcm(*((bound / layout.unit).denominator for bound in (low, high)))
        value = refined(value, axis, layout.finer(pieces, 1))
        layout = layouts_of(value)[axis]
        keep = np.arange(int(low / layout.unit), int(high / layout.unit))
        chosen[axis] = keep
        after[axis] = Layout(len(keep), 1, layout.unit)
    index = numbers_of(value)
    for axis, which in enumerate(chosen):
        picked = np.arange(index.shape[axis])[which]
        index = np.take(index, picked, axis=axis)
    result = rebuilt(value, index, {a: a for a in layouts_of(value)})
    return _relaid(result, {**layouts_of(result), **after})


def _relaid(value: Any, layouts: dict[int, Layout]) -> Any:
    """The same members, whose cells are named otherwise."""
    if isinstance(value, WideVector):
        return replace(value, layout=layouts[value.axis])
    return value.relaid(layouts)


def split(step: Step, value: Any, widths: tuple[int, ...]) -> list[Any]:
    """`split` as slices."""
    axis = int(step.params[0]["axis"])
    sizes = [p["sizes"] for p in step.params]
    rank = len(value.shape)
    true = [_true_shape(value, w) for w in widths]
    found = []
    for k in range(len(sizes[0])):
        starts = [[0] * rank for _ in widths]
        limits = [list(shape) for shape in true]
        for w in range(len(widths)):
            starts[w][axis] = sum(int(s) for s in sizes[w][:k])
            limits[w][axis] = starts[w][axis] + int(sizes[w][k])
        found.append(_sliced(step, value, starts, limits, (1,) * rank, widths))
    return found


def _true_shape(value: Any, width: int) -> list[int]:
    layouts = layouts_of(value)
    return [
        int(layouts[a].extent * width) if a in layouts else s for a, s in enumerate(value.shape)
    ]


def concatenate(step: Step, values: list[Any], axis: int) -> WideVector:
    """Vectors side by side, along a finite axis or along channels."""
    # Rolling an axis of length 1 leaves empty parts.
    values = [value for value in values if math.prod(value.shape)] or values[:1]
    powers = {v.power for v in values if not v.is_zero}
    if len(powers) > 1:
        raise step.refuse(
            "Concatenated parts have one order of magnitude.",
            got=f"parts that scale as {', '.join(f'n^{p}' for p in sorted(powers))}",
            remedy="rescale the parts so that all stay of order one",
        )
    power = powers.pop() if powers else values[0].power
    if any(isinstance(v, WideMatrix) for v in values):
        raise step.refuse(
            "Weight matrices are used as they are.",
            got="a concatenation of weight matrices",
            remedy="apply the matrices one by one",
        )
    along = values[0].axis == axis
    if along:
        if any(v.layout.minor > 1 for v in values):
            raise cut_refused(step, "a concatenation of interleaved channels")
        unit = _greatest([v.layout.unit for v in values])
        values = [v.refined(v.layout.finer(int(v.layout.unit / unit), 1)) for v in values]
        cells = sum(v.layout.cells for v in values)
        layout = Layout(cells, 1, unit)
    else:
        layout = values[0].layout
        for v in values[1:]:
            layout = layout.common(v.layout)
        values = [v.refined(layout) for v in values]
    values = [replace(v, power=power) for v in values]
    offsets = np.cumsum([0, *(v.size for v in values)])
    index = np.concatenate(
        [v.indices + o for v, o in zip(values, offsets[:-1], strict=True)], axis=axis
    )
    total: WideVector | None = None
    position = np.arange(offsets[-1])
    for v, begin in zip(values, offsets[:-1], strict=True):
        inside = (position >= begin) & (position < begin + v.size)
        spread = v.reindexed(np.where(inside, position - begin, -1)[index], values[0].axis)
        spread = replace(spread, layout=layout)
        total = spread if total is None else total.plus(spread)
    assert total is not None
    return total


def _greatest(units: list[Fraction]) -> Fraction:
    denominator = math.lcm(*(u.denominator for u in units))
    return Fraction(math.gcd(*(int(u * denominator) for u in units)), denominator)


def by_index(step: Step, value: Any, others: list[Any], widths: tuple[int, ...]) -> Any:
    """Gather, dynamic slice, pad: run on the members' numbers; channels are taken whole."""
    params = dict(step.params[0])
    layouts = layouts_of(value)
    result_axes = step.results[0].wide_axes
    if len(result_axes) != len(layouts):
        raise _picks_channels(step)
    numbers = jnp.asarray(numbers_of(value) + 1)
    if step.name == "gather":
        sizes = list(params["slice_sizes"])
        numbering = params["dimension_numbers"]
        gone = {*numbering.collapsed_slice_dims, *numbering.operand_batching_dims}
        if set(layouts) & gone or any(
            int(p["slice_sizes"][axis]) != layout.extent * width
            for axis, layout in layouts.items()
            for p, width in zip(step.params, widths, strict=True)
        ):
            raise _picks_channels(step)
        for axis in layouts:
            sizes[axis] = value.shape[axis]
        params["slice_sizes"] = tuple(sizes)
        params["fill_value"] = 0
    elif step.name == "dynamic_slice":
        sizes = list(params["slice_sizes"])
        for axis in layouts:
            sizes[axis] = value.shape[axis]
        params["slice_sizes"] = tuple(sizes)
    index = np.asarray(step.primitive.bind(numbers, *others, **params)) - 1
    return rebuilt(value, index, dict(zip(sorted(layouts), result_axes, strict=True)))


def _picks_channels(step: Step) -> Exception:
    return step.refuse(
        "Channels are exchangeable: no operation picks single ones.",
        got=f"'{step.name}' along a width axis",
        remedy="index positions, tokens or heads, and read channels out through weights",
    )
