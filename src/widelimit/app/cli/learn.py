"""`widelimit classify` and `widelimit regress`: a user's file to a tested model and a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ...data import Keep
from ...data.locks import alone
from ...errors import WidelimitError
from ...inference import BlockedCholesky, ConjugateGradients, KernelKind, Solver
from ..workflow import Reading, Result, Settings, Task, run, scores
from ..workflow.pages import baseline, page
from ..workflow.run import IMAGE_SIZE, WORDS
from ..workflow.solving import SolverName, evidence, name_of, solver_named
from . import options as o
from .outputs import own_name, ready, show, use_data_dir, use_limits, write_predictions
from .screen import Screen, print_json

_LEARN, _OUTPUT = "Learning and testing", "What to write"
_SOLVER = "The solver"

File = Annotated[
    Path,
    typer.Argument(help="CSV, TSV or JSONL (also .gz), .npz, or a folder with images by class."),
]
Test = Annotated[float, typer.Option(help="Share held out for the test.", rich_help_panel=_LEARN)]
MaxTrain = Annotated[
    int | None,
    typer.Option(
        help="Examples to learn from, at most.",
        rich_help_panel=_LEARN,
        show_default="a few minutes' worth",
    ),
]
MaxTest = Annotated[
    int | None,
    typer.Option(
        help="Examples to test on, at most.",
        rich_help_panel=_LEARN,
        show_default="1000; images: 500",
    ),
]
Folds = Annotated[
    int, typer.Option(help="Parts for cross-validation; 0 for none.", rich_help_panel=_LEARN)
]
Noise = Annotated[
    float | None,
    typer.Option(
        help="Noise variance.", rich_help_panel=_LEARN, show_default="chosen by leave-one-out"
    ),
]
SolverOption = Annotated[
    SolverName,
    typer.Option(
        "--solver",
        help="How the process is conditioned: in memory, in blocks on disk, by iterations, or "
        "through landmarks.",
        rich_help_panel=_SOLVER,
    ),
]
Landmarks = Annotated[
    int | None,
    typer.Option(
        help="nystrom: training examples that stand for all.",
        rich_help_panel=_SOLVER,
        min=1,
        show_default=False,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="conjugate-gradients: relative residual to reach.",
        rich_help_panel=_SOLVER,
        show_default="1e-10",
    ),
]
Block = Annotated[
    int | None,
    typer.Option(
        help="blocked-cholesky: examples on the side of a block.",
        rich_help_panel=_SOLVER,
        min=1,
        show_default="2048",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for predictions, page and kernel.",
        rich_help_panel=_OUTPUT,
        show_default="out/<name of the file>",
    ),
]
Save = Annotated[
    Path | None, typer.Option(help="Save the model for 'predict'.", rich_help_panel=_OUTPUT)
]


def _command(task: Task) -> Callable[..., None]:
    """The function behind a command: both tasks have the same options."""

    def learn(
        file: File,
        text: o.Text = None,
        label: o.Label = None,
        feature: o.Features = None,
        split: o.Split = None,
        encoding: o.Encoding = "utf-8",
        delimiter: o.Delimiter = None,
        skip: o.Skip = False,
        vectors: o.Vectors = None,
        length: o.Length = WORDS,
        keep: o.Keep = Keep.FIRST,
        image_size: o.ImageSize = IMAGE_SIZE,
        data_dir: o.DataDir = None,
        allow: o.Allow = None,
        network: o.Network = None,
        depth: o.Depth = None,
        kernel: o.Kernel = KernelKind.NNGP,
        samples: o.Samples = None,
        test: Test = 0.2,
        max_train: MaxTrain = None,
        max_test: MaxTest = None,
        folds: Folds = 5,
        noise: Noise = None,
        solver: SolverOption = SolverName.CHOLESKY,
        landmarks: Landmarks = None,
        tolerance: Tolerance = None,
        block: Block = None,
        workers: o.Workers = None,
        seed: o.Seed = 0,
        out: Out = None,
        save: Save = None,
        report: o.Page = None,
        open_page: o.Open = False,
        as_json: o.Json = False,
    ) -> None:
        use_data_dir(data_dir)
        use_limits(allow)
        how = o.reading(text, label, feature, split, encoding, delimiter, skip)
        settings = Settings(
            network=network,
            depth=depth,
            kernel=kernel,
            vectors=vectors,
            length=length,
            keep=keep,
            image_size=image_size,
            test=test,
            max_train=max_train,
            max_test=max_test,
            noise=noise,
            folds=folds,
            samples=samples,
            solver=solver_named(
                solver, landmarks=landmarks, tolerance=tolerance, block=block, key=seed
            ),
            workers=workers,
            seed=seed,
        )
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
    kernel = folder / f"kernel_{settings.kernel.value}.npy"
    ready(
        {"--out": predictions, "--save": save, "--report": path, "--kernel": kernel},
        [file, settings.vectors],
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
    names = result.model.class_names
    write_predictions(predictions, result.tested, result.outcome.test, names, result.truth)
    written = {"predictions": str(predictions)}
    if save is not None:
        result.model.save(save)
        written["model"] = str(save)
    page(result).write(report)
    return written | {"report": str(report)}


def _summary(result: Result) -> list[str]:
    outcome = result.outcome
    seconds = sum(result.seconds.values())
    if result.model.task is Task.REGRESS:
        error = scores.root_mean_square(result.truth, outcome.test.mean)
        lines = [f"R² {outcome.score} on {len(result.test):,} held-out examples (95 %)"]
        lines.append(f"root mean square error {error.value:.4g}")
    else:
        lines = [
            f"accuracy {outcome.score.percent} on {len(result.test):,} held-out examples "
            f"(95 % interval {outcome.score.percent_interval}; most frequent class: "
            f"{baseline(result):.1%})"
        ]
    if outcome.folds is not None:
        lines.append(f"cross-validated inside the training part: {outcome.folds}")
    return [*lines, f"done in {seconds:.0f} s"]


def _numbers(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    numbers: dict[str, Any] = {
        "task": str(result.model.task),
        "file": str(result.source.path),
        "kind": str(result.examples.kind),
        "network": str(result.choice.name),
        "kernel": result.settings.kernel.value,
        "train": len(result.train),
        "test": len(result.test),
        "noise": outcome.noise,
        "solver": name_of(result.settings.solver).value,
        "log_evidence": evidence(outcome.posterior),
        "cross_validated": None if outcome.folds is None else outcome.folds.numbers(),
        "learning_curve": [{"train": part.size, **part.score.numbers()} for part in outcome.curve],
        "seconds": result.seconds,
        "notes": list(result.notes),
    }
    if outcome.test.probabilities is None:
        error = scores.root_mean_square(result.truth, outcome.test.mean)
        return numbers | {"r2": outcome.score.numbers(), "rmse": error.numbers()}
    return numbers | {
        "accuracy": outcome.score.numbers(),
        "baseline": baseline(result),
        "log_score": scores.log_score(outcome.test.probabilities, result.truth),
        "classes": list(result.model.class_names),
    }
