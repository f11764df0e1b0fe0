"""Rules of primitives that act entry by entry, and on numbers without width axes.

Numbers are taken without compiling anything where NumPy knows the operation: compiling one small
function for every shape costs far more than running it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .arrays import is_floating
from .layout import Layout, numbered
from .matrices import Outer, Value, WideMatrix
from .scalars import ZERO, WideScalar
from .steps import Order, Slot, Step
from .thresholds import NO_DIFFERENCE, SIMPLE_EXPONENT
from .trees import Apply, Deviations, Number, Tree
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


def elementwise(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """One coordinatewise step, on values of any kind."""
    if any(isinstance(value, WideMatrix | Outer) for value in operands):
        return [_on_matrices(step, operands)]
    if machine.width is not None and len(step.record.signs) == 2:
        operands = _with_biases(machine, step, operands, machine.width)
    small = followed(step, operands)
    if small is not None:
        return [small]
    power, operands = _ordered(step, operands)
    if any(isinstance(value, WideVector) for value in operands):
        vectors, record = aligned(step, operands), step.record
        found = None if record.vectors is None else record.vectors(step, vectors)
        if record.signs:
            pairs = zip(vectors, record.signs, strict=True)
            terms = (v if sign == 1 else multiplied(v, sign) for v, sign in pairs)
            found = functools.reduce(WideVector.plus, terms)
        return [replace(found or vectors[0].applied(_tree(step, vectors)), power=power)]
    shape = np.broadcast_shapes(*(value.shape for value in operands))
    spread = [
        v if v.shape == shape else v.moved(np.broadcast_to(numbered(v), shape), {})
        for v in operands
    ]
    return _numbers(machine, step, spread, power, [shape])


def select(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`select_n`: index arithmetic compares with sizes of the width, and one branch is taken."""
    which = operands[0]
    if isinstance(which, WideScalar) and which.is_one_number:
        return [operands[1 + int(np.ravel(which.value())[0])]]
    return elementwise(machine, step, operands)


# ---- powers of n ----------------------------------------------------------------------------


def _ordered(step: Step, operands: list[Any]) -> tuple[Fraction, list[Any]]:
    """The result's power, and operands that count at it (others become zero)."""
    if not operands:
        return ZERO, operands
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
        begin = step.record.chooses
        counted = operands[begin:]
        power = leading_power(counted)
        clips = step.record.inside and any(isinstance(v, WideVector) for v in counted)
        if clips and power > 0 and any(v.power < power and not v.is_zero for v in counted):
            raise diverging(step, power)

        def counts(v: Any) -> bool:
            """Beside entries that are moved about, fixed integers of order one are indices."""
            number = not step.record.coordinatewise and isinstance(v, WideScalar) and v.fixed
            index = number and v.power == 0 and v.base.dtype.kind in "iub"
            return v.power == power or index

        kept = [v if counts(v) else vanished(v, power) for v in counted]
        return (ZERO if order is Order.RATIO else power), operands[:begin] + kept
    return ZERO, [order_one(step, value) for value in operands]


def _degree(exponent: Any) -> Fraction | None:
    """A constant exponent, if it is a simple fraction."""
    if not isinstance(exponent, WideScalar) or not exponent.fixed or exponent.power != 0:
        return None
    numbers = np.unique(np.asarray(exponent.base, float))
    found = Fraction(float(numbers[0])).limit_denominator(64)
    return found if numbers.size == 1 and abs(float(found) - numbers[0]) < SIMPLE_EXPONENT else None


def _with_biases(machine: Machine, step: Step, operands: list[Any], width: int) -> list[Any]:
    """Parameters that are added to something larger, at the size they have at the own width."""
    power, known = leading_power(operands), machine.program.biases
    return [
        multiplied(value, float(width) ** float(value.power - power), power)
        if isinstance(slot, Slot)
        and slot.index in known
        and value.power < power
        and not value.is_zero
        else value
        for slot, value in zip(step.operands, operands, strict=True)
    ]


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
    axis, layout = axes.pop(), functools.reduce(Layout.common, (v.layout for v in vectors))
    prepared = [v.refined(layout) if isinstance(v, WideVector) else v for v in operands]
    shape = np.broadcast_shapes(*(value.shape for value in prepared))
    found = []
    for value in prepared:
        index = np.broadcast_to(numbered(value), shape)
        if isinstance(value, WideVector):
            found.append(value.reindexed(index, axis))
        else:
            data = np.asarray(value.value())
            data = data.reshape(len(data), -1)[:, index.ravel()]
            found.append(WideVector(shape, axis, layout, value.power, data))
    return found


