"""Steps on families of vectors, and on weights, that are no contractions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

# Linear in the family, whatever its finite axes do.
_BASIS = {"cumsum", "reduce_window_sum", "scatter-add", "scatter_add"}

_ONE = {
    "transpose": structure.transpose,
    "squeeze": structure.squeeze,
    "broadcast_in_dim": structure.broadcast,
    "take": structure.take,
    "rev": structure.reverse,
    "tile": structure.tile,
}


def on_families(machine: Any, step: Step, operands: list[Any]) -> list[Value]:
    """One step with a vector or weights among its operands."""
    name, first = step.name, operands[0]
    widths = machine.program.widths
    single = isinstance(first, (WideVector, WideMatrix, Outer))
    if name == "reshape":
        old = step.operands[0].shape
        return [structure.reshape(step, first, old)]
    if single and name in _ONE:
        return [_ONE[name](step, first)]
    if name == "slice":
        return [structure.slices(step, first, widths)]
    if name == "split":
        return structure.split(step, first, widths)
    if name in ("concatenate", "stack"):
        return [_side_by_side(machine, step, operands)]
    if name in ("gather", "dynamic_slice") and single:
        others = [_fixed_index(step, value) for value in operands[1:]]
        return [structure.by_index(step, first, others, widths)]
    if name == "pad" and isinstance(first, WideVector):
        return [_padded(machine, step, first, operands[1])]
    if name == "reduce_sum" and isinstance(first, WideVector):
        axes = tuple(int(a) for a in step.params[0]["axes"])
        if first.axis in axes:
            return [contraction.reduce_width(machine, step, first, axes)]
        return [by_basis(step, first)]
    if name in _BASIS and isinstance(first, WideVector) and len(operands) == 1:
        if name == "cumsum" and int(step.params[0]["axis"]) == first.axis:
            raise _along_width(step)
        return [by_basis(step, first)]
    if name in ("reduce_max", "reduce_min", "reduce_window_max") and isinstance(first, WideVector):
        return [window_values(step, first)]
    raise _along_width(step)


def _side_by_side(machine: Any, step: Step, operands: list[Any]) -> Value:
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
    return structure.concatenate(step, prepared, axis)


def _as_vector(step: Step) -> WideVector:
    raise step.refuse(
        "Parts that are joined all grow with the width, or none does.",
        got="numbers joined to a vector along its channels",
        remedy="project them to the width with weights first",
    )


def _padded(machine: Any, step: Step, vector: WideVector, fill: WideScalar) -> WideVector:
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
    return found


def by_basis(step: Step, vector: WideVector) -> WideVector:
    """A linear operation over finite axes, from what it does to every member alone."""
    basis = np.eye(vector.size).reshape(vector.size, *vector.shape)
    params = dict(step.params[0])
    out = np.asarray(jax.vmap(lambda a: step.primitive.bind(a, **params))(jnp.asarray(basis)))
    axes = step.results[0].wide_axes
    weights = out.reshape(vector.size, -1).T[None]
    return vector.mixed(weights, out.shape[1:], axes[0])


def orthogonal(machine: Any, step: Step, operands: list[Any]) -> list[Value]:
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


def opaque(machine: Any, step: Step, operands: list[Any]) -> list[Value]:
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
    raise _along_width(step)


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


def _along_width(step: Step) -> RefusedError:
    return step.refuse(
        "Channels are exchangeable: along the width there are sums, dot products and weights.",
        got=f"'{step.name}' along the width, or on weights",
        remedy="sorting, maxima, cumulative sums and Fourier transforms over channels have no "
        "limit here; apply them over positions",
    )
