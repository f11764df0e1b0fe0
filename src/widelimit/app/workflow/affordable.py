"""Before a long run: what an exact solve of that many examples takes, and what else there is."""

import os

import numpy as np

from ...errors import WidelimitError
from ...inference import Cholesky, Solver
from ...scale.cost import readable_bytes
from .blocks import LARGE
from .kinds import Listener

_LANDMARKS = 2000
_COPIES = 2  # of the kernel, and of its float64 factor, that are in memory at once


def consider(train: int, test: int, dtype: type, solver: Solver, listener: Listener) -> None:
    """Say what an exact solve takes, and refuse one that this machine has no memory for."""
    if not isinstance(solver, Cholesky) or train < LARGE:
        return
    kernel = (train + test) ** 2 * np.dtype(dtype).itemsize
    whole = _COPIES * (kernel + 8 * train**2)
    others = (
        f"the solver nystrom with {_LANDMARKS} landmarks takes a small part of that time and "
        f"memory, {LARGE:,} training examples {(train / LARGE) ** 2:,.0f} times less"
    )
    sizes = f"a kernel of {readable_bytes(kernel)}, {readable_bytes(whole)} to solve"
    taken = f"{train:,} training examples: {sizes}"
    there = memory()
    if there is not None and whole > there:
        raise WidelimitError(
            "An exact solve has the kernel of all training examples in memory.",
            got=f"{taken} with it, where this machine has {readable_bytes(there)}",
            remedy=f"{others}; blocked-cholesky works on disk, and 'widelimit estimate' says what "
            "it takes",
            option=("solver", "landmarks", "max_train"),
        )
    listener.say(f"{taken} with it; {others}")


def memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
