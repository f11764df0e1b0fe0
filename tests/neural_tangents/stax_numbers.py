"""The numbers of all cases in one file, tests/reference/neural_tangents.npz.

A case is a named result: a tree of arrays, numbers and `Kernel`s, told apart by their paths. The
file holds all entries in a row, and where each of them begins.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent.parent / "reference" / "neural_tangents" / "numbers.npz"

# What a Kernel says about itself that has no meaning here (the order of axes inside).
_PRIVATE = {"is_reversed"}

Leaves = dict[str, np.ndarray | None]


def flatten(result: Any, path: str = "") -> Leaves:
    """Arrays by their paths; None where there is nothing."""
    if hasattr(result, "asdict"):
        result = {k: v for k, v in result.asdict().items() if k not in _PRIVATE}
    elif hasattr(result, "_asdict"):
        result = result._asdict()
    elif isinstance(result, tuple | list) and not _is_shape(result):
        result = dict(enumerate(result))
    if isinstance(result, dict):
        found: Leaves = {}
        for name, value in result.items():
            found |= flatten(value, f"{path}/{name}")
        return found
    return {path: None if result is None else np.asarray(result, float)}


def _is_shape(value: Any) -> bool:
    return len(value) > 0 and all(isinstance(entry, int) for entry in value)


def result(run: Callable[[], Any]) -> Leaves | str:
    """What a case gives, or the error that came instead: what is refused is part of the table."""
    try:
        return flatten(run())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def save(cases: dict[str, Leaves | str]) -> None:
    """Write the results of all cases."""
    index, rows, start = {}, [], 0
    for name, case in cases.items():
        if isinstance(case, str):
            index[name] = case
            continue
        index[name] = {}
        for path, value in case.items():
            index[name][path] = None if value is None else [start, *value.shape]
            if value is not None:
                rows.append(value.ravel())
                start += value.size
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, values=np.concatenate(rows), index=json.dumps(index))


def load() -> dict[str, Leaves | str]:
    """Every case by its name: its arrays, or the error of neural-tangents."""
    with np.load(FILE) as file:
        values, index = file["values"], json.loads(str(file["index"]))

    def read(place: list[int] | None) -> np.ndarray | None:
        if place is None:
            return None
        start, *shape = place
        return values[start : start + int(np.prod(shape, initial=1))].reshape(shape)

    return {
        name: case if isinstance(case, str) else {path: read(place) for path, place in case.items()}
        for name, case in index.items()
    }
