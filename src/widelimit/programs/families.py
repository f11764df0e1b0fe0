"""Rules of primitives that make families of vectors, move their members about, and add them up.

Arrays stand with their width axes shrunk to one entry for every cell; an operation is then run on
the numbers of the members. Where an operation cuts a width axis, layouts are refined first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from .entrywise import leading_power, on_scalars, vanished
from .extents import Extent, Wide, shown
from .gaussian import Form, GaussianSource, Remap
from .layout import Layout, numbered, whole
from .matrices import Opaque, Outer, Value, WeightArray, WideMatrix
from .products import (
    HALF,
    along_width,
    combined,
    first_cell,
    patch_index,
    require_room,
    summed_products,
)
from .scalars import NormalGroup, WideScalar
from .sines import sine_table
from .steps import Given, Rule, Step
from .trees import Apply, Leaf, Number
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


# ---- moved members ---------------------------------------------------------------------------


def cut_refused(step: Step, got: str) -> Exception:
    """A width axis is taken apart in a way that is not understood."""
    return step.refuse(
        "A width axis is cut into equal or proportional blocks of channels.",
        got=got,
        remedy="split channels at fixed fractions of the width, in one order throughout",
    )


def along_finite_axes(function: Callable[[dict[str, Any], np.ndarray], np.ndarray]) -> Any:
    """The rule of what `function` of the parameters does to finite axes, run on the numbers."""

    def rule(machine: Machine, step: Step, value: Any) -> Any:
        axes = zip(sorted(value.layouts), step.results[0].wide_axes, strict=True)
        return value.moved(function(step.params[0], numbered(value)), dict(axes))

    return rule


def transpose(machine: Machine, step: Step, value: Any) -> Any:
    """Axes in another order."""
    return _reordered(value, step.params[0]["permutation"])


def _reordered(value: Any, order: Sequence[int]) -> Any:
    places = [int(p) for p in order]
    axes = {old: places.index(old) for old in value.layouts}
    return value.moved(numbered(value).transpose(places), axes)


def reverse(machine: Machine, step: Step, value: Any) -> Any:
    """Finite axes backwards."""
    dimensions = tuple(int(d) for d in step.params[0]["dimensions"])
    if set(dimensions) & set(value.layouts):
        raise cut_refused(step, "channels in reversed order")
    return value.moved(np.flip(numbered(value), dimensions), {a: a for a in value.layouts})


def tile(machine: Machine, step: Step, value: Any) -> Any:
    """Axes repeated; channels side by side with themselves."""
    repeats = [tuple(int(r) for r in p["reps"]) for p in step.params]
    if len(set(repeats)) > 1:
        raise cut_refused(step, "an array repeated as often as the width")
    for axis in value.layouts:
        if repeats[0][axis] > 1:
            value = concatenate(step, [value] * repeats[0][axis], axis)
    axes = {a: a for a in value.layouts}
    finite = [1 if a in axes else times for a, times in enumerate(repeats[0])]
    return value.moved(np.tile(numbered(value), finite), axes)


def broadcast(machine: Machine, step: Step, value: Any) -> Any:
    """`broadcast_in_dim`; numbers may be repeated along channels."""
    slot, places = step.results[0], [int(d) for d in step.params[0]["broadcast_dimensions"]]
    axes = {old: places[old] for old in value.layouts}
    shape, lifted = list(slot.cells), [1] * len(slot.cells)
    for old, new in enumerate(places):
        lifted[new] = value.shape[old]
        if old in axes:
            shape[new] = value.shape[old]
    found = value.moved(np.broadcast_to(numbered(value).reshape(lifted), shape), axes)
    if len(slot.wide_axes) == len(axes):
        return found
    if not isinstance(found, WideScalar) or (len(slot.wide_axes) > 1 and not found.is_one_number):
        raise step.refuse(
            "A value has one width axis.",
            got="a vector or numbers repeated along a second width axis",
            remedy="contract with weights instead of broadcasting over channels; draw weights at "
            "random",
        )
    return machine.filled(slot.shape, found)


def reshape(machine: Machine, step: Step, value: Any) -> Any:
    """Merges and splits of axes; a group of axes holds at most one width axis."""
    old, new = step.operands[0].shape, step.results[0].shape
    order = step.params[0].get("dimensions")
    if order is not None:  # gradients of convolutions reorder axes first
        value, old = _reordered(value, order), tuple(old[a] for a in order)
    if not value.layouts:
        return value.moved(numbered(value).reshape(step.results[0].cells), {})
    groups = _matched(old, new)
    if groups is None:
        raise cut_refused(step, f"a reshape from {shown(old)} to {shown(new)}")
    shape: list[int] = []
    axes: dict[int, int] = {}
    moved: dict[int, Layout] = {}
    for left, right in groups:
        wide = [a for a in left if isinstance(old[a], Wide)]
        if not wide:
            shape += [int(new[b]) for b in right]  # pyright: ignore[reportArgumentType]
            continue
        axis, layout = wide[0], value.layouts[wide[0]]
        target = next(b for b in right if isinstance(new[b], Wide))
        (before, after), (lead, trail) = (
            (
                math.prod(int(shape[a]) for a in group if a < place),  # pyright: ignore
                math.prod(int(shape[a]) for a in group if a > place),  # pyright: ignore
            )
            for shape, group, place in ((old, left, axis), (new, right, target))
        )
        # The width axis is cut as finely as the new axes around it need.
        k = lead // math.gcd(before * layout.major, lead)
        m = trail // math.gcd(after * layout.minor, trail)
        layout = layout.finer(k, m)
        value = value.refined_at(axis, layout)
        major, minor = before * layout.major // lead, after * layout.minor // trail
        moved[axis] = Layout(major, minor, layout.unit)
        axes[axis] = len(shape) + right.index(target)
        shape += [major * minor if b == target else int(new[b]) for b in right]  # pyright: ignore
    # Within a group the order is (leading axes, major, minor, trailing axes), old and new.
    index = numbered(value).reshape(shape)
    result = value.moved(index, axes)
    return result.relaid({axes[a]: moved[a] for a in axes})


def _matched(
    old: tuple[Extent, ...], new: tuple[Extent, ...]
) -> list[tuple[list[int], list[int]]] | None:
    """Groups of consecutive axes with equal products, of one width axis at most."""
    groups: list[tuple[list[int], list[int]]] = []
    # Of either side: the next axis, and the power of n and the number of a product so far.
    begin, sizes, group = [0, 0], [(0, Fraction(1))] * 2, ([], [])
    while ahead := [side for side in (0, 1) if begin[side] < len((old, new)[side])]:
        side = min(ahead, key=lambda k: sizes[k])
        extent = (old, new)[side][begin[side]]
        power, size = sizes[side]
        wide = isinstance(extent, Wide)
        sizes[side] = power + wide, size * (extent.share if isinstance(extent, Wide) else extent)
        group[side].append(begin[side])
        begin[side] += 1
        if sizes[0] == sizes[1]:
            if sizes[0][0] > 1:
                return None
            groups.append(group)
            sizes, group = [(0, Fraction(1))] * 2, ([], [])
    return groups if not (group[0] or group[1]) else None


def slices(machine: Machine, step: Step, value: Any) -> Any:
    """`slice`; along width axes at fixed fractions of the width."""
    starts = [p["start_indices"] for p in step.params]
    limits = [p["limit_indices"] for p in step.params]
    strides = step.params[0]["strides"] or (1,) * len(value.shape)
    return _sliced(step, value, starts, limits, strides, machine.program.widths)


def _sliced(
    step: Step, value: Any, starts: Any, limits: Any, strides: Any, widths: tuple[int, ...]
) -> Any:
    chosen: list[Any] = [
        slice(int(a), int(b), int(s)) for a, b, s in zip(starts[0], limits[0], strides, strict=True)
    ]
    after: dict[int, Layout] = {}
    for axis, layout in value.layouts.items():
        begin, end = ([int(ends[axis]) for ends in bounds] for bounds in (starts, limits))
        stride, full = int(strides[axis]), [layout.extent * w for w in widths]
        if stride == 1 and not any(begin) and end == full:
            chosen[axis] = slice(None)
            continue
        if stride > 1:
            whole_axis = all(w - stride < e for w, e in zip(full, end, strict=True))
            if len(set(begin)) != 1 or begin[0] >= stride or not whole_axis:
                raise cut_refused(step, f"every {stride}th channel from {begin[0]}")
            layout = layout.finer(1, stride // math.gcd(layout.minor, stride))
            keep = np.flatnonzero(np.arange(layout.cells) % layout.minor % stride == begin[0])
            after[axis] = Layout(layout.major, layout.minor // stride, layout.unit)
        else:
            shares = [
                {Fraction(*e) for e in zip(ends, widths, strict=True)} for ends in (begin, end)
            ]
            if any(len(s) != 1 for s in shares) or layout.minor > 1:
                raise cut_refused(step, f"channels {begin[0]} to {end[0]} of {full[0]}")
            low, high = (s.pop() for s in shares)
            layout = layout.finer(
                math.lcm(*((bound / layout.unit).denominator for bound in (low, high))), 1
            )
            keep = np.arange(int(low / layout.unit), int(high / layout.unit))
            after[axis] = Layout(len(keep), 1, layout.unit)
        value, chosen[axis] = value.refined_at(axis, layout), keep
    kept = [np.arange(n)[which] for n, which in zip(value.shape, chosen, strict=True)]
    index = numbered(value)[np.ix_(*kept)]
    result = value.moved(index, {a: a for a in value.layouts})
    return result.relaid({**result.layouts, **after})


def split(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`split` as slices."""
    value, widths = operands[0], machine.program.widths
    axis, sizes = int(step.params[0]["axis"]), [p["sizes"] for p in step.params]
    layouts = value.layouts
    true = np.array(
        [
            [int(layouts[a].extent * w) if a in layouts else s for a, s in enumerate(value.shape)]
            for w in widths
        ]
    )
    found, ends = [], np.cumsum([(0, *row) for row in sizes], axis=1)
    for k in range(len(sizes[0])):
        starts, limits = np.zeros_like(true), true.copy()
        starts[:, axis], limits[:, axis] = ends[:, k], ends[:, k + 1]
        found.append(_sliced(step, value, starts, limits, (1,) * true.shape[1], widths))
    return found


