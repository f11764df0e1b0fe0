"""`widelimit predict`: a saved model on new examples."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..workflow import Task, load_model, read_new_examples, scores
from . import options as o
from .outputs import own_name, ready, write_predictions
from .screen import Screen, print_json


@o.with_groups
def predict(
    model: Annotated[Path, typer.Argument(help="A model saved by 'classify' or 'regress'.")],
    file: Annotated[Path, typer.Argument(help="Examples like those it was trained on.")],
    source: o.FileOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="CSV file to write.", show_default="<file>.predictions.csv"
        ),
    ] = None,
    score: Annotated[bool, typer.Option(help="Compare with labels if the file has them.")] = True,
    as_json: o.Json = False,
) -> None:
    """Predict new examples with a saved model: probabilities or numbers with deviations."""
    screen = Screen()
    path = out or file.with_name(f"{own_name(file)}.predictions.csv")
    ready({"--out": path}, [model, file])
    loaded = load_model(model)
    new = read_new_examples(loaded, file, source.reading(), score=score)
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
    if as_json:
        print_json(numbers)
