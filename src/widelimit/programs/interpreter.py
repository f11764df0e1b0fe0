"""The interpreter: a flat program on families of vectors, step by step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .entrywise import is_key
from .extents import Wide, fit_power
from .families import EntryLaw, opaque, sines
from .gaussian import Labels, OrderedChannelsError
from .integration import Rule
from .integrator import Integrator
from .keys import Keys
from .layout import numbered, whole
from .matrices import Opaque, Outer, Value, WeightArray, WideMatrix
from .refusals import NOWHERE, RefusedError
from .scalars import DotGroup, WideScalar
from .steps import FlatProgram, Given, Operand, Step, cells_of
from .vectors import WideVector


@dataclass(frozen=True)
class Made:
    """What a step made."""

    step: Step
    value: Value


class Machine:
    """Runs a program for `draws` draws of its random scalars at once."""

    def __init__(
        self,
        program: FlatProgram,
        *,
        draws: int,
        rule: Rule,
        tangent: bool = False,
        width: int | None = None,
    ):
        """`width`: biases are of the size they have there (`Biases.OWN`), not in the limit."""
        self.program, self.tangent, self.width = program, tangent, width
        rng = np.random.default_rng(rule.words)
        self.integrator = Integrator(draws=draws, rule=rule, rng=rng)
        self.labels = Labels()
        self.keys = Keys()
        self.matrices: dict[Any, WeightArray] = {}
        self.vector_forms: dict[Any, Any] = {}
        self.places: dict[Any, Any] = {}
        self.drawn_from: dict[int, Any] = {}
        self.finite: dict[Any, Any] = {}
        self.dots: list[DotGroup] = []
        self.records: list[Made] = []
        self.laws: list[tuple[Step, EntryLaw]] = []
        self.dot_steps: list[tuple[Step, WideVector, WideVector]] = []
        self.matmuls: list[tuple[WeightArray, Step, WideVector]] = []
        self._values: dict[int, Value] = {}

    # ---- running ----------------------------------------------------------------------------

    def run(self, *inputs: Any) -> list[Value]:
        """The program's outputs for concrete inputs; keys stay keys."""
        # What overflows, or is no number, is refused where it counts.
        with jax.enable_x64(True), np.errstate(all="ignore"):
            for slot, value in zip(self.program.inputs, inputs, strict=True):
                number = self.keys.given(value) if is_key(value) else value
                self._values[slot.index] = WideScalar.constant(number)
            for number, step in enumerate(self.program.steps):
                try:
                    results = self.apply(step, [self._read(o, step) for o in step.operands])
                except OrderedChannelsError as error:
                    raise step.refuse(
                        "Channels that know their place are not split into blocks.",
                        got="a table over channels (such as sines and cosines) that is cut",
                        remedy="add the table to whole channels; split after weights have acted",
                    ) from error
                for slot, value in zip(step.results, results, strict=True):
                    self._values[slot.index] = value
                    self.records.append(Made(step, value))
                for index in self.program.ends.get(number, ()):
                    self._values.pop(index, None)
            outputs = [self._read(operand, None) for operand in self.program.outputs]
        if not self.tangent and any(isinstance(value, Outer) for value in outputs):
            raise self.program.steps[-1].refuse(
                "Outputs have one width axis at most.",
                got="an outer product over channels (a matrix made of activations)",
                remedy="let the matrix act on a vector",
            )
        return outputs

    def _read(self, operand: Operand, step: Step | None) -> Value:
        given = isinstance(operand, Given)
        return self._given(operand, step) if given else self._values[operand.index]

    def _given(self, given: Given, step: Step | None) -> Value:
        place = step.place if step else NOWHERE
        if not any(isinstance(extent, Wide) for extent in given.shape):
            if hasattr(given.values[0], "dtype") and is_key(given.values[0]):
                return WideScalar.constant(self.keys.given(given.values[0]))
            found = fit_power(given.values, self.program.widths)
            if found is None:
                raise RefusedError(
                    "Numbers in the program are c·n^γ.",
                    place=place,
                    got=f"a constant that is {_shown(given.values)} at widths "
                    f"{self.program.widths}",
                    remedy="write scales as powers of the width, such as width ** -0.5",
                )
            return WideScalar.constant(found.value, found.exponent)
        values = [np.asarray(v) for v in given.values]
        numbers = values[0].dtype.kind in "fiu"
        distinct = {float(u) for v in values for u in np.unique(v)} if numbers else set()
        if len(distinct) == 1:
            number = np.full(cells_of(given.shape), distinct.pop())
            return self.filled(given.shape, WideScalar.constant(number))
        table = sines(self, given)
        if table is not None:
            return table
        raise RefusedError(
            "Arrays with a width axis are drawn from the key, or constant along it.",
            place=place,
            got="a fixed array that differs from channel to channel, and is no table of sines and "
            "cosines",
            remedy="draw it with jax.random from the key that make() is given, or compute it with "
            "jnp from jnp.arange(width)",
        )

    def filled(self, shape: tuple[Any, ...], number: WideScalar) -> Value:
        """Numbers, in the shape of the cells, repeated along width axes."""
        layouts = {a: whole(e.share) for a, e in enumerate(shape) if isinstance(e, Wide)}
        data, cells = np.asarray(number.value(), float), number.shape
        if len(layouts) == 1:
            ((axis, layout),) = layouts.items()
            return WideVector(cells, axis, layout, number.power, data.reshape(len(data), -1))
        weights = WeightArray("constant", math.prod(cells))
        base = {a: k for k, a in enumerate(layouts)}
        value = float(data.ravel()[0])
        slots = numbered(number)
        return WideMatrix(weights, slots, layouts, base, 1.0, number.power, constant=value)

    # ---- what other modules ask -------------------------------------------------------------

    def on_tail(self, step: Step) -> bool:
        """Whether a step's number only meets linear steps before it leaves the program."""
        return step.results[0].index in self.program.tail

    def once(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """A computation that is done at most once, in double precision."""

        @functools.cache
        def scoped() -> Any:
            with jax.enable_x64(True):
                return compute()

        return scoped

    def parameter_name(self) -> str:
        """A name for a new parameter."""
        return f"W{1 + len(self.matrices) + len(self.vector_forms)}"

    @property
    def drawn(self) -> bool:
        """Whether random scalars were drawn."""
        groups = [*self.dots, *self.finite.values()]
        return any(group.is_drawn for group in groups)

    def note_use(self, step: Step, matrix: WideMatrix, axis: int, operand: WideVector) -> None:
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
        slots = set(np.unique(matrix.slots).tolist())
        uses = weights.uses.get(matrix.base[axis])
        recut = uses and uses[-1].operand.layout.unit != operand.layout.unit
        if weights.joined or weights.overlap(slots) or recut:
            raise step.refuse(
                "Weights that are used again act on channels cut in the same way.",
                got="weights that are put together in one place and used by themselves in another"
                if weights.joined
                else "the same weights applied to channels cut in another way",
                remedy="use the same reshape in both places, or separate weights",
            )
        weights.used |= slots

    def apply(self, step: Step, operands: list[Any]) -> list[Value]:
        """What a step makes of its operands."""
        record = step.record
        if any(
            jnp.issubdtype(slot.dtype, jnp.complexfloating) and (slot.wide_axes or record.law)
            for slot in step.results
        ):
            raise step.refuse(
                "An activation or a parameter is complex.",
                got=f"'{step.name}' that gives {step.results[0].dtype}",
                remedy="write real and imaginary parts as two real arrays",
            )
        if any(isinstance(value, Opaque) for value in operands):
            return opaque(self, step, operands)
        numbers = all(isinstance(value, WideScalar) for value in operands)
        return (record.scalars if numbers else record.families)(self, step, operands)


def _shown(values: tuple[Any, ...]) -> str:
    arrays = [np.asarray(v) for v in values]
    if arrays[0].size == 1:
        return ", ".join(f"{float(a.ravel()[0]):g}" for a in arrays)
    return f"an array of shape {arrays[0].shape} that changes with the width"
