"""Runs with a solver of one's choice: first examples choose the noise, all are conditioned on.

One dense factorisation of all examples answers whatever a page shows, and takes N² numbers. With
another solver the first examples get that treatment alone: they choose noise and amplitude, and
give the folds and the beginning of the learning curve. The solver then conditions on all training
examples at once, with their kernel in a store, or without one for landmarks.
"""

import enum
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...engine.inputs import Inputs
from ...errors import WidelimitError
from ...inference import (
    GP,
    BlockedCholesky,
    Cholesky,
    ConjugateGradients,
    FittedGP,
    GPPosterior,
    KernelKind,
    NetworkKernels,
    Nystrom,
    Solver,
    Temperature,
)
from ...inference.amplitude import amplify
from ...inference.iterative import Iterative
from ...inference.nystrom import NystromPosterior
from .blocks import compute
from .kinds import SILENT, Listener, Task
from .posterior import BEGINNING, CurvePoint, Outcome, Predicted, Targets, evaluate, scored


class SolverName(enum.StrEnum):
    """A solver by the name of its class, and whether landmarks are where it ends."""

    CHOLESKY = "cholesky"
    BLOCKED = "blocked-cholesky"
    GRADIENTS = "conjugate-gradients"
    NYSTROM = "nystrom"
    REFINED = "nystrom-refined"


def solver_named(
    name: SolverName,
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
    strangers = [option for option in options if option != takes.get(name)]
    if strangers:
        owner = next(other for other, option in takes.items() if option == strangers[0])
        raise WidelimitError(
            f"--{strangers[0]} is an option of --solver {owner}.",
            got=f"--{strangers[0]} {options[strangers[0]]} with --solver {name}",
            remedy=f"leave it out, or give --solver {owner}",
        )
    if name in (SolverName.NYSTROM, SolverName.REFINED):
        if landmarks is None:
            raise WidelimitError(
                "Nyström stands on landmarks.",
                got=f"--solver {name} without their number",
                remedy="give --landmarks, for instance a quarter of the training examples",
            )
        return Nystrom(landmarks=landmarks, refined=name is SolverName.REFINED, key=key)
    if name is SolverName.GRADIENTS:
        return ConjugateGradients(**options, key=key)
    return BlockedCholesky(**options) if name is SolverName.BLOCKED else Cholesky()


def name_of(solver: Solver) -> SolverName:
    """What a solver is called."""
    names = {
        BlockedCholesky: SolverName.BLOCKED,
        ConjugateGradients: SolverName.GRADIENTS,
    }
    if isinstance(solver, Nystrom):
        return SolverName.REFINED if solver.refined else SolverName.NYSTROM
    return names.get(type(solver), SolverName.CHOLESKY)


def facts_of(posterior: GPPosterior | NystromPosterior, solver: Solver) -> list[tuple[str, object]]:
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


def evidence(posterior: GPPosterior | NystromPosterior) -> float | None:
    """The log evidence or its bound; None where the solver does not tell."""
    if isinstance(posterior, GPPosterior) and isinstance(posterior.factor, Iterative):
        return None
    return float(posterior.log_evidence)


def solved(
    data: NetworkKernels,
    inputs: Inputs,
    targets: Targets,
    *,
    kind: KernelKind,
    solver: Solver,
    noise: float | None,
    folds: int,
    store: Path | None,
    workers: int | None,
    listener: Listener = SILENT,
) -> tuple[np.ndarray, Outcome, FittedGP]:
    """The kernel of the first training examples, what was found, and the process of all of them.

    `data` are the training examples, which are the first of `inputs`; the others are tests.
    """
    size, first = len(data), min(len(data), BEGINNING)
    rows = np.concatenate([np.arange(first), np.arange(size, inputs.size)])
    kernel = np.asarray(compute(data, inputs[rows], (kind,), listener=listener)[kind])
    seen, tests = np.arange(first), np.arange(first, len(rows))
    some = replace(targets, columns=targets.columns[rows], labels=targets.labels[rows])
    groups = None if data.groups is None else data.groups[:first]
    begun = evaluate(
        kernel, some, seen, tests, noise=noise, folds=folds, groups=groups, listener=listener
    )
    data = data.with_net(amplify(data.net, begun.amplitude))
    if store is not None and not isinstance(solver, Nystrom):
        compute(data, data.inputs, (kind,), store=store, workers=workers, listener=listener)
        data = replace(data, engine=replace(data.engine, store=store))
    with _reporting(solver, listener) as reporting:
        process = GP(data.net, kind=kind, noise=begun.noise, engine=data.engine, solver=reporting)
        fitted = process.condition(data, targets.columns[:size])
    fitted = replace(fitted, gp=replace(fitted.gp, solver=solver))
    posterior = fitted.posterior
    labels, temperature = targets.labels[:size], None
    if targets.task is Task.CLASSIFY:
        temperature = Temperature.of(posterior, labels)
    found = fitted.predict(inputs[np.arange(size, inputs.size)])
    predicted = Predicted.of(found, targets, temperature, begun.noise)
    score = scored(targets, predicted, np.arange(size, inputs.size))
    curve = begun.curve if first == size else (*begun.curve, CurvePoint(size, score))
    outcome = replace(
        begun,
        posterior=posterior,
        temperature=temperature,
        test=predicted,
        score=score,
        curve=curve,
    )
    return kernel[:first, :first], outcome, fitted


@contextmanager
def _reporting(solver: Solver, listener: Listener) -> Iterator[Solver]:
    """The solver, with its progress shown to the listener."""
    if isinstance(solver, Cholesky):
        yield solver
        return
    with listener.bar(name_of(solver).value) as advance:
        if isinstance(solver, ConjugateGradients):
            digits = -math.log10(solver.tolerance)

            def progress(_: int, residual: float) -> None:
                reached = min(digits, max(0.0, -math.log10(max(residual, 1e-300))))
                advance(round(10 * reached), max(1, round(10 * digits)))

            yield replace(solver, progress=progress)
        elif isinstance(solver, BlockedCholesky | Nystrom):
            yield replace(solver, progress=advance)
        else:
            yield solver
