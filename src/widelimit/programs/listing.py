"""The program in the language of tensor programs, beside the user's own lines."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .extents import Wide
from .matrices import WideMatrix
from .scalars import WideScalar
from .steps import SAMPLERS
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine, Record


def superscript(power: Fraction) -> str:
    """`n^power`, or 1."""
    if power == 0:
        return "1"
    return "n" if power == 1 else f"n^({power})" if power.denominator > 1 else f"n^{power}"


def kind_of(record: Record) -> str | None:
    """What a step is in a tensor program; None for bookkeeping."""
    value, name = record.value, record.step.name
    if name in SAMPLERS:
        return "Parameter"
    if record.step.record.moves or isinstance(value, WideMatrix):
        return None
    if isinstance(value, WideVector):
        if value.is_constant:
            return None
        matmul = name in ("dot_general", "conv_general_dilated") and value.is_linear
        return "MatMul" if matmul else "Nonlin"
    if isinstance(value, WideScalar):
        if value.fixed:
            return None
        vectors = any(_is_wide(operand) for operand in record.step.operands)
        if not vectors:
            return "WideScalar"
        return "Dot" if name != "reduce_sum" and not value.rough else "Moment"
    return None


def _is_wide(operand: Any) -> bool:
    return any(isinstance(extent, Wide) for extent in operand.shape)


def listing(machine: Machine, output: Any, name: str) -> str:
    """One line for every source line and kind, in program order."""
    rows = [f"{name} (width n → ∞)"]
    last: tuple[Any, str] | None = None
    merged: list[tuple[str, str, str, str, str]] = []
    for record in machine.records:
        kind = kind_of(record)
        if kind is None:
            continue
        place = record.step.place
        entry = (
            kind,
            _family(record),
            superscript(record.value.power),
            str(place).split(": ")[0],
            place.code,
        )
        if last == (place, kind) and merged:
            merged[-1] = entry
        else:
            merged.append(entry)
        last = (place, kind)
    widest = max((len(row[3]) for row in merged), default=0)
    for number, (kind, family, power, where, code) in enumerate(merged, 1):
        rows.append(f"  {number:>3}  {kind:<9} {family:<18} {power:<9} {where:<{widest}}  {code}")
    rows.append(f"output: {_output(machine, output)}")
    return "\n".join(rows)


def _family(record: Record) -> str:
    extents = record.step.results[0].shape
    return f"({', '.join(str(extent) for extent in extents)})"


def _output(machine: Machine, output: Any) -> str:
    law = "Gaussian given the scalars" if machine.drawn else "Gaussian"
    order = superscript(output.power)
    size = int(np.prod(output.shape, dtype=int))
    return f"{size} numbers of order {order}, {law}"
