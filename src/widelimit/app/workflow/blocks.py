"""The kernel of a run, kept in a store: an interrupted run goes on, another kernel replaces it."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ...data.locks import alone
from ...engine.inputs import Inputs
from ...inference import KernelKind, NetworkKernels
from ...inference.network_kernels import chosen
from ...scale import OtherKernelError
from ...scale.store import KernelStore
from .kinds import SILENT, Listener

T = TypeVar("T")

LARGE = 5000
"""Examples from which on a run says beforehand what it will take."""


@contextmanager
def at_work(store: Path, workers: int | None, listener: Listener) -> Iterator[Any]:
    """A store for this run alone, without damaged tiles, and a client of `workers` processes."""
    with alone(store.with_name(f".{store.name}.lock")):
        if KernelStore.exists(store):
            listener.say(f"a kernel of an earlier run is in '{store}'")
            repair(store, listener)
        if workers is None:
            yield None
            return
        from ...scale.cluster import local_client  # Dask is needed with workers only

        with local_client(workers) as client:
            yield client


def replacing(store: Path, listener: Listener, compute: Callable[[], T]) -> T:
    """What is computed into the store; another kernel in its place is removed."""
    try:
        return compute()
    except OtherKernelError as other:
        listener.say(f"it is another one ({other.rule}) and is replaced")
        empty(store)
        return compute()


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
    bar = listener.bar(f"kernel of {inputs.size:,} examples")
    with at_work(store, workers, listener) as client, bar as advance:
        options |= {"progress": advance, "client": client}
        kernels = replacing(store, listener, lambda: net.kernel_into(store, inputs, **options))
    return {kind: chosen(kernels, kind) for kind in kinds}


def repair(store: Path, listener: Listener) -> None:
    """Remove damaged tiles of an earlier run, which are then computed anew."""
    damaged = KernelStore(store, read_only=False).verify(remove=True)
    if damaged:
        listener.say(f"{len(damaged)} of its tiles are damaged and are computed anew")


def empty(folder: Path) -> None:
    """Remove what a folder holds; the folder may be another name for one elsewhere."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
