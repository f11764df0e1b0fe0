"""Convolutions and pooling windows: patches of positions, then a contraction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from .contraction import summed_products
from .elementwise import aligned
from .layout import Layout
from .matmul import matmul
from .matrices import WideMatrix
from .outer import Outer, OuterProduct
from .scalars import WideScalar
from .steps import Step
from .trees import Apply
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


def patch_index(shape: tuple[int, ...], window: tuple[int, ...], params: Any) -> np.ndarray:
    """For spatial axes `shape`: which entry every output position and offset reads (-1: padding).

    Result: (*outputs, *window).
    """
    padded_index = []
    for axis, extent in enumerate(shape):
        low, high = (int(p) for p in params["padding"][axis])
        base = int(params["lhs_dilation"][axis])
        spread = np.full((extent - 1) * base + 1, -1)
        spread[::base] = np.arange(extent)
        line = np.concatenate([np.full(max(low, 0), -1), spread, np.full(max(high, 0), -1)])
        line = line[max(-low, 0) : len(line) - max(-high, 0)]
        reach = (window[axis] - 1) * int(params["rhs_dilation"][axis]) + 1
        starts = np.arange(0, len(line) - reach + 1, int(params["window_strides"][axis]))
        offsets = np.arange(window[axis]) * int(params["rhs_dilation"][axis])
        padded_index.append(line[starts[:, None] + offsets[None, :]])  # (out, window)
    rank = len(shape)
    total: Any = 0
    missing: Any = False
    stride = 1
    for axis in reversed(range(rank)):
        line = padded_index[axis]
        spread_shape = [1] * (2 * rank)
        spread_shape[axis], spread_shape[rank + axis] = line.shape
        lifted = line.reshape(spread_shape)
        total = total + np.maximum(lifted, 0) * stride
        missing = missing | (lifted < 0)
        stride *= shape[axis]
    return np.where(missing, -1, total)


def convolve(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`conv_general_dilated` as a contraction of patches with the kernel."""
    return [_convolution(machine, step, *operands)]


