"""Where the latent normals come from: scrambled Sobol points while they are few, else at random.

Errors fall almost as 1/draws with Sobol points of few dimensions, and as 1/√draws with independent
draws whatever their size.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key

from ..gaussians import sobol_normals
from ..options import generator, whole

# Up to this many normals, quasi-random points are ahead of independent ones in every case tried.
_MOST_DIMENSIONS = 256
# Independent scramblings, whose spread gives the error.
_SCRAMBLES = 8


class DrawPlan(NamedTuple):
    """How many points, and how many independent groups they form."""

    draws: int
    groups: int

    @property
    def random(self) -> bool:
        """Whether every draw is independent of all others."""
        return self.groups == self.draws


def plan_draws(draws: int, dimensions: int, *, most: int | None = None) -> DrawPlan:
    """Numbers of Sobol points are rounded up to 8 scramblings of a power of two.

    Where that is more than `most`, they are rounded down.
    """
    whole("draws", draws, least=_SCRAMBLES)
    if not 0 < dimensions <= _MOST_DIMENSIONS:
        return DrawPlan(int(draws), int(draws))
    each = 1 << (-(-int(draws) // _SCRAMBLES) - 1).bit_length()
    if most is not None and _SCRAMBLES * each > most:
        each //= 2
    return DrawPlan(_SCRAMBLES * each, _SCRAMBLES)


def normal_blocks(
    plan: DrawPlan, dimensions: int, key: Key[Array, ""], *, size: int
) -> Iterator[Float[np.ndarray, "block latent"]]:
    """The normals in blocks of at most `size`, group after group."""
    rng = generator(key)
    if plan.random:
        for begin in range(0, plan.draws, size):
            yield rng.standard_normal((min(size, plan.draws - begin), dimensions))
        return
    each = plan.draws // plan.groups
    for stream in rng.spawn(plan.groups):
        normals = sobol_normals(each, dimensions, stream)
        for begin in range(0, each, size):
            yield normals[begin : begin + size]
