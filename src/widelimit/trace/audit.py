"""Width audit: the power of n of every parameter, activation and score, with its source line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

import jax

from ..programs.extents import shown
from ..programs.integration import Integration
from ..programs.interpreter import Machine
from ..programs.listing import kind_of, superscript
from ..programs.matrices import WideMatrix
from ..programs.refusals import Place, RefusedError
from ..programs.scalars import ZERO, WideScalar
from ..programs.steps import FlatProgram, Slot
from ..programs.vectors import WideVector

if TYPE_CHECKING:
    from .program import Traced


class Verdict(Enum):
    """What happens to a quantity as the model is made wider."""

    STAYS = "stays"
    VANISHES = "vanishes"
    DIVERGES = "diverges"
    ZERO = "is zero"

    @classmethod
    def of(cls, power: Fraction) -> Verdict:
        """By the sign of the power of n."""
        return cls.STAYS if power == 0 else cls.DIVERGES if power > 0 else cls.VANISHES


@dataclass(frozen=True)
class Row:
    """One quantity; `role` is parameter, activation, score, average or output."""

    role: str
    power: Fraction
    place: Place
    detail: str
    is_zero: bool = False

    @property
    def verdict(self) -> Verdict:
        """What happens to it as the width grows."""
        return Verdict.ZERO if self.is_zero else Verdict.of(self.power)

    @property
    def said(self) -> str:
        """The verdict in words; none on parameters and averages, whose powers do no harm alone."""
        return "" if self.role in ("parameter", "average") else self.verdict.value


@dataclass(frozen=True)
class Audit:
    """A width audit: one row per quantity; `print` it.

    `stopped` says why the program could not be followed to its end, and is None where it could.
    """

    name: str
    rows: tuple[Row, ...]
    stopped: RefusedError | None

    def of(self, role: str) -> tuple[Row, ...]:
        """The rows of one role."""
        return tuple(row for row in self.rows if row.role == role)

    @property
    def healthy(self) -> bool:
        """Whether nothing diverges or vanishes but parameters, and the end was reached."""
        return self.stopped is None and not self.moving

    @property
    def moving(self) -> tuple[Row, ...]:
        """What diverges or vanishes, but for parameters and averages."""
        bad = (Verdict.DIVERGES.value, Verdict.VANISHES.value)
        return tuple(row for row in self.rows if row.said in bad)

    def __str__(self) -> str:
        rows = [f"{self.name}: powers of the width n"]
        widest = max((len(row.detail) for row in self.rows), default=0)
        for row in self.rows:
            rows.append(
                f"  {row.role:<10} {superscript(row.power):<9} {row.said:<9} "
                f"{row.detail:<{widest}}  {row.place}"
            )
        if self.stopped is not None:
            rows.append(f"  stopped: {self.stopped}")
        return "\n".join(rows)


_ROLES = {
    "Parameter": "parameter",
    "MatMul": "activation",
    "Nonlin": "activation",
    "Dot": "score",
    "Moment": "average",
}


def audited(traced: Traced) -> Audit:
    """Follow the program as far as it goes."""
    rule = Integration(points=2**12, repeated=2**6).seeded(jax.random.fold_in(traced.key, 2))
    machine = Machine(traced.program, draws=4, rule=rule)
    stopped = None
    output = None
    try:
        output = machine.run(traced.key, traced.x)[0]
    except RefusedError as error:
        stopped = error
    rows = list(_rows(machine))
    if output is not None:
        place = traced.program.steps[-1].place
        rows = [r for r in rows if not (r.role == "score" and r.place == place)]
        shape, zero = f"{tuple(output.shape)}", output.is_zero
        rows.append(Row("output", ZERO if zero else output.power, place, shape, zero))
    return Audit(traced.name, tuple(rows), stopped)


def _rows(machine: Machine) -> list[Row]:
    """One row for every source line and role: the last value the line makes.

    A product with weights, or a score, counts with the constants that scale it afterwards; a vector
    that is scaled only to enter a contraction is not a quantity of its own.
    """
    laws = {id(step): law for step, law in machine.laws}
    entering = _only_contracted(machine.program)
    found: dict[tuple[str, Place, str], Row] = {}
    behind: dict[int, tuple[str, Place, str]] = {}
    for record in machine.records:
        step, value, kind = record.step, record.value, kind_of(record)
        slot, known = step.results[0], step.record
        extents = shown(slot.shape)
        if known.law is not None:
            if isinstance(value, (WideVector, WideMatrix)):
                law, key = laws[id(step)], ("parameter", step.place, extents)
                found[key] = Row("parameter", law.power, step.place, f"{law.name} {extents}")
                behind[slot.index] = key
            continue
        slots = [o for o in step.operands if isinstance(o, Slot) and o.index in behind]
        others = [o for o in step.operands if o not in slots]
        scales = known.linear and known.coordinatewise and len(known.signs) < 2
        numbers = all(not o.shape or set(o.shape) == {1} for o in others)
        if len(slots) == 1 and ((known.moves and not others) or (scales and numbers)):
            key = behind[slot.index] = behind[slots[0].index]
            if isinstance(value, (WideVector, WideMatrix, WideScalar)):
                found[key] = replace(found[key], power=value.power)
            continue
        role = _ROLES.get(kind or "")
        if role is None or not isinstance(value, (WideVector, WideScalar)) or value.is_zero:
            continue
        if role == "score" and machine.on_tail(step):
            role = "readout"
        if role == "activation" and value.power and slot.index in entering:
            continue
        key = (role, step.place, "")
        found[key] = Row(role, value.power, step.place, extents)
        if role in ("score", "readout") or kind == "MatMul":
            behind[slot.index] = key
    return list(found.values())


def _only_contracted(program: FlatProgram) -> set[int]:
    """Values that contractions alone read, through moves."""
    contracted: set[int] = set()
    otherwise: set[int] = set()
    for step in reversed(program.steps):
        contracts = step.record.kind == "MatMul"
        for found, here in ((contracted, contracts), (otherwise, not contracts)):
            if (step.makes & found) if step.record.moves else here:
                found |= step.reads
    return contracted - otherwise
