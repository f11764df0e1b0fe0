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
    made = {
        id(source): weights.name
        for weights in machine.matrices.values()
        for source in weights.sources.values()
    }
    unbounded: dict[str, Step] = {}
    for weights, step, operand in machine.matmuls:
        if not _is_bounded(operand):
            unbounded.setdefault(weights.name, step)

    def side(vector: WideVector) -> ScoreSide:
        names = {made.get(id(t.source), t.source.name) for f in vector.forms() for t in f.terms}
        if not vector.is_linear:
            return ScoreSide("a nonlinear side", None)
        matrix = ", ".join(sorted(names))
        loose = [unbounded[n] for n in sorted(names) if n in unbounded]
        return ScoreSide(matrix, matrix, str(loose[0].place) if loose else "", not loose)

    return Facts(
        name,
        tuple(Score(str(s.place), str(s.place), (side(u), side(v))) for s, u, v in scores),
        _reused(machine, scores),
        _growths(machine),
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
    slots = {step.results[0].index for step, *_ in scores}
    found = []
    for weights in machine.matrices.values():
        for source in weights.sources.values():
            others = [
                str(record.step.place)
                for record in (machine.operands_of(source) if id(source) in first else ())
                if record.step.results[0].index not in slots
            ]
            if others:
                score = f"{weights.name} makes the score in {first[id(source)].place}"
                found.append((score, (others[0],)))
    return tuple(found)


def _growths(machine: Machine) -> tuple[tuple[str, Growth, tuple[str, ...]], ...]:
    return tuple(
        (f"'{record.step.name}'", Growth.CONTROLLED, (str(record.step.place),))
        for record in machine.records
        if record.step.record.fast
        and isinstance(record.value, WideVector)
        and not record.value.is_constant
    )


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
