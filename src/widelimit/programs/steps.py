"""The steps of a flat program, and what is known about the primitives that they are.

Steps are read off JAX's own programs, or written by hand; `table` has a record for each primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from .arrays import OnArrays
from .closed_forms import ClosedForm
from .extents import Extent, Wide
from .refusals import Place, RefusedError

if TYPE_CHECKING:
    from .families import EntryLaw
    from .interpreter import Machine
    from .vectors import WideVector

Rule: TypeAlias = "Callable[[Machine, Step, list[Any]], list[Any]]"
"""What a machine makes of a step and its operands."""


class Order(Enum):
    """What power of n a result has."""

    ONE = "operands are of order one, and so is the result"
    LEADING = "the largest of its operands counts, the others are zero beside it"
    RATIO = "as for LEADING, but the result is of order one"
    PRODUCT = "powers are added"
    QUOTIENT = "powers are subtracted"
    POWER = "the power is multiplied by the exponent"


@dataclass(frozen=True)
class Record:
    """One primitive.

    `families` is its rule where a vector or weights are among the operands, `scalars` where none
    is. `order` is an `Order`, or the degree of a homogeneous function. Products and quotients are
    linear in each operand alone.
    """

    scalars: Rule
    families: Rule
    order: Order | Fraction = Order.ONE
    arrays: Callable[..., Any] | None = None
    """NumPy's function, where it needs no parameters."""
    numbers: OnArrays | None = None
    """NumPy's function of the parameters and the arrays."""
    coordinatewise: bool = False
    linear: bool = False
    """Gaussian scalars stay Gaussian, on their way to the outputs."""
    moves: bool = False
    """It only moves numbers about, and has no line in a listing."""
    signs: tuple[float, ...] = ()
    """Of its operands, if it is their sum."""
    chooses: int = 0
    """So many operands, the first ones, only choose among the others."""
    slope: float | None = None
    """At 0, of functions with f(0) = 0: something small comes out as small as it went in."""
    jumps: bool = False
    """At 0: something small does not come out as anything in particular."""
    inside: tuple[float, ...] = ()
    """Signs of the other operands beside which something small stays as it is."""
    vectors: Callable[[Step, list[WideVector]], WideVector | None] | None = None
    """Its rule on vectors of one shape, where it is more than a function of each coordinate."""
    closed: ClosedForm | None = None
    """Its Gaussian expectations, where other operands are zero."""
    fast: bool = False
    """It grows faster than any polynomial."""
    law: Callable[[Step, list[Any]], EntryLaw] | None = None
    """That of the entries it draws: where parameters come from, and calls of `jax.random` end."""
    kind: str | None = None
    """What it makes in a listing: MatMul if Gaussian vectors, Moment if numbers."""


def cells_of(shape: tuple[Extent, ...]) -> tuple[int, ...]:
    """A shape with 1 in place of the width axes."""
    return tuple(1 if isinstance(extent, Wide) else int(extent) for extent in shape)


@dataclass(frozen=True)
class Slot:
    """A value of the flat program: its number, extents, and NumPy dtype kind."""

    index: int
    shape: tuple[Extent, ...]
    dtype: Any

    @property
    def wide_axes(self) -> tuple[int, ...]:
        """The axes that grow with the width."""
        return tuple(i for i, extent in enumerate(self.shape) if isinstance(extent, Wide))

    @property
    def cells(self) -> tuple[int, ...]:
        """The shape with 1 in place of the width axes."""
        return cells_of(self.shape)


@dataclass(frozen=True)
class Given:
    """A literal or captured array, at the three widths."""

    values: tuple[Any, ...]
    shape: tuple[Extent, ...]


Operand = Slot | Given


@dataclass(frozen=True)
class Step:
    """One equation: its primitive, and its parameters at the three widths."""

    name: str
    primitive: Any
    params: tuple[dict[str, Any], ...]
    operands: tuple[Operand, ...]
    results: tuple[Slot, ...]
    place: Place
    record: Record

    @property
    def reads(self) -> set[int]:
        """The numbers of the values among its operands."""
        return {operand.index for operand in self.operands if isinstance(operand, Slot)}

    @property
    def makes(self) -> set[int]:
        """The numbers of its results."""
        return {slot.index for slot in self.results}

    def refuse(self, rule: str, *, got: str | None = None, remedy: str) -> RefusedError:
        """An error that names this step's line."""
        return RefusedError(
            rule, place=self.place, got=got or f"the operation '{self.name}'", remedy=remedy
        )


@dataclass(frozen=True)
class FlatProgram:
    """Steps from inputs to outputs. Values are known by their slots' numbers."""

    widths: tuple[int, ...]
    inputs: tuple[Slot, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]

    @cached_property
    def kept(self) -> set[int]:
        """What comes out."""
        return {operand.index for operand in self.outputs if isinstance(operand, Slot)}

    @cached_property
    def tail(self) -> set[int]:
        """Values without width axes that meet only linear steps on their way out."""
        bent: set[int] = set()
        """Read by a step that is not linear, or whose results are not on the tail."""
        tail, read = set(), set(self.kept)
        for step in reversed(self.steps):
            tail |= {s.index for s in step.results if not s.wide_axes and s.index in read - bent}
            bent |= set() if step.record.linear and step.makes <= tail else step.reads
            read |= step.reads
        return tail

    @cached_property
    def live(self) -> set[int]:
        """Values that the outputs depend on; weights that were drawn and replaced are not."""
        live = set(self.kept)
        for step in reversed(self.steps):
            live |= step.reads if step.makes & live else set()
        return live

    @cached_property
    def ends(self) -> dict[int, list[int]]:
        """Which values are not needed after a step."""
        last = {index: number for number, step in enumerate(self.steps) for index in step.reads}
        ends: dict[int, list[int]] = {}
        for index in last.keys() - self.kept:
            ends.setdefault(last[index], []).append(index)
        return ends

    @cached_property
    def biases(self) -> set[int]:
        """Values that hold a parameter with one width axis at most, moved, scaled or shifted."""
        found: set[int] = set()
        for step in self.steps:
            record = step.record
            passes = record.moves or (record.linear and record.coordinatewise)
            drawn = record.law and all(len(slot.wide_axes) < 2 for slot in step.results)
            slots = [operand for operand in step.operands if isinstance(operand, Slot)]
            if drawn or (passes and len(slots) == 1 and step.reads <= found):
                found |= step.makes
        return found
