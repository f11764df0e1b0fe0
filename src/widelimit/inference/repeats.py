"""Examples that repeat: equal and nearly equal inputs, which are left out together.

Where a table holds a row twice, leaving out one of the two predicts it from its copy: the least
noise wins, however noisy the targets are. Whatever is chosen by leave-one-out therefore leaves out
groups of examples that are the same input.
"""

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from ..engine.inputs import Inputs
from .checks import ROWS_PER_BLOCK

NEARLY = 1e-5
"""Inputs nearer than this share of the median distance of two examples count as equal: what
rounding and writing into files change. Dense data on a line is further apart."""

_PROJECTIONS = 8
_SAMPLED = 2048  # pairs for the median distance

Groups = Int[np.ndarray, " n"]
"""The number of every example's group: equal numbers are left out together."""


def input_groups(inputs: Inputs) -> Groups | None:
    """Groups of equal and nearly equal examples; None where no two are.

    Nearly equal are two examples whose distance is at most `NEARLY` of the median distance; a chain
    of such neighbours is one group. Tokens are equal or not.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((inputs.x, inputs.mask))]
    kind = np.int64 if inputs.tokens else np.result_type(*(leaf.dtype for leaf in leaves))
    table = np.concatenate([leaf.reshape(len(leaf), -1).astype(kind) for leaf in leaves], axis=1)
    table = table + table.dtype.type(0)  # −0.0 becomes 0.0, which it equals
    row = np.dtype((np.void, table.dtype.itemsize * table.shape[1]))  # as one value, to be sorted
    rows = np.ascontiguousarray(table).view(row).reshape(-1)
    _, first, same = np.unique(rows, return_index=True, return_inverse=True)
    groups = same.reshape(-1)
    if not inputs.tokens:
        groups = _near(table[first])[groups]
    return groups if count_repeats(groups) else None


def count_repeats(groups: Groups | None) -> int:
    """How many examples repeat an earlier one."""
    return 0 if groups is None else len(groups) - len(np.unique(groups))


def repeated(groups: Groups | None, rows: Int[np.ndarray, " rows"]) -> list[np.ndarray]:
    """The groups of two and more that hold some of these examples, each as row numbers."""
    if groups is None:
        return []
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    wanted: Bool[np.ndarray, " n"] = np.zeros(len(groups), bool)
    wanted[rows] = True
    return [part for part in parts if len(part) > 1 and wanted[part].any()]


def _near(table: np.ndarray) -> Groups:
    """Components of the graph of nearly equal rows, all of which differ.

    Projections on orthonormal directions make no distance longer: all near pairs are near there,
    where a tree finds them, and the few that are near by chance are sorted out.
    """
    rows, width = table.shape
    if rows < 2:
        return np.zeros(rows, int)
    unit = _unit(table)
    rng = np.random.default_rng(0)
    one = rng.integers(rows, size=_SAMPLED)
    typical = np.median(_apart(table, one, (one + rng.integers(1, rows, size=_SAMPLED)) % rows))
    directions = np.linalg.qr(rng.standard_normal((width, min(width, _PROJECTIONS))))[0]
    blocks = (table[i : i + ROWS_PER_BLOCK] for i in range(0, rows, ROWS_PER_BLOCK))
    thin = np.concatenate([block.astype(np.float64) / unit @ directions for block in blocks])
    one, two = KDTree(thin).query_pairs(NEARLY * typical, output_type="ndarray").T
    close = _apart(table, one, two) <= NEARLY * typical
    graph = coo_array((close[close], (one[close], two[close])), shape=(rows, rows))
    return connected_components(graph, directed=False)[1]


def _apart(table: np.ndarray, one: np.ndarray, two: np.ndarray) -> Float[np.ndarray, " pairs"]:
    """Distances of rows, in units of the largest number."""
    unit = _unit(table)
    found = np.empty(len(one))
    for start in range(0, len(one), ROWS_PER_BLOCK):
        pairs = slice(start, start + ROWS_PER_BLOCK)
        sides = (table[side[pairs]].astype(np.float64) / unit for side in (one, two))
        found[pairs] = np.linalg.norm(np.subtract(*sides), axis=1)
    return found


def _unit(table: np.ndarray) -> float:
    """The largest number: in its units squares stay in range."""
    return max(float(table.max()), -float(table.min()), np.finfo(np.float64).tiny)
