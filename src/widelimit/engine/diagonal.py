"""Kernels of every example with itself: `κ(x, x)` and `Θ(x, x)`, in `O(N)`."""

from typing import Any

import jax
import numpy as np

from ..state import Kernels
from .kernel import Problem, traced_kernels
from .phases import cross_list, precision
from .sampling import realisations
from .tiles import Moments, Pairs, groups


def compute_diagonal(problem: Problem) -> Kernels:
    """Both kernels of every example of the rows with itself."""
    if problem.traced:
        return traced_kernels(problem, own=True)
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
