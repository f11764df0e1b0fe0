"""`widelimit predict`: a saved model on new examples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..workflow import Task, load_model, read_new_examples, scores
from . import options as o
from .outputs import own_name, ready, write_predictions
from .screen import Screen, print_json


@dataclass(frozen=True, kw_only=True)
class PredictOptions(o.FileOptions):
    """Which model, which examples, what is written."""

    model: Annotated[Path, typer.Argument(help="A model saved by 'classify' or 'regress'.")]
    file: Annotated[Path, typer.Argument(help="Examples like those it was trained on.")]
    out: Path | None = o.option(
        None, "CSV file to write.", "--out", "-o", shown="<file>.predictions.csv"
    )
    score: bool = o.option(True, "Compare with labels if the file has them.")
    as_json: o.Json = False


@o.taking(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Predict new examples with a saved model: probabilities or numbers with deviations."""
    screen, file = Screen(), options.file
    path = options.out or file.with_name(f"{own_name(file)}.predictions.csv")
    ready({"--out": path}, [options.model, file])
    loaded = load_model(options.model)
    new = read_new_examples(loaded, file, options.reading(), score=options.score)
    screen.say(f"model trained on {loaded.trained}")
    for note in (*new.notes, *loaded.lost_words(new)):
        screen.say(note)
    with screen.bar(f"predicting {len(new):,} examples"):
        predicted = loaded.predict(new)
    write_predictions(path, new, predicted)
    numbers: dict[str, Any] = {"examples": len(new), "predictions": str(path)}
    if new.y is not None:
        if loaded.task is Task.CLASSIFY:
            found = scores.accuracy(predicted.answers == new.y)
            screen.say(f"accuracy {found.shown} (95 % interval {found.interval})")
            numbers["accuracy"] = found.numbers()
        elif len(new) > 1:
            found = scores.r_squared(new.y, predicted.answers)
            screen.say(f"R² {found} (95 %)")
            numbers["r2"] = found.numbers()
    screen.say(f"predictions: {path}")
    if options.as_json:
        print_json(numbers)
