"""Landmarks of a kernel matrix by randomly pivoted Cholesky, from a few of its columns.

    F F^T ≈ K,   F = K[:, pivots] L^-T,   L L^T = K[pivots, pivots]

The next pivot is drawn with probability proportional to the diagonal of what is missing,
`K − F Fᵀ`. Pivots are proposed several at a time, from the diagonal as it was, and each is accepted
with the ratio of its diagonal now and then: the law is that of one at a time, and only columns of
accepted pivots are computed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cholesky, solve_triangular

# Proposals of one round; some are refused, and a round costs a call.
_PROPOSALS = 128
# What is missing counts as rounding below this share of the largest diagonal entry.
_ROUNDING = 1e3

Columns = Callable[[np.ndarray], np.ndarray]  # numbers of examples to columns (N, numbers)
Corner = Callable[[np.ndarray], np.ndarray]  # numbers of examples to the block among them


class Pivoted(NamedTuple):
    """A kernel matrix of low rank: `factor @ factor.T`."""

    pivots: Int[np.ndarray, " m"]
    factor: Float[np.ndarray, "n m"]
    missed: Float[np.ndarray, " n"]
    """The diagonal of what is missing."""

    @property
    def lower(self) -> Float[np.ndarray, "m m"]:
        """The Cholesky factor of the block of the pivots."""
        return self.factor[self.pivots]


def pivoted(
    diagonal: Any,
    columns: Columns,
    corner: Corner,
    rank: int,
    *,
    rng: np.random.Generator,
    unit: float,
    progress: Callable[[int, int], None] | None = None,
) -> Pivoted:
    """At most `rank` pivots; fewer where nothing but rounding is left to explain."""
    start = np.asarray(diagonal, np.float64)
    floor = _ROUNDING * unit * float(start.max())
    missed, size = start.copy(), len(start)
    rank = min(rank, size)
    factor = np.zeros((size, rank), order="F")
    found: list[int] = []
    while len(found) < rank and missed.max() > floor:
        count = len(found)
        weights = np.where(missed > floor, missed, 0.0)
        room = min(_PROPOSALS, int(np.count_nonzero(weights)))
        drawn = rng.choice(size, room, p=weights / weights.sum())
        proposed, where = np.unique(drawn, return_inverse=True)
        block = np.asarray(corner(proposed), np.float64)
        block = block - factor[proposed, :count] @ factor[proposed, :count].T
        then = np.diagonal(block).copy()
        accepted = []
        for i in where:  # in the order of the draws; who was accepted has nothing left
            now = block[i, i]
            if count + len(accepted) == rank or now <= floor or rng.random() * then[i] > now:
                continue
            accepted.append(int(proposed[i]))
            block -= np.outer(block[:, i], block[i]) / now
            block[i] = block[:, i] = 0.0
        if not accepted:
            continue
        chosen = np.array(accepted)
        new = np.asarray(columns(chosen), np.float64)
        new -= factor[:, :count] @ factor[chosen, :count].T
        small = (new[chosen] + new[chosen].T) / 2
        # Rounding of single-precision columns may show at pivots that are nearly explained.
        small[np.diag_indices(len(chosen))] += floor / _ROUNDING
        lower = cholesky(small, lower=True)
        part = solve_triangular(lower, new.T, lower=True).T
        part[chosen] = lower
        factor[:, count : count + len(chosen)] = part
        found += accepted
        missed = np.maximum(missed - np.einsum("nm,nm->n", part, part), 0.0)
        missed[chosen] = 0.0
        if progress is not None:
            progress(len(found), rank)
    return Pivoted(np.array(found, int), factor[:, : len(found)], missed)
