"""What JAX code does between known parts: elementwise functions, sums, pooling, rearrangements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..programs.table import COORDINATEWISE
from .initialisers import independent_variance
from .parts import Add, Multiply, Pool
from .values import Graph, UnreadStep, Value, ValueKind, refusal

__all__ = ["COORDINATEWISE", "Known", "Rows", "elementwise", "moved"]


@dataclass(frozen=True)
class Known:
    """An array that does not depend on the model's input."""

    array: Any

    @property
    def number(self) -> Any:
        """The one number in it, or None."""
        array = np.asarray(self.array)
        return array.ravel()[0] if array.size and (array == array.ravel()[0]).all() else None


@dataclass(frozen=True)
class Rows:
    """Rows of tables at constant indices, which wait to be added to something.

    Variances of a vector that each position has for itself, and of one common to all; `shape` is
    that of the positions.
    """

    own: float
    common: float
    shape: tuple[int, ...]

    @classmethod
    def of(cls, variance: float, indices: np.ndarray, where: str) -> Rows:
        """Rows of one table."""
        distinct = len(np.unique(indices))
        if distinct == indices.size:
            return cls(variance, 0.0, indices.shape)
        if distinct == 1:
            return cls(0.0, variance, indices.shape)
        raise refusal(
            "Positions have a row of their own, or all the same one.",
            got=f"{distinct} rows for {indices.size} positions at {where}",
        )

    def spread(self, shape: tuple[int, ...], where: str) -> Rows:
        """The rows at positions of another shape: one row may be repeated for all of them."""
        before, after = math.prod(self.shape), math.prod(shape)
        if before == after or not self.own:
            return replace(self, shape=shape)
        if before == 1:
            return Rows(0.0, self.own + self.common, shape)
        raise refusal(
            "Positions have a row of their own, or all the same one.",
            got=f"rows for positions {self.shape} repeated to {shape} at {where}",
            remedy="use one table for all positions",
        )


# ---- elementwise -----------------------------------------------------------------------------


def elementwise(graph: Graph, equation: Any, inputs: list[Any], where: str) -> Any:
    """A function of every entry, or a sum or product of two branches."""
    name = equation.primitive.name
    if any(isinstance(x, Rows) for x in inputs):
        return _with_rows(graph, name, inputs, where)
    values = [x for x in inputs if isinstance(x, Value)]
    numbers = {i: x.number for i, x in enumerate(inputs) if isinstance(x, Known)}
    if None in numbers.values():
        return _with_array(graph, name, inputs, where)
    first = values[0]
    if all(v.node is first.node and v.axes == first.axes for v in values):
        return _composed(equation, inputs, numbers, first)
    if numbers or len(values) != 2:
        raise UnreadStep
    one, two = values
    match name:
        case "add" | "add_any":
            return graph.combined(one, two, Add(), where)
        case "sub":
            return graph.combined(one, two.then(lambda x: -x), Add(), where)
        case "mul":
            return graph.combined(one, two, Multiply(), where)
        case _:
            raise UnreadStep


def _composed(equation: Any, inputs: list[Any], numbers: dict[int, Any], first: Value) -> Value:
    """All operands are functions of one entry: so is the result."""
    if equation.primitive.name == "convert_element_type":
        return first
    primitive, params = equation.primitive, equation.params
    functions = [getattr(x, "function", None) for x in inputs]

    def function(x: Any) -> Any:
        x = jnp.asarray(x)
        operands = []
        for i, (inner, given) in enumerate(zip(functions, inputs, strict=True)):
            if isinstance(given, Value):
                operands.append(x if inner is None else inner(x))
            else:
                number = np.asarray(numbers[i])
                dtype = x.dtype if number.dtype.kind == "f" else number.dtype
                operands.append(jnp.full(x.shape, number, dtype))
        return primitive.bind(*operands, **params)

    return Value(first.node, first.axes, function)


def _with_rows(graph: Graph, name: str, inputs: list[Any], where: str) -> Any:
    """Rows of tables are added to each other and to values."""
    if name == "convert_element_type":
        return inputs[0]
    if name != "add":
        raise UnreadStep
    rows = [x for x in inputs if isinstance(x, Rows)]
    value = next((x for x in inputs if isinstance(x, Value)), None)
    if value is None and len(rows) != 2:
        raise UnreadStep
    if value is None:
        shape = np.broadcast_shapes(*(x.shape for x in rows))
    else:
        value = graph.channel_last(value, where)
        shape = graph.shape_of(value)[:-1]
    rows = [x.spread(shape, where) for x in rows]
    total = Rows(sum(x.own for x in rows), sum(x.common for x in rows), shape)
    if value is None:
        return total
    return graph.placed(value, total.own, total.common, where)


def _with_array(graph: Graph, name: str, inputs: list[Any], where: str) -> Value:
    """A table of the model's own that is added: vectors for positions."""
    value = next((x for x in inputs if isinstance(x, Value)), None)
    array = next((x for x in inputs if isinstance(x, Known)), None)
    if name != "add" or value is None or array is None:
        raise refusal(
            "Arrays of the model's own are added as vectors of positions, or stand in parts.",
            got=f"'{name}' with an array that is not constant at {where}",
        )
    value = graph.known(value)
    table = np.asarray(array.array, np.float64)
    shape = graph.shape_of(value)
    if table.shape != shape or not value.axes or value.axes[-1] is not ValueKind.CHANNEL:
        raise refusal(
            "Vectors of positions are added to (positions, channels).",
            got=f"an array of shape {table.shape} added to one of shape {shape} at {where}",
        )
    graph.arrays.require_new(table, where)
    rows = table.reshape(-1, shape[-1])
    return graph.placed(value, independent_variance(rows, where), 0.0, where)


