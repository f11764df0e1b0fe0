"""What a kernel call returns."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import numpy as np


class Kernels(eqx.Module):
    """The NNGP kernel and the tangent kernel (NTK), with standard errors where they were sampled.

    Unpacks into the two: `nngp, ntk = net.kernel(x)`. Fields that were not computed are None. They
    are NumPy arrays; inside a JAX transformation, JAX arrays; from a store, arrays that are read
    from disk when they are indexed.
    """

    # "| Any": editors offer what arrays have, and nobody is asked to rule out the other kinds.
    nngp: np.ndarray | Any
    ntk: np.ndarray | Any
    nngp_error: np.ndarray | Any = None
    ntk_error: np.ndarray | Any = None

    def __repr__(self) -> str:
        parts = [
            f"{name} {tuple(array.shape)} {array.dtype}"
            for name, array in (("nngp", self.nngp), ("ntk", self.ntk))
            if array is not None
        ]
        error = self.nngp_error
        if isinstance(error, np.ndarray) and isinstance(self.nngp, np.ndarray):
            share = error.max() / np.abs(self.nngp).max()
            parts.append(f"nngp errors up to {share:.1%} of its largest entry")
        return f"Kernels({', '.join(parts)})"

    def __iter__(self) -> Iterator[np.ndarray | Any]:
        """`nngp, ntk = net.kernel(x)`."""
        return iter((self.nngp, self.ntk))
