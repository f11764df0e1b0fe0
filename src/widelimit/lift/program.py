"""JAX models: their code is traced with known modules left whole, then read line by line.

While a model is traced, calling a known module leaves one equation in the program, `part`, instead
of its arithmetic; `vmap` over it adds axes in front. Everything between parts is ordinary JAX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from unittest import mock

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import batching

from ..errors import NetworkError, WidelimitError
from ..trace.alignment import place_of, said
from .glue import COORDINATEWISE, Known, elementwise, moved
from .initialisers import InitialReading
from .values import Graph, UnreadStep, Value, refusal


class StandIn(Protocol):
    """What takes a known module's place while a model is traced."""

    @property
    def name(self) -> str:
        """The module's class."""
        ...

    def shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """The output's shape."""
        ...

    def read(self, graph: Graph, reading: InitialReading, *inputs: Any, where: str) -> Value:
        """The part on these inputs."""
        ...


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module; `lead` axes in front were added by vmap."""

    stand_in: StandIn
    lead: int = 0


part_p = jex.Primitive("part")


@part_p.def_abstract_eval
def _abstract(*inputs: Any, call: Call) -> Any:
    lead = inputs[0].shape[: call.lead]
    shape = call.stand_in.shape(*(x.shape[call.lead :] for x in inputs))
    floating = [x.dtype for x in inputs if jnp.issubdtype(x.dtype, jnp.floating)]
    return ShapedArray((*lead, *shape), floating[0] if floating else jnp.zeros(()).dtype)


def _batched(inputs: Sequence[Any], axes: Sequence[Any], *, call: Call) -> tuple[Any, int]:
    size = next(x.shape[a] for x, a in zip(inputs, axes, strict=True) if a is not None)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(inputs, axes, strict=True)
    ]
    return part_p.bind(*moved, call=Call(call.stand_in, call.lead + 1)), 0


batching.primitive_batchers[part_p] = _batched


def caller(
    kind: Callable[..., StandIn], describe: Callable[[Any], Callable[[InitialReading], Any]]
) -> Callable[..., Any]:
    """The call of a module of one input: it leaves a stand-in of this kind."""

    def call(module: Any, x: Any, *_: Any, **__: Any) -> Any:
        stand_in = kind(type(module).__name__, module, describe(module))
        return part_p.bind(x, call=Call(stand_in))

    return call


@contextlib.contextmanager
def left_whole(stand_ins: dict[type, Callable[..., Any]]) -> Iterator[None]:
    """Calls of these classes leave parts; `stand_ins[cls](module, *arguments)` is the new call."""
    with contextlib.ExitStack() as stack:
        for cls, call in stand_ins.items():
            stack.enter_context(mock.patch.object(cls, "__call__", call))
        yield


def read_program(
    model: Callable[[Any], Any],
    example: Any,
    stand_ins: dict[type, Callable[..., Any]],
    reading: InitialReading,
) -> tuple[Graph, Value]:
    """The graph of a model on one example."""
    example = jnp.asarray(example)
    # Once as it is: what would be unrolled without end is seen before it is read. Dropout that
    # waits for a key does not run like this.
    try:
        _require_short(_program(model, example).jaxpr)
        refused = None
    except _DoesNotRun as error:
        refused = error
    with left_whole(stand_ins), jax.disable_jit():
        closed = _program(model, example)
    if refused is not None and "requires a key" not in refused.got:
        raise refused
    if len(closed.jaxpr.outvars) != 1:
        raise refusal(
            "A model returns one array.",
            got=f"{len(closed.jaxpr.outvars)} arrays",
            remedy="wrap the model in a function that returns the array of interest",
        )
    tokens = jnp.issubdtype(example.dtype, jnp.integer)
    graph = Graph(example.shape, tokens=tokens, batch=False)
    reader = _Reader(graph, replace(reading, arrays=graph.arrays))
    (output,) = reader.run(closed.jaxpr, closed.consts, [graph.input()])
    if not isinstance(output, Value):
        raise refusal("A model is a function of its input.", got="an output that does not depend")
    return graph, graph.settled_value(output, "the output")


class _DoesNotRun(NetworkError):
    """A model whose code raises an exception."""


def _program(model: Callable[[Any], Any], example: Any) -> Any:
    """The program of a model; what its code raises is said in one sentence."""
    try:
        return jax.make_jaxpr(model)(example)
    except WidelimitError:
        raise
    except Exception as error:  # whatever a stranger's code raises
        raise _DoesNotRun(
            "The model does not run on one example of x.",
            got=f"{said(error)}, with an example of shape {example.shape} and kind {example.dtype}",
            remedy="pass x as a batch of what the model takes one of: lift calls model(x[0])",
        ) from error


# Loops are unrolled: each step is a part of its own.
_MOST_STEPS = 10_000


def _require_short(jaxpr: Any) -> None:
    """Raise for loops with more steps than a network has layers."""
    for equation in jaxpr.eqns:
        steps = equation.params.get("length", 0) if equation.primitive.name == "scan" else 0
        if steps > _MOST_STEPS:
            raise NetworkError(
                f"A loop of {steps} steps is longer than the {_MOST_STEPS} that are unrolled.",
                got=f"'scan' at {place_of(equation)[0]}",
                remedy=f"loop over {_MOST_STEPS} steps at most",
            )
        for inner in jex.jaxprs_in_params(equation.params):
            _require_short(inner)


_CALLS = ("custom_jvp_call", "custom_vjp_call", "jit", "pjit", "closed_call", "remat", "checkpoint")
_INNER = ("call_jaxpr", "fun_jaxpr", "jaxpr")


class _Reader:
    def __init__(self, graph: Graph, reading: InitialReading):
        self.graph, self.reading = graph, reading

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(Known, consts), strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            return Known(atom.val) if isinstance(atom, jex.Literal) else known[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name = equation.primitive.name
        where = str(place_of(equation)[0])
        if name == "part":
            return [self.part(equation.params["call"], inputs, where)]
        if all(isinstance(x, Known) for x in inputs):
            return _computed(equation, inputs)
        if name in _CALLS:
            inner = next(equation.params[key] for key in _INNER if key in equation.params)
            return self.run(
                getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), list(inputs)
            )
        try:
            read = elementwise if name in COORDINATEWISE else moved
            found = read(self.graph, equation, inputs, where)
            self.require_shape(equation, found, where)
            return [found]
        except UnreadStep:
            raise refusal(
                "Between known parts a model adds, multiplies, pools, picks and rearranges.",
                got=f"'{name}' at {where}",
            ) from None

    def require_shape(self, equation: Any, found: Any, where: str) -> None:
        """Raise where an array was repeated on its way, as by a sum with a longer one."""
        if isinstance(found, Value):
            shapes = self.graph.shape_of(found), tuple(equation.outvars[0].aval.shape)
            long = [[extent for extent in shape if extent != 1] for shape in shapes]
            if long[0] != long[1]:
                raise refusal(
                    "Positions and channels are as many as the parts make.",
                    got=f"{shapes[0]} repeated to {shapes[1]} at {where}",
                )

    def part(self, call: Call, inputs: list[Any], where: str) -> Value:
        where = f"{call.stand_in.name} ({where})"
        try:
            return call.stand_in.read(self.graph, self.reading, *inputs, where=where)
        except WidelimitError as error:
            if where in str(error) or call.stand_in.name in str(error):
                raise
            error.args = (f"{error.args[0]} In: {where}.",)
            raise


def _computed(equation: Any, inputs: list[Known]) -> list[Known]:
    """Constants of constants."""
    arrays = [x.array for x in inputs]
    found = equation.primitive.bind(*arrays, **equation.params)
    found = found if equation.primitive.multiple_results else [found]
    return [Known(x) for x in found]
