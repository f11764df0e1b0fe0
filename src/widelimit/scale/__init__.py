"""Kernels larger than memory, on several machines, in runs that survive.

`net.kernel(x, store="folder")` computes a kernel tile by tile into a Zarr store and goes on where
an earlier call stopped; with a `client` of `dask.distributed` the workers of a cluster share it.
"""

from .errors import DamagedTilesWarning, StoreError
from .matrix import StoredMatrix
from .store import KernelStore

__all__ = ["DamagedTilesWarning", "KernelStore", "StoreError", "StoredMatrix"]
