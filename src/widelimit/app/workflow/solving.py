"""Solvers by the names they have on the command line, and what a page says of them."""

import enum
from dataclasses import fields
from typing import Any

from ...errors import WidelimitError
from ...inference import (
    BlockedCholesky,
    Cholesky,
    ConjugateGradients,
    GPPosterior,
    Nystrom,
    Solver,
)
from ...inference.iterative import Iterative
from ...inference.nystrom import NystromPosterior


class SolverName(enum.StrEnum):
    """A solver by the name of its class."""

    CHOLESKY = "cholesky"
    BLOCKED = "blocked-cholesky"
    GRADIENTS = "conjugate-gradients"
    NYSTROM = "nystrom"


_SOLVERS: dict[SolverName, Any] = {
    SolverName.CHOLESKY: Cholesky,
    SolverName.BLOCKED: BlockedCholesky,
    SolverName.GRADIENTS: ConjugateGradients,
    SolverName.NYSTROM: Nystrom,
}


def solver_named(solver: SolverName, *, key: int = 0, **options: Any) -> Solver:
    """The solver of that name; `landmarks`, `tolerance` and `block` belong to one each."""
    known = {name: [field.name for field in fields(kind)] for name, kind in _SOLVERS.items()}
    given = {option: value for option, value in options.items() if value is not None}
    if strangers := [option for option in given if option not in known[solver]]:
        owner = next(name for name, own in known.items() if strangers[0] in own)
        raise WidelimitError(
            f"The solver {solver} has no {strangers[0]}: that is an option of {owner}.",
            got=f"{strangers[0]} {given[strangers[0]]}",
            remedy=f"leave it out, or choose {owner}",
            option=(strangers[0], "solver"),
        )
    if solver is SolverName.NYSTROM and "landmarks" not in given:
        raise WidelimitError(
            f"The solver {solver} has no number of landmarks to stand on.",
            got="none",
            remedy="give one, for instance a quarter of the training examples",
            option="landmarks",
        )
    return _SOLVERS[solver](**given, **({"key": key} if "key" in known[solver] else {}))


def name_of(solver: Solver) -> SolverName:
    """What a solver is called."""
    return next(name for name, kind in _SOLVERS.items() if type(solver) is kind)


def facts_of(posterior: Any, solver: Solver) -> list[tuple[str, object]]:
    """What a page says of a solver, and of the evidence as far as it tells."""
    facts: list[tuple[str, object]] = [("solver", name_of(solver).value)]
    if isinstance(posterior, NystromPosterior):
        facts.append(("landmarks", len(posterior.landmarks)))
        facts.append(("share of the variance that landmarks miss", posterior.missed))
        return [*facts, ("log evidence, lower bound", float(posterior.log_evidence))]
    if isinstance(solver, ConjugateGradients):
        facts.append(("relative residual, at most", solver.tolerance))
    value = evidence(posterior)
    return facts if value is None else [*facts, ("log evidence", value)]


def evidence(posterior: Any) -> float | None:
    """The log evidence or its bound; None where the solver does not tell."""
    if isinstance(posterior, GPPosterior) and isinstance(posterior.factor, Iterative):
        return None
    return float(posterior.log_evidence)
