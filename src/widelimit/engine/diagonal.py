"""Kernels of every example with itself: `κ(x, x)` and `Θ(x, x)`, in `O(N)`."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ..compilation import compiled
from ..layers.base import Layer
from ..state import Kernels
from .inputs import Inputs
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
from .sampling import Sampler, realisations
from .tiles import Moments, Pairs, TilePlan, groups


def compute_diagonal(problem: Problem) -> Kernels:
    """Both kernels of every example of the rows with itself."""
    if problem.traced:
        return _traced_diagonal(problem)
    problem.require_numbers()
    net, dtype = problem.net, problem.dtype
    options = {"dtype": dtype, "with_ntk": problem.ntk, "memory": problem.memory}
    found = own_kernels(net, problem.rows, problem.sampler, **options)
    return jax.tree.map(lambda array: array.astype(dtype), found)


def own_kernels(
    net: Layer, inputs: Inputs, sampler: Sampler | None, *, dtype: Any, with_ntk: bool, memory: int
) -> Kernels:
    """Both kernels of every example with itself, in double precision.

    Θ of kinked activations has square-root singularities here: float32 would lose half its digits.
    The heads are drawn in `dtype`, as for other kernels of this sampler, to be the same heads.
    """
    with precision(dtype):
        reals = realisations(net, sampler, dtype)
    wide = np.dtype(np.float64)
    found: list[Any] = [None] * 4
    with precision(wide):
        inputs = inputs.astype(wide)
        cuts = [groups(net, inputs)]
        pairs = Pairs(reals, inputs, None, cuts=cuts, dtype=wide, with_ntk=with_ntk, memory=memory)
        side = pairs.left
        for number, block in enumerate(side.blocks):
            several, count = Moments(), len(block.members)
            for which, real in enumerate(side.reals):
                ends = side.encoded(number, which)
                both = cross_list(real.for_pairs, ends, ends, pairs.outline, with_ntk=with_ntk)
                several.add(*(None if k is None else np.asarray(k)[None, :count] for k in both))
            for i, part in enumerate((*several.means(), *several.errors())):
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
