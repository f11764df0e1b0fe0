"""Kernels larger than memory, on several machines, in runs that survive interruptions.

`net.kernel_into("folder", x)` computes a kernel tile by tile into a Zarr store and goes on where
an earlier call stopped; with a `client` of `dask.distributed` the workers of a cluster share it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .cost import Cost
from .description import OtherKernelError, StoreError

if TYPE_CHECKING:
    from .cluster import local_client
    from .matrix import StoredMatrix
    from .store import KernelStore

# What needs Zarr or Dask is imported on first use.
_LATE = {"KernelStore": "store", "StoredMatrix": "matrix", "local_client": "cluster"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'widelimit.scale' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


__all__ = [
    "Cost",
    "KernelStore",
    "OtherKernelError",
    "StoreError",
    "StoredMatrix",
    "local_client",
]