def _tree(step: Step, vectors: list[WideVector]) -> Apply:
    """Any function, of its arguments as expressions."""

    def function(*arrays: Any) -> Any:
        found = on_arrays(step, arrays)
        return run_primitive(step, *(jnp.asarray(a) for a in arrays)) if found is None else found

    closed = step.record.closed if all(v.is_zero for v in vectors[1:]) else None
    return Apply(step.name, function, tuple(_argument(v) for v in vectors), closed)


# Rules for aligned vectors; None: the primitive is a function as others are.


def quotient(step: Step, vectors: list[WideVector]) -> WideVector | None:
    """Divided by numbers."""
    top, bottom = vectors
    return top.times(1 / bottom.constant) if bottom.is_constant else None


def square(step: Step, vectors: list[WideVector]) -> WideVector | None:
    """The second power, of `square` and `integer_pow`."""
    second = int(step.params[0].get("y", 2)) == 2
    return vectors[0].multiplied(vectors[0]) if second else None


def converted(step: Step, vectors: list[WideVector]) -> WideVector | None:
    """Real numbers as real numbers."""
    return vectors[0] if is_floating(step.params[0]["new_dtype"]) else None


def chosen(step: Step, vectors: list[WideVector]) -> WideVector | None:
    """`select_n`, by numbers or by a vector.

    A mask that does not depend on channels makes a sum of masked branches. Chosen by a vector,
    products keep independent factors apart; but a branch may be no number where it is not taken,
    as a logarithm is, and 0 times it is none.
    """
    which, *branches = vectors
    if which.is_constant:
        masks = [(which.constant == k).astype(float) for k in range(len(branches))]
        parts = [
            # A masked infinity is no number at all.
            replace(v.times(mask), constant=np.where(mask == 1, v.constant, 0.0))
            for v, mask in zip(branches, masks, strict=True)
        ]
        return functools.reduce(WideVector.plus, parts)
    if len(branches) != 2 or _tree(step, vectors).univariate() is not None:
        return None
    with np.errstate(all="ignore"):  # on both sides of the origin
        points = Deviations(np.linspace(-3.0, 3.0, 12))
        numbers = all(np.isfinite(v.evaluate(points)).all() for v in branches)
    ones = which.constant_like(np.ones((1, which.size)))
    false, true = (replace(v, power=ZERO) for v in branches)
    apart = ones.plus(multiplied(which, -1.0)).multiplied(false).plus(which.multiplied(true))
    return apart if numbers else None


