"""Load a fixture of reference numbers made by neural-tangents; README.md says what each holds."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of all fixtures."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(name: str) -> SimpleNamespace:
    """The arrays of a fixture as attributes; `mask1` and `mask2` are None where nothing is padded.

    Kernel fixtures hold `x1`, `x2`, `nngp` and `ntk`; README.md lists what the others hold.
    """
    with np.load(FOLDER / f"{name}.npz") as fixture:
        return SimpleNamespace(**({"mask1": None, "mask2": None} | dict(fixture)))
