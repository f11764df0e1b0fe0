"""`widelimit classify` and `widelimit regress`: a user's file to a tested model and a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ...data.locks import alone
from ...errors import WidelimitError
from ...inference import BlockedCholesky, ConjugateGradients, Solver
from ..workflow import Reading, Result, Settings, Task, run, scores
from ..workflow.baselines import advice
from ..workflow.pages import baseline, page
from ..workflow.run import kept_kernel
from ..workflow.solving import SolverName, evidence, name_of, solver_named
from . import options as o
from .outputs import own_name, ready, show, write_predictions
from .screen import Screen, print_json

_SOLVER = "The solver"

Test = Annotated[float, o.option("Share held out for the test.", panel=o.LEARN)]
MaxTrain = Annotated[
    int | None,
    o.option("Examples to learn from, at most.", panel=o.LEARN, shown="a few minutes' worth"),
]
MaxTest = Annotated[
    int | None,
    o.option("Examples to test on, at most.", panel=o.LEARN, shown="1000; images: 500"),
]
Folds = Annotated[int, o.option("Parts for cross-validation; 0 for none.", panel=o.LEARN)]
Noise = Annotated[
    float | None, o.option("Noise variance.", panel=o.LEARN, shown="chosen by leave-one-out")
]
ClassWeight = Annotated[
    str | None,
    o.option("'balanced': all classes count alike.", panel=o.LEARN, shown="by their frequency"),
]
Weight = Annotated[
    str | None,
    o.option("Column that says how much a row counts.", panel=o.LEARN, shown="all rows alike"),
]
SolverOption = Annotated[
    SolverName,
    o.option(
        "How the model is solved: in memory, in blocks on disk, by iterations, through "
        "landmarks, or through landmarks and one step further.",
        "--solver",
        panel=_SOLVER,
    ),
]
Landmarks = Annotated[
    int | None,
    o.option(
        "nystrom, nystrom-refined: training examples that stand for all.",
        panel=_SOLVER,
        shown=False,
        min=1,
    ),
]
Tolerance = Annotated[
    float | None,
    o.option("conjugate-gradients: relative residual to reach.", panel=_SOLVER, shown="1e-10"),
]
Block = Annotated[
    int | None,
    o.option(
        "blocked-cholesky: examples on the side of a block.", panel=_SOLVER, shown="2048", min=1
    ),
]
Out = Annotated[
    Path | None,
    o.option(
        "Folder for predictions, page and kernel.", panel=o.OUTPUT, shown="out/<name of the file>"
    ),
]
Save = Annotated[Path | None, o.option("Save the model for 'predict'.", panel=o.OUTPUT)]


def _command(task: Task) -> Callable[..., None]:
    """The function behind a command: both tasks have the same options."""

    @o.with_groups
    def learn(
        file: o.File,
        data: o.DataOptions,
        net: o.NetworkOptions,
        split: o.Split = None,
        test: Test = 0.2,
        max_train: MaxTrain = None,
        max_test: MaxTest = None,
        folds: Folds = 5,
        noise: Noise = None,
        class_weight: ClassWeight = None,
        weight: Weight = None,
        solver: SolverOption = SolverName.CHOLESKY,
        landmarks: Landmarks = None,
        tolerance: Tolerance = None,
        block: Block = None,
        workers: o.Workers = None,
        out: Out = None,
        save: Save = None,
        report: o.Page = None,
        open_page: o.Open = False,
        as_json: o.Json = False,
    ) -> None:
        data.take_effect()
        settings = o.settings(
            data,
            net,
            test=test,
            max_train=max_train,
            max_test=max_test,
            noise=noise,
            folds=folds,
            class_weight=class_weight,
            solver=solver_named(
                solver, landmarks=landmarks, tolerance=tolerance, block=block, key=net.seed
            ),
            workers=workers,
        )
        how = data.reading(split=split, weight=weight)
        _learn(file, task, how, settings, out, save, report, open_page, as_json)

    return learn


classify = _command(Task.CLASSIFY)
regress = _command(Task.REGRESS)


def _learn(
    file: Path,
    task: Task,
    how: Reading,
    settings: Settings,
    out: Path | None,
    save: Path | None,
    report: Path | None,
    open_page: bool,
    as_json: bool,
) -> None:
    _require_savable(settings.solver, save)
    screen = Screen()
    folder = out or Path("out") / own_name(file)
    predictions, path = folder / "predictions.csv", report or folder / "report.html"
    ready(
        {"--out": predictions, "--save": save, "--report": path},
        [file, settings.vectors],
        store=kept_kernel(folder, settings),
    )
    with alone(folder / ".lock"):
        result = run(file, task, how=how, settings=settings, kernel_folder=folder, listener=screen)
        written = _write(result, predictions, save, path)
    for line in _summary(result):
        screen.say(line)
    for what, where in written.items():
        screen.say(f"{what}: {where}")
    if as_json:
        print_json(_numbers(result) | {"files": written})
    show(path, open_page)


def _require_savable(solver: Solver, save: Path | None) -> None:
    """Before hours of work: some posteriors live in stores and temporary files."""
    if save is not None and isinstance(solver, BlockedCholesky | ConjugateGradients):
        raise WidelimitError(
            "A model in one file has its factor in it.",
            got=f"--save {save} with --solver {name_of(solver)}, which keeps it elsewhere",
            remedy="leave out --save, or give --solver cholesky or --solver nystrom",
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
            f"accuracy {result.score.percent} on {len(result.test):,} held-out examples "
            f"(95 % interval {result.score.percent_interval}; most frequent class: "
            f"{baseline(result):.1%})"
        ]
    if result.folds is not None:
        lines.append(f"cross-validated inside the training part: {result.folds}")
    for other in result.baselines:
        score = str(other.score) if result.task is Task.REGRESS else other.score.percent
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
