"""Models in files: `file.py:make`, and inputs for them. The file is code, and is run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np

from ..errors import WidelimitError
from .audit import Audit
from .program import trace


def constructor(target: str) -> Callable[[int, Any], Any]:
    """The function that `file.py:make` names; what goes wrong in it is an error of the file."""
    name, _, attribute = target.rpartition(":")
    path = Path(name)
    if not name or not attribute or not path.is_file():
        raise WidelimitError(
            f"'{target}' names no file with a constructor in it.",
            got=f"'{target}'",
            remedy="write file.py:make, where make(width, key) builds the model",
        )
    module = _imported(path)
    found = getattr(module, attribute, None)
    if not callable(found):
        raise WidelimitError(
            f"'{path}' has no function '{attribute}'.",
            got=f"'{target}'",
            remedy=f"define {attribute}(width, key) in {path.name}",
        )

    def make(width: int, key: Any) -> Any:
        made = _run(path, f"{attribute}({width}, key)", found, width, key)
        if not callable(made):
            return made
        return lambda x: _run(path, f"the model on an example of shape {x.shape}", made, x)

    make.__name__ = attribute
    return make


def _imported(path: Path) -> Any:
    """The file as a module that its own classes can find, which dataclasses and pickle do."""
    name = path.stem
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WidelimitError(
            f"'{path}' is not a Python file.", got=f"'{path}'", remedy="name a file ending in .py"
        )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    # Files that lie beside the model can be imported by it.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        _run(path, "its first lines", spec.loader.exec_module, module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.pop(0)
    return module


def _run(path: Path, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Code of the user's: an exception, or an attempt to leave, is one sentence."""
    try:
        return function(*arguments)
    except (WidelimitError, jax.errors.JAXTypeError):
        raise  # what cannot be traced has a message of its own
    except (Exception, SystemExit) as error:
        said = (str(error).splitlines() or ["no message"])[0][:300]
        raise WidelimitError(
            f"'{path}' failed in {what}.",
            got=f"{type(error).__name__}: {said}",
            remedy="mend the file, or check --shape and --tokens; `python -c` shows the traceback",
        ) from error


def examples(
    shape: Sequence[int] | None, inputs: Path | None, *, tokens: int | None, count: int, seed: int
) -> np.ndarray:
    """A batch of examples: from a file, or random ones of a shape."""
    if inputs is not None:
        try:
            if not inputs.is_file():
                raise ValueError("no file")
            with inputs.open("rb") as file:
                loaded = np.load(file, allow_pickle=False)
                return loaded if isinstance(loaded, np.ndarray) else loaded["x"]
        except (ValueError, OSError, KeyError, EOFError, BadZipFile) as error:
            raise WidelimitError(
                f"'{inputs}' holds no examples.",
                got=(str(error).splitlines() or ["nothing"])[0],
                remedy="give an .npy file of shape (examples, …), or an .npz file with such an x",
            ) from error
    if shape is None or any(extent < 1 for extent in shape):
        raise WidelimitError(
            "--shape is missing, and so is --inputs."
            if shape is None
            else "--shape has a length below 1.",
            got=f"--shape {shape}",
            remedy="give the shape of one example, such as --shape 8,16, or --inputs of an .npy "
            "file",
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
    """The width audit of `file.py:make`: runs the file once, and `make` once for each width."""
    x = examples(shape, inputs, tokens=tokens, count=count, seed=seed)
    return trace(constructor(target), x, widths=widths, key=seed).audit()
