"""MatMul: weights applied to vectors make new limit variables."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NumericalError
from .gaussian import Form
from .integration import Method
from .layout import Layout
from .matrices import Use, WideMatrix
from .steps import Step
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine

HALF = Fraction(1, 2)


def matmul(
    machine: Machine,
    step: Step,
    matrix: WideMatrix,
    axis: int,
    operand: WideVector,
    slots: np.ndarray,
    members: np.ndarray,
) -> WideVector:
    """New limit variables `Σ_c W[slots_oc] h[members_oc]` (-1: nothing), o = 0, …, O − 1.

    `Cov(o, o') = σ² Σ unit·E[h h']` over pairs of terms that use the same slot of the same matrix.
    """
    count = len(slots)
    zero = np.zeros((1, count))
    nothing = WideVector((count,), 0, Layout(1, 1, Fraction(1)), Fraction(0), zero)
    if matrix.is_zero or operand.is_zero:
        return nothing
    if matrix.constant is not None:
        raise step.refuse(
            "Weight matrices are random, or zero.",
            got=f"a matrix whose entries are all {matrix.constant:g}",
            remedy="draw the weights at random; sums over channels are written as sums",
        )
    weights = matrix.weights
    machine.note_use(step, matrix, axis, operand)
    used = matrix.base[axis]
    origin, uses = weights.source(used), weights.uses.setdefault(used, [])
    by_slot: dict[int, np.ndarray] = {}
    for slot in np.unique(slots):
        here = (slots == slot) & (members >= 0)
        rows, columns = np.nonzero(here)
        if len(rows) != len(np.unique(rows)):
            raise step.refuse(
                "Each entry of a weight matrix meets one channel.",
                got="one matrix that is summed over several positions at once",
                remedy="sum the vectors before they are multiplied",
            )
        chosen = np.full(count, -1)
        chosen[rows] = members[rows, columns]
        by_slot[int(slot)] = chosen
    integrator = machine.integrator
    integrator.used = Method.CLOSED_FORM
    unit = float(operand.layout.unit)

    def covariance(other: WideVector, theirs: dict[int, np.ndarray]) -> np.ndarray:
        common = [slot for slot in by_slot if slot in theirs]
        total: Any = np.zeros((1, count, len(next(iter(theirs.values())))))
        if not common:
            return total
        for mine, others, slots_here in _meetings(common, by_slot, theirs):
            gram = integrator.second_once(operand, other, mine, others)
            if len(gram) > len(total):
                total = np.repeat(total, len(gram), axis=0)
            place = _positions(mine, operand.size)
            place_other = _positions(others, other.size)
            for slot in slots_here:
                a, b = by_slot[slot], theirs[slot]
                i, j = np.flatnonzero(a >= 0), np.flatnonzero(b >= 0)
                rows, columns = place[a[i]][:, None], place_other[b[j]]
                total[:, i[:, None], j] += gram[:, rows, columns]
        return unit * total

    first = matrix.scale * matrix.scale * covariance(operand, by_slot)
    if not np.isfinite(first).all():
        raise NumericalError(
            "Moments of the limit must be finite.",
            got=f"an overflow, or a function that is no number somewhere, in {step.place}",
            remedy="draw smaller weights, or check the functions' domain and growth",
        )
    crosses = []
    for use in uses:
        if use.operand.layout.unit != operand.layout.unit:
            raise step.refuse(
                "Weights that are used again act on channels cut in the same way.",
                got=f"'{weights.name}' applied to differently cut vectors",
                remedy="use the same reshape in both places",
            )
        crosses.append(
            np.swapaxes(matrix.scale * use.scale * covariance(use.operand, use.members), 1, 2)
        )
    draws = max([1, *(c.shape[0] for c in crosses)])
    cross = (
        np.concatenate([np.broadcast_to(c, (draws, *c.shape[1:])) for c in crosses], axis=1)
        if crosses
        else np.zeros((1, 0, count))
    )
    begin = origin.extend(cross, first)
    origin.method = max(origin.method, integrator.used)
    origin.rows += [frozenset(row.tolist()) for row in slots]
    uses.append(Use(operand, by_slot, begin, matrix.scale))
    form = Form.members(machine.labels, origin, begin, count)
    power = operand.power + matrix.power + HALF
    return WideVector((count,), 0, nothing.layout, power, zero, form, np.ones((1, count)))


def _meetings(
    slots: list[int], ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray, list[int]]]:
    """Members whose second moments are needed, each pair once: slot by slot, or all at once.

    Heads that are merged have members of their own for every slot; windows of a convolution share
    them.
    """
    each = [(_members(ours, [slot]), _members(theirs, [slot]), [slot]) for slot in slots]
    if len(each) == 1:
        return [m for m in each if len(m[0]) and len(m[1])]
    together = (_members(ours, slots), _members(theirs, slots), slots)
    apart = sum(len(a) * len(b) for a, b, _ in each) < len(together[0]) * len(together[1])
    return [m for m in (each if apart else [together]) if len(m[0]) and len(m[1])]


def _members(by_slot: dict[int, np.ndarray], slots: list[int]) -> np.ndarray:
    found = np.unique(np.concatenate([by_slot[slot] for slot in slots]))
    return found[1:] if found[0] < 0 else found


def _positions(members: np.ndarray, size: int) -> np.ndarray:
    place = np.full(size, -1)
    place[members] = np.arange(len(members))
    return place