def mapped(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A function that came with the program, of vectors and numbers of order one."""
    vectors = aligned(step, [order_one(step, value) for value in operands])
    function, trees = step.params[0]["function"], tuple(_argument(v) for v in vectors)
    closed = function.closed_form if len(trees) == 1 else None
    return [vectors[0].applied(Apply(function.name, function.evaluate, trees, closed))]


def _argument(vector: WideVector) -> Tree:
    return Number(vector.constant) if vector.is_constant else vector.tree()


# ---- matrices -------------------------------------------------------------------------------


def _on_matrices(step: Step, operands: list[Any]) -> WideMatrix | Outer:
    """Matrices are scaled by numbers; those that are made of activations are added, too."""
    record, matrices = step.record, [v for v in operands if isinstance(v, WideMatrix | Outer)]
    first = matrices[0]
    if record.moves:
        return first
    if record.signs:
        terms = zip(operands, record.signs, strict=True)
        there = [term for term in terms if not term[0].is_zero] or [(first, 1.0)]
        ((only, sign), *others) = there
        if sign == 1 and not others and isinstance(only, WideMatrix | Outer):
            return only
    if record.signs == (1.0, 1.0) and all(isinstance(value, Outer) for value in operands):
        return _outer_sum(*operands)
    numbers = [value for value in operands if isinstance(value, WideScalar)]
    if record.signs == (-1.0,):
        numbers = [WideScalar.constant(-1.0)]
    elif record.order is Order.QUOTIENT and numbers and operands[0] is first:
        data = 1 / np.asarray(numbers[0].value(), float)
        power = -numbers[0].power
        numbers = [WideScalar(numbers[0].shape, data, power=power, fixed=numbers[0].fixed)]
    elif record.order is not Order.PRODUCT:
        numbers = []
    if numbers and (isinstance(first, Outer) or numbers[0].is_one_number):
        return first.times(numbers[0])
    raise step.refuse(
        "Matrices are used as they were drawn, up to a constant factor; those made of activations "
        "are added, and scaled by numbers.",
        got=f"'{step.name}' on a matrix with two width axes",
        remedy="apply matrices separately (W x + V x, not (W + V) x), and matrices made of "
        "activations to vectors; weight normalisation, masks over weights and low-rank updates of "
        "them are not covered",
    )


def _outer_sum(one: Outer, two: Outer) -> Outer:
    power = leading_power([one, two])
    kept = [outer for outer in (one, two) if outer.power == power]
    if len(kept) == 1:
        return kept[0]
    two = two if one.axes == two.axes else two.swapped()
    for axis in one.axes:
        layout = one.layouts[axis].common(two.layouts[axis])
        one, two = one.refined_at(axis, layout), two.refined_at(axis, layout)
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
    record, value = step.record, operands[0]
    vanishes = value.power < 0 and not value.is_zero
    if record.jumps and vanishes:
        raise step.refuse(
            "What vanishes as the width grows does not enter a function that jumps at 0.",
            got=f"an argument of '{step.name}' that vanishes as n^{value.power}",
            remedy="rescale the argument, so that it stays of order one",
        )
    if record.slope is not None and vanishes:
        return multiplied(value, record.slope)
    if not record.inside:
        return None
    shape = np.broadcast_shapes(*(v.shape for v in operands))
    for k, value in enumerate(operands):
        others = operands[:k] + operands[k + 1 :]
        if value.power >= 0 or value.is_zero or value.shape != shape:
            continue
        middle = k == 1 or len(operands) == 2  # of `clamp`
        if middle and tuple(_sign(other) for other in others) == record.inside:
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


def multiplied(value: Any, factor: float, power: Fraction | None = None) -> Any:
    """A value times a number; `power` is then the one in front of it, in place of its own."""
    front: Fraction = value.power if power is None else power
    if isinstance(value, WideVector):
        return replace(value.times(np.full((1, value.size), factor)), power=front)
    return WideScalar(
        value.shape,
        functools.cache(lambda: factor * value.base),
        power=front,
        rough=value.rough,
        fixed=value.fixed,
        pending=tuple((group, factor * weights) for group, weights in value.pending),
    )


# ---- numbers ---------------------------------------------------------------------------------


def on_scalars(machine: Machine, step: Step, operands: list[Any]) -> list[Value]:
    """One step on scalars; their numbers are computed on demand."""
    if any(slot.wide_axes for slot in step.results):
        raise step.refuse(
            "Channels are exchangeable: nothing depends on a channel's number.",
            got=f"'{step.name}' that makes an array along the width",
            remedy="draw what differs between channels at random, with jax.random.normal, uniform "
            "or truncated_normal (learned encodings)",
        )
    power, operands = _ordered(step, operands)
    shapes = [tuple(int(e) for e in slot.shape) for slot in step.results]  # pyright: ignore
    return _numbers(machine, step, operands, power, shapes)


def _numbers(
    machine: Machine,
    step: Step,
    operands: list[WideScalar],
    power: Fraction,
    shapes: list[tuple[int, ...]],
) -> list[Any]:
    """What a primitive makes of scalars, and of Gaussian ones that nobody has drawn yet."""
    rough = any(value.rough for value in operands)
    fixed = all(value.fixed for value in operands)
    pending = _pending(step, operands, len(shapes))

    def compute() -> Any:
        arrays = [value.value() if pending is None else value.base for value in operands]
        results = _applied(step, arrays)
        size = 0.0
        if len(step.record.signs) == 2 and rough and pending is None and results.size:
            size = max(float(np.abs(a).max(initial=0.0)) for a in arrays)
        if size > 0 and np.abs(results).max() < NO_DIFFERENCE * size:
            raise step.refuse(
                "Leading orders do not cancel: what is left is of an order that is not followed.",
                got=f"'{step.name}' of two averages over the width that are equal in the limit",
                remedy="write the quantity so that it is centred before it is summed over channels",
            )
        return results if isinstance(results, (list, tuple)) else [results]

    results = machine.once(compute)
    found = []
    for k, shape in enumerate(shapes):
        part = machine.once(functools.partial(lambda i: results()[i], k))
        waiting = () if pending is None else tuple(pending[k])
        value = part() if fixed else part
        found.append(
            WideScalar(shape, value, power=power, rough=rough, fixed=fixed, pending=waiting)
        )
    return found


def _pending(step: Step, operands: list[WideScalar], results: int) -> list[list[Any]] | None:
    """Linear steps on Gaussian scalars that were not drawn act on each coefficient.

    Steps that are linear in each operand alone take the others as they are.
    """
    waiting = [k for k, value in enumerate(operands) if value.pending]
    order = step.record.order
    each = order in (Order.PRODUCT, Order.QUOTIENT)
    if not waiting or not step.record.linear:
        return None
    if each and (len(waiting) > 1 or (order is Order.QUOTIENT and waiting == [1])):
        return None
    pending: list[list[Any]] = [[] for _ in range(results)]
    for k in waiting:
        numbers = [None if i == k else np.asarray(v.base) for i, v in enumerate(operands)]
        repeats = max([1, *(len(data) for data in numbers if each and data is not None)])
        for group, weights in operands[k].pending:
            draws, size = max(len(weights), repeats), weights.shape[-1]
            spread = np.broadcast_to(weights, (draws, *weights.shape[1:]))
            columns = np.moveaxis(spread, -1, 1).reshape(-1, *operands[k].shape)
            arrays = [
                columns
                if data is None
                else np.repeat(data, size, axis=0)
                if each and len(data) > 1
                else data
                if each or data.dtype.kind != "f"
                else np.zeros((1, *data.shape[1:]))
                for data in numbers
            ]
            found = _applied(step, arrays)
            for i, part in enumerate(found if isinstance(found, (list, tuple)) else [found]):
                flat = np.asarray(part).reshape(draws, size, -1)
                pending[i].append((group, np.moveaxis(flat, 1, 2)))
    return pending


# ---- primitives on arrays --------------------------------------------------------------------


def is_key(array: Any) -> bool:
    """Whether these are random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def on_arrays(step: Step, arrays: Sequence[Any]) -> Any | None:
    """The primitive on arrays that broadcast, or have draws in front; None: NumPy has it not."""
    record, plain = step.record, [np.asarray(a) for a in arrays]
    with np.errstate(all="ignore"):
        if record.arrays is not None:
            return record.arrays(*plain)
        return None if record.numbers is None else record.numbers(step.params[0], plain)


def run_primitive(step: Step, *arrays: Any) -> Any:
    """The step's primitive itself, in double precision."""
    params = dict(step.params[0])
    for name in ("new_dtype", "preferred_element_type"):
        if params.get(name) is not None and is_floating(params[name]):
            params[name] = np.dtype(np.float64)
        elif name == "preferred_element_type" and name in params:
            params[name] = None
    return step.primitive.bind(*arrays, **params)


def _applied(step: Step, arrays: list[Any]) -> Any:
    """The primitive for every draw; arrays have a leading draw axis, of length 1 if fixed."""
    found = on_arrays(step, arrays)
    if found is not None:
        return found
    arrays = [jnp.asarray(a) for a in arrays]
    arrays = [a.astype(jnp.float64) if is_floating(a.dtype) else a for a in arrays]
    if all(len(a) == 1 for a in arrays):
        results = run_primitive(step, *(a[0] for a in arrays))
        return jax.tree.map(lambda r: np.asarray(r)[None], results)
    axes = [0 if len(a) > 1 else None for a in arrays]
    arrays = [a if len(a) > 1 else a[0] for a in arrays]
    results = jax.vmap(lambda *xs: run_primitive(step, *xs), in_axes=axes)(*arrays)
    return jax.tree.map(np.asarray, results)