def _beside(step: Step, values: list[Any], axis: int) -> tuple[list[Any], Layout]:
    """Values whose channels come side by side, in pieces of one size; how the whole is cut."""
    layouts = [v.layouts[axis] for v in values]
    if any(layout.minor > 1 for layout in layouts):
        raise cut_refused(step, "a concatenation of interleaved channels")
    denominator = math.lcm(*(layout.unit.denominator for layout in layouts))
    pieces = math.gcd(*(int(layout.unit * denominator) for layout in layouts))
    unit = Fraction(pieces, denominator)
    finer = [layout.finer(int(layout.unit / unit), 1) for layout in layouts]
    values = [v.refined_at(axis, layout) for v, layout in zip(values, finer, strict=True)]
    return values, Layout(sum(layout.cells for layout in finer), 1, unit)


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
    if values[0].axis == axis:
        values, layout = _beside(step, values, axis)
    else:
        layout = functools.reduce(Layout.common, (v.layout for v in values))
        values = [v.refined(layout) for v in values]
    values = [replace(v, power=power) for v in values]
    offsets = np.cumsum([0, *(v.size for v in values)])
    pieces = [v.indices + o for v, o in zip(values, offsets[:-1], strict=True)]
    index, axis = np.concatenate(pieces, axis=axis), values[0].axis
    spread = (
        v.reindexed(np.where((index >= begin) & (index < begin + v.size), index - begin, -1), axis)
        for v, begin in zip(values, offsets[:-1], strict=True)
    )
    return functools.reduce(WideVector.plus, (replace(v, layout=layout) for v in spread))


