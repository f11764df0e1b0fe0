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
    """A solver by the name of its class, and whether landmarks are where it ends."""

    CHOLESKY = "cholesky"
    BLOCKED = "blocked-cholesky"
    GRADIENTS = "conjugate-gradients"
    NYSTROM = "nystrom"
    REFINED = "nystrom-refined"


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
    takes = {
        SolverName.BLOCKED: "block",
        SolverName.GRADIENTS: "tolerance",
        SolverName.NYSTROM: "landmarks",
        SolverName.REFINED: "landmarks",
    }
    strangers = [option for option in options if option != takes.get(solver)]
    if strangers:
        owner = next(other for other, option in takes.items() if option == strangers[0])
        raise WidelimitError(
            f"The solver {solver} has no {strangers[0]}: that is an option of {owner}.",
            got=f"{strangers[0]} {options[strangers[0]]}",
            remedy=f"leave it out, or choose {owner}",
            option=(strangers[0], "solver"),
        )
    if solver in (SolverName.NYSTROM, SolverName.REFINED):
        if landmarks is None:
            raise WidelimitError(
                f"The solver {solver} has no number of landmarks to stand on.",
                got="none",
                remedy="give one, for instance a quarter of the training examples",
                option="landmarks",
            )
        return Nystrom(landmarks=landmarks, refined=solver is SolverName.REFINED, key=key)
    if solver is SolverName.GRADIENTS:
        return ConjugateGradients(**options, key=key)
    return BlockedCholesky(**options) if solver is SolverName.BLOCKED else Cholesky()


def name_of(solver: Solver) -> SolverName:
    """What a solver is called."""
    names = {
        BlockedCholesky: SolverName.BLOCKED,
        ConjugateGradients: SolverName.GRADIENTS,
    }
    if isinstance(solver, Nystrom):
        return SolverName.REFINED if solver.refined else SolverName.NYSTROM
    return names.get(type(solver), SolverName.CHOLESKY)


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
