"""The interpreter: a flat program on families of vectors, step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import contraction, parameters, structure
from .alignment import SAMPLERS, FlatProgram, Given, Operand, Slot, Step
from .arrays import is_key, mapped_primitive
from .convolution import convolution, window_values
from .elementwise import ELEMENTWISE, elementwise, leading_power, order_one, vanished
from .expectations import Integrator
from .extents import Wide, fit_power
from .gaussian import Labels, Source
from .keys import KEY_STEPS, Keys
from .layout import whole
from .matrices import Matrix, Opaque, Weights
from .outer import Outer, outer_step
from .refusals import RefusedError
from .scalars import DotGroup, Scalar
from .structure import Value
from .vectors import Vector

# Scalars stay Gaussian through these on their way to the output.
_LINEAR = {
    "reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "reduce_sum", "slice",
    "concatenate", "neg", "convert_element_type", "copy", "copy_p", "add", "sub", "mul", "div",
    "add_any", "take", "stack", "rev", "gather", "dynamic_slice", "split", "pad", "dot_general",
}  # fmt: skip
# Linear in the family, whatever its finite axes do.
_BASIS = {"cumsum", "reduce_window_sum", "scatter-add", "scatter_add"}
# Homogeneous of degree one, or free of order: the power of n passes through.
_TRANSPARENT = _LINEAR | _BASIS | {
    "reduce_max", "reduce_min", "sort", "cummax", "cummin", "top_k", "argmax", "argmin",
    "reduce_window_max", "dynamic_update_slice", "scatter", "iota", "reduce_or", "reduce_and",
    "select_and_gather_add", "reduce_prod",
}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """What a step made."""

    step: Step
    value: Value


class Machine:
    """Runs a program for `draws` draws of its random scalars at once."""

    def __init__(
        self, program: FlatProgram, *, draws: int, points: int, key: Any, tangent: bool = False
    ):
        self.program, self.tangent = program, tangent
        seed = np.asarray(jax.random.key_data(key)).ravel()
        self.integrator = Integrator(draws=draws, points=points, rng=np.random.default_rng(seed))
        self.labels = Labels()
        self.keys = Keys()
        self.matrices: dict[Any, Weights] = {}
        self.vector_forms: dict[Any, Any] = {}
        self.finite: dict[Any, Any] = {}
        self.dots: list[DotGroup] = []
        self.records: list[Record] = []
        self.laws: list[tuple[Step, parameters.EntryLaw]] = []
        self.dot_steps: list[tuple[Step, Vector, Vector]] = []
        self.matmuls: list[tuple[Weights, Step, Vector]] = []
        self._tail = _tail(program)
        self._values: dict[int, Value] = {}
        self._uses = _last_uses(program)

    # ---- running ----------------------------------------------------------------------------

    def run(self, *inputs: Any) -> list[Value]:
        """The program's outputs for concrete inputs; keys stay keys."""
        with jax.enable_x64(True):
            for slot, value in zip(self.program.inputs, inputs, strict=True):
                number = self.keys.given(value) if is_key(value) else value
                self._values[slot.index] = Scalar.constant(number)
            for number, step in enumerate(self.program.steps):
                results = self._step(step)
                for slot, value in zip(step.results, results, strict=True):
                    self._values[slot.index] = value
                    self.records.append(Record(step, value))
                for index in self._uses.get(number, ()):
                    self._values.pop(index, None)
            return [self._read(operand, None) for operand in self.program.outputs]

    def _read(self, operand: Operand, step: Step | None) -> Value:
        if isinstance(operand, Slot):
            return self._values[operand.index]
        return self._given(operand, step)

    def _given(self, given: Given, step: Step | None) -> Value:
        wide = [i for i, extent in enumerate(given.shape) if isinstance(extent, Wide)]
        if not wide:
            if hasattr(given.values[0], "dtype") and is_key(given.values[0]):
                return Scalar.constant(self.keys.given(given.values[0]))
            found = fit_power(given.values, self.program.widths)
            if found is None:
                raise _refused(
                    step,
                    "Numbers in the program are c·n^γ.",
                    f"a constant that is {_shown(given.values)} at widths {self.program.widths}",
                    "write scales as powers of the width, such as width ** -0.5",
                )
            return Scalar.constant(found.value, found.exponent)
        values = [np.asarray(v) for v in given.values]
        distinct = {float(u) for v in values for u in np.unique(v)} if values[0].dtype.kind in "fiu" else set()
        if len(distinct) == 1:
            return self._filled(given.shape, Scalar.constant(distinct.pop()))
        raise _refused(
            step,
            "Arrays with a width axis are drawn from the key, or constant along it.",
            "a fixed array that differs from channel to channel",
            "draw it with jax.random from the key that make() is given",
        )

    def _filled(self, shape: tuple[Any, ...], number: Scalar) -> Value:
        """A constant with width axes."""
        wide = [i for i, extent in enumerate(shape) if isinstance(extent, Wide)]
        cells = tuple(1 if i in wide else int(extent) for i, extent in enumerate(shape))
        data = np.asarray(number.value(), float)
        data = np.broadcast_to(data.reshape(data.shape[0], *([1] * len(cells))) if data.ndim == 1 else data, (data.shape[0], *cells))
        if len(wide) == 1:
            flat = data.reshape(data.shape[0], -1)
            return Vector(cells, wide[0], whole(shape[wide[0]].share), number.power, flat)
        layouts = {a: whole(shape[a].share) for a in wide}
        base = {a: k for k, a in enumerate(wide)}
        weights = Weights("constant")
        slots = np.arange(data[0].size).reshape(cells)
        value = float(data.ravel()[0])
        return Matrix(weights, slots, layouts, base, 1.0, number.power, constant=value)

    # ---- what other modules ask -------------------------------------------------------------

    def on_tail(self, slot: Slot) -> bool:
        """Whether a scalar only meets linear steps before it leaves the program."""
        return slot.index in self._tail

    def once(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """A computation that is done at most once, in double precision."""

        def scoped() -> Any:
            with jax.enable_x64(True):
                return compute()

        return functools.cache(scoped)

    def parameter_name(self, step: Step) -> str:
        """A name for a new parameter."""
        count = 1 + len(self.matrices) + len(self.vector_forms)
        return f"W{count}"

    def note_parameter(self, step: Step, law: parameters.EntryLaw) -> None:
        """Remember a parameter's law for the listing and the audit."""
        self.laws.append((step, law))

    def note_dot(self, step: Step, u: Vector, v: Vector) -> None:
        """Remember a Gaussian scalar."""
        self.dot_steps.append((step, u, v))

    @property
    def drawn(self) -> bool:
        """Whether random scalars were drawn."""
        groups = [*self.dots, *self.finite.values()]
        return any(group.is_drawn for group in groups)

    def operands_of(self, source: Source) -> list[Record]:
        """Records of vectors that are functions of a source's variables."""
        return [
            record
            for record in self.records
            if isinstance(record.value, Vector)
            and not record.value.is_linear
            and any(t.source is source for form in record.value.forms() for t in form.terms)
        ]

    def note_use(self, step: Step, matrix: Matrix, axis: int, operand: Vector) -> None:
        """Weights are used in one direction, and cut in one way."""
        weights = matrix.weights
        self.matmuls.append((weights, step, operand))
        others = set(weights.sources) - {matrix.base[axis]}
        if others and not self.tangent:
            raise step.refuse(
                "A weight matrix and its transpose do not both act in the forward pass.",
                got="weights that were used the other way round before",
                remedy="draw separate weights (untie the two layers)",
            )
        for a, layout in matrix.layouts.items():
            cut = weights.cuts.setdefault(matrix.base[a], layout)
            if cut != layout:
                raise step.refuse(
                    "Weights that are used again act on channels cut in the same way.",
                    got="the same weights applied to channels cut in another way",
                    remedy="use the same reshape in both places, or separate weights",
                )

    # ---- one step ---------------------------------------------------------------------------

    def _step(self, step: Step) -> list[Value]:
        operands = [self._read(operand, step) for operand in step.operands]
        name = step.name
        if any(isinstance(value, Opaque) for value in operands):
            return self._opaque(step, operands)
        if name == "iota" and len(step.results[0].wide_axes) == 2:
            return [Opaque()]  # pyright: ignore[reportReturnType]
        if name in SAMPLERS:
            return [parameters.drawn(self, step, operands)]
        if name in KEY_STEPS:
            arrays = [np.asarray(value.value()[0]) for value in operands]  # pyright: ignore
            return [Scalar.constant(self.keys.derive(step, *arrays))]
        if any(isinstance(value, Outer) for value in operands) and name in ELEMENTWISE:
            return [outer_step(step, operands)]  # pyright: ignore[reportReturnType]
        if name in ELEMENTWISE and len(step.results) == 1:
            return [elementwise(step, operands)]
        if name in ("optimization_barrier",):
            return list(operands)
        if name == "qr":
            return self._orthogonal(step, operands)
        if name == "dot_general":
            return [contraction.dot_general(self, step, *operands)]
        if name == "conv_general_dilated":
            if self.tangent:
                raise step.refuse(
                    "Tangent kernels are taken of models without convolutions.",
                    remedy="describe the network in layers (widelimit.Conv) and use net.kernel",
                )
            return [convolution(self, step, *operands)]
        if all(isinstance(value, Scalar) for value in operands):
            return self._on_scalars(step, operands)
        return self._on_families(step, operands)

    def _orthogonal(self, step: Step, operands: list[Any]) -> list[Value]:
        """The orthogonal factor of a Gaussian matrix acts like a Gaussian of the same variance."""
        matrix = operands[0]
        if not isinstance(matrix, Matrix) or matrix.constant is not None or len(matrix.shape) != 2:
            raise step.refuse(
                "Orthogonal weights are the factor of one Gaussian matrix.",
                got="another factorisation",
                remedy="use jax.nn.initializers.orthogonal, or a Gaussian of variance 1/fan_in",
            )
        longest = max(layout.extent for layout in matrix.layouts.values())
        scale = float(longest) ** -0.5
        return [replace(matrix, scale=scale, power=-contraction.HALF), Opaque()]  # pyright: ignore

    def _opaque(self, step: Step, operands: list[Any]) -> list[Value]:
        """The rest of an orthogonal factorisation: signs of its diagonal, for the factor alone."""
        others = [value for value in operands if not isinstance(value, Opaque)]
        if step.name == "mul" and len(others) == 1 and isinstance(others[0], Matrix):
            if all(v.signs for v in operands if isinstance(v, Opaque)):
                return [others[0]]
        elif not any(isinstance(value, (Vector, Matrix)) for value in others):
            signs = step.name == "sign" or (
                step.name in ("broadcast_in_dim", "convert_element_type") and operands[0].signs
            )
            return [Opaque(signs) for _ in step.results]  # pyright: ignore[reportReturnType]
        raise _along_width(step)

    def scalar_contraction(self, step: Step, left: Scalar, right: Scalar) -> Scalar:
        """`dot_general` of numbers."""
        return self._on_scalars(step, [left, right])[0]  # pyright: ignore[reportReturnType]

    def _on_scalars(self, step: Step, operands: list[Any]) -> list[Value]:
        if step.name == "broadcast_in_dim" and step.results[0].wide_axes:
            return [self._widened(step, operands[0])]
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
        elif name in _TRANSPARENT:
            power = leading_power(operands) if operands else Fraction(0)
            operands = [v if v.power == power or v.fixed and v.power == 0 and _is_index(v) else vanished(v, power) for v in operands]
        else:
            operands = [order_one(step, value) for value in operands]
            power = Fraction(0)
        shapes = [tuple(int(e) for e in slot.shape) for slot in step.results]  # pyright: ignore
        if any(value.pending for value in operands):
            found = self._pending(step, operands, power, shapes)
            if found is not None:
                return found
        rough = any(value.rough for value in operands)
        fixed = all(value.fixed for value in operands)

        def compute() -> Any:
            arrays = [value.value() for value in operands]
            results = _run(step, arrays)
            return results if isinstance(results, (list, tuple)) else [results]

        results = self.once(compute)
        found = []
        for k, shape in enumerate(shapes):
            part = self.once(functools.partial(lambda i: results()[i], k))
            value = part() if fixed else part
            found.append(Scalar(shape, value, power=power, rough=rough, fixed=fixed))
        return found

    def _pending(
        self, step: Step, operands: list[Scalar], power: Fraction, shapes: list[tuple[int, ...]]
    ) -> list[Value] | None:
        """Linear steps on Gaussian scalars that were not drawn: act on each coefficient."""
        if step.name not in _LINEAR or (step.name == "dot_general" and all(v.pending for v in operands)):
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
                        data = np.repeat(np.broadcast_to(data, (max(draws, len(data)), *data.shape[1:])), size, axis=0) if data.shape[0] > 1 else data
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
            Scalar(shape, b, power=power, rough=rough, pending=tuple(p))
            for shape, b, p in zip(shapes, bases, pending, strict=True)
        ]

    def _widened(self, step: Step, number: Scalar) -> Value:
        """Numbers repeated along a width axis."""
        extents = step.results[0].shape
        wide = step.results[0].wide_axes
        places = [int(d) for d in step.params[0]["broadcast_dimensions"]]
        cells = tuple(1 if i in wide else int(e) for i, e in enumerate(extents))  # pyright: ignore
        lifted = [1] * len(cells)
        for old, new in enumerate(places):
            lifted[new] = number.shape[old]
        if len(wide) > 1:
            if number.fixed and np.unique(np.asarray(number.value())).size == 1:
                one = Scalar.constant(float(np.ravel(number.value())[0]), number.power)
                return self._filled(extents, one)
            raise step.refuse(
                "A value has one width axis.",
                got="numbers spread over two width axes",
                remedy="draw weights at random",
            )
        data = np.asarray(number.value())
        flat = np.broadcast_to(data.reshape(len(data), *lifted), (len(data), *cells)).reshape(len(data), -1)
        extent = extents[wide[0]]
        assert isinstance(extent, Wide)
        return Vector(cells, wide[0], whole(extent.share), number.power, flat)

    def _on_families(self, step: Step, operands: list[Any]) -> list[Value]:
        name, first = step.name, operands[0]
        widths = self.program.widths
        single = isinstance(first, (Vector, Matrix, Outer))
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
            return [self._side_by_side(step, operands)]
        if name in ("gather", "dynamic_slice") and single:
            others = [_fixed_index(step, value) for value in operands[1:]]
            return [structure.by_index(step, first, others)]
        if name == "pad" and isinstance(first, Vector):
            return [self._padded(step, first, operands[1])]
        if name == "reduce_sum" and isinstance(first, Vector):
            axes = tuple(int(a) for a in step.params[0]["axes"])
            if first.axis in axes:
                return [contraction.reduce_width(self, step, first, axes)]
            return [by_basis(step, first)]
        if name in _BASIS and isinstance(first, Vector) and len(operands) == 1:
            if name == "cumsum" and int(step.params[0]["axis"]) == first.axis:
                raise _along_width(step)
            return [by_basis(step, first)]
        if name in ("reduce_max", "reduce_min", "reduce_window_max") and isinstance(first, Vector):
            return [window_values(step, first)]
        raise _along_width(step)

    def _side_by_side(self, step: Step, operands: list[Any]) -> Value:
        axis = int(step.params[0].get("dimension", 0))
        vectors = [v for v in operands if isinstance(v, (Vector, Matrix))]
        if step.name == "stack":
            if any(isinstance(v, Matrix) for v in operands):
                raise step.refuse(
                    "Weight matrices are used as they are.",
                    got="weights that a scan puts out",
                    remedy="return activations from the scan, not weights",
                )
            operands = [_lifted(v) for v in operands]
            vectors = [v for v in operands if isinstance(v, Vector)]
        whole_like = vectors[0]
        prepared = [
            v if isinstance(v, (Vector, Matrix)) else self._as_vector(step, v, whole_like) for v in operands
        ]
        return structure.concatenate(step, prepared, axis)

    def _as_vector(self, step: Step, number: Scalar, like: Vector) -> Vector:
        raise step.refuse(
            "Parts that are joined all grow with the width, or none does.",
            got="numbers joined to a vector along its channels",
            remedy="project them to the width with weights first",
        )

    def _padded(self, step: Step, vector: Vector, fill: Scalar) -> Vector:
        config = [tuple(int(c) for c in edge) for edge in step.params[0]["padding_config"]]
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