def joined_weights(machine: Machine, step: Step, values: list[Any], axis: int) -> WideMatrix:
    """Weights that were drawn alike side by side, as one parameter with all their entries."""
    first = values[0]
    alike = all(
        isinstance(v, WideMatrix)
        and (v.scale, v.power, v.base, v.constant) == (first.scale, first.power, first.base, None)
        and not v.weights.used
        and all(v.layouts[a] == layout for a, layout in first.layouts.items() if a != axis)
        for v in values
    )
    owners = [id(v.weights) for v in values] if alike else []
    if not alike or len(set(owners)) != len(owners):
        raise step.refuse(
            "Weights that are put together are drawn alike, and used in this way alone.",
            got="a concatenation of other matrices",
            remedy="apply the matrices one by one, and add or concatenate what they make",
        )
    layouts = dict(first.layouts)
    if axis in layouts:
        values, layouts[axis] = _beside(step, values, axis)
    offsets = np.cumsum([0, *(1 + int(v.slots.max()) for v in values)])
    slots = [v.slots + o for v, o in zip(values, offsets[:-1], strict=True)]
    key = ("joined", axis, *((o, v.slots.tobytes()) for o, v in zip(owners, values, strict=True)))
    weights = machine.matrices.get(key)
    if weights is None:
        name = " | ".join(v.weights.name for v in values)
        weights = machine.matrices[key] = WeightArray(name, int(offsets[-1]))
        for v in values:
            v.weights.joined = True
    return WideMatrix(
        weights, np.concatenate(slots, axis), layouts, first.base, first.scale, first.power
    )


