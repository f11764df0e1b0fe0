"""Coordinatewise operations on vectors and scalars, and what they do to powers of n."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from .arrays import coordinatewise, mapped_primitive, run_primitive
from .closed_forms import RELU, ClosedForm
from .layout import Layout
from .matrices import WideMatrix
from .outer import Outer, outer_step
from .powers import diverging, leading_power, order_one, vanished
from .records import Order
from .scalars import ZERO, WideScalar
from .small import followed
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