def by_basis(step: Step, vector: Vector) -> Vector:
    """A linear operation over finite axes, from what it does to every member alone."""
    basis = np.eye(vector.size).reshape(vector.size, *vector.shape)
    params = dict(step.params[0])
    out = np.asarray(jax.vmap(lambda a: step.primitive.bind(a, **params))(jnp.asarray(basis)))
    axes = step.results[0].wide_axes
    weights = out.reshape(vector.size, -1).T[None]
    return vector.mixed(weights, out.shape[1:], axes[0])


_ONE = {
    "transpose": structure.transpose,
    "squeeze": structure.squeeze,
    "broadcast_in_dim": structure.broadcast,
    "take": structure.take,
    "rev": structure.reverse,
}


def _run(step: Step, arrays: list[Any]) -> Any:
    if step.name == "take":
        return [a[:, step.params[0]["index"]] for a in arrays]
    if step.name == "stack":
        draws = max(len(a) for a in arrays)
        return np.stack([np.broadcast_to(a, (draws, *a.shape[1:])) for a in arrays], axis=1)
    return mapped_primitive(step, arrays)


def _is_index(value: Scalar) -> bool:
    return value.base.dtype.kind in "iub"


def _fixed_index(step: Step, value: Any) -> Any:
    if not isinstance(value, Scalar) or not value.fixed:
        raise step.refuse(
            "Positions are chosen by fixed indices, not by activations.",
            got=f"'{step.name}' at computed indices",
            remedy="index with constants or with the input's own token ids",
        )
    return jnp.asarray(value.value()[0])


