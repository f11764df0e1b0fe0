"""Two examples on their way through the slow reference."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpmath import mpf

Place = tuple[int, ...]
PAIRS = ((0, 0), (0, 1), (1, 1))


class Undefined(Exception):
    """A network without a meaning on these inputs; the library must refuse it."""


@dataclass(frozen=True)
class Side:
    """One example: its array's extents, its real places, covariance and mean over channels."""

    grid: Place
    places: list[Place]
    own: np.ndarray
    mean: list[Any] | None

    def flat(self, place: Place) -> int:
        """The place's number in the array, row by row."""
        return int(np.ravel_multi_index(place, self.grid)) if place else 0


@dataclass(frozen=True)
class State:
    """Two examples at one layer: κ and Θ of their three pairs."""

    sides: tuple[Side, Side]
    nngp: dict[tuple[int, int], np.ndarray]
    ntk: dict[tuple[int, int], np.ndarray]
    channels: int
    noisy: bool = False  # there was dropout: an example's own covariance is not κ(x, x)
    # By how much a variance is smaller than the sum of the sizes it is the sum of: rounding in
    # whatever precision is so many times larger beside it.
    loss: float = 1.0
    # All channels have the same law: not so for raw inputs, and for channels put side by side.
    uniform: bool = True
    raw: bool = False  # linear maps of the inputs: exact rows could be used, nothing must be lost


def exact(array: Any) -> np.ndarray:
    """Numbers as they are, in 30 digits."""
    array = np.asarray(array)
    out = np.empty(array.shape, object)
    for index in np.ndindex(*array.shape):
        value = array[index]
        out[index] = value if isinstance(value, mpf) else mpf(float(value))
    return out


def zeros(*shape: int) -> np.ndarray:
    return exact(np.zeros(shape))


# --- the beginning -------------------------------------------------------------------------------


def start(xs: tuple[Any, Any], masks: tuple[Any, Any], *, tokens: bool) -> State:
    """κ_ab = x_a·x'_b/channels, or 1 where two tokens agree; Θ = 0."""
    rows, places, grids = [], [], []
    for x, mask in zip(xs, masks, strict=True):
        grid = x.shape if tokens else x.shape[:-1]
        real = [p for p in np.ndindex(*grid) if mask is None or mask[p]]
        rows.append([x[p] if tokens else exact(x[p]) for p in real])
        places.append(real)
        grids.append(tuple(grid))
    channels = 0 if tokens else xs[0].shape[-1]

    def product(one: Any, two: Any) -> Any:
        return mpf(int(one == two)) if tokens else sum(one * two, mpf(0)) / channels

    nngp = {}
    for i, j in PAIRS:
        entries = [[product(a, b) for b in rows[j]] for a in rows[i]]
        nngp[i, j] = np.array(entries, object).reshape(len(rows[i]), len(rows[j]))
    means = [None if tokens else [sum(r, mpf(0)) / channels for r in side] for side in rows]
    sides = tuple(
        Side(g, p, nngp[i, i], m)
        for i, (g, p, m) in enumerate(zip(grids, places, means, strict=True))
    )
    ntk = {k: zeros(*v.shape) for k, v in nngp.items()}
    return State(sides, nngp, ntk, channels, raw=not tokens, uniform=tokens)


# --- maps over positions ---


def loss_of(sizes: np.ndarray, sums: np.ndarray) -> float:
    """How many times smaller than the sizes of its terms a variance is, at the worst place."""
    worst = 1.0
    for size, total in zip(np.diag(sizes), np.diag(sums), strict=True):
        if size > 0:
            worst = max(worst, float(size / total) if total > 0 else np.inf)
    return worst


def mapped(state: State, maps: list[np.ndarray], moved: list[tuple[Place, list[Place]]]) -> State:
    """κ ← L κ L'ᵀ for one matrix per example."""
    sides, loss = [], state.loss
    for side, matrix, (grid, places) in zip(state.sides, maps, moved, strict=True):
        mean = None if side.mean is None else list(matrix @ np.array(side.mean, object))
        sides.append(Side(grid, places, matrix @ side.own @ matrix.T, mean))
        sizes = abs(matrix) @ abs(side.own) @ abs(matrix).T
        loss = max(loss, state.loss * loss_of(sizes, sides[-1].own))
    both = [
        {(i, j): maps[i] @ kernel[i, j] @ maps[j].T for i, j in PAIRS}
        for kernel in (state.nngp, state.ntk)
    ]
    return replace(state, sides=tuple(sides), nngp=both[0], ntk=both[1], loss=loss)
