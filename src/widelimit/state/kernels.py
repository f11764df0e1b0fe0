"""What a kernel call returns."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import numpy as np


class Kernels(eqx.Module):
    """NNGP covariance and tangent kernel; standard errors where they were sampled."""

    nngp: Any
    ntk: Any
    nngp_error: Any = None
    ntk_error: Any = None

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

    def __iter__(self) -> Iterator[Any]:
        """`nngp, ntk = net.kernel(x)`."""
        return iter((self.nngp, self.ntk))
