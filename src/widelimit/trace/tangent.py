"""Tangent kernels of traced models: the program of the gradients, read in the limit.

`Θ(x, x') = Σ_parameters ⟨∂f(x), ∂f(x')⟩`. In the backward pass a transposed weight matrix acts as
an independent copy, which is right if the readout is fresh, centred and used once (gradient
independence). Gradients of weight matrices are sums of outer products `δ ⊗ h`, and
`⟨δ ⊗ h, δ' ⊗ h'⟩ = n² E[δδ'] E[hh']`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..errors import NetworkError
from ..laws.marginal import average
from ..programs.integration import Integration
from ..programs.interpreter import Machine
from ..programs.matrices import Outer
from ..programs.refusals import RefusedError
from ..programs.scalars import WideScalar
from ..programs.steps import FlatProgram, Step
from ..programs.vectors import WideVector
from ..statistics import Estimate
from .alignment import align, trace_at

if TYPE_CHECKING:
    from .program import Traced

INTEGRATION = Integration(points=2**14)


@dataclass(frozen=True)
class TangentKernel:
    """`n^power · Θ`, draws (draws or 1, N, N, …); one for each draw of the scalars."""

    draws: np.ndarray
    power: Fraction

    @property
    def kernel(self) -> Estimate:
        """The mean over draws, with its standard error: (N, N, outputs…, outputs'…)."""
        return average(self.draws)


def gradient_program(traced: Traced) -> FlatProgram:
    """The gradients of every output with respect to every parameter, for every example."""
    size = math.prod(traced.output_shape[1:])

    def gradients(width: int) -> Any:
        def function(key: Any, x: Any) -> Any:
            params, static = eqx.partition(traced.make(width, key), eqx.is_inexact_array)
            if not jax.tree.leaves(params):
                raise NetworkError(
                    "The tangent kernel is taken with respect to the arrays of a model.",
                    got="a model without array leaves (a function that closes over them)",
                    remedy="let make() return a module or pytree with __call__, such as "
                    "equinox.Module, flax.nnx.Module or jax.tree_util.Partial",
                )

            def one(example: Any) -> Any:
                def outputs(p: Any) -> Any:
                    return jnp.ravel(eqx.combine(p, static)(example))

                _, pull = jax.vjp(outputs, params)
                (found,) = jax.vmap(pull)(
                    jnp.eye(size, dtype=jax.eval_shape(outputs, params).dtype)
                )
                return found

            return tuple(jax.tree.leaves(jax.vmap(one)(x)))

        return function

    jaxprs = [trace_at(gradients(width), traced.key, traced.x) for width in traced.widths]
    return align(jaxprs, traced.widths)


def tangent_kernel(traced: Traced, draws: int, key: Any) -> TangentKernel:
    """Sum the gradients' inner products over all parameters."""
    require_gradient_independence(traced)
    program = gradient_program(traced)
    machine = Machine(program, draws=draws, rule=INTEGRATION.seeded(key), tangent=True)
    leaves = machine.run(traced.key, traced.x)
    found = [inner_products(machine, value) for value in leaves if not value.is_zero]
    if not found:
        raise NetworkError(
            "A tangent kernel needs gradients that are not all zero.",
            got="a model whose outputs do not depend on its parameters",
            remedy="trace a model with parameters",
        )
    power = max(p for p, _ in found)
    total: Any = sum(k for p, k in found if p == power)
    return TangentKernel(_unflattened(total, traced.output_shape), power)


def inner_products(machine: Machine, value: Any) -> tuple[Fraction, np.ndarray]:
    """`⟨g_a, g_b⟩` for the leading (examples, outputs) axes: (draws or 1, A, A), and its power."""
    if isinstance(value, WideScalar):
        data = np.asarray(value.value(), float)
        flat = data.reshape(data.shape[0], data.shape[1] * data.shape[2], -1)
        return 2 * value.power, flat @ np.swapaxes(flat, 1, 2)
    if isinstance(value, WideVector):
        rows = value.shape[0] * value.shape[1]
        members = value.indices.reshape(rows, -1).T  # (rest, rows)
        gram = machine.integrator.second(value, value, members, members)
        return 2 * value.power + 1, float(value.layout.unit) * gram.sum(axis=1)
    if isinstance(value, Outer):
        return 2 * value.power + 2, _outer_products(machine, value)
    raise NetworkError(
        "Gradients are numbers, vectors or outer products.",
        got=type(value).__name__,
        remedy="trace a model whose weights act on vectors directly",
    )


def _outer_products(machine: Machine, value: Outer) -> np.ndarray:
    rows = value.shape[0] * value.shape[1]
    total: Any = 0.0
    for a in value.parts:
        for b in value.parts:
            unit = float(a.u.layout.unit * a.v.layout.unit)
            first = _all_pairs(machine, a.u, b.u)
            second = _all_pairs(machine, a.v, b.v)
            tables = [t.reshape(rows, -1, t.shape[-1]) for t in (a.left, a.right, b.left, b.right)]
            for entry in range(tables[0].shape[1]):
                i, j, k, m = (t[:, entry] for t in tables)  # (rows, terms)
                there = (i >= 0)[:, :, None, None] & (k >= 0)[None, None]
                one = first[:, i[:, :, None, None], k[None, None]]
                two = second[:, j[:, :, None, None], m[None, None]]
                total = total + unit * (one * two * there).sum(axis=(2, 4))
    return np.asarray(total)


def _all_pairs(machine: Machine, u: WideVector, v: WideVector) -> np.ndarray:
    left, right = np.arange(u.size)[None], np.arange(v.size)[None]
    return machine.integrator.second(u, v, left, right)[:, 0]


def _unflattened(kernels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    count, rest = shape[0], shape[1:]
    size = math.prod(rest)
    blocks = kernels.reshape(len(kernels), count, size, count, size)
    return np.swapaxes(blocks, 2, 3).reshape(len(kernels), count, count, *rest, *rest)


def require_gradient_independence(traced: Traced) -> None:
    """The readout is drawn afresh from a centred law and used once, at the end."""
    machine, output = traced.first_run
    tail = [(s, u, v) for s, u, v in machine.dot_steps if machine.on_tail(s)]
    if not isinstance(output, WideScalar) or not tail:
        raise RefusedError(
            "The tangent kernel is taken of models that end in a readout.",
            place=traced.program.steps[-1].place,
            got="an output with a width axis, or none that is random",
            remedy="end the model in weights that map the width to a fixed number of outputs",
        )
    readouts: set[int] = set()
    for step, u, v in tail:
        fresh = [side for side in (u, v) if _fresh(machine, side)]
        if not fresh:
            raise _dependent(
                step,
                "a readout that is a function of other weights, or not centred",
                "end the model in its own readout weights",
            )
        readouts |= {id(t.source) for form in fresh[0].forms() for t in form.terms}
    inside = [(step, operand) for _, step, operand in machine.matmuls]
    scores = [s for s in machine.dot_steps if not machine.on_tail(s[0])]
    inside += [(step, side) for step, *sides in scores for side in sides]
    for step, vector in inside:
        if any(id(t.source) in readouts for form in vector.forms() for t in form.terms):
            got = "readout weights that are used inside the network too (tied embeddings)"
            raise _dependent(step, got, "untie the readout")


def _dependent(step: Step, got: str, remedy: str) -> RefusedError:
    rule = "Gradient independence: the readout is drawn afresh, centred, and used once."
    return step.refuse(rule, got=got, remedy=remedy)


def _fresh(machine: Machine, side: WideVector) -> bool:
    """Whether a vector is a parameter itself."""
    own = {id(form.terms[0].source) for form in machine.vector_forms.values()}
    sources = {id(t.source) for form in side.forms() for t in form.terms}
    return bool(sources) and sources <= own and not side.constant.any()
