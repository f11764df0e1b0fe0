"""The kernel of a run, kept in a store: an interrupted run goes on, another kernel replaces it."""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ...data.locks import alone
from ...engine.inputs import Inputs
from ...inference import KernelKind, NetworkKernels
from ...inference.network_kernels import chosen
from ...scale import DamagedTilesWarning, OtherKernelError
from ...scale.store import KernelStore
from .kinds import SILENT, Listener

LARGE = 5000
"""Examples from which on a run says beforehand what it will take."""


def compute(
    data: NetworkKernels,
    inputs: Inputs,
    kinds: Sequence[KernelKind],
    *,
    store: Path | None = None,
    workers: int | None = None,
    listener: Listener = SILENT,
) -> dict[KernelKind, Any]:
    """The kernels of `inputs` with themselves, with the heads of `data`'s sampler.

    With a `store` they are read from it when they are indexed; `np.asarray` reads them whole.
    `workers` processes of this machine then compute them.
    """
    options: dict[str, Any] = {"sampler": data.sampler, "ntk": KernelKind.NTK in kinds}
    label = f"kernel of {inputs.size:,} examples"
    if store is None:
        with listener.bar(label) as advance:
            kernels = data.net.kernel(inputs, progress=advance, **options)
        return {kind: chosen(kernels, kind) for kind in kinds}
    with alone(store.with_name(f".{store.name}.lock")):
        if KernelStore.exists(store):
            listener.say(f"a kernel of an earlier run is in '{store}'")
        elif inputs.size >= LARGE:
            listener.say(str(data.net.cost(inputs, sampler=data.sampler, ntk=options["ntk"])))
        with (
            _cluster(workers) as client,
            listener.bar(label) as advance,
            _damage_reported(listener),
        ):
            options |= {"progress": advance, "store": store, "client": client}
            try:
                kernels = data.net.kernel(inputs, **options)
            except OtherKernelError as other:
                listener.say(f"it is another one ({other.got}) and is replaced")
                shutil.rmtree(store)
                kernels = data.net.kernel(inputs, **options)
    return {kind: chosen(kernels, kind) for kind in kinds}


def _cluster(workers: int | None) -> AbstractContextManager[Any]:
    """A client of this number of workers; None is this process alone."""
    if workers is None:
        return nullcontext()
    from ...scale.cluster import local_client  # Dask is needed with workers only

    return local_client(workers)


@contextmanager
def _damage_reported(listener: Listener) -> Iterator[None]:
    """Damaged tiles, which are computed anew, as a line for the user."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", DamagedTilesWarning)
        yield
    for warning in heard:
        if issubclass(warning.category, DamagedTilesWarning):
            listener.say(str(warning.message))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
