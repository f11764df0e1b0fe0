"""Rules of primitives that act entry by entry, and on numbers without width axes.

Numbers are taken without compiling anything where NumPy knows the operation: compiling one small
function for every shape costs far more than running it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .closed_forms import RELU, ClosedForm
from .extents import Wide
from .layout import Layout, whole
from .matrices import Outer, Value, WideMatrix
from .records import Order
from .scalars import ZERO, WideScalar
from .steps import Step
from .trees import Apply, Deviations, Number, Tree
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


def elementwise(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """One coordinatewise step, on values of any kind."""
    if any(isinstance(value, Outer) for value in operands):
        return [outer_step(step, operands)]
    return [_coordinatewise(step, operands)]


def _coordinatewise(step: Step, operands: list[Any]) -> Any:
    if any(isinstance(value, WideMatrix) for value in operands):
        return _on_matrix(step, operands)
    if step.name == "select_n" and isinstance(operands[0], WideScalar) and operands[0].fixed:
        chosen = np.unique(np.asarray(operands[0].value()))
        if len(chosen) == 1:
            # Index arithmetic compares with sizes of the width: only the branch taken counts.
            return operands[1 + int(chosen[0])]
    small = followed(step, operands)
    if small is not None:
        return small
    power, operands = _ordered(step, operands)
    vectors = [value for value in operands if isinstance(value, WideVector)]
    if not vectors:
        return _on_scalars(step, operands, power)
    return _on_vectors(step, operands, power)


# ---- powers of n ----------------------------------------------------------------------------


def _ordered(step: Step, operands: list[Any]) -> tuple[Fraction, list[Any]]:
    """The result's power, and operands that count at it (others become zero)."""
    order, first = step.record.order, operands[0].power
    if isinstance(order, Fraction):
        return first * order, operands
    if order is Order.PRODUCT:
        return first + operands[1].power, operands
    if order is Order.QUOTIENT:
        return first - operands[1].power, operands
    if order is Order.POWER:
        exponent = step.params[0].get("y")
        degree = _degree(operands[1]) if exponent is None else Fraction(int(exponent))
        if degree is not None and (exponent is not None or first != 0):
            return first * degree, operands
    if order in (Order.LEADING, Order.RATIO):
        begin = 1 if step.name == "select_n" else 0
        counted = operands[begin:]
        power = leading_power(counted)
        if step.name in ("max", "min", "clamp") and power > 0:
            _refuse_clipped(step, counted, power)
        kept = [value if value.power == power else vanished(value, power) for value in counted]
        return (ZERO if order is Order.RATIO else power), operands[:begin] + kept
    return ZERO, [order_one(step, value) for value in operands]


def _degree(exponent: Any) -> Fraction | None:
    """A constant exponent, if it is a simple fraction."""
    if not isinstance(exponent, WideScalar) or not exponent.fixed or exponent.power != 0:
        return None
    numbers = np.unique(np.asarray(exponent.base, float))
    found = Fraction(float(numbers[0])).limit_denominator(64)
    return found if numbers.size == 1 and abs(float(found) - numbers[0]) < 1e-9 else None


def _refuse_clipped(step: Step, values: list[Any], power: Fraction) -> None:
    small = [v for v in values if v.power < power and not v.is_zero]
    if small and any(isinstance(v, WideVector) for v in values):
        raise diverging(step, power)


# ---- scalars --------------------------------------------------------------------------------


def _on_scalars(step: Step, operands: list[WideScalar], power: Fraction) -> WideScalar:
    shape = np.broadcast_shapes(*(value.shape for value in operands))
    waiting = [value for value in operands if value.pending]
    if waiting:
        found = _linear(step, operands, power, shape)
        if found is not None:
            return found
    rough = any(value.rough for value in operands)
    fixed = all(value.fixed for value in operands)

    def compute() -> Any:
        arrays = [_spread(value.value(), shape) for value in operands]
        result = mapped_primitive(step, arrays)
        if step.name in ("add", "sub") and rough:
            _check_cancellation(step, arrays, result)
        return result

    if fixed:
        return WideScalar(shape, compute(), power=power, rough=rough, fixed=True)
    return WideScalar(shape, functools.cache(compute), power=power, rough=rough)


