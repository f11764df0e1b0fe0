"""Files that commands write beside their pages."""

import csv
import io
import os
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np

from ...data import DataError, writing
from ...data.places import ENVIRONMENT
from ..workflow import Examples
from ..workflow.posterior import Predicted

_INTERVAL = 1.6448536269514722  # of a standard normal: 90 % lie inside


def use_data_dir(folder: Path | None) -> None:
    """Let everything in this process look for data there."""
    if folder is None:
        return
    if not folder.exists():
        raise DataError(
            "A data directory must exist.",
            got=f"--data-dir {folder}",
            remedy="give the folder that holds the data files",
        )
    os.environ[ENVIRONMENT] = str(folder)


def write_predictions(
    path: Path,
    examples: Examples,
    predicted: Predicted,
    class_names: tuple[str, ...],
    truth: np.ndarray | None = None,
) -> None:
    """One line per example: where it is, the truth if known, the prediction, its uncertainty."""
    known = truth is not None
    if predicted.probabilities is not None:
        head = ["example", *(["label"] if known else []), "prediction", "probability"]
        head += [f"p({name})" for name in class_names]
        table = predicted.probabilities
        rows = [
            [
                examples.names[i],
                *([class_names[int(truth[i])]] if truth is not None else []),
                class_names[int(predicted.labels[i])],
                f"{predicted.confidence[i]:.6f}",
                *(f"{p:.6f}" for p in table[i]),
            ]
            for i in range(len(examples))
        ]
    else:
        head = ["example", *(["target"] if known else []), "prediction", "std", "low90", "high90"]
        low = predicted.mean - _INTERVAL * predicted.std
        high = predicted.mean + _INTERVAL * predicted.std
        rows = [
            [
                examples.names[i],
                *([repr(float(truth[i]))] if truth is not None else []),
                *(f"{v[i]:.8g}" for v in (predicted.mean, predicted.std, low, high)),
            ]
            for i in range(len(examples))
        ]
    write_csv(path, head, rows)


def write_csv(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    """A CSV file, whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows(rows)
    with writing(path) as file:
        file.write(text.getvalue().encode("utf-8"))


def show(page: Path, wanted: bool) -> None:
    """Open a page in the browser."""
    if wanted:
        webbrowser.open(page.resolve().as_uri())
