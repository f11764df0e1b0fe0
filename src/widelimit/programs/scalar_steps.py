"""Steps on numbers without width axes."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import mapped_primitive
from .extents import Wide
from .layout import whole
from .powers import leading_power, order_one, vanished
from .records import Order
from .scalars import WideScalar
from .steps import Step
from .structure import Value
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


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
