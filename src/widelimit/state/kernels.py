"""What a kernel call returns."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx


class Kernels(eqx.Module):
    """NNGP covariance and tangent kernel; standard errors where they were sampled."""

    nngp: Any
    ntk: Any
    nngp_error: Any = None
    ntk_error: Any = None

    def __iter__(self) -> Iterator[Any]:
        """`nngp, ntk = net.kernel(x)`."""
        return iter((self.nngp, self.ntk))
