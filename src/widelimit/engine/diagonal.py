"""Kernels of every example with itself: `κ(x, x)` and `Θ(x, x)`, in `O(N)`."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..compilation import compiled
from ..state import Kernels
from .kernel import Problem, mean_kernels
from .phases import (
    EncodedBlock,
    Realisation,
    cross_list,
    cross_one,
    encode_block,
    kernel_dtype,
    precision,
)
from .precision import with_leaves
from .sampling import realisations
from .tiles import Moments, Pairs, TilePlan, groups


def compute_diagonal(problem: Problem) -> Kernels:
    """Both kernels of every example of the rows with itself."""
    if problem.traced:
        return _traced_diagonal(problem)
    problem.require_numbers()
    return jax.tree.map(lambda array: array.astype(problem.dtype), own_kernels(problem))


def own_kernels(problem: Problem) -> Kernels:
    """Both kernels of every example of the rows with itself, in double precision.

    Θ of kinked activations has square-root singularities here: float32 would lose half its digits.
    Heads are drawn in the precision of the problem, to be those of other kernels of its sampler.
    """
    net, with_ntk, wide = problem.net, problem.ntk, np.dtype(np.float64)
    with precision(problem.dtype):
        reals = realisations(net, problem.sampler, problem.dtype)
    found: list[Any] = [None] * 4
    with precision(wide):
        inputs = problem.rows.astype(wide)
        options = {"cuts": [groups(net, inputs)], "dtype": wide, "memory": problem.memory}
        pairs = Pairs(reals, inputs, None, with_ntk=with_ntk, **options)
        side = pairs.left
        for number, block in enumerate(side.blocks):
            several, count = Moments(), len(block.members)
            for which, real in enumerate(side.reals):
                ends = side.encoded(number, which)
                both = cross_list(real.for_pairs, ends, ends, pairs.outline, with_ntk=with_ntk)
                several.add(*(None if k is None else np.asarray(k)[None, :count] for k in both))
            for i, part in enumerate(vars(several.kernels()).values()):
                if part is None:
                    continue
                if found[i] is None:
                    found[i] = np.empty((inputs.size, *part.shape[1:]))
                found[i][block.members] = part
    return Kernels(*found)


def _traced_diagonal(problem: Problem) -> Kernels:
    """Inside a JAX transformation: examples are mapped, and recomputed for gradients."""
    net, inputs = problem.net, problem.rows
    x, mask = inputs.on_device()
    dtype = kernel_dtype(x)
    tile = TilePlan.make(net, [inputs], dtype, problem.memory).tile
    found = [
        _traced_own(
            with_leaves(real, dtype), x, mask, inputs.outline, at_once=tile, with_ntk=problem.ntk
        )
        for real in realisations(net, problem.sampler, dtype)
    ]
    return mean_kernels(found)


@compiled
def _traced_own(
    real: Realisation, x: Any, mask: Any, outline: Any, *, at_once: int, with_ntk: bool
) -> tuple[Array, Array | None]:
    def one(end: EncodedBlock) -> tuple[Array, Array | None]:
        return cross_one(real, end, end, outline, with_ntk=with_ntk)

    encoded = encode_block(real, x, mask, outline)
    return jax.lax.map(jax.checkpoint(one), encoded, batch_size=at_once)