def _spread(array: Any, shape: tuple[int, ...]) -> Any:
    """(draws, *shape') to (draws, *shape); keys have no other shape to go to."""
    if tuple(array.shape[1:]) == shape:
        return array
    missing = len(shape) - (array.ndim - 1)
    lifted = np.reshape(array, (array.shape[0], *([1] * missing), *array.shape[1:]))
    return np.broadcast_to(lifted, (array.shape[0], *shape))


def _check_cancellation(step: Step, arrays: list[Any], result: np.ndarray) -> None:
    size = max(float(np.abs(a).max(initial=0.0)) for a in arrays)
    if size > 0 and result.size and np.abs(result).max() < 1e-9 * size:
        raise step.refuse(
            "Leading orders do not cancel: what is left is of an order that is not followed.",
            got=f"'{step.name}' of two averages over the width that are equal in the limit",
            remedy="write the quantity so that it is centred before it is summed over the width",
        )


def _linear(
    step: Step, operands: list[WideScalar], power: Fraction, shape: tuple[int, ...]
) -> WideScalar | None:
    """Linear steps carry Gaussian scalars along without drawing them."""
    if not step.record.linear:
        return None
    if step.name == "div" and operands[1].pending:
        return None
    if step.name == "mul" and all(value.pending for value in operands):
        return None
    size = int(np.prod(shape, dtype=int))

    def spread(data: np.ndarray) -> np.ndarray:
        return _spread(data, shape).reshape(data.shape[0], size)

    pending = []
    for k, value in enumerate(operands):
        index = spread(np.arange(int(np.prod(value.shape, dtype=int))).reshape(1, *value.shape))[0]
        for group, weights in value.pending:
            taken = weights[:, index]
            if step.name in ("neg",) or (step.name == "sub" and k == 1):
                taken = -taken
            if step.name in ("mul", "div"):
                other = spread(np.asarray(operands[1 - k].base, float))
                taken = taken * (other if step.name == "mul" else 1 / other)[..., None]
            pending.append((group, taken))

    def compute() -> Any:
        return mapped_primitive(step, [_spread(v.base, shape) for v in operands])

    rough = any(value.rough for value in operands)
    return WideScalar(
        shape, functools.cache(compute), power=power, rough=rough, pending=tuple(pending)
    )


# ---- vectors --------------------------------------------------------------------------------


def aligned(step: Step, operands: list[Any]) -> list[WideVector]:
    """All operands as vectors of one shape and layout."""
    vectors = [value for value in operands if isinstance(value, WideVector)]
    rank = max(len(value.shape) for value in operands)
    axes = {v.axis + rank - len(v.shape) for v in vectors}
    extents = {v.layout.extent for v in vectors}
    if len(axes) > 1 or len(extents) > 1:
        raise step.refuse(
            "Vectors meet channel by channel.",
            got="vectors along two different width axes (an outer product over channels)",
            remedy="contract one of them with weights or with the other first",
        )
    axis = axes.pop()
    layout = functools.reduce(Layout.common, (v.layout for v in vectors))
    prepared = []
    shapes = []
    for value in operands:
        if isinstance(value, WideVector):
            value = value.refined(layout)
        prepared.append(value)
        shapes.append(value.shape)
    shape = np.broadcast_shapes(*shapes)
    found = []
    for value in prepared:
        lead = len(shape) - len(value.shape)
        if isinstance(value, WideVector):
            index = np.broadcast_to(value.indices.reshape(*([1] * lead), *value.shape), shape)
            found.append(value.reindexed(index, axis))
        else:
            data = np.asarray(value.value())
            data = data.reshape(data.shape[0], *([1] * lead), *data.shape[1:])
            data = np.broadcast_to(data, (data.shape[0], *shape)).reshape(data.shape[0], -1)
            found.append(WideVector(shape, axis, layout, value.power, data))
    return found


