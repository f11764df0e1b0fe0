"""A program in the language of tensor programs: its lines, and their laws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .extents import Wide, shown
from .integration import Method
from .scalars import WideScalar
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine, Made


def superscript(power: Fraction) -> str:
    """`n^power`, or 1."""
    if power == 0:
        return "1"
    return "n" if power == 1 else f"n^({power})" if power.denominator > 1 else f"n^{power}"


def kind_of(record: Made) -> str | None:
    """What a step is in a tensor program; None for bookkeeping."""
    value, known = record.value, record.step.record
    if known.law is not None:
        return known.kind
    if isinstance(value, WideVector) and not known.moves and not value.is_constant:
        return known.kind if known.kind == "MatMul" and value.is_linear else "Nonlin"
    if isinstance(value, WideScalar) and not known.moves and not value.fixed:
        shapes = (operand.shape for operand in record.step.operands)
        if not any(isinstance(extent, Wide) for shape in shapes for extent in shape):
            return "Scalar"
        return "Dot" if known.kind != "Moment" and not value.rough else "Moment"
    return None


def listed(name: str, heads: Iterable[str], lines: Iterable[tuple[str, str]], end: str) -> str:
    """A whole listing: what is given, numbered lines by their kinds and texts, what comes out."""
    rows = [f"  {k:>3}  {kind:<10}  {text}" for k, (kind, text) in enumerate(lines, 1)]
    return "\n".join([f"{name} (width n → ∞)", *heads, *rows, end])


def listing(machine: Machine, output: Any, name: str) -> str:
    """One line for every source line and kind, in program order."""
    kinds = ((record.step.place, kind_of(record), record) for record in machine.records)
    kept = (entry for entry in kinds if entry[1] is not None)
    groups = [list(group) for _, group in itertools.groupby(kept, lambda entry: entry[:2])]
    last = [group[-1] for group in groups]
    widest = max((len(str(place).split(": ")[0]) for place, *_ in last), default=0)
    lines = [
        (
            str(kind),
            f"{shown(record.step.results[0].shape):<18} {superscript(record.value.power):<9} "
            f"{str(place).split(': ')[0]:<{widest}}  {place.code}",
        )
        for place, kind, record in last
    ]
    law = "Gaussian given the scalars" if machine.drawn else "Gaussian"
    size = int(np.prod(output.shape, dtype=int))
    end = f"output: {size} numbers of order {superscript(output.power)}, {law}"
    return listed(name, (), lines, end)


def laws_of_lines(machine: Machine) -> Iterator[str]:
    """The laws of all vectors that weights made, and of all scores, behind their places."""
    scores = {id(group.step): group for group in machine.dots}
    for record in machine.records:
        step, value = record.step, record.value
        if id(step) in scores and not machine.on_tail(step):
            variance, method = scores[id(step)].variances()
            yield f"{step.place}: scalar, {_law(variance, 'earlier', method)}"
        elif kind_of(record) == "MatMul" and isinstance(value, WideVector) and value.form:
            assert value.scale is not None
            variance = value.form.variance * np.square(value.scale)
            method = max(term.source.method for term in value.form.terms)
            yield f"{step.place}: {_law(variance, 'the', method)}"


def _law(variance: np.ndarray, which: str, method: Method) -> str:
    """Of Gaussian numbers with variances (draws, numbers)."""
    if len(variance) > 1:
        return f"Gaussian given {which} scalars"
    low, high = (f"{v:.6g}" for v in (variance.min(), variance.max()))
    return f"N(0, {low if low == high else f'{low} … {high}'}), {method}"
