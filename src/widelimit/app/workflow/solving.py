"""Solvers by the names they have on the command line, and what a page says of them."""

import enum
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


_SOLVERS: dict[SolverName, tuple[Any, str | None]] = {
    SolverName.CHOLESKY: (Cholesky, None),
    SolverName.BLOCKED: (BlockedCholesky, "block"),
    SolverName.GRADIENTS: (ConjugateGradients, "tolerance"),
    SolverName.NYSTROM: (Nystrom, "landmarks"),
}
"""How each is made, and the option that is its own."""


def solver_named(
    solver: SolverName,
    *,
    landmarks: int | None = None,
    tolerance: float | None = None,
    block: int | None = None,
    key: int = 0,
) -> Solver:
    """The solver of that name; an option of another one is a mistake."""
    given = {"landmarks": landmarks, "tolerance": tolerance, "block": block}
    options = {option: value for option, value in given.items() if value is not None}
    make, own = _SOLVERS[solver]
    if strangers := [option for option in options if option != own]:
        owner = next(other for other, (_, option) in _SOLVERS.items() if option == strangers[0])
        raise WidelimitError(
            f"The solver {solver} has no {strangers[0]}: that is an option of {owner}.",
            got=f"{strangers[0]} {options[strangers[0]]}",
            remedy=f"leave it out, or choose {owner}",
            option=(strangers[0], "solver"),
        )
    if own == "landmarks" and landmarks is None:
        raise WidelimitError(
            f"The solver {solver} has no number of landmarks to stand on.",
            got="none",
            remedy="give one, for instance a quarter of the training examples",
            option="landmarks",
        )
    keyed = solver not in (SolverName.CHOLESKY, SolverName.BLOCKED)
    return make(**options, **({"key": key} if keyed else {}))


def name_of(solver: Solver) -> SolverName:
    """What a solver is called."""
    return next(name for name, (kind, _) in _SOLVERS.items() if type(solver) is kind)


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
