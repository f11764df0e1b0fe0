"""What every network can do at scale: `net.kernel(x, store=…)` and `net.cost(x)`."""

from typing import Any

from ..engine.inputs import Inputs
from ..engine.sampling import Sampler
from ..layers.base import Layer
from ..layers.readings import reading
from ..state import Kernels


@reading
def stored_kernel(
    net: Layer,
    rows: Inputs,
    columns: Inputs | None,
    *,
    sampler: Sampler | None,
    ntk: bool,
    dtype: Any,
    memory: int,
    store: Any,
    **options: Any,
) -> Kernels:
    """The kernel in a store, whose arrays are read when they are indexed."""
    from .compute import Problem, into_store  # only who stores kernels needs Zarr

    problem = Problem(net, rows, columns, sampler, ntk, dtype, memory)
    return into_store(problem, store, **options).kernels
