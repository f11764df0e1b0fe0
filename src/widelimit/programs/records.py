"""What is known about a primitive: the entries of the table of primitives (`table`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from .closed_forms import ClosedForm

if TYPE_CHECKING:
    from .interpreter import Machine
    from .steps import Step
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
    is. `order` is an `Order`, or the degree of a homogeneous function.
    """

    scalars: Rule
    families: Rule
    order: Order | Fraction = Order.ONE
    arrays: Callable[..., Any] | None = None
    """NumPy's function, where it needs no parameters."""
    coordinatewise: bool = False
    linear: bool = False
    """Gaussian scalars stay Gaussian, on their way to the outputs."""
    moves: bool = False
    """It only moves numbers about, and has no line in a listing."""
    slope: float | None = None
    """At 0, of functions with f(0) = 0: something small comes out as small as it went in."""
    jumps: bool = False
    """At 0: something small does not come out as anything in particular."""
    inside: tuple[float, ...] = ()
    """Signs of the other operands beside which something small stays as it is."""
    vectors: Callable[[Step, list[WideVector]], WideVector | None] | None = None
    """Its rule on vectors of one shape, where it is more than a function of each coordinate."""
    closed: ClosedForm | None = None
    """Its Gaussian expectations."""
    fast: bool = False
    """It grows faster than any polynomial."""