def _on_vectors(step: Step, operands: list[Any], power: Fraction) -> WideVector:
    vectors = aligned(step, operands)
    first = vectors[0]
    name = step.name
    if name in ("add", "add_any"):
        return replace(vectors[0].plus(vectors[1]), power=power)
    if name == "sub":
        minus = vectors[1].times(np.full((1, first.size), -1.0))
        return replace(vectors[0].plus(minus), power=power)
    if name == "neg":
        return first.times(np.full((1, first.size), -1.0))
    if name in (
        "copy",
        "copy_p",
        "convert_element_type",
        "stop_gradient",
        "reduce_precision",
        "optimization_barrier",
    ):
        whole = np.issubdtype(step.params[0].get("new_dtype", np.float64), np.floating)
        if name != "convert_element_type" or whole:
            return first
    if name == "mul":
        return replace(vectors[0].multiplied(vectors[1]), power=power)
    if name == "div" and vectors[1].is_constant:
        return replace(first.times(1 / vectors[1].constant), power=power)
    if name == "square" or (name == "integer_pow" and int(step.params[0]["y"]) == 2):
        return replace(first.multiplied(first), power=power)
    if name == "select_n" and vectors[0].is_constant:
        return replace(_selected(vectors), power=power)
    trees = tuple(_argument(v) for v in vectors)
    tree = Apply(name, _function(step), trees, _closed_form(step, vectors))
    # A branch may be no number where it is not taken, as a logarithm is; 0 times it is none.
    if (
        name == "select_n"
        and len(vectors) == 3
        and tree.univariate() is None
        and all(_is_number(v) for v in vectors[1:])
    ):
        return replace(_gated(*vectors), power=power)
    return replace(first.applied(tree), power=power)


def _closed_form(step: Step, vectors: list[WideVector]) -> ClosedForm | None:
    """Gaussian expectations of a function of its first argument, where they are known."""
    return RELU if step.name == "max" and vectors[1].is_zero else step.record.closed


