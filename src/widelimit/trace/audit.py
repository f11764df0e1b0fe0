"""Width audit: the power of n of every parameter, activation and score, with its source line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

import jax

from .interpreter import Machine
from .listing import kind_of, superscript
from .refusals import Place, RefusedError
from .scalars import Scalar
from .vectors import Vector

if TYPE_CHECKING:
    from .program import Traced


class Verdict(Enum):
    """What happens to a quantity as the model is made wider."""

    STAYS = "stays"
    VANISHES = "vanishes"
    DIVERGES = "diverges"

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

    @property
    def verdict(self) -> Verdict:
        """What happens to it as the width grows."""
        return Verdict.of(self.power)


@dataclass(frozen=True)
class Audit:
    """The table; `stopped` is why the program could not be followed to its end, if so."""

    name: str
    rows: tuple[Row, ...]
    stopped: RefusedError | None

    def of(self, role: str) -> tuple[Row, ...]:
        """The rows of one role."""
        return tuple(row for row in self.rows if row.role == role)

    @property
    def healthy(self) -> bool:
        """Whether nothing diverges or vanishes but parameters, and the end was reached."""
        kept = [r for r in self.rows if r.role not in ("parameter", "average")]
        return self.stopped is None and all(r.verdict is Verdict.STAYS for r in kept)

    def __str__(self) -> str:
        rows = [f"{self.name}: powers of the width n"]
        widest = max((len(row.detail) for row in self.rows), default=0)
        for row in self.rows:
            mark = "" if row.role in ("parameter", "average") else row.verdict.value
            rows.append(
                f"  {row.role:<10} {superscript(row.power):<9} {mark:<9} "
                f"{row.detail:<{widest}}  {row.place}"
            )
        if self.stopped is not None:
            rows.append(f"  stopped: {self.stopped}")
        return "\n".join(rows)


_ROLES = {"Parameter": "parameter", "MatMul": "activation", "Nonlin": "activation", "Dot": "score", "Moment": "average"}


def audited(traced: Traced) -> Audit:
    """Follow the program as far as it goes."""
    machine = Machine(traced.program, draws=4, points=64, key=jax.random.fold_in(traced.key, 2))
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
        rows.append(Row("output", output.power, place, f"{tuple(output.shape)}"))
    return Audit(traced._name, tuple(rows), stopped)


def _rows(machine: Machine) -> list[Row]:
    """One row for every source line and role: the last value the line makes."""
    laws = {id(step): law for step, law in machine.laws}
    found: dict[tuple[str, Place, str], Row] = {}
    for record in machine.records:
        kind = kind_of(record)
        role = _ROLES.get(kind or "")
        if role is None:
            continue
        step, value = record.step, record.value
        extents = f"({', '.join(str(e) for e in step.results[0].shape)})"
        if role == "parameter":
            if not isinstance(value, Scalar):
                law = laws[id(step)]
                row = Row(role, law.power, step.place, f"{law.name} {extents}")
                found[role, step.place, extents] = row
            continue
        if isinstance(value, (Vector, Scalar)) and value.is_zero:
            continue
        if role == "score" and machine.on_tail(step.results[0]):
            role = "readout"
        found[role, step.place, ""] = Row(role, value.power, step.place, extents)
    return list(found.values())
