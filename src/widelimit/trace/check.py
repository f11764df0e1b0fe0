"""What the limit theorem asks about, read off a traced model's run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..programs.preconditions import Facts, Growth, Score, ScoreSide
from ..programs.steps import Step
from ..programs.trees import Deviations
from ..programs.vectors import WideVector

if TYPE_CHECKING:
    from ..programs.interpreter import Machine


def facts_of(machine: Machine, name: str) -> Facts:
    """The facts of all steps; places are lines of the user's file."""
    scores = [
        (step, u, v)
        for step, u, v in machine.dot_steps
        if not machine.on_tail(step) and not (u.is_constant or v.is_constant)
    ]
    made = {id(s): w.name for w in machine.matrices.values() for s in w.sources.values()}

    def side(vector: WideVector) -> ScoreSide:
        if not vector.is_linear:
            return ScoreSide("a nonlinear side", None)
        terms = [t for form in vector.forms() for t in form.terms]
        names = sorted({made.get(id(t.source), t.source.name) for t in terms})
        uses = (use for use in machine.matmuls if use[0].name in names)
        loose = next((step for _, step, operand in uses if not _is_bounded(operand)), None)
        entries = frozenset(
            (id(t.source), int(t.labels[form]), row)
            for t in terms
            for form, member in np.argwhere(np.abs(t.coefficients(t.span)).max(axis=0))
            for row in (t.source.rows[member] if t.source.rows else [member])
        )
        source = "" if loose is None else str(loose.place)
        return ScoreSide(", ".join(names), ", ".join(names), source, loose is None, entries)

    return Facts(
        name,
        tuple(Score(str(s.place), str(s.place), (side(u), side(v)), True) for s, u, v in scores),
        _reused(machine, scores),
        tuple(
            (f"'{record.step.name}'", Growth.CONTROLLED, (str(record.step.place),))
            for record in machine.records
            if record.step.record.fast
            and isinstance(record.value, WideVector)
            and not record.value.is_constant
        ),
        tuple(str(step.place) for _, step, operand in machine.matmuls if operand.draws > 1)[:1],
    )


def _reused(
    machine: Machine, scores: list[tuple[Step, WideVector, WideVector]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Weights that make scores, and steps that take functions of what they make."""
    first = {
        id(t.source): step
        for step, *sides in scores
        for v in sides
        if v.is_linear
        for form in v.forms()
        for t in form.terms
    }
    if not first:
        return ()
    steps = [step for step, *_ in scores]
    functions = [
        (record.step, {id(t.source) for form in record.value.forms() for t in form.terms})
        for record in machine.records
        if isinstance(record.value, WideVector) and not record.value.is_linear
    ]
    found = []
    for weights in machine.matrices.values():
        for source in weights.sources.values():
            others = [s for s, sources in functions if id(source) in sources and s not in steps]
            if id(source) in first and others:
                score = f"{weights.name} makes the score in {first[id(source)].place}"
                found.append((score, (str(others[0].place),)))
    return tuple(found)


def _is_bounded(vector: WideVector) -> bool:
    """Whether every nonlinear function in it is flat far out; linear parts are not bounded."""
    if vector.form is not None:
        return False
    # Sines are as large everywhere, and are met in all of their phases.
    phases = np.random.default_rng(0).uniform(1.0, 2.0, (512, 1)) * (-1, 1)
    points = [Deviations(r * phases.ravel()) for r in (1e3, 1e6)]
    for each in points:
        each.part = slice(0, 1)  # a bound does not depend on the scalars
    near, far = (np.abs(vector.evaluate(each)).max() for each in points)
    return bool(far <= 1.01 * near + 1e-9)