def mapped(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A function that came with the program, of vectors and numbers of order one."""
    vectors = aligned(step, [order_one(step, value) for value in operands])
    params = step.params[0]
    trees = tuple(_argument(v) for v in vectors)
    return [vectors[0].applied(Apply(step.name, params["function"], trees, params["closed"]))]


def _is_number(vector: WideVector) -> bool:
    """Whether its functions are defined on both sides of the origin."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(vector.evaluate(Deviations(np.linspace(-3.0, 3.0, 12)))).all())


def _gated(which: WideVector, false: WideVector, true: WideVector) -> WideVector:
    """A choice by one vector between others: products keep independent factors apart."""
    ones = which.constant_like(np.ones((1, which.size)))
    rest = ones.plus(which.times(np.full((1, which.size), -1.0)))
    branches = [replace(v, power=Fraction(0)) for v in (false, true)]
    return rest.multiplied(branches[0]).plus(which.multiplied(branches[1]))


def _selected(vectors: list[WideVector]) -> WideVector:
    """A mask that does not depend on channels: a sum of masked branches."""
    which = vectors[0].constant
    total: WideVector | None = None
    for k, branch in enumerate(vectors[1:]):
        part = branch.times((which == k).astype(float))
        # A masked infinity is no number at all.
        part = replace(part, constant=np.where(which == k, branch.constant, 0.0))
        total = part if total is None else total.plus(part)
    assert total is not None
    return total


def _argument(vector: WideVector) -> Tree:
    return Number(vector.constant) if vector.is_constant else vector.tree()


def _function(step: Step) -> Callable[..., Any]:
    """The primitive on arrays of one shape."""

    def function(*arrays: Any) -> Any:
        found = coordinatewise(step, arrays)
        return run_primitive(step, *(jnp.asarray(a) for a in arrays)) if found is None else found

    return function


# ---- weight matrices ------------------------------------------------------------------------


def _on_matrix(step: Step, operands: list[Any]) -> WideMatrix:
    """Weights may be scaled, and nothing else."""
    matrices = [value for value in operands if isinstance(value, WideMatrix)]
    others = [value for value in operands if not isinstance(value, WideMatrix)]
    name, matrix = step.name, matrices[0]
    if name in ("convert_element_type", "copy", "copy_p", "stop_gradient"):
        return matrix
    if name == "neg":
        return replace(matrix, scale=-matrix.scale)
    if len(matrices) == 1 and len(others) == 1 and isinstance(others[0], WideScalar):
        number = others[0]
        if name in ("add", "sub") and number.is_zero and operands[0] is matrix:
            return matrix
        simple = number.fixed and np.unique(np.asarray(number.value())).size == 1
        if simple and (name == "mul" or (name == "div" and operands[0] is matrix)):
            factor = float(np.ravel(number.value())[0])
            power = number.power
            if name == "div":
                factor, power = 1 / factor, -power
            if matrix.constant is not None:
                return replace(
                    matrix, constant=matrix.constant * factor, power=matrix.power + power
                )
            return replace(matrix, scale=matrix.scale * factor, power=matrix.power + power)
    raise step.refuse(
        "Weight matrices are used as they were drawn, up to a constant factor.",
        got=f"'{name}' on a matrix with two width axes",
        remedy="apply matrices separately (W x + V x, not (W + V) x); weight normalisation, masks "
        "over weights and low-rank updates of them are not covered",
    )


# ---- outer products --------------------------------------------------------------------------


def outer_step(step: Step, operands: list[Any]) -> Outer:
    """Coordinatewise steps on outer products: sums, and factors without width axes."""
    name = step.name
    outers = [value for value in operands if isinstance(value, Outer)]
    first = outers[0]
    if name in ("convert_element_type", "copy", "copy_p"):
        return first
    if name == "neg":
        minus = WideScalar.constant(-1.0)
        return first.times(minus, np.full((1, math.prod(first.shape)), -1.0))
    if name in ("add", "add_any"):
        other = [v for v in operands if v is not first or operands.count(v) > 1]
        rest = other[-1]
        if isinstance(rest, WideMatrix) and rest.is_zero:
            return first
        if isinstance(rest, Outer) and len(outers) == 2:
            return _outer_sum(outers[0], outers[1])
    scalars = [v for v in operands if isinstance(v, WideScalar)]
    if name in ("mul", "div") and len(scalars) == 1 and (name == "mul" or operands[0] is first):
        number = scalars[0]
        data = np.asarray(number.value(), float)
        if name == "div":
            data, number = 1 / data, WideScalar(number.shape, 1 / data, power=-number.power)
        lead = len(first.shape) - (data.ndim - 1)
        data = data.reshape(len(data), *([1] * lead), *data.shape[1:])
        flat = np.broadcast_to(data, (len(data), *first.shape)).reshape(len(data), -1)
        return first.times(number, flat)
    raise step.refuse(
        "Matrices made of activations are added, and scaled by numbers.",
        got=f"'{name}' on an outer product over channels, or on the gradient of a weight matrix",
        remedy="let weights act on vectors directly, and such a matrix on a vector",
    )


def _outer_sum(one: Outer, two: Outer) -> Outer:
    power = leading_power([one, two])
    kept = [outer for outer in (one, two) if outer.power == power]
    if len(kept) == 1:
        return kept[0]
    for k in (0, 1):
        layout = one.layouts[one.axes[k]].common(two.layouts[two.axes[k]])
        one, two = one.refined(one.axes[k], layout), two.refined(two.axes[k], layout)
    if one.axes != two.axes:
        two = Outer(two.shape, one.axes, tuple(p.swapped() for p in two.parts), two.power)
    shape = np.broadcast_shapes(one.shape, two.shape)
    return Outer(shape, one.axes, (*one.parts, *two.parts), power)


# ---- which operands count --------------------------------------------------------------------


def leading_power(values: list[Any]) -> Fraction:
    """The largest power among values that are not zero."""
    powers = [value.power for value in values if not value.is_zero]
    return max(powers, default=ZERO)


def vanished(value: Any, power: Fraction = ZERO) -> Any:
    """Zero in place of something of lower order."""
    if isinstance(value, WideVector):
        return replace(
            value, power=power, constant=np.zeros((1, value.size)), form=None, scale=None, parts=()
        )
    return WideScalar(value.shape, np.zeros((1, *value.shape)), power=power, rough=True, fixed=True)


def order_one(step: Step, value: Any) -> Any:
    """The value for a function that is not homogeneous."""
    if value.power == 0:
        return value
    if value.is_zero or value.power < 0:
        return vanished(value)
    raise diverging(step, value.power)


def diverging(step: Step, power: Fraction) -> Exception:
    """Something grows with the width where it must not."""
    return step.refuse(
        "What enters a nonlinear function stays of order one as the width grows.",
        got=f"an argument of '{step.name}' that grows as n^{power}",
        remedy="scale weights by 1/√fan_in, scores of tied weights by 1/n, or normalise before; "
        "audit() shows where the growth begins",
    )


# ---- what vanishes, where zero in its place would lose it ------------------------------------


def followed(step: Step, operands: list[Any]) -> Any | None:
    """What a step makes of a vanishing operand, if it is of the operand's own order.

    `√n·tanh(z/√n)` is z: near 0 a function is its slope there, and clipping does nothing.
    """
    name, value = step.name, operands[1 if step.name == "clamp" else 0]
    if name in ("floor", "ceil") and value.power < 0 and not value.is_zero:
        raise step.refuse(
            "What vanishes as the width grows does not enter a function that jumps at 0.",
            got=f"an argument of '{name}' that vanishes as n^{value.power}",
            remedy="rescale the argument, so that it stays of order one",
        )
    slope = step.record.slope
    if slope is not None and value.power < 0 and not value.is_zero:
        return _multiplied(value, slope)
    if name not in ("max", "min", "clamp"):
        return None
    shape = np.broadcast_shapes(*(v.shape for v in operands))
    for k, value in enumerate(operands):
        others = operands[:k] + operands[k + 1 :]
        if value.power >= 0 or value.is_zero or value.shape != shape:
            continue
        signs = [_sign(other) for other in others]
        inside = {"max": [-1.0], "min": [1.0], "clamp": [-1.0, 1.0]}[name]
        if signs == inside and (name != "clamp" or k == 1):
            return value
    return None


def _sign(value: Any) -> float | None:
    """The sign of constants of order one, if they have one."""
    fixed = value.fixed if isinstance(value, WideScalar) else value.is_constant
    if value.power != 0 or not fixed:
        return None
    numbers = value.base if isinstance(value, WideScalar) else value.constant
    signs = np.unique(np.sign(np.asarray(numbers)))
    return float(signs[0]) if signs.size == 1 else None


def _multiplied(value: Any, factor: float) -> Any:
    if isinstance(value, WideVector):
        return value.times(np.full((1, value.size), factor))
    return WideScalar(
        value.shape,
        functools.cache(lambda: factor * value.base),
        power=value.power,
        rough=value.rough,
        fixed=value.fixed,
        pending=tuple((group, factor * weights) for group, weights in value.pending),
    )


# ---- numbers ---------------------------------------------------------------------------------


def on_scalars(machine: Machine, step: Step, operands: list[Any]) -> list[Value]:
    """One step on scalars; their numbers are computed on demand."""
    if step.name == "broadcast_in_dim" and step.results[0].wide_axes:
        return [_widened(machine, step, operands[0])]
    if any(slot.wide_axes for slot in step.results):
        if step.name == "random_bits":
            raise step.refuse(
                "Parameters are drawn by jax.random.normal, uniform or truncated_normal.",
                got="raw random bits of the size of the width",
                remedy="use one of these samplers",
            )
        raise step.refuse(
            "Channels are exchangeable: nothing depends on a channel's number.",
            got=f"'{step.name}' that makes an array along the width",
            remedy="draw what differs between channels at random (learned encodings)",
        )
    name = step.name
    if name == "dot_general":
        power = operands[0].power + operands[1].power
    elif step.record.order is Order.LEADING:
        power = leading_power(operands) if operands else Fraction(0)
        operands = [
            v
            if v.power == power or (v.fixed and v.power == 0 and _is_index(v))
            else vanished(v, power)
            for v in operands
        ]
    else:
        operands = [order_one(step, value) for value in operands]
        power = Fraction(0)
    shapes = [tuple(int(e) for e in slot.shape) for slot in step.results]  # pyright: ignore
    if any(value.pending for value in operands):
        found = _pending(machine, step, operands, power, shapes)
        if found is not None:
            return found
    rough = any(value.rough for value in operands)
    fixed = all(value.fixed for value in operands)

    def compute() -> Any:
        arrays = [value.value() for value in operands]
        results = _run(step, arrays)
        return results if isinstance(results, (list, tuple)) else [results]

    results = machine.once(compute)
    found = []
    for k, shape in enumerate(shapes):
        part = machine.once(functools.partial(lambda i: results()[i], k))
        value = part() if fixed else part
        found.append(WideScalar(shape, value, power=power, rough=rough, fixed=fixed))
    return found


def _pending(
    machine: Machine,
    step: Step,
    operands: list[WideScalar],
    power: Fraction,
    shapes: list[tuple[int, ...]],
) -> list[Value] | None:
    """Linear steps on Gaussian scalars that were not drawn: act on each coefficient."""
    if not step.record.linear or (step.name == "dot_general" and all(v.pending for v in operands)):
        return None
    base = _run(step, [value.base for value in operands])
    bases = base if isinstance(base, (list, tuple)) else [base]
    pending: list[list[Any]] = [[] for _ in shapes]
    for k, value in enumerate(operands):
        for group, weights in value.pending:
            columns = np.moveaxis(weights, -1, 1).reshape(-1, *value.shape)
            draws, size = weights.shape[0], weights.shape[-1]
            others = []
            for i, other in enumerate(operands):
                if i == k:
                    others.append(columns)
                elif step.name == "dot_general":
                    data = np.asarray(other.base)
                    data = (
                        np.repeat(
                            np.broadcast_to(data, (max(draws, len(data)), *data.shape[1:])),
                            size,
                            axis=0,
                        )
                        if data.shape[0] > 1
                        else data
                    )
                    others.append(data)
                else:
                    data = np.asarray(other.base)
                    others.append(data if data.dtype.kind != "f" else np.zeros((1, *other.shape)))
            if step.name == "dot_general" and len(columns) != max(len(o) for o in others):
                return None
            results = _run(step, others)
            parts = results if isinstance(results, (list, tuple)) else [results]
            for i, part in enumerate(parts):
                flat = np.asarray(part).reshape(draws, size, -1)
                pending[i].append((group, np.moveaxis(flat, 1, 2)))
    rough = any(value.rough for value in operands)
    return [
        WideScalar(shape, b, power=power, rough=rough, pending=tuple(p))
        for shape, b, p in zip(shapes, bases, pending, strict=True)
    ]


def _widened(machine: Machine, step: Step, number: WideScalar) -> Value:
    """Numbers repeated along a width axis."""
    extents = step.results[0].shape
    wide = list(step.results[0].wide_axes)
    places = [int(d) for d in step.params[0]["broadcast_dimensions"]]
    cells = tuple(1 if i in wide else int(e) for i, e in enumerate(extents))  # pyright: ignore
    lifted = [1] * len(cells)
    for old, new in enumerate(places):
        lifted[new] = number.shape[old]
    if len(wide) > 1:
        if number.fixed and np.unique(np.asarray(number.value())).size == 1:
            one = WideScalar.constant(float(np.ravel(number.value())[0]), number.power)
            return machine.filled(extents, one)
        raise step.refuse(
            "A value has one width axis.",
            got="numbers spread over two width axes",
            remedy="draw weights at random",
        )
    data = np.asarray(number.value())
    flat = np.broadcast_to(data.reshape(len(data), *lifted), (len(data), *cells)).reshape(
        len(data), -1
    )
    extent = extents[wide[0]]
    assert isinstance(extent, Wide)
    return WideVector(cells, wide[0], whole(extent.share), number.power, flat)


def _run(step: Step, arrays: list[Any]) -> Any:
    if step.name == "take":
        return [a[:, step.params[0]["index"]] for a in arrays]
    if step.name == "stack":
        draws = max(len(a) for a in arrays)
        spread = [np.broadcast_to(a, (draws, *a.shape[1:])) for a in arrays]
        return np.stack(spread, axis=1 + step.params[0]["axis"])
    return mapped_primitive(step, arrays)


def _is_index(value: WideScalar) -> bool:
    return value.base.dtype.kind in "iub"


# ---- primitives on arrays --------------------------------------------------------------------


def _power(x: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    x, y = np.asarray(x, float), int(params["y"])
    # NumPy takes logarithms for every power but the second.
    return x * x * x if y == 3 else x**y


_BOOLEAN = {
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "xor": np.logical_xor,
}


def is_key(array: Any) -> bool:
    """Whether these are random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def coordinatewise(step: Step, arrays: tuple[Any, ...]) -> Any | None:
    """An elementwise primitive on arrays that broadcast; None if NumPy does not have it."""
    name, params = step.name, step.params[0]
    arrays = tuple(np.asarray(a) for a in arrays)
    with np.errstate(all="ignore"):
        if name == "div":
            if arrays[0].dtype.kind in "iu" and arrays[1].dtype.kind in "iu":
                return None
            return np.divide(*arrays)
        if step.record.arrays is not None:
            return step.record.arrays(*arrays)
        if name == "integer_pow":
            return _power(arrays[0], params)
        if name in _BOOLEAN and all(a.dtype.kind in "bf" for a in arrays):
            return _BOOLEAN[name](*(a.astype(bool) for a in arrays))
        if name == "select_n":
            which = arrays[0]
            if len(arrays) == 3:
                return np.where(which.astype(bool), arrays[2], arrays[1])
            return np.choose(which.astype(int), arrays[1:])
        if name == "convert_element_type":
            target = (
                np.dtype(params["new_dtype"]) if not _is_extended(params["new_dtype"]) else None
            )
            if target is None:
                return None
            return arrays[0].astype(np.float64 if _floating(target) else target)
    return None


def _is_extended(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def _floating(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def run_primitive(step: Step, *arrays: Any) -> Any:
    """The step's primitive itself, in double precision."""
    params = dict(step.params[0])
    if step.name == "convert_element_type" and _floating(params["new_dtype"]):
        params["new_dtype"] = np.dtype(np.float64)
    if params.get("preferred_element_type") is not None:
        wide = _floating(params["preferred_element_type"])
        params["preferred_element_type"] = np.dtype(np.float64) if wide else None
    return step.primitive.bind(*arrays, **params)


def mapped_primitive(step: Step, arrays: list[Any]) -> Any:
    """The primitive for every draw; arrays have a leading draw axis, of length 1 if fixed."""
    if not any(is_key(a) for a in arrays):
        found = coordinatewise(step, tuple(arrays))
        if found is None:
            found = _shaped(step, arrays)
        if found is not None:
            return found
    draws = max((a.shape[0] for a in arrays), default=1)
    arrays = [_double(a) for a in arrays]
    if draws == 1:
        results = run_primitive(step, *(a[0] for a in arrays))
        return jax.tree.map(lambda r: _host(r[None]), results)
    axes = [0 if a.shape[0] > 1 else None for a in arrays]
    arrays = [a if a.shape[0] > 1 else a[0] for a in arrays]
    results = jax.vmap(lambda *xs: run_primitive(step, *xs), in_axes=axes)(*arrays)
    return jax.tree.map(_host, results)


_REDUCTIONS = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
}


def _shaped(step: Step, arrays: list[Any]) -> Any | None:
    """Operations that move or reduce axes behind the draw axis."""
    name, params = step.name, step.params[0]
    if not arrays:
        return None
    first = np.asarray(arrays[0])
    draws = first.shape[0]
    if name in _REDUCTIONS:
        return _REDUCTIONS[name](first, axis=tuple(int(a) + 1 for a in params["axes"]))
    if name == "reshape" and params.get("dimensions") is None:
        return first.reshape(draws, *params["new_sizes"])
    if name == "transpose":
        return first.transpose(0, *(int(p) + 1 for p in params["permutation"]))
    if name == "squeeze":
        return first.reshape(draws, *(int(e) for e in step.results[0].shape))  # pyright: ignore
    if name == "broadcast_in_dim":
        shape = [int(e) for e in params["shape"]]
        lifted = [1] * len(shape)
        for old, new in enumerate(params["broadcast_dimensions"]):
            lifted[int(new)] = first.shape[old + 1]
        return np.broadcast_to(first.reshape(draws, *lifted), (draws, *shape))
    if name == "slice":
        strides = params["strides"] or (1,) * (first.ndim - 1)
        chosen = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return first[(slice(None), *(slice(int(a), int(b), int(s)) for a, b, s in chosen))]
    if name == "concatenate":
        count = max(len(a) for a in arrays)
        spread = [np.broadcast_to(a, (count, *a.shape[1:])) for a in arrays]
        return np.concatenate(spread, axis=int(params["dimension"]) + 1)
    if name == "dot_general":
        return _contracted(params, first, np.asarray(arrays[1]))
    return None


def _contracted(params: dict[str, Any], left: np.ndarray, right: np.ndarray) -> np.ndarray:
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    names = iter(range(1, 52))
    a: list[int] = [0] * (left.ndim - 1)
    b: list[int] = [0] * (right.ndim - 1)
    for i, j in (*zip(lb, rb, strict=True), *zip(lc, rc, strict=True)):
        a[i] = b[j] = next(names)
    for axes in (a, b):
        for k, name in enumerate(axes):
            if name == 0:
                axes[k] = next(names)
    out = [a[i] for i in lb]
    out += [n for i, n in enumerate(a) if i not in (*lb, *lc)]
    out += [n for j, n in enumerate(b) if j not in (*rb, *rc)]
    draws = max(len(left), len(right))
    lead_a, lead_b = ([0] if len(m) > 1 else [] for m in (left, right))
    left = left if lead_a else left[0]
    right = right if lead_b else right[0]
    target = [0, *out] if draws > 1 else out
    found = np.einsum(left, [*lead_a, *a], right, [*lead_b, *b], target, optimize=True)
    return found if draws > 1 else found[None]


def _double(array: Any) -> Any:
    if is_key(array):
        return array
    array = jnp.asarray(array)
    return array.astype(jnp.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def _host(array: Any) -> Any:
    return array if is_key(array) else np.asarray(array)
