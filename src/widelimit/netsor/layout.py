"""Layered graph layout: columns by depth, few crossings, long edges routed between the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import isotonic_regression

_SWEEPS = 24
_WAYPOINT = 0.45  # rows a passing edge takes


@dataclass(frozen=True)
class GraphLayout:
    """Where everything goes; rows are centred on 0 and span `±extent`."""

    column: np.ndarray
    row: np.ndarray
    passes: dict[tuple[int, int], list[float]]
    """For every edge (from, to), its rows in the columns between."""
    extent: float


def layered(reads: Sequence[Sequence[int]]) -> GraphLayout:
    """Lay out a graph of at least one node given, for every node, the earlier nodes it reads."""
    column = _columns(reads)
    ends: list[tuple[int, int]] = []  # edges between neighbouring columns, waypoints included
    where = list(column)
    size = [1.0] * len(reads)
    chains: dict[tuple[int, int], list[int]] = {}
    for target, sources in enumerate(reads):
        for source in sources:
            chain = []
            for middle in range(column[source] + 1, column[target]):
                chain.append(len(where))
                where.append(middle)
                size.append(_WAYPOINT)
            stops = [source, *chain, target]
            ends.extend(pairwise(stops))
            chains[source, target] = chain
    row = _rows(np.array(where), np.array(size), ends)
    passes = {edge: [row[i] for i in chain] for edge, chain in chains.items()}
    return GraphLayout(np.array(column), row[: len(reads)], passes, float(row.max()))


def _columns(reads: Sequence[Sequence[int]]) -> list[int]:
    """Longest path from the start; then everything that is read moves next to its first reader."""
    column = [0] * len(reads)
    readers: list[list[int]] = [[] for _ in reads]
    for node, sources in enumerate(reads):
        column[node] = max((column[s] + 1 for s in sources), default=0)
        for source in sources:
            readers[source].append(node)
    for node in reversed(range(len(reads))):
        if readers[node]:
            column[node] = min(column[r] for r in readers[node]) - 1
    return column


def _rows(where: np.ndarray, size: np.ndarray, ends: list[tuple[int, int]]) -> np.ndarray:
    """Order each column by the mean row of its neighbours, then pull rows towards that mean."""
    before: list[list[int]] = [[] for _ in where]
    after: list[list[int]] = [[] for _ in where]
    for source, target in ends:
        before[target].append(source)
        after[source].append(target)
    columns = [np.flatnonzero(where == c).tolist() for c in range(int(where.max()) + 1)]
    row = np.zeros(len(where))
    for members in columns:
        _place(row, size, members, np.arange(len(members), dtype=float) * -1.0)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for members in columns if forward else columns[::-1]:
            near = before if forward else after
            wish = {i: np.mean(row[near[i]]) if near[i] else row[i] for i in members}
            members.sort(key=lambda i, wish=wish: -wish[i])
            _place(row, size, members, np.array([wish[i] for i in members]))
    for _ in range(_SWEEPS):  # the order is settled; straighten
        for members in columns:
            wish = [np.mean(row[before[i] + after[i] or [i]]) for i in members]
            _place(row, size, members, np.array(wish))
    return row - (row.max() + row.min()) / 2


def _place(row: np.ndarray, size: np.ndarray, members: list[int], wish: np.ndarray) -> None:
    """The rows nearest to `wish` that keep the order and the sizes apart."""
    if not members:
        return
    room = size[members]
    offset = np.concatenate([[0.0], np.cumsum((room[1:] + room[:-1]) / 2)])
    row[members] = isotonic_regression(wish + offset, increasing=False).x - offset