# ---- everything else -------------------------------------------------------------------------


_KEEP_ROWS = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")


def moved(graph: Graph, equation: Any, inputs: list[Any], where: str) -> Any:
    """Rearrangements, pooling, picking, concatenation."""
    params, out = equation.params, equation.outvars[0].aval.shape
    if equation.primitive.name == "concatenate":
        return _concatenated(graph, inputs, params["dimension"], where)
    value = inputs[0]
    if isinstance(value, Rows) and equation.primitive.name in _KEEP_ROWS:
        return value.spread(tuple(out[:-1]), where)
    if not isinstance(value, Value) or any(isinstance(x, Value) for x in inputs[1:]):
        raise UnreadStep
    match equation.primitive.name:
        case "reshape" | "squeeze" | "expand_dims":
            return graph.reshaped(value, out, where)
        case "broadcast_in_dim":
            return _broadcast(graph, value, out, params["broadcast_dimensions"], where)
        case "transpose":
            return graph.transposed(value, params["permutation"])
        case "reduce_sum":
            return graph.summed(value, params["axes"], where, keep=False)
        case "slice":
            steps = params["strides"] or (1,) * len(out)
            return _sliced(graph, value, params["start_indices"], out, steps, where)
        case "dynamic_slice":
            starts = [int(x.number) for x in inputs[1:]]
            return _sliced(graph, value, starts, out, (1,) * len(out), where)
        case "gather":
            return _gathered(graph, value, inputs[1], params, where)
        case "reduce_window_sum":
            return _windows(graph, value, params, where)
        case _:
            raise UnreadStep


def _broadcast(
    graph: Graph, value: Value, shape: tuple[int, ...], places: tuple[int, ...], where: str
) -> Value:
    kept = [shape[p] for p in places]
    if list(graph.shape_of(value)) != kept or any(
        extent != 1 for i, extent in enumerate(shape) if i not in places
    ):
        raise refusal(
            "Positions and channels are as many as the parts make.",
            got=f"{graph.shape_of(value)} repeated to {shape} at {where}",
        )
    return graph.reshaped(value, shape, where)


def _sliced(graph: Graph, value: Value, starts: Any, sizes: Any, steps: Any, where: str) -> Value:
    before = graph.shape_of(value)
    cut = [i for i, size in enumerate(sizes) if size != before[i]]
    if not cut:
        return value
    if len(cut) > 1 or sizes[cut[0]] != 1 or steps[cut[0]] != 1:
        raise refusal(
            "An index picks one position.",
            got=f"a slice of shape {tuple(sizes)} out of {before} at {where}",
        )
    return graph.picked(value, cut[0], int(starts[cut[0]]), where)


def _gathered(graph: Graph, value: Value, index: Any, params: Any, where: str) -> Value:
    """`x[i]` with one index."""
    numbers = params["dimension_numbers"]
    sizes = tuple(params["slice_sizes"])
    if not isinstance(index, Known) or index.number is None or len(numbers.start_index_map) != 1:
        raise UnreadStep
    axis = numbers.start_index_map[0]
    starts = [0] * len(sizes)
    starts[axis] = int(index.number)
    picked = _sliced(graph, value, starts, sizes, (1,) * len(sizes), where)
    shape = [s for i, s in enumerate(sizes) if i not in numbers.collapsed_slice_dims]
    return graph.reshaped(picked, shape, where)


def _windows(graph: Graph, value: Value, params: Any, where: str) -> Value:
    """Sums over windows of positions."""
    value = graph.settled_value(value, where)
    windows, strides = params["window_dimensions"], params["window_strides"]
    plain = all(low == high == 0 for low, high in params["padding"]) and all(
        d == 1 for d in (*params["window_dilation"], *params["base_dilation"])
    )
    window = [1] * len(value.node.positions)
    stride = [1] * len(value.node.positions)
    for label, size, step in zip(value.axes, windows, strides, strict=True):
        if isinstance(label, tuple) and len(label) == 1:
            window[label[0]], stride[label[0]] = size, step
        elif size != 1 or step != 1:
            plain = False
    if not plain:
        raise refusal(
            "Windows of a pool lie inside, one axis of positions each.",
            got=f"padding, dilation or merged axes at {where}",
        )
    return graph.windowed(value, Pool(1.0, tuple(window), tuple(stride)), where)


def _concatenated(graph: Graph, inputs: list[Any], axis: int, where: str) -> Value:
    """A token of the model's own in front of the positions."""
    if (
        len(inputs) != 2
        or not isinstance(inputs[0], Known)
        or not isinstance(inputs[1], Value)
        or np.shape(inputs[0].array)[axis] != 1
    ):
        raise refusal(
            "A token of the model's own stands in front of all positions.",
            got=f"another concatenation at {where}",
        )
    row = np.asarray(inputs[0].array, np.float64).reshape(1, -1)
    graph.arrays.require_new(row, where)
    return graph.preceded(inputs[1], axis, independent_variance(row, where), where)
