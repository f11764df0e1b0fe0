"""Coordinatewise operations on vectors and scalars, and what they do to powers of n."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from .arrays import coordinatewise, mapped_primitive, run_primitive
from .closed_forms import COS, ERF, EXP, RELU, SIGN, SIN, ClosedForm
from .layout import Layout
from .matrices import WideMatrix
from .scalars import ZERO, WideScalar
from .small import followed
from .steps import Step
from .trees import Apply, Deviations, Number, Tree
from .vectors import WideVector

# Every operand counts with its order of magnitude, and the larger one wins.
_SUMS = {"add", "sub", "max", "min", "add_any", "select_n", "clamp", "rem"}
# Homogeneous of degree zero in all operands together: only the largest count, at any order.
_COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne", "atan2"}
# Functions with f(c·x) = c^degree f(x) for c > 0.
_DEGREES = {
    "neg": Fraction(1),
    "abs": Fraction(1),
    "copy": Fraction(1),
    "copy_p": Fraction(1),
    "convert_element_type": Fraction(1),
    "stop_gradient": Fraction(1),
    "reduce_precision": Fraction(1),
    "real": Fraction(1),
    "optimization_barrier": Fraction(1),
    "sign": Fraction(0),
    "is_finite": Fraction(0),
    "sqrt": Fraction(1, 2),
    "rsqrt": Fraction(-1, 2),
    "cbrt": Fraction(1, 3),
    "square": Fraction(2),
}
_NONLINEAR = {
    "exp", "exp2", "log", "log1p", "expm1", "tanh", "sin", "cos", "tan", "sinh", "cosh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "logistic", "pow",
    "floor", "ceil", "round", "lgamma", "digamma", "and", "or", "not", "xor", "nextafter",
}  # fmt: skip
ELEMENTWISE = _SUMS | _COMPARISONS | set(_DEGREES) | _NONLINEAR | {"mul", "div", "integer_pow"}


def elementwise(step: Step, operands: list[Any]) -> Any:
    """One coordinatewise step."""
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
    name = step.name
    if name == "mul":
        return operands[0].power + operands[1].power, operands
    if name == "div":
        return operands[0].power - operands[1].power, operands
    if name == "integer_pow":
        return operands[0].power * int(step.params[0]["y"]), operands
    if name in _DEGREES:
        return operands[0].power * _DEGREES[name], operands
    if name == "pow" and operands[0].power != 0:
        degree = _degree(operands[1])
        if degree is not None:
            return operands[0].power * degree, operands
    if name in _SUMS or name in _COMPARISONS:
        first = 1 if name == "select_n" else 0
        counted = operands[first:]
        power = leading_power(counted)
        if name in ("max", "min", "clamp") and power > 0:
            _refuse_clipped(step, counted, power)
        kept = [value if value.power == power else vanished(value, power) for value in counted]
        kept = operands[:first] + kept
        return (ZERO if name in _COMPARISONS else power), kept
    return ZERO, [order_one(step, value) for value in operands]


def _degree(exponent: Any) -> Fraction | None:
    """A constant exponent, if it is a simple fraction."""
    if not isinstance(exponent, WideScalar) or not exponent.fixed or exponent.power != 0:
        return None
    numbers = np.unique(np.asarray(exponent.base, float))
    found = Fraction(float(numbers[0])).limit_denominator(64)
    return found if numbers.size == 1 and abs(float(found) - numbers[0]) < 1e-9 else None


def leading_power(values: list[Any]) -> Fraction:
    """The largest power among values that are not zero."""
    powers = [value.power for value in values if not value.is_zero]
    return max(powers, default=ZERO)


def _refuse_clipped(step: Step, values: list[Any], power: Fraction) -> None:
    small = [v for v in values if v.power < power and not v.is_zero]
    if small and any(isinstance(v, WideVector) for v in values):
        raise diverging(step, power)


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


_KEEPS_PENDING = {
    "neg",
    "copy",
    "copy_p",
    "convert_element_type",
    "add",
    "sub",
    "mul",
    "div",
    "add_any",
}


def _linear(
    step: Step, operands: list[WideScalar], power: Fraction, shape: tuple[int, ...]
) -> WideScalar | None:
    """Linear steps carry Gaussian scalars along without drawing them."""
    if step.name not in _KEEPS_PENDING:
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
    tree = Apply(name, _function(step), trees, _closed_form(name, vectors))
    # A branch may be no number where it is not taken, as a logarithm is; 0 times it is none.
    if (
        name == "select_n"
        and len(vectors) == 3
        and tree.univariate() is None
        and all(_is_number(v) for v in vectors[1:])
    ):
        return replace(_gated(*vectors), power=power)
    return replace(first.applied(tree), power=power)


_CLOSED = {"erf": ERF, "sin": SIN, "cos": COS, "exp": EXP, "sign": SIGN}


def _closed_form(name: str, vectors: list[WideVector]) -> ClosedForm | None:
    """Gaussian expectations of a function of its first argument, where they are known."""
    if name == "max" and vectors[1].is_zero:
        return RELU
    return _CLOSED.get(name)


def mapped(step: Step, operands: list[Any]) -> WideVector:
    """A function that came with the program, of vectors and numbers of order one."""
    vectors = aligned(step, [order_one(step, value) for value in operands])
    params = step.params[0]
    trees = tuple(_argument(v) for v in vectors)
    return vectors[0].applied(Apply(step.name, params["function"], trees, params["closed"]))


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
