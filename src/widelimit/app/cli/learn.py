"""`widelimit classify` and `widelimit regress`: a user's file to a tested model and a page."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...data.locks import alone
from ...errors import WidelimitError
from ...inference import BlockedCholesky, ConjugateGradients, Solver
from ..workflow import Result, Task, run, scores
from ..workflow.baselines import advice
from ..workflow.pages import baseline, page
from ..workflow.run import kept_kernel
from ..workflow.solving import SolverName, evidence, name_of, solver_named
from . import options as o
from .outputs import own_name, ready, show, use_data_dir, write_predictions
from .screen import Screen, print_json

_learning = partial(o.option, panel=o.LEARN)
_solving = partial(o.option, panel="The solver")
_writing = partial(o.option, panel=o.OUTPUT)


@dataclass(frozen=True, kw_only=True)
class LearnOptions(o.KernelOptions):
    """How is learned and tested, how the model is solved, what is written."""

    split: str | None = o.option(
        None, "Column that says 'train' or 'test'.", panel=o.DATA, shown="detected"
    )
    test: float = _learning(0.2, "Share held out for the test.")
    max_train: int | None = _learning(
        None, "Examples to learn from, at most.", shown="a few minutes' worth"
    )
    max_test: int | None = _learning(
        None, "Examples to test on, at most.", shown="1000; images: 500"
    )
    folds: int = _learning(5, "Parts for cross-validation; 0 for none.")
    noise: float | None = _learning(None, "Noise variance.", shown="chosen by leave-one-out")
    class_weight: str | None = _learning(
        None, "'balanced': all classes count alike.", shown="by their frequency"
    )
    weight: str | None = _learning(
        None, "Column that says how much a row counts.", shown="all rows alike"
    )
    workers: o.Workers = None
    solver: SolverName = _solving(
        SolverName.CHOLESKY,
        "How the model is solved: in memory, in blocks on disk, by iterations or through "
        "landmarks.",
    )
    landmarks: int | None = _solving(
        None, "nystrom: training examples that stand for all.", shown=False, min=1
    )
    tolerance: float | None = _solving(
        None, "conjugate-gradients: relative residual to reach.", shown="1e-10"
    )
    block: int | None = _solving(
        None, "blocked-cholesky: examples on the side of a block.", shown="2048", min=1
    )
    out: Path | None = _writing(
        None, "Folder for predictions, page and kernel.", shown="out/<name of the file>"
    )
    save: Path | None = _writing(None, "Save the model for 'predict'.")
    report: o.Page = None
    open_page: o.Open = False
    as_json: o.Json = False


def _learn(task: Task, options: LearnOptions) -> None:
    use_data_dir(options.data_dir)
    solver = solver_named(
        options.solver,
        landmarks=options.landmarks,
        tolerance=options.tolerance,
        block=options.block,
        key=options.seed,
    )
    _require_savable(solver, options.save)
    settings = options.settings(solver=solver)
    screen = Screen()
    folder = options.out or Path("out") / own_name(options.file)
    predictions, path = folder / "predictions.csv", options.report or folder / "report.html"
    ready(
        {"--out": predictions, "--save": options.save, "--report": path},
        [options.file, settings.vectors],
        store=kept_kernel(folder, settings),
    )
    how = options.reading()
    with alone(folder / ".lock"):
        result = run(
            options.file, task, how=how, settings=settings, kernel_folder=folder, listener=screen
        )
        written = _write(result, predictions, options.save, path)
    for line in _summary(result):
        screen.say(line)
    for what, where in written.items():
        screen.say(f"{what}: {where}")
    if options.as_json:
        print_json(_numbers(result) | {"files": written})
    show(path, options.open_page)


classify, regress = (o.taking(LearnOptions)(partial(_learn, task)) for task in Task)


def _require_savable(solver: Solver, save: Path | None) -> None:
    """Before hours of work: some posteriors live in stores and temporary files."""
    if save is not None and isinstance(solver, BlockedCholesky | ConjugateGradients):
        raise WidelimitError(
            f"A model of the solver {name_of(solver)} cannot be saved: its factor is elsewhere.",
            got=f"'{save}'",
            remedy="do not save it, or choose cholesky or nystrom",
            option=("save", "solver"),
        )


def _write(result: Result, predictions: Path, save: Path | None, report: Path) -> dict[str, str]:
    """Predictions, model and page; where they are."""
    write_predictions(predictions, result.test, result.predicted)
    written = {"predictions": str(predictions)}
    if save is not None:
        result.model.save(save)
        written["model"] = str(save)
    page(result).write(report)
    return written | {"report": str(report)}


def _summary(result: Result) -> list[str]:
    seconds = sum(result.seconds.values())
    if result.task is Task.REGRESS:
        error = scores.root_mean_square(result.test.y, result.predicted.answers)
        lines = [f"R² {result.score} on {len(result.test):,} held-out examples (95 %)"]
        lines.append(f"root mean square error {error.value:.4g}")
    else:
        lines = [
            f"accuracy {result.score.shown} on {len(result.test):,} held-out examples "
            f"(95 % interval {result.score.interval}; most frequent class: "
            f"{baseline(result):.1%})"
        ]
    if result.folds is not None:
        lines.append(f"cross-validated inside the training part: {result.folds}")
    for other in result.baselines:
        score = str(other.score) if result.task is Task.REGRESS else other.score.shown
        lines.append(f"for comparison, {other.name}: {score} ({other.seconds:.1f} s)")
    verdict = advice(result.score, result.baselines)
    lines += [] if verdict is None else [verdict]
    return [*lines, f"done in {seconds:.0f} s"]


def _numbers(result: Result) -> dict[str, Any]:
    estimator = result.model.estimator
    numbers: dict[str, Any] = {
        "task": str(result.task),
        "file": str(result.train.path),
        "kind": str(result.train.kind),
        "network": estimator.summary_.partition(":")[0],
        "summary": estimator.summary_,
        "kernel": result.settings.kernel.value,
        "train": len(result.train),
        "test": len(result.test),
        "noise": estimator.noise_,
        "solver": name_of(result.settings.solver).value,
        "log_evidence": evidence(result.process.posterior),
        "cross_validated": None if result.folds is None else result.folds.numbers(),
        "learning_curve": [{"train": n, "score": float(s.mean())} for n, s in result.curve],
        "baselines": {one.name: one.score.numbers() for one in result.baselines},
        "seconds": result.seconds,
        "notes": list(result.notes),
        "python": result.python,
    }
    if result.task is Task.REGRESS:
        error = scores.root_mean_square(result.test.y, result.predicted.answers)
        return numbers | {"r2": result.score.numbers(), "rmse": error.numbers()}
    columns = np.searchsorted(estimator.classes_, result.test.y)
    assert result.predicted.probabilities is not None
    return numbers | {
        "accuracy": result.score.numbers(),
        "baseline": baseline(result),
        "log_score": scores.log_score(result.predicted.probabilities, columns),
        "classes": list(result.predicted.classes),
    }
