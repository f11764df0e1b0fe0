"""JAX models, of whatever library: their program, read equation by equation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from ..errors import NetworkError, WidelimitError
from ..programs.table import COORDINATEWISE
from ..trace.alignment import place_of, said
from .operators import Builder
from .parts import PartNode
from .values import Computed, Function, Held, Known, Layout, refusal

UNTIE = "give each place its own module, drawn from its own key"
_CALM = "eqx.nn.inference_mode(model), or model.eval()"


def read_program(model: Callable[[Any], Any], example: Any) -> tuple[PartNode, Layout]:
    """The last part of a model on one example, whose output is the model's, and its input."""
    example = jnp.asarray(example)
    with _dropout_left_whole():
        # Once as it is: what would be unrolled without end is seen before it is read.
        _require_short(_program(model, example).jaxpr)
        with jax.disable_jit():
            closed = _program(model, example)
    if len(closed.jaxpr.outvars) != 1:
        raise refusal(
            f"A model returns {len(closed.jaxpr.outvars)} arrays instead of one",
            "the model's output",
            "wrap the model in a function that returns the array of interest",
        )
    layout = Layout(example.shape, tokens=jnp.issubdtype(example.dtype, jnp.integer))
    reader = _Reader(layout)
    return reader.build.output(reader.run(closed.jaxpr, closed.consts, [layout.input()])), layout


def _program(model: Callable[[Any], Any], example: Any) -> Any:
    """The program of a model; what its code raises is said in one sentence."""
    try:
        return jax.make_jaxpr(model)(example)
    except WidelimitError:
        raise
    except Exception as error:  # whatever a stranger's code raises
        raise NetworkError(
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
            raise refusal(
                f"A loop of {steps} steps is longer than the {_MOST_STEPS} that are unrolled",
                f"'scan' at {place_of(equation)[0]}",
                f"loop over {_MOST_STEPS} steps at most",
            )
        for inner in jex.jaxprs_in_params(equation.params):
            _require_short(inner)


# ---- dropout in training -------------------------------------------------------------------------

drop_p = jex.Primitive("drop")
drop_p.def_abstract_eval(lambda x, *, rate: x)
batching.primitive_batchers[drop_p] = lambda xs, axes, *, rate: (drop_p.bind(*xs, rate=rate), *axes)


def _drop_equinox(layer: Any, x: Any, *, inference: bool | None = None, **_: Any) -> Any:
    calm = layer.inference if inference is None else inference
    return x if calm or not layer.p else drop_p.bind(x, rate=float(layer.p))


def _drop_flax(layer: Any, inputs: Any, *, deterministic: bool | None = None, **_: Any) -> Any:
    if layer.broadcast_dims:
        raise refusal("Entries are dropped together", "Dropout with broadcast_dims=", _CALM)
    calm = layer.deterministic if deterministic is None else deterministic
    return inputs if calm or not layer.rate else drop_p.bind(inputs, rate=float(layer.rate))


@contextlib.contextmanager
def _dropout_left_whole() -> Iterator[None]:
    """Dropout is an equation of its own: what it draws is no part of the model."""
    calls: dict[Any, Any] = {eqx.nn.Dropout: _drop_equinox}
    if "flax.nnx" in sys.modules:
        calls[sys.modules["flax.nnx"].Dropout] = _drop_flax
    with contextlib.ExitStack() as stack:
        for cls, call in calls.items():
            stack.enter_context(mock.patch.object(cls, "__call__", call))
        yield


# ---- equations -----------------------------------------------------------------------------------

_CALLS = ("custom_jvp_call", "custom_vjp_call", "jit", "pjit", "closed_call", "remat", "checkpoint")
_INNER = ("call_jaxpr", "fun_jaxpr", "jaxpr")
_Params = dict[str, Any]

# What only moves entries, on NumPy's arrays; other primitives move them themselves.
_MOVES: dict[str, Callable[[np.ndarray, _Params, tuple[int, ...]], np.ndarray]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), lambda x, params, out: x.reshape(out)),
    "transpose": lambda x, params, out: x.transpose(params["permutation"]),
    "rev": lambda x, params, out: np.flip(x, params["dimensions"]),
    "broadcast_in_dim": lambda x, params, out: np.broadcast_to(
        np.expand_dims(x, [a for a in range(len(out)) if a not in params["broadcast_dimensions"]]),
        out,
    ),
}