def _convolution(machine: Machine, step: Step, left: Any, right: Any) -> Any:
    params = step.params[0]
    if int(params["batch_group_count"]) != 1:
        raise step.refuse(
            "Convolutions have no batch groups.", remedy="use feature groups or separate layers"
        )
    numbers = params["dimension_numbers"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    spatial = tuple(left.shape[a] for a in lhs[2:])
    window = tuple(right.shape[a] for a in rhs[2:])
    index = patch_index(spatial, window, params)
    outputs = index.shape[: len(spatial)]
    positions, offsets = math.prod(outputs), math.prod(window)
    index = index.reshape(positions, offsets)
    groups = [int(p["feature_group_count"]) for p in step.params]
    wide = (
        isinstance(left, WideVector) and left.axis == lhs[0],
        isinstance(right, WideVector) and right.axis == rhs[0],
    )
    if len(set(groups)) > 1:
        result = _depthwise(machine, step, left, right, lhs, rhs, index)
    elif wide == (True, True) or (any(wide) and WideScalar in (type(left), type(right))):
        entries = _entries(_patches(left, lhs, index), _kernel(right, rhs), groups[0])
        if isinstance(left, WideVector) and isinstance(right, WideVector):
            return _outer(left, right, entries, outputs, out)
        result = _by_numbers(left, right, entries)
    elif groups[0] != 1:
        raise step.refuse(
            "Channels of a convolution are grouped all together or each alone.",
            got=f"{groups[0]} feature groups",
            remedy="use feature_group_count=1, or as many groups as channels",
        )
    elif isinstance(left, WideVector) and isinstance(right, WideVector) and left.axis == lhs[1]:
        return _readout(machine, step, left, right, index, outputs)
    elif isinstance(left, WideVector) and isinstance(right, WideMatrix):
        result = _hidden(machine, step, left, right, lhs, rhs, index)
    else:
        raise _mismatched(step)
    # The result has axes (batch, positions, features): give them back their places.
    return _placed(result, outputs, out)


def _members(value: Any) -> np.ndarray:
    return np.arange(math.prod(value.shape)).reshape(value.shape)


def _patches(value: Any, spec: Any, index: np.ndarray) -> np.ndarray:
    """Members (batch, positions, offsets, features)."""
    order = (spec[0], *spec[2:], spec[1])
    members = _members(value).transpose(order)
    flat = members.reshape(members.shape[0], -1, members.shape[-1])
    taken = flat[:, np.maximum(index, 0)]
    return np.where(index[None, :, :, None] < 0, -1, taken)


def _kernel(value: Any, spec: Any) -> np.ndarray:
    """Members (out features, offsets, in features)."""
    order = (spec[0], *spec[2:], spec[1])
    members = _members(value).transpose(order)
    return members.reshape(members.shape[0], -1, members.shape[-1])


@dataclass(frozen=True)
class _Entries:
    """Members of the left and right side behind each result (batch, positions, features)."""

    shape: tuple[int, int, int]
    left: np.ndarray
    """(results, terms); -1 in the padding."""
    right: np.ndarray


def _entries(patches: np.ndarray, kernel: np.ndarray, groups: int) -> _Entries:
    """Sums over the window and the features of each group."""
    batch, positions, offsets, features = patches.shape
    outs, _, inner = kernel.shape
    by_group = patches.reshape(batch, positions, offsets, groups, features // groups)
    group = np.arange(outs) // (outs // groups)
    rows = np.moveaxis(by_group[:, :, :, group], 3, 2)  # (batch, positions, outs, offsets, inner)
    columns = np.broadcast_to(kernel, rows.shape)
    terms = offsets * inner
    return _Entries((batch, positions, outs), rows.reshape(-1, terms), columns.reshape(-1, terms))


def _by_numbers(left: Any, right: Any, entries: _Entries) -> WideVector:
    """The first layer, where numbers mix the kernel's members; and gradients of such layers."""
    vector, number, members, places, axis = (
        (right, left, entries.right, entries.left, 2)
        if isinstance(right, WideVector)
        else (left, right, entries.left, entries.right, 0)
    )
    data = np.asarray(number.value(), float)
    flat = data.reshape(len(data), -1)[:, np.maximum(places, 0)]
    flat = np.where((places < 0) | (members < 0), 0.0, flat)
    weights = np.zeros((len(data), len(members), vector.size))
    results = np.arange(len(members))
    for term in range(members.shape[1]):
        weights[:, results, np.maximum(members[:, term], 0)] += flat[..., term]
    mixed = vector.mixed(weights, entries.shape, axis)
    return replace(mixed, power=vector.power + number.power)


def _outer(
    left: WideVector, right: WideVector, entries: _Entries, outputs: tuple[int, ...], out: Any
) -> Outer:
    """The gradient of a kernel: `Σ_positions h ⊗ δ` for every offset."""
    batch, _, outs = entries.shape
    shape = (batch, *outputs, outs)
    kept = entries.left >= 0
    part = OuterProduct(left, right, entries.left, np.where(kept, entries.right, -1))
    found = Outer(shape, (0, len(shape) - 1), (part,), left.power + right.power)
    order = _order(out)
    index = np.arange(math.prod(shape)).reshape(shape).transpose(order)
    return found.reindexed(index, {0: order.index(0), len(shape) - 1: order.index(len(shape) - 1)})


def _readout(
    machine: Machine,
    step: Step,
    left: WideVector,
    right: WideVector,
    index: np.ndarray,
    outputs: tuple[int, ...],
) -> WideScalar:
    """The last layer: a finite number of features, each a sum of dot products over the window."""
    numbers = step.params[0]["dimension_numbers"]
    if right.axis != numbers.rhs_spec[1]:
        raise _mismatched(step)
    layout = left.layout.common(right.layout)
    left, right = left.refined(layout), right.refined(layout)
    u = left.reindexed(_patches(left, numbers.lhs_spec, index), 3)
    v = right.reindexed(_kernel(right, numbers.rhs_spec), 2)
    batch, positions, offsets = u.shape[:3]
    outs = v.shape[0]
    order = _order(numbers.out_spec)
    where = np.arange(batch * positions).reshape(batch, *outputs, 1)
    feature = np.arange(outs).reshape(*([1] * (len(outputs) + 1)), outs)
    full = (batch, *outputs, outs)
    rows = np.broadcast_to(where, full).transpose(order)
    columns = np.broadcast_to(feature, full).transpose(order)
    each = np.arange(offsets)
    pairs = np.stack([(a.reshape(-1, 1) * offsets + each).ravel() for a in (rows, columns)])
    return summed_products(machine, step, u, v, pairs, rows.shape, offsets)


def _order(out: Any) -> list[int]:
    """Where the step's axes are in (batch, spatial…, feature)."""
    source = {out[0]: 0, out[1]: len(out) - 1}
    for k, axis in enumerate(out[2:]):
        source[axis] = 1 + k
    return [source[a] for a in range(len(out))]


def _mismatched(step: Step) -> Exception:
    return step.refuse(
        "The channels of a convolution are contracted with its kernel.",
        got="a kernel whose width axes do not match the input's",
        remedy="let input channels be finite or grow with the width, like the kernel's",
    )


def _hidden(
    machine: Machine,
    step: Step,
    left: WideVector,
    right: WideMatrix,
    lhs: Any,
    rhs: Any,
    index: np.ndarray,
) -> WideVector:
    if left.axis != lhs[1] or set(right.layouts) != {rhs[0], rhs[1]}:
        raise step.refuse(
            "A convolution contracts channels.",
            got="a width axis among the positions",
            remedy="keep positions finite",
        )
    layout = right.layouts[rhs[1]].common(left.layout)
    right, left = right.refined(rhs[1], layout), left.refined(layout)
    patches, kernel = _patches(left, lhs, index), _kernel(right, rhs)
    slots = right.slots.ravel()[kernel]  # (out cells, offsets, in cells)
    batch, positions, offsets, cells = patches.shape
    outs = slots.shape[0]
    full = (batch, positions, outs, offsets, cells)
    table = np.broadcast_to(slots[None, None], full).reshape(-1, offsets * cells)
    members = np.broadcast_to(patches[:, :, None], full).reshape(-1, offsets * cells)
    result = matmul(machine, step, right, rhs[1], left, table, members)
    return replace(result, shape=(batch, positions, outs), axis=2, layout=right.layouts[rhs[0]])


def _depthwise(
    machine: Machine, step: Step, left: Any, right: Any, lhs: Any, rhs: Any, index: np.ndarray
) -> WideVector:
    """Filters for each channel alone: products of members, added over the window.

    With m filters for each channel, results `m·α, …, m·α + m − 1` are made of channel α.
    """
    widths = machine.program.widths
    if (
        not (isinstance(left, WideVector) and isinstance(right, WideVector))
        or (left.axis, right.axis) != (lhs[1], rhs[0])
        or any(
            int(p["feature_group_count"]) != left.layout.extent * width
            for p, width in zip(step.params, widths, strict=True)
        )
    ):
        raise step.refuse(
            "A depthwise convolution has filters for each channel alone.",
            got="another grouping of channels",
            remedy="use as many groups as channels",
        )
    filters = int(right.layout.extent / left.layout.extent)
    ours = left.layout
    layout = right.layout.common(Layout(ours.major, ours.minor * filters, ours.unit))
    right = right.refined(layout)
    left = left.refined(Layout(layout.major, layout.minor // filters, layout.unit))
    patches, kernel = _patches(left, lhs, index), _kernel(right, rhs)
    patches = np.repeat(patches, filters, axis=-1)
    total: WideVector | None = None
    for offset in range(patches.shape[2]):
        rows = patches[:, :, offset]  # (batch, positions, cells)
        columns = np.broadcast_to(kernel[:, offset, 0], rows.shape)
        spread = replace(left.reindexed(rows, 2), layout=layout)
        term = spread.multiplied(right.reindexed(columns, 2))
        total = term if total is None else total.plus(term)
    assert total is not None
    return replace(total, power=left.power + right.power)


def _placed(result: WideVector, outputs: tuple[int, ...], out: Any) -> WideVector:
    """(batch, positions, features) to the order the step wants."""
    batch, _, features = result.shape
    split = result.indices.reshape(batch, *outputs, features)
    return result.reindexed(split.transpose(_order(out)), out[1 if result.axis else 0])


def window_values(step: Step, vector: WideVector) -> WideVector:
    """Maxima and minima over finite axes or windows, channel by channel."""
    name = step.name
    function = np.minimum if name == "reduce_min" else np.maximum
    if name == "reduce_window_max":
        params = step.params[0]
        window = tuple(int(w) for w in params["window_dimensions"])
        if window[vector.axis] != 1:
            raise _over_channels(step)
        plain = {
            "padding": params["padding"],
            "lhs_dilation": params["base_dilation"],
            "rhs_dilation": params["window_dilation"],
            "window_strides": params["window_strides"],
        }
        index = patch_index(vector.shape, window, plain)
        shape = index.shape[: len(vector.shape)]
        rows = index.reshape(*shape, -1)
        if (rows < 0).any():
            raise step.refuse(
                "Windows of a maximum lie inside the array.",
                got="a max pool with padding",
                remedy="pool without padding ('VALID')",
            )
        slices = [vector.reindexed(rows[..., k], vector.axis) for k in range(rows.shape[-1])]
    else:
        axes = tuple(int(a) for a in step.params[0]["axes"])
        if vector.axis in axes:
            raise _over_channels(step)
        kept = [a for a in range(len(vector.shape)) if a not in axes]
        shape = tuple(vector.shape[a] for a in kept)
        rows = vector.indices.transpose(*kept, *axes).reshape(*shape, -1)
        place = kept.index(vector.axis)
        slices = [vector.reindexed(rows[..., k], place) for k in range(rows.shape[-1])]

    def larger(a: WideVector, b: WideVector) -> WideVector:
        first, second = aligned(step, [a, b])
        return first.applied(Apply(name, function, (first.tree(), second.tree())))

    return replace(reduce(larger, slices), power=vector.power)


def _over_channels(step: Step) -> Exception:
    return step.refuse(
        "Channels are exchangeable: along the width there are sums, dot products and weights.",
        got=f"'{step.name}' over the channels",
        remedy="take maxima over positions",
    )
