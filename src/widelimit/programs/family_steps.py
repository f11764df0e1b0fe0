"""Steps on families of vectors, and on weights, that are no contractions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from . import contraction, structure
from .convolution import window_values
from .matmul import HALF
from .matrices import Opaque, WideMatrix
from .outer import Outer
from .refusals import RefusedError
from .scalars import WideScalar
from .steps import Step
from .structure import Value
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


def alone(rule: Callable[[Step, Any], Any]) -> Callable[[Machine, Step, list[Any]], list[Any]]:
    """The rule of a step with one operand."""
    return lambda machine, step, operands: [rule(step, operands[0])]


def reshaped(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`reshape`."""
    return [structure.reshape(step, operands[0], step.operands[0].shape)]


def sliced(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`slice`."""
    return [structure.slices(step, operands[0], machine.program.widths)]


def split(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`split`."""
    return structure.split(step, operands[0], machine.program.widths)


def picked(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`gather` and `dynamic_slice` at fixed indices."""
    if not isinstance(operands[0], WideVector | WideMatrix | Outer):
        raise along_width(step)
    others = [_fixed_index(step, value) for value in operands[1:]]
    return [structure.by_index(step, operands[0], others, machine.program.widths)]


def summed(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`reduce_sum`, over channels or over finite axes."""
    vector = _one_vector(step, operands)
    axes = tuple(int(a) for a in step.params[0]["axes"])
    if vector.axis in axes:
        return [contraction.reduce_width(machine, step, vector, axes)]
    return [by_basis(step, vector)]


def accumulated(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Linear in the family, whatever its finite axes do."""
    vector = _one_vector(step, operands)
    if step.name == "cumsum" and int(step.params[0]["axis"]) == vector.axis:
        raise along_width(step)
    return [by_basis(step, vector)]


def largest(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Maxima and minima over finite axes or windows."""
    return [window_values(step, _one_vector(step, operands))]


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


def side_by_side(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`concatenate`, and `stack` of what a scan puts out."""
    axis = int(step.params[0]["axis" if step.name == "stack" else "dimension"])
    if step.name == "stack":
        if any(isinstance(v, WideMatrix) for v in operands):
            raise step.refuse(
                "Weight matrices are used as they are.",
                got="weights that a scan puts out",
                remedy="return activations from the scan, not weights",
            )
        operands = [_lifted(v, axis) for v in operands]
    prepared = [
        v if isinstance(v, (WideVector, WideMatrix)) else _as_vector(step) for v in operands
    ]
    return [structure.concatenate(step, prepared, axis)]


def _as_vector(step: Step) -> WideVector:
    raise step.refuse(
        "Parts that are joined all grow with the width, or none does.",
        got="numbers joined to a vector along its channels",
        remedy="project them to the width with weights first",
    )


def padded(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`pad` along finite axes."""
    vector, fill = _one_vector(step, operands[:1]), operands[1]
    config = [(int(a), int(b), int(c)) for a, b, c in step.params[0]["padding_config"]]
    if any(config[vector.axis]):
        raise structure.cut_refused(step, "padding along the channels")
    numbers = jnp.asarray(vector.indices + 1)
    index = np.asarray(jax.lax.pad(numbers, jnp.asarray(0, numbers.dtype), config)) - 1
    found = vector.reindexed(index, vector.axis)
    value = float(np.ravel(fill.value())[0])
    if value:
        constant = np.where(index.ravel() < 0, value, found.constant)
        found = replace(found, constant=constant)
    return [found]


def by_basis(step: Step, vector: WideVector) -> WideVector:
    """A linear operation over finite axes, from what it does to every member alone."""
    basis = np.eye(vector.size).reshape(vector.size, *vector.shape)
    params = dict(step.params[0])
    out = np.asarray(jax.vmap(lambda a: step.primitive.bind(a, **params))(jnp.asarray(basis)))
    axes = step.results[0].wide_axes
    weights = out.reshape(vector.size, -1).T[None]
    return vector.mixed(weights, out.shape[1:], axes[0])


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


def _lifted(value: Any, axis: int) -> Any:
    if isinstance(value, WideVector):
        shape = (*value.shape[:axis], 1, *value.shape[axis:])
        return replace(value, shape=shape, axis=value.axis + (axis <= value.axis))
    return value


def along_width(step: Step) -> RefusedError:
    """An operation along the width that has no limit."""
    return step.refuse(
        "Channels are exchangeable: along the width there are sums, dot products and weights.",
        got=f"'{step.name}' along the width, or on weights",
        remedy="sorting, maxima, cumulative sums and Fourier transforms over channels have no "
        "limit here; apply them over positions",
    )