class _Jax:
    """What reading asks of JAX."""

    def array(self, numbers: np.ndarray) -> Any:
        return jnp.asarray(numbers, jnp.float32)

    def numbers(self, array: Any) -> np.ndarray:
        return np.asarray(array, np.float64)

    def slopes(self, function: Function, arrays: list[Any]) -> list[list[np.ndarray]]:
        found, pull = jax.vjp(function, arrays)
        return [
            [np.asarray(each) for each in pull(one)[0]]
            for one in np.eye(len(found), dtype=found.dtype)
        ]

    def on_numpy(self, function: Function) -> Function:
        return lambda x: np.asarray(function(jnp.asarray(x)))

    def in_jax(self, function: Function, where: str) -> Function:
        return function


class _Reader:
    def __init__(self, layout: Layout):
        self.build = Builder(layout, _Jax())

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """What a program returns, on these inputs."""
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(Known, consts), strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            return Known(atom.val, literal=True) if isinstance(atom, jex.Literal) else known[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """What an equation gives."""
        primitive, params = equation.primitive, equation.params
        name, where = primitive.name, f"'{primitive.name}' at {place_of(equation)[0]}"
        live = [x for x in inputs if not isinstance(x, Known)]
        if name in _CALLS:
            inner = next(params[key] for key in _INNER if key in params)
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        if name == "drop" and not isinstance(inputs[0], Held):
            raise refusal("Numbers are dropped at random that are no part's output", where, _CALM)
        if not live:
            found = primitive.bind(*(x.array for x in inputs), **params)
            found = found if primitive.multiple_results else [found]
            return [Known(x, literal=all(x.literal for x in inputs)) for x in found]
        if all(isinstance(x, Held) for x in live) or name in ("dot_general", "gather"):
            found = self.read(equation, name, inputs, where)
            if found is not None:
                return found if isinstance(found, list) else [found]
        return self.computed(equation, name, inputs, where)

    def read(self, equation: Any, name: str, inputs: list[Any], where: str) -> Any:
        """An equation on arrays of known meaning; None where it has no reading by itself."""
        params, first = equation.params, inputs[0]
        shape = tuple(equation.outvars[0].aval.shape)
        match name:
            case "dot_general":
                return self.contracted(inputs, params, where)
            case "conv_general_dilated":
                return self.convolved(inputs, params, where)
            case "concatenate" if self.at_rows(inputs):
                return first  # rows of a table at the tokens, from its first column
            case "concatenate":
                return self.build.joined(inputs, params["dimension"], where)
            case "gather" if isinstance(first, Known):
                return self.looked_up(first, inputs[1], params, shape, where)
            case "reduce_sum":
                return self.build.pooled(first, params["axes"], keep=False, mean=False, where=where)
            case "reduce_window_sum":
                return self.windows(first, params, shape, where)
            case "reduce_window_max":
                remedy = "use mean pooling (AvgPool, or a stride)"
                raise refusal("Max pooling has no closed limit", where, remedy)
            case "drop":
                return self.build.drop(first, params["rate"], where)
            case _ if name in _MOVES:
                return first.moved(lambda index: _MOVES[name](index, params, shape))
            case "slice" | "dynamic_slice" | "gather" | "split" if isinstance(first, Held):
                return self.moved(equation, inputs)
            case _ if name in COORDINATEWISE:
                compose = partial(_composed, equation, inputs)
                return self.build.entrywise(name, inputs, compose, where)
        return None

    def moved(self, equation: Any, inputs: list[Any]) -> Any:
        """Entries that JAX moves; None where some of what comes out is none of them."""
        first, *rest = inputs
        if not all(isinstance(x, Known) for x in rest):
            return None
        index = jnp.asarray(np.ascontiguousarray(first.index), jnp.int32)
        found = equation.primitive.bind(index, *(x.array for x in rest), **equation.params)
        several = equation.primitive.multiple_results
        found = [np.asarray(x, int) for x in (found if several else [found])]
        if any((each < 0).any() for each in found):
            return None
        return [first.moved(lambda _, each=each: each) for each in found]

    def contracted(self, inputs: list[Any], params: _Params, where: str) -> Held | None:
        """Constant weights; None where both arrays depend on the input."""
        contracted, batch = params["dimension_numbers"]
        side = next((i for i, x in enumerate(inputs) if isinstance(x, Known)), None)
        if side is None or batch[0] or not isinstance(inputs[1 - side], Held | Computed):
            return None
        value, weights = inputs[1 - side], inputs[side].numbers
        inner, rows = list(contracted[1 - side]), list(contracted[side])
        outer = [a for a in range(len(value.shape)) if a not in inner]
        columns = [a for a in range(weights.ndim) if a not in rows]
        lead, width = [value.shape[a] for a in outer], [weights.shape[a] for a in columns]
        matrix = weights.transpose(rows + columns).reshape(-1, int(np.prod(width, dtype=int)))
        before = (*lead, len(matrix))

        def arranged(x: Any) -> Any:
            return x.transpose(outer + inner).reshape(before)

        if isinstance(value, Computed):
            value = value.moved(arranged, before)
        else:
            value = value.moved(arranged)
        found = self.build.linear(value, matrix, None, where)
        found = found.moved(lambda index: index.reshape(*lead, *width))
        if side == 1:
            return found
        front = range(len(lead), len(lead) + len(width))
        return found.moved(lambda index: np.moveaxis(index, front, range(len(width))))

    def convolved(self, inputs: list[Any], params: _Params, where: str) -> Held | None:
        """Constant weights on windows."""
        value, weights = inputs
        if not isinstance(weights, Known):
            return None
        spec = params["dimension_numbers"]
        found = self.build.conv(
            value.moved(lambda index: index.transpose(spec.lhs_spec)),
            weights.numbers.transpose(spec.rhs_spec),
            None,
            where,
            stride=tuple(params["window_strides"]),
            pads=params["padding"],
            groups=max(params["feature_group_count"], params["batch_group_count"]),
            dilation=(*params["lhs_dilation"], *params["rhs_dilation"]),
        )
        return found.moved(lambda index: index.transpose(np.argsort(spec.out_spec)))

    def windows(
        self, held: Held, params: _Params, shape: tuple[int, ...], where: str
    ) -> Held | None:
        """Sums over windows that lie inside the positions."""
        window, stride = params["window_dimensions"], params["window_strides"]
        wide = [a for a, w in enumerate(window) if w > 1]
        rest = [a for a in range(len(window)) if a not in wide]
        plain = not np.any(params["padding"]) and all(
            d == 1 for d in (*params["window_dilation"], *params["base_dilation"])
        )
        if not plain:
            raise refusal("Windows of a pool reach beyond the edge", where, "use no padding")
        channel = max(rest, key=lambda a: held.shape[a], default=None)
        if channel is None or sum(held.shape[a] > 1 for a in rest) > 1:
            raise refusal(
                "Windows of a pool are on some axes of positions", where, "pool all axes alike"
            )
        order = [*(a for a in rest if a != channel), channel, *wide]
        before, after = ([1, s[channel], *(s[a] for a in wide)] for s in (held.shape, shape))
        found = self.build.windows(
            held.moved(lambda index: index.transpose(order).reshape(before)),
            tuple(window[a] for a in wide),
            tuple(stride[a] for a in wide),
            1.0,
            where,
        )
        assert list(found.shape) == after
        return found.moved(
            lambda index: index.reshape([shape[a] for a in order]).transpose(np.argsort(order))
        )

    def at_rows(self, inputs: list[Any]) -> bool:
        """Whether arrays are tokens and zeros beside them."""
        tokens = isinstance(inputs[0], Held) and inputs[0].node is self.build.layout.source
        return (
            tokens
            and self.build.layout.tokens
            and all(isinstance(x, Known) and x.number == 0 for x in inputs[1:])
        )

    def looked_up(
        self, table: Known, tokens: Any, params: _Params, shape: tuple[int, ...], where: str
    ) -> Held | None:
        """Rows of a table."""
        numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
        last = tuple(range(len(shape) - len(numbers.offset_dims), len(shape)))
        rows = tuple(sizes) == (1, *table.shape[1:]) and len(sizes) == 2
        if not rows or numbers.start_index_map[0] != 0 or numbers.offset_dims != last:
            return None
        places = tokens.moved(lambda index: index[..., 0]) if isinstance(tokens, Held) else tokens
        found = self.build.embedding(table.numbers, places, where)
        return found.moved(lambda index: index.reshape(shape))

    # ---- what is read together -------------------------------------------------------------------

    def computed(self, equation: Any, name: str, inputs: list[Any], where: str) -> list[Any]:
        """An equation without a reading of its own."""
        primitive, params = equation.primitive, equation.params
        live = [x for x in inputs if not isinstance(x, Known)]
        shapes = [tuple(getattr(v.aval, "shape", ())) for v in equation.outvars]
        if name == "div" and len(live) == 2:
            scores = _exponents(*live)
            if scores is not None:
                return [Computed(_softmax, (scores,), shapes[0], where, "softmax")]

        def call(*arrays: Any) -> Any:
            given = iter(arrays)
            operands = [x.array if isinstance(x, Known) else next(given) for x in inputs]
            types = [getattr(v.aval, "dtype", None) for v in equation.invars]
            return primitive.bind(*map(_typed, operands, types), **params)

        if not primitive.multiple_results:
            return [self.build.computed(name, call, live, shapes[0], where)]
        every = Computed(call, tuple(live), (), where, name)
        return [
            Computed(lambda found, i=i: found[i], (every,), shape, where, name)
            for i, shape in enumerate(shapes)
        ]


def _typed(array: Any, dtype: Any) -> Any:
    """An operand as the equation has it: tokens are whole numbers."""
    if dtype is None or getattr(array, "dtype", None) == dtype:
        return array
    return jnp.asarray(array, dtype)


def _softmax(scores: Any) -> Any:
    return jax.nn.softmax(scores, axis=-1)


def _exponents(above: Any, below: Any) -> Held | Computed | None:
    """s where `above / below` is softmax(s) over the last axis."""
    total = _without_moves(below)
    summed = _is(total, "reduce_sum") and total.inputs[0] is above
    if not _is(above, "exp") or not summed or total.shape != above.shape[:-1]:
        return None
    (scores,) = above.inputs
    if _is(scores, "sub") and len(scores.inputs) == 2:
        largest = _is(_without_moves(scores.inputs[1]), "reduce_max")
        return scores.inputs[0] if largest else scores
    return scores


def _is(value: Any, name: str) -> bool:
    return isinstance(value, Computed) and value.name == name


def _without_moves(value: Any) -> Any:
    """What an array was before axes were added, and before it was kept from −∞."""
    names = (*_MOVES, "stop_gradient", "max")
    while isinstance(value, Computed) and value.name in names and len(value.inputs) == 1:
        (value,) = value.inputs
    return value


def _composed(equation: Any, inputs: list[Any], functions: list[Function]) -> Function:
    """The function of an entry that a primitive is of such functions."""
    primitive, params = equation.primitive, equation.params
    if primitive.name == "convert_element_type":
        kinds = (equation.invars[0].aval.dtype, params["new_dtype"])
        if all(jnp.issubdtype(kind, jnp.floating) for kind in kinds):
            return functions[0]
        if jnp.issubdtype(kinds[1], jnp.floating):
            return lambda x: jnp.asarray(functions[0](x), jnp.asarray(x).dtype)

    def function(x: Any) -> Any:
        x, given = jnp.asarray(x), iter(functions)
        operands = []
        for each in inputs:
            if isinstance(each, Held):
                operands.append(next(given)(x))
            else:
                number = np.asarray(each.number)
                dtype = x.dtype if number.dtype.kind in ("f", x.dtype.kind) else number.dtype
                operands.append(jnp.full(x.shape, number, dtype))
        return primitive.bind(*operands, **params)

    return function
