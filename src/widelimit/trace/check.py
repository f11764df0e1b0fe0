"""The limit theorem's preconditions on real code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..programs.preconditions import Finding, Precondition, PreconditionReport, Severity
from ..programs.steps import Step
from ..programs.trees import Deviations
from ..programs.vectors import WideVector

if TYPE_CHECKING:
    from ..programs.interpreter import Machine

_FAST = {"exp", "exp2", "expm1", "sinh", "cosh"}


def preconditions(machine: Machine, name: str) -> PreconditionReport:
    """What the theorem asks and the program does not keep; see `Precondition`."""
    scores = [(s, u, v) for s, u, v in machine.dot_steps if not machine.on_tail(s.results[0])]
    found: list[Finding] = []
    found += _sides(scores)
    found += _elsewhere(machine, scores)
    found += _growth(machine)
    found += _bounded(machine, scores)
    found += _after(machine)
    order = list(Severity)
    return PreconditionReport(name, tuple(sorted(found, key=lambda f: order.index(f.severity))))


def _sides(scores: list[tuple[Step, WideVector, WideVector]]) -> list[Finding]:
    bad = [s for s, u, v in scores if not (u.is_linear and v.is_linear) and not _ones(u, v)]
    return [
        Finding(
            Precondition.MATMUL_SIDES,
            Severity.WARNING,
            str(step.place),
            "The theorem's dot products are of two MatMul vectors; here one side is nonlinear, and "
            "the sum is centred because the other side is.",
            "none needed; compare with the model at finite width",
        )
        for step in _unique(bad)
    ]


def _ones(u: WideVector, v: WideVector) -> bool:
    return u.is_constant or v.is_constant


def _elsewhere(
    machine: Machine, scores: list[tuple[Step, WideVector, WideVector]]
) -> list[Finding]:
    """Weights that make scores and are used for something else too."""
    sources = {
        id(t.source): step
        for step, *sides in scores
        for v in sides
        if v.is_linear and not v.is_constant
        for form in v.forms()
        for t in form.terms
    }
    found = []
    for weights in machine.matrices.values():
        made = [source for source in weights.sources.values() if id(source) in sources]
        if not made:
            continue
        step = sources[id(made[0])]
        others = [record.step for record in machine.operands_of(made[0]) if record.step is not step]
        others = [
            s for s in others if s.results[0].index not in {x.results[0].index for x, *_ in scores}
        ]
        if others:
            found.append(
                Finding(
                    Precondition.SCORE_MATRIX_ONLY,
                    Severity.WARNING,
                    str(others[0].place),
                    "The proof needs scores to be independent of the vectors; single coordinates "
                    "and scores are independent in the limit.",
                    "use a separate matrix outside the scores",
                )
            )
    return found


def _growth(machine: Machine) -> list[Finding]:
    steps = [
        record.step
        for record in machine.records
        if record.step.name in _FAST
        and isinstance(record.value, WideVector)
        and not record.value.is_constant
    ]
    return [
        Finding(
            Precondition.PSEUDO_LIPSCHITZ,
            Severity.WARNING,
            str(step.place),
            f"'{step.name}' of an activation grows faster than any polynomial.",
            "replace the function by one of polynomial growth, or accept the law as empirical",
        )
        for step in _unique(steps)
    ]


def _bounded(machine: Machine, scores: list[tuple[Step, WideVector, WideVector]]) -> list[Finding]:
    sources = {
        id(t.source)
        for _, *sides in scores
        for v in sides
        for form in v.forms()
        for t in form.terms
    }
    bad = []
    for weights, step, operand in machine.matmuls:
        if {id(s) for s in weights.sources.values()} & sources and not _is_bounded(operand):
            bad.append(step)
    return [
        Finding(
            Precondition.BOUNDED_INPUT,
            Severity.WARNING,
            str(step.place),
            "The proof uses the bound; unbounded inputs of scores are seen to obey the same law.",
            "clip the input of queries and keys, or accept the law as empirical",
        )
        for step in _unique(bad)[:1]
    ]


def _is_bounded(vector: WideVector) -> bool:
    """Whether every nonlinear function in it is flat far out; linear parts are not bounded."""
    if vector.form is not None:
        return False
    near, far = (np.abs(vector.evaluate(Deviations([-r, r]))).max() for r in (1e3, 1e6))
    return bool(far <= 1.01 * near + 1e-9)


def _after(machine: Machine) -> list[Finding]:
    late = [step for _, step, operand in machine.matmuls if operand.draws > 1]
    if not late:
        return []
    return [
        Finding(
            Precondition.NO_MATMUL_AFTER_SCALARS,
            Severity.NOTE,
            str(late[0].place),
            "The theorem ends there; the limit continues by the conditional recursion (Gaussian "
            "given all earlier scalars), an extension of the theorem.",
            "none needed; compare with the model at finite width",
        )
    ]


def _unique(steps: list[Step]) -> list[Step]:
    return list({step.place: step for step in steps}.values())