def _lifted(value: Any) -> Any:
    if isinstance(value, Vector):
        return replace(value, shape=(1, *value.shape), axis=value.axis + 1)
    return value


def _along_width(step: Step) -> RefusedError:
    return step.refuse(
        "Channels are exchangeable: along the width there are sums, dot products and weights.",
        got=f"'{step.name}' along the width, or on weights",
        remedy="sorting, maxima, cumulative sums and Fourier transforms over channels have no limit "
        "here; apply them over positions",
    )


def _refused(step: Step | None, rule: str, got: str, remedy: str) -> Exception:
    if step is not None:
        return step.refuse(rule, got=got, remedy=remedy)
    from .refusals import NOWHERE

    return RefusedError(rule, place=NOWHERE, got=got, remedy=remedy)


def _shown(values: tuple[Any, ...]) -> str:
    arrays = [np.asarray(v) for v in values]
    if arrays[0].size == 1:
        return ", ".join(f"{float(a.ravel()[0]):g}" for a in arrays)
    return f"an array of shape {arrays[0].shape} that changes with the width"


def _tail(program: FlatProgram) -> set[int]:
    """Slots without width axes that meet only linear steps on their way out."""
    readers: dict[int, list[Step]] = {}
    for step in program.steps:
        for operand in step.operands:
            if isinstance(operand, Slot):
                readers.setdefault(operand.index, []).append(step)
    outputs = {operand.index for operand in program.outputs if isinstance(operand, Slot)}
    tail: set[int] = set()
    for step in reversed(program.steps):
        for slot in step.results:
            if slot.wide_axes:
                continue
            users = readers.get(slot.index, [])
            linear = all(
                user.name in _LINEAR and all(r.index in tail for r in user.results) for user in users
            )
            if linear and (users or slot.index in outputs):
                tail.add(slot.index)
    return tail


def _last_uses(program: FlatProgram) -> dict[int, list[int]]:
    """Which values are not needed after a step."""
    last: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        for operand in step.operands:
            if isinstance(operand, Slot):
                last[operand.index] = number
    kept = {operand.index for operand in program.outputs if isinstance(operand, Slot)}
    ends: dict[int, list[int]] = {}
    for index, number in last.items():
        if index not in kept:
            ends.setdefault(number, []).append(index)
    return ends

