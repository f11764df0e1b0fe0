"""The kernel of a run, kept in a store: an interrupted run goes on, another kernel replaces it."""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ...data.locks import alone
from ...engine.inputs import Inputs
from ...inference import KernelKind, NetworkKernels
from ...inference.network_kernels import chosen
from ...scale import OtherKernelError
from ...scale.store import KernelStore
from .kinds import SILENT, Listener

LARGE = 5000
"""Examples from which on a run says beforehand what it will take."""


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
    `workers` processes of this machine compute them.
    """
    options: dict[str, Any] = {"sampler": data.sampler, "ntk": KernelKind.NTK in kinds}
    label = f"kernel of {inputs.size:,} examples"
    with alone(store.with_name(f".{store.name}.lock")):
        if KernelStore.exists(store):
            listener.say(f"a kernel of an earlier run is in '{store}'")
            repair(store, listener)
        elif inputs.size >= LARGE:
            listener.say(str(data.net.cost(inputs, sampler=data.sampler, ntk=options["ntk"])))
        with _cluster(workers) as client, listener.bar(label) as advance:
            options |= {"progress": advance, "client": client}
            try:
                kernels = data.net.kernel_into(store, inputs, **options)
            except OtherKernelError as other:
                listener.say(f"it is another one ({other.rule}) and is replaced")
                empty(store)
                kernels = data.net.kernel_into(store, inputs, **options)
    return {kind: chosen(kernels, kind) for kind in kinds}


def _cluster(workers: int | None) -> AbstractContextManager[Any]:
    """A client of this number of workers; None is this process alone."""
    if workers is None:
        return nullcontext()
    from ...scale.cluster import local_client  # Dask is needed with workers only

    return local_client(workers)


def repair(store: Path, listener: Listener) -> None:
    """Remove damaged tiles of an earlier run, which are then computed anew."""
    damaged = KernelStore(store, read_only=False).verify(remove=True)
    if damaged:
        listener.say(f"{len(damaged)} of its tiles are damaged and are computed anew")


def empty(folder: Path) -> None:
    """Remove what a folder holds; the folder may be another name for one elsewhere."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