def _picks_channels(step: Step) -> Exception:
    return step.refuse(
        "Channels are exchangeable: no operation picks single ones.",
        got=f"'{step.name}' along a width axis",
        remedy="index positions, tokens or heads, and read channels out through weights",
    )


# ---- sums, windows, factors ------------------------------------------------------------------


def alone(rule: Callable[[Machine, Step, Any], Any]) -> Rule:
    """The rule of a step with one operand and one result."""
    return lambda machine, step, operands: [rule(machine, step, operands[0])]


def picked(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`gather` and `dynamic_slice` at fixed indices; channels are taken whole."""
    value, params = operands[0], dict(step.params[0])
    if not isinstance(value, WideVector | WideMatrix | Outer):
        raise along_width(step)
    others = [_fixed_index(step, index) for index in operands[1:]]
    layouts, result_axes = value.layouts, step.results[0].wide_axes
    sizes = zip(step.params, machine.program.widths, strict=True)
    cut = any(
        int(p["slice_sizes"][axis]) != layout.extent * width
        for p, width in sizes
        for axis, layout in layouts.items()
    )
    numbering = params.get("dimension_numbers")  # of `gather`
    if numbering is not None:
        cut |= bool(
            set(layouts) & {*numbering.collapsed_slice_dims, *numbering.operand_batching_dims}
        )
        params["fill_value"] = 0
    if cut or len(result_axes) != len(layouts):
        raise _picks_channels(step)
    params["slice_sizes"] = tuple(
        value.shape[a] if a in layouts else size for a, size in enumerate(params["slice_sizes"])
    )
    # Run on the members' numbers: 0 is nothing.
    found = step.primitive.bind(jnp.asarray(numbered(value) + 1), *others, **params)
    axes = dict(zip(sorted(layouts), result_axes, strict=True))
    return [value.moved(np.asarray(found) - 1, axes)]


def summed(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`reduce_sum`, over channels or over finite axes."""
    vector = _one_vector(step, operands)
    axes = tuple(int(a) for a in step.params[0]["axes"])
    kept = [a for a in range(len(vector.shape)) if a not in axes]
    shape = tuple(vector.shape[a] for a in kept)
    wide = vector.axis in axes
    numbers = first_cell(vector) if wide else vector.indices
    members = numbers.transpose(*kept, *axes).reshape(math.prod(shape), -1)
    if wide:
        ones = vector.constant_like(np.ones((1, vector.size)))
        return [summed_products(machine, step, vector, ones, (members, members), shape)]
    ones = np.ones((1, *members.shape))
    return [combined(step, vector, members, ones, shape, kept.index(vector.axis))]


def accumulated(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Linear in the family, whatever its finite axes do."""
    vector = _one_vector(step, operands)
    params = step.params[0]
    windows = params.get("window_dimensions", (1,) * len(vector.shape))
    if params.get("axis") == vector.axis or windows[vector.axis] != 1:
        raise along_width(step)
    axis = step.results[0].wide_axes[0]
    each = functools.partial(step.primitive.bind, **params)
    return [_linear_in(step, vector, each, vector.size, axis)]


def _linear_in(
    step: Step, vector: WideVector, function: Callable[[Any], Any], results: int, axis: int
) -> WideVector:
    """A linear operation over finite axes, from what it does to every member alone."""
    require_room(step, 1, results, vector.size)
    basis = np.eye(vector.size).reshape(vector.size, *vector.shape)
    out = np.asarray(jax.vmap(function)(jnp.asarray(basis)))
    return vector.mixed(out.reshape(vector.size, -1).T[None], out.shape[1:], axis)


def scattered(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`scatter-add` of whole vectors at fixed positions or nodes: linear in what is added."""
    numbers = step.params[0]["dimension_numbers"]
    index = _fixed_index(step, operands[1])
    moved = {*numbers.inserted_window_dims, *numbers.scatter_dims_to_operand_dims}
    if not all(isinstance(v, WideVector) for v in (operands[0], operands[2])):
        raise along_width(step)
    base, added = operands[0], operands[2]
    if base.axis in moved or added.axis not in numbers.update_window_dims:
        raise _picks_channels(step)
    layout = base.layout.common(added.layout)
    base, added = base.refined(layout), added.refined(layout)
    zero = jnp.zeros(base.shape)

    def placed(update: Any) -> Any:
        return step.primitive.bind(zero, index, update, **step.params[0])

    total = _linear_in(step, added, placed, base.size, base.axis)
    power = leading_power([base, total])
    parts = [v if v.power == power else vanished(v, power) for v in (base, total)]
    return [parts[0].plus(parts[1])]


def largest(
    function: Callable[..., Any], machine: Machine, step: Step, operands: list[Any]
) -> list[Any]:
    """Maxima or minima over finite axes."""
    vector, axes = _one_vector(step, operands), tuple(int(a) for a in step.params[0]["axes"])
    if vector.axis in axes:
        raise along_width(step)
    kept = [a for a in range(len(vector.shape)) if a not in axes]
    shape = tuple(vector.shape[a] for a in kept)
    rows = vector.indices.transpose(*kept, *axes).reshape(*shape, -1)
    return [_folded(step, function, vector, rows, kept.index(vector.axis))]


def largest_in_windows(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`reduce_window_max`: max pools."""
    vector, params = _one_vector(step, operands), step.params[0]
    window = tuple(int(w) for w in params["window_dimensions"])
    if window[vector.axis] != 1:
        raise along_width(step)
    dilations = {"lhs_dilation": "base_dilation", "rhs_dilation": "window_dilation"}
    plain = {**params, **{new: params[old] for new, old in dilations.items()}}
    index = patch_index(vector.shape, window, plain)
    rows = index.reshape(*index.shape[: len(vector.shape)], -1)
    if (rows < 0).any():
        raise step.refuse(
            "Windows of a maximum lie inside the array.",
            got="a max pool with padding",
            remedy="pool without padding ('VALID')",
        )
    return [_folded(step, np.maximum, vector, rows, vector.axis)]


def _folded(
    step: Step, function: Callable[..., Any], vector: WideVector, rows: np.ndarray, axis: int
) -> WideVector:
    """A function of two, of all members `rows` (…, terms) one after the other."""

    def both(one: WideVector, two: WideVector) -> WideVector:
        return one.applied(Apply(step.name, function, (one.tree(), two.tree())))

    members = (vector.reindexed(row, axis) for row in np.moveaxis(rows, -1, 0))
    return replace(functools.reduce(both, members), power=vector.power)


def unchanged(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Nothing happens."""
    return list(operands)


def refused(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Operations along the width that have no limit."""
    raise along_width(step)


def _one_vector(step: Step, operands: list[Any]) -> WideVector:
    if len(operands) != 1 or not isinstance(operands[0], WideVector):
        raise along_width(step)
    return operands[0]


def stacked(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """What a scan puts out."""
    axis = int(step.params[0]["axis"])
    if any(isinstance(v, WideMatrix) for v in operands):
        raise step.refuse(
            "Weight matrices are used as they are.",
            got="weights that a scan puts out",
            remedy="return activations from the scan, not weights",
        )
    lifted = [
        replace(v, shape=(*v.shape[:axis], 1, *v.shape[axis:]), axis=v.axis + (axis <= v.axis))
        if isinstance(v, WideVector)
        else v
        for v in operands
    ]
    return _joined(machine, step, lifted, axis)


def side_by_side(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`concatenate`."""
    return _joined(machine, step, operands, int(step.params[0]["dimension"]))


def _joined(machine: Machine, step: Step, operands: list[Any], axis: int) -> list[Any]:
    wide = [v for v in operands if isinstance(v, (WideVector, WideMatrix))]
    few = [v for v in operands if isinstance(v, WideScalar)]
    if len(wide) + len(few) != len(operands):
        raise along_width(step)
    # Of n + d channels the d are lost among the others.
    if any(isinstance(v, WideMatrix) for v in wide):
        return [joined_weights(machine, step, wide, axis)]
    growing = max((v.power for v in few if not v.is_zero), default=None)
    if growing is not None and growing > leading_power(wide):
        raise step.refuse(
            "A fixed number of channels beside the width is of no larger order than the others.",
            got=f"channels that scale as n^{growing} joined to others",
            remedy="project them to the width with weights first",
        )
    return [concatenate(step, wide, axis)]


def padded(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`pad` along finite axes."""
    vector, fill = _one_vector(step, operands[:1]), operands[1]
    config = [(int(a), int(b), int(c)) for a, b, c in step.params[0]["padding_config"]]
    if any(config[vector.axis]):
        raise cut_refused(step, "padding along the channels")
    numbers = jnp.asarray(vector.indices + 1)
    index = np.asarray(jax.lax.pad(numbers, jnp.asarray(0, numbers.dtype), config)) - 1
    found = vector.reindexed(index, vector.axis)
    value = float(np.ravel(fill.value())[0])
    if value:
        constant = np.where(index.ravel() < 0, value, found.constant)
        found = replace(found, constant=constant)
    return [found]


def orthogonal(machine: Machine, step: Step, operands: list[Any]) -> list[Value]:
    """The orthogonal factor of a Gaussian matrix acts like a Gaussian of the same variance."""
    matrix = operands[0]
    if not isinstance(matrix, WideMatrix) or matrix.constant is not None or len(matrix.shape) != 2:
        raise step.refuse(
            "Orthogonal weights are the factor of one Gaussian matrix.",
            got="another factorisation",
            remedy="use jax.nn.initializers.orthogonal, or a Gaussian of variance 1/fan_in",
        )
    longest = max(layout.extent for layout in matrix.layouts.values())
    scale = float(longest) ** -0.5
    return [replace(matrix, scale=scale, power=-HALF), Opaque()]  # pyright: ignore


def opaque(machine: Machine, step: Step, operands: list[Any]) -> list[Value]:
    """The rest of an orthogonal factorisation: signs of its diagonal, for the factor alone."""
    others = [value for value in operands if not isinstance(value, Opaque)]
    if step.name == "mul" and len(others) == 1 and isinstance(others[0], WideMatrix):
        if all(v.signs for v in operands if isinstance(v, Opaque)):
            return [others[0]]
    elif not any(isinstance(value, (WideVector, WideMatrix)) for value in others):
        signs = step.name == "sign" or (
            step.name in ("broadcast_in_dim", "convert_element_type") and operands[0].signs
        )
        return [Opaque(signs) for _ in step.results]  # pyright: ignore[reportReturnType]
    raise along_width(step)


def _fixed_index(step: Step, value: Any) -> Any:
    if not isinstance(value, WideScalar) or not value.fixed:
        raise step.refuse(
            "Positions are chosen by fixed indices, not by activations.",
            got=f"'{step.name}' at computed indices",
            remedy="index with constants or with the input's own token ids",
        )
    return jnp.asarray(value.value()[0])


# ---- where parameters come from --------------------------------------------------------------


@dataclass(frozen=True)
class EntryLaw:
    """`centre + spread·T(z)` with z standard normal; T is the identity for Gaussian entries.

    `variance` is that of T(z), whose mean is 0.
    """

    name: str
    transform: Callable[[Any], Any] | None
    variance: float
    centre: float
    spread: float
    power: Fraction

    @property
    def deviation(self) -> float:
        """The standard deviation of an entry, without the power of n."""
        return abs(self.spread) * float(np.sqrt(self.variance))


def normal(step: Step, arguments: list[Any]) -> EntryLaw:
    """`jax.random.normal`."""
    return EntryLaw("normal", None, 1.0, 0.0, 1.0, Fraction(0))


def uniform(step: Step, arguments: list[Any]) -> EntryLaw:
    """`jax.random.uniform`, between bounds that scale alike."""
    low, high = _bounds(step, arguments)
    powers = {a.power for a in arguments[1:] if not a.is_zero}
    if len(powers) > 1:
        raise step.refuse(
            "Both ends of a uniform law scale alike with the width.",
            remedy="draw from (−a, a) with a = c·n^(−1/2)",
        )
    power = powers.pop() if powers else Fraction(0)
    between = lambda z: special.erf(z / np.sqrt(2))  # noqa: E731
    return EntryLaw("uniform", between, 1 / 3, (low + high) / 2, (high - low) / 2, power)


def truncated_normal(step: Step, arguments: list[Any]) -> EntryLaw:
    """`jax.random.truncated_normal`, between fixed bounds."""
    low, high = _bounds(step, arguments)
    if any(a.power != 0 for a in arguments[1:]):
        raise step.refuse(
            "The shape of an initial law does not depend on the width.",
            got=f"'{step.name}' with bounds that change with the width",
            remedy="draw from a fixed law and scale the result",
        )
    if low != -high:
        raise step.refuse(
            "Truncated normals are symmetric.",
            got=f"bounds {low:g} and {high:g}",
            remedy="use bounds (−c, c)",
        )
    mass = float(special.erf(high / np.sqrt(2)))
    density = float(np.exp(-(high**2) / 2) / np.sqrt(2 * np.pi))

    def within(z: Any) -> Any:
        return np.sqrt(2) * special.erfinv(mass * special.erf(z / np.sqrt(2)))

    variance = 1 - 2 * high * density / mass
    return EntryLaw("truncated normal", within, variance, 0.0, 1.0, Fraction(0))


def no_law(step: Step, arguments: list[Any]) -> EntryLaw:
    """Samplers of other laws."""
    raise step.refuse(
        "Parameters are drawn by normal, uniform or truncated normal laws.",
        got=f"'{step.name}'",
        remedy="use jax.random.normal, uniform or truncated_normal; dropout and other noise in the "
        "forward pass is switched off before tracing",
    )


def _bounds(step: Step, arguments: list[Any]) -> list[float]:
    """The bounds of a sampler, which are one number each for all entries."""
    if not all(isinstance(bound, WideScalar) and bound.is_one_number for bound in arguments[1:]):
        raise step.refuse(
            "All entries of a parameter have one law.",
            got=f"'{step.name}' with bounds that differ between entries, or are drawn themselves",
            remedy="draw from a fixed law, and multiply by what differs: s * uniform(key, shape, "
            "minval=-1, maxval=1)",
        )
    return [float(np.ravel(bound.value())[0]) for bound in arguments[1:]]


def drawn(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A sampler's output: scalars, a vector, or a matrix, by its width axes.

    Equal keys and shapes draw equal numbers; one key draws arrays of one law and shape.
    """
    assert step.record.law is not None
    slot, key, law = step.results[0], operands[0].value(), step.record.law(step, operands)
    what, wide = (step.name, slot.shape), slot.wide_axes
    for number in np.unique(key) if slot.index in machine.program.live else ():
        if machine.drawn_from.setdefault(int(number), what) != what:
            raise step.refuse(
                "A random key draws one array.",
                got="a key that drew an array of another law or shape before: the two are not "
                "independent",
                remedy="split the key, and give every parameter its own",
            )
    if len(wide) > 2:
        raise step.refuse(
            "Parameters have at most two width axes.",
            got=f"{len(wide)} of them",
            remedy="keep one width axis for inputs and one for outputs",
        )
    make = (_finite, _vector, _matrix)[len(wide)]
    return [make(machine, step, law, (*what, np.asarray(key).tobytes()))]


def iota(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Numbers along an axis: along channels, a place between 0 and the axis' share, times n.

    Sums over channels are integrals over places, as if every channel had drawn its own: this is
    how sinusoidal tables enter.
    """
    slot = step.results[0]
    if len(slot.wide_axes) != 1:
        return [Opaque()] if slot.wide_axes else on_scalars(machine, step, operands)
    (axis,), dimension = slot.wide_axes, int(step.params[0]["dimension"])
    extent: Any = slot.shape[axis]
    layout, size = whole(extent.share), math.prod(slot.cells)
    if dimension != axis:
        numbers = np.indices(slot.cells)[dimension].reshape(1, -1).astype(float)
        return [WideVector(slot.cells, axis, layout, Fraction(0), numbers)]
    leaf = Leaf(_place(machine, extent.share, size))
    tree = Apply("channel", lambda z: float(extent.share) * special.ndtr(z), (leaf,))
    return [WideVector.of(tree, slot.cells, axis, layout, Fraction(1))]


def _place(machine: Machine, share: Fraction, size: int) -> Form:
    """The place along an axis of `share`·n channels, for each of `size` members: Φ(z)·share·n."""
    form = machine.places.get(share)
    if form is None:
        source = GaussianSource("channel", np.eye(1)[None], ordered=True)
        form = machine.places[share] = Form.members(machine.labels, source, 0, 1)
    return form.remapped(Remap(np.zeros(size, int)))


def sines(machine: Machine, given: Given) -> WideVector | None:
    """A table of sines and cosines that NumPy made, if a fixed array is one."""
    axis, *others = (a for a, e in enumerate(given.shape) if isinstance(e, Wide))
    tables = [np.moveaxis(np.asarray(v, float), axis, -1) for v in given.values]
    lead = tables[0].shape[:-1]
    if others or sum(extent > 1 for extent in lead) != 1:
        return None
    found = sine_table([t.reshape(-1, t.shape[-1]) for t in tables])
    if found is None:
        return None
    extent: Any = given.shape[axis]
    rows = max(lead)
    layout = whole(extent.share).finer(found.major, found.minor)
    size = rows * layout.cells
    angles, rates, phases = (
        Number(np.array([[f(row, wave) for row in range(rows) for wave in found.waves]]))
        for f in (lambda row, w: row * w.start, lambda _, w: w.rate, lambda _, w: w.phase)
    )
    leaf = Leaf(_place(machine, layout.unit, size))

    def sine(z: Any, angle: Any, rate: Any, phase: Any) -> Any:
        return np.sin(angle * np.exp(rate * special.ndtr(z)) + phase)

    tree = Apply("sines", sine, (leaf, angles, rates, phases))
    vector = WideVector.of(tree, (rows, layout.cells), 1, layout)
    index = np.moveaxis(vector.indices.reshape(*lead, layout.cells), -1, axis)
    return vector.reindexed(index, axis)


def initial(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A vector given with others: per coordinate jointly `N(mean, covariance)`."""
    group, position = step.params[0]["group"], step.params[0]["position"]
    form = machine.vector_forms.get(group)
    if form is None:
        source = GaussianSource("x", group.covariance[None])
        form = Form.members(machine.labels, source, 0, source.size)
        machine.vector_forms[group] = form
    member = form.remapped(Remap(np.array([position])))
    constant = np.full((1, 1), group.mean[position])
    vector = WideVector((1,), 0, whole(Fraction(1)), Fraction(0), constant)
    random = member.variance.any()
    return [replace(vector, form=member, scale=np.ones((1, 1))) if random else vector]


def weights(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A matrix with entries `N(0, std²/n)`."""
    params, layout = step.params[0], whole(Fraction(1))
    drawn = machine.matrices.setdefault(params["matrix"], WeightArray(str(params["matrix"])))
    layouts, slots = {0: layout, 1: layout}, np.zeros((1, 1), int)
    return [WideMatrix(drawn, slots, layouts, {0: 0, 1: 1}, params["std"], Fraction(-1, 2))]


def _finite(machine: Machine, step: Step, law: EntryLaw, key: Any) -> WideScalar:
    shape, size = step.results[0].cells, math.prod(step.results[0].cells)
    found = machine.finite.setdefault(key, NormalGroup(size, machine.integrator))
    # Biases of the outputs, kept at their own size, count with their variance.
    own = machine.width is not None and step.results[0].index in machine.program.biases
    gaussian = law.transform is None or own
    if gaussian and machine.on_tail(step):
        weights = law.deviation * np.eye(size)[None]
        centre = np.full((1, *shape), law.centre)
        return WideScalar(shape, centre, power=law.power, pending=((found, weights),))

    def compute() -> np.ndarray:
        z = found.values()
        entries = z if law.transform is None else law.transform(z)
        return (law.centre + law.spread * entries).reshape(-1, *shape)

    return WideScalar(shape, functools.cache(compute), power=law.power)


def _vector(machine: Machine, step: Step, law: EntryLaw, key: Any) -> WideVector:
    slot = step.results[0]
    (axis,), shape, size = slot.wide_axes, slot.cells, math.prod(slot.cells)
    extent: Any = slot.shape[axis]
    form = machine.vector_forms.get(key)
    if form is None:
        source = GaussianSource(machine.parameter_name(), np.eye(size)[None])
        form = machine.vector_forms[key] = Form.members(machine.labels, source, 0, size)
    machine.laws.append((step, law))
    centre, layout, transform = np.full((1, size), law.centre), whole(extent.share), law.transform
    if transform is None:
        scale = np.full((1, size), law.spread)
        return WideVector(shape, axis, layout, law.power, centre, form, scale)
    tree = Apply(law.name, lambda z: law.spread * transform(z), (Leaf(form),))
    return replace(WideVector.of(tree, shape, axis, layout, law.power), constant=centre)


def _matrix(machine: Machine, step: Step, law: EntryLaw, key: Any) -> WideMatrix:
    if law.centre != 0:
        raise step.refuse(
            "Weight matrices have mean zero.",
            got=f"{law.name} entries of mean {law.centre:g}",
            remedy="draw from a centred law",
        )
    slot = step.results[0]
    slots = np.arange(math.prod(slot.cells)).reshape(slot.cells)
    weights = machine.matrices.get(key)
    if weights is None:
        weights = machine.matrices[key] = WeightArray(machine.parameter_name(), slots.size)
    machine.laws.append((step, law))
    layouts = {a: whole(slot.shape[a].share) for a in slot.wide_axes}  # pyright: ignore
    base = {a: k for k, a in enumerate(slot.wide_axes)}
    return WideMatrix(weights, slots, layouts, base, law.deviation, law.power)


def on_keys(rule: Callable[..., np.ndarray]) -> Rule:
    """The rule of a primitive that derives keys."""

    def derived(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
        arrays = [np.asarray(value.value()[0]) for value in operands]
        return [WideScalar.constant(rule(machine.keys, step, *arrays))]

    return derived
