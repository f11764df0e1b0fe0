"""Where the latent normals come from: independent draws, or scrambled Sobol points."""

import enum
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Array, Float, Key

from ..errors import WidelimitError
from ..gaussians import sobol_normals
from ..options import choice, generator, whole

# Up to this many normals, quasi-random points are ahead of independent ones in every case tried.
_MOST_DIMENSIONS = 256
# Independent scramblings, whose spread gives the error.
_SCRAMBLES = 8


class Points(enum.Enum):
    """How a law's integrals over scores are done."""

    AUTO = "auto"
    """Sobol points where the latent is small enough, independent draws otherwise."""

    SOBOL = "sobol"
    """Scrambled Sobol points: errors fall almost as 1/draws while the latent is small."""

    RANDOM = "random"
    """Independent draws: errors fall as 1/√draws whatever the size."""


class DrawPlan(NamedTuple):
    """Which points, how many, and how many independent groups they form."""

    points: Points
    draws: int
    groups: int


def plan(points: Points | str, draws: int, dimensions: int, *, most: int | None = None) -> DrawPlan:
    """Resolve AUTO; Sobol counts are rounded up to 8 scramblings of a power of two.

    Where that is more than `most`, they are rounded down.
    """
    whole("draws", draws, least=_SCRAMBLES)
    points = choice(Points, points, "points")
    if points is Points.AUTO:
        points = Points.SOBOL if 0 < dimensions <= _MOST_DIMENSIONS else Points.RANDOM
    if points is Points.RANDOM:
        return DrawPlan(points, int(draws), int(draws))
    if not 0 < dimensions <= scipy.stats.qmc.Sobol.MAXDIM:
        raise WidelimitError(
            f"The scores have no Sobol points, which exist for 1 to {scipy.stats.qmc.Sobol.MAXDIM} "
            "dimensions.",
            got=f"{dimensions} normals behind the scores",
            remedy="use points=Points.RANDOM",
        )
    each = 1 << (-(-int(draws) // _SCRAMBLES) - 1).bit_length()
    if most is not None and _SCRAMBLES * each > most:
        each //= 2
    return DrawPlan(points, _SCRAMBLES * each, _SCRAMBLES)


def normal_blocks(
    plan: DrawPlan, dimensions: int, key: Key[Array, ""], *, size: int
) -> Iterator[Float[np.ndarray, "block latent"]]:
    """The normals in blocks of at most `size`, group after group."""
    rng = generator(key)
    if plan.points is Points.RANDOM:
        for begin in range(0, plan.draws, size):
            yield rng.standard_normal((min(size, plan.draws - begin), dimensions))
        return
    each = plan.draws // plan.groups
    for stream in rng.spawn(plan.groups):
        normals = sobol_normals(each, dimensions, stream)
        for begin in range(0, each, size):
            yield normals[begin : begin + size]
