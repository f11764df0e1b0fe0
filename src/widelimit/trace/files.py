"""Models in files: `file.py:make`, and inputs for them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WidelimitError
from .audit import Audit
from .program import trace


def constructor(target: str) -> Callable[[int, Any], Any]:
    """The function that `file.py:make` names."""
    name, _, attribute = target.rpartition(":")
    path = Path(name)
    if not name or not attribute or not path.is_file():
        raise WidelimitError(
            "A model is named by a file and a constructor in it.",
            got=f"'{target}'",
            remedy="write file.py:make, where make(width, key) builds the model",
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Files that lie beside the model can be imported by it.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    found = getattr(module, attribute, None)
    if not callable(found):
        raise WidelimitError(
            "The constructor is a function of the file.",
            got=f"no function '{attribute}' in '{path}'",
            remedy=f"define {attribute}(width, key) in {path.name}",
        )
    return found


def examples(
    shape: Sequence[int] | None, inputs: Path | None, *, tokens: int | None, count: int, seed: int
) -> np.ndarray:
    """A batch of examples: from a file, or random ones of a shape."""
    if inputs is not None:
        loaded = np.load(inputs)
        return loaded if isinstance(loaded, np.ndarray) else loaded["x"]
    if shape is None:
        raise WidelimitError(
            "A model is traced on examples.",
            got="neither --shape nor --inputs",
            remedy="give the shape of one example, such as --shape 8,16, or an .npy file",
        )
    rng = np.random.default_rng(seed)
    full = (count, *shape)
    return rng.standard_normal(full) if tokens is None else rng.integers(0, tokens, full)


def audit_file(
    target: str,
    *,
    shape: Sequence[int] | None = None,
    inputs: Path | None = None,
    tokens: int | None = None,
    widths: Sequence[int] = (64, 96, 160),
    count: int = 2,
    seed: int = 0,
) -> Audit:
    """The width audit of `file.py:make`."""
    x = examples(shape, inputs, tokens=tokens, count=count, seed=seed)
    return trace(constructor(target), x, widths=widths, key=seed).audit()
