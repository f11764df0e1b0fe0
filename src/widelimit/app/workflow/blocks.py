"""The kernel of a run: what it takes, and how it is kept in a store.

An interrupted run goes on with the store of before; another kernel replaces it.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...data.locks import alone
from ...engine.inputs import Inputs
from ...errors import WidelimitError
from ...inference import Cholesky, KernelKind, NetworkKernels, Solver
from ...inference.network_kernels import chosen
from ...scale import OtherKernelError
from ...scale.cost import readable_bytes
from ...scale.store import KernelStore
from .kinds import SILENT, Listener

T = TypeVar("T")

LARGE = 5000
"""Examples from which on a run says beforehand what it will take."""
_LANDMARKS = 2000
_COPIES = 2  # of the kernel, and of its float64 factor, that are in memory at once


def into_store(store: Path, workers: int | None, listener: Listener, work: Callable[[Any], T]) -> T:
    """What is computed into a store that this run has alone, by a client of `workers` processes.

    Damaged tiles are computed anew; another kernel in its place is removed.
    """
    with ExitStack() as open_:
        open_.enter_context(alone(store.with_name(f".{store.name}.lock")))
        if KernelStore.exists(store):
            listener.say(f"a kernel of an earlier run is in '{store}'")
            if damaged := KernelStore(store, read_only=False).verify(remove=True):
                listener.say(f"{len(damaged)} of its tiles are damaged and are computed anew")
        client = None
        if workers is not None:
            from ...scale.cluster import local_client  # Dask is needed with workers only

            client = open_.enter_context(local_client(workers))
        try:
            return work(client)
        except OtherKernelError as other:
            listener.say(f"it is another one ({other.rule}) and is replaced")
            for path in store.iterdir():  # the folder may be another name for one elsewhere
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            return work(client)


def compute(
    data: NetworkKernels,
    inputs: Inputs,
    kinds: Sequence[KernelKind],
    *,
    store: Path,
    workers: int | None = None,
    listener: Listener = SILENT,
) -> dict[KernelKind, Any]:
    """The kernels of `inputs` with themselves, with the heads of `data`'s sampler.

    They are in the `store` and read when they are indexed; `np.asarray` reads them whole.
    """
    net = data.net
    options: dict[str, Any] = {"sampler": data.sampler, "ntk": KernelKind.NTK in kinds}
    if inputs.size >= LARGE and not KernelStore.exists(store):
        listener.say(str(net.cost(inputs, **options)))

    def work(client: Any) -> Any:
        with listener.bar(f"kernel of {inputs.size:,} examples") as advance:
            return net.kernel_into(store, inputs, client=client, progress=advance, **options)

    kernels = into_store(store, workers, listener, work)
    return {kind: chosen(kernels, kind) for kind in kinds}


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
            "The kernel of all training examples does not fit into memory.",
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
