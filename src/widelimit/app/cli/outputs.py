"""Files that commands write beside their pages."""

import os
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...data import DataError, write_text
from ...data.files import output, unwritable
from ...data.places import CHOSEN
from ...errors import WidelimitError
from ..workflow import Predicted, Source

_INTERVAL = 1.6448536269514722  # of a standard normal: 90 % lie inside


def use_data_dir(folder: Path | None) -> None:
    """Let all of this command look for data there."""
    if folder is None:
        return
    if not folder.exists():
        raise DataError(
            f"There is no data directory '{folder}'.",
            got="nothing there",
            remedy="give the folder that holds the data files",
            option="data_dir",
        )
    CHOSEN.set(folder)


def ready(
    outputs: dict[str, Path | None], inputs: Sequence[Path | None], *, store: Path | None = None
) -> None:
    """Refuse before any work what would fail after it, or would destroy what is read.

    `outputs` are files by the option that named them; `store` is the folder that the tiles of a
    kernel have for themselves.
    """
    wanted = {option: output(path) for option, path in outputs.items() if path is not None}
    for option, path in wanted.items():
        for given in inputs:
            if given is not None and _is_part(path, given):
                raise WidelimitError(
                    f"{option} would overwrite what is read.",
                    got=f"'{path}', which belongs to the input '{given}'",
                    remedy=f"give another {option}",
                )
        for other, place in wanted.items():
            if other != option and path.resolve() == place.resolve():
                raise WidelimitError(
                    f"{option} and {other} are one file.",
                    got=f"'{path}'",
                    remedy=f"give another {option} or {other}",
                )
        require_writable(path.parent)
    for path in (*wanted.values(), *inputs):
        if store and path and path.resolve().is_relative_to(store.resolve()):
            raise WidelimitError(
                f"'{path}' lies in the folder of the kernel's tiles.",
                got=f"'{store}'",
                remedy="choose another place for it, or another --out",
            )


def _is_part(path: Path, given: Path) -> bool:
    """Whether a file is the input, under any name, or lies in one of its folders of classes."""
    if path.exists() and given.exists() and path.samefile(given):
        return True
    path, given = path.resolve(), given.resolve()
    return path == given or (given.is_dir() and path.parent.parent.is_relative_to(given))


def require_writable(folder: Path) -> None:
    """A folder in which files can be made, or one that can be made itself."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        raise unwritable(folder, error) from error
    if not good:
        why = "may not be written to" if there.is_dir() else "is no folder"
        raise DataError(
            f"Nothing can be written to '{folder}'.",
            got=f"'{there}' {why}",
            remedy="choose another folder",
        )


def write_predictions(path: Path, examples: Source, predicted: Predicted) -> None:
    """One line per example: where it is, the truth if known, the prediction, its uncertainty.

    Behind them stand the columns of the file the examples came from, as they are there.
    """
    import pandas as pd

    truth, table = examples.y, predicted.probabilities
    columns: dict[str, Any] = {"example": examples.names}
    if truth is not None:
        columns["label" if table is not None else "target"] = truth.tolist()
    if table is not None:
        shares = {"probability": predicted.confidence}
        shares |= {f"p({name})": table[:, i] for i, name in enumerate(predicted.classes)}
        columns["prediction"] = predicted.answers.tolist()
        columns |= {name: [f"{p:.6f}" for p in values] for name, values in shares.items()}
    else:
        assert predicted.std is not None
        half = _INTERVAL * predicted.std
        found = {"prediction": predicted.answers, "std": predicted.std}
        found |= {"low90": predicted.answers - half, "high90": predicted.answers + half}
        columns |= {name: [f"{v:.8g}" for v in values] for name, values in found.items()}
    written = pd.DataFrame(columns)
    if examples.frame is not None:
        known = {name: f"{name} in the file" for name in columns}
        written = written.join(examples.frame.rename(columns=known).reset_index(drop=True))
    write_text(path, written.to_csv(index=False))


def own_name(file: Path) -> str:
    """What a file is called without its endings; also for `.csv`, `..` and `.`"""
    return file.name.lstrip(".").split(".")[0] or "data"


def show(page: Path, wanted: bool) -> None:
    """Open a page in the browser."""
    if wanted:
        webbrowser.open(page.resolve().as_uri())
