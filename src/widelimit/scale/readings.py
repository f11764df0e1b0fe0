"""What every network can do at scale: `net.kernel(x, store=…)` and `net.cost(x)`."""

from typing import Any

import numpy as np

from ..engine.door import read_inputs
from ..engine.inputs import Inputs
from ..engine.sampling import Sampler
from ..engine.sampling import sampler as fitted_sampler
from ..layers.base import Layer
from ..layers.readings import DEFAULT_MEMORY, reading
from ..options import whole
from ..state import Kernels
from .cost import Cost, measured


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
    from .compute import into_store  # Zarr is needed for stores only
    from .problem import Problem

    problem = Problem(net, rows, columns, sampler, ntk, dtype, memory)
    found = into_store(problem, store, **options).kernels
    return found if ntk else Kernels(found.nngp, None, found.nngp_error)


@reading
def cost(
    net: Layer,
    x: Any,
    mask: Any = None,
    *,
    examples: int | None = None,
    tests: int = 0,
    sampler: Sampler | None = None,
    ntk: bool = True,
    dtype: Any = None,
    memory: int = DEFAULT_MEMORY,
) -> Cost:
    """What a kernel of `examples` inputs like x would take; see `Layer.cost`."""
    inputs = read_inputs(net, x, mask, dtype=dtype)
    count = inputs.size if examples is None else whole("examples", examples)
    if tests:
        whole("tests", tests)
    if net.sampled() and sampler is None:
        sampler = fitted_sampler(net, inputs)
    found = (dtype or np.float32) if inputs.tokens else inputs.dtype
    return measured(
        net,
        inputs,
        examples=count,
        tests=tests,
        sampler=sampler,
        ntk=ntk,
        dtype=found,
        memory=whole("memory", memory),
    )
