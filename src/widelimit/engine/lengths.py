"""Sequences of different lengths: short ones do not pay for the padding of long ones.

Examples are sorted into a few groups by length, and each group is cut to its longest member. Every
pair of groups is compiled once, so there are as many groups as the work saved is worth.
"""

from typing import NamedTuple

import numpy as np

from ..layers.base import Layer
from ..layers.compose import is_sampled, layers_of
from .inputs import Inputs

# Group lengths are about sixteenths of the longest, so that many batches share them, and multiples
# of 8: whole vector registers nearly halve the time on a processor (72 positions against 69).
_PARTS, _VECTOR = 16, 8
_MOST_GROUPS = 6
# Seconds, by orders of magnitude: one pair of positions through a network, and one compilation.
_POSITION_PAIR, _COMPILATION = 1e-8, 0.3
# A compilation serves several calls: training data, test data, other hyperparameters.
_CALLS = 3
# Arrays with fewer positions are not worth cutting.
_SHORTEST = 16


class LengthGroup(NamedTuple):
    """Some examples of a batch, and the length they are cut to (None: as they are)."""

    members: np.ndarray
    length: int | None

    def of(self, inputs: Inputs, members: np.ndarray) -> Inputs:
        """Members of the group, by their number in the batch."""
        chosen = inputs[members]
        if self.length is None:
            return chosen
        x, mask = chosen.x[:, : self.length], chosen.mask[:, : self.length]
        return Inputs(x, mask, inputs.tokens)


def whole(inputs: Inputs) -> LengthGroup:
    """All examples, at full length."""
    return LengthGroup(np.arange(inputs.size), None)


def groups(net: Layer, inputs: Inputs) -> list[LengthGroup]:
    """How a batch is cut; one group where padding is no matter, or is part of the result."""
    if not _may_be_cut(net, inputs):
        return [whole(inputs)]
    longest = inputs.mask.shape[1]
    lengths = longest - np.argmax(inputs.mask[:, ::-1], axis=1)
    ends = _ends(lengths, longest)
    order = np.argsort(lengths, kind="stable")
    bounds = np.searchsorted(lengths[order], ends, side="right")
    parts = np.split(order, bounds[:-1])
    return [LengthGroup(part, end) for part, end in zip(parts, ends, strict=True) if len(part)]


def _ends(lengths: np.ndarray, longest: int) -> tuple[int, ...]:
    """The group lengths that cost least in all; the last is the longest example's."""
    step = _VECTOR * -(-longest // (_PARTS * _VECTOR))
    marks = [*range(step, longest, step), longest]
    below = np.searchsorted(np.sort(lengths), marks, side="right")  # examples up to each mark

    # For every mark: the fewest padded positions of all examples up to it, and the groups' ends.
    best: list[tuple[int, tuple[int, ...]]]
    best = [(int(count) * mark, (mark,)) for mark, count in zip(marks, below, strict=True)]
    choices = [best[-1]]
    for _ in range(_MOST_GROUPS - 1):  # one more group at the end
        best = [
            min(
                (best[j][0] + int(below[k] - below[j]) * mark, (*best[j][1], mark))
                for j in range(k)
            )
            if k
            else best[0]
            for k, mark in enumerate(marks)
        ]
        choices.append(best[-1])
    return min(choices, key=lambda choice: _seconds(choice[0], len(choice[1])))[1]


def _seconds(positions: int, count: int) -> float:
    """Time for a matrix with this many padded positions and groups, over several calls."""
    compilations = count * (count + 1) // 2
    return _CALLS * _POSITION_PAIR * positions**2 / 2 + _COMPILATION * compilations


def _may_be_cut(net: Layer, inputs: Inputs) -> bool:
    """Whether positions at the right end that are padding can be left out."""
    mask = inputs.mask
    if mask is None or isinstance(mask, tuple) or mask.ndim != 2 or mask.shape[1] < _SHORTEST:
        return False
    if is_sampled(net) or not all(layer.facts.cuttable for _, layer in layers_of(net)):
        return False
    shorter = inputs.outline.to(positions=(1,))
    return net.outline(inputs.outline).positions == net.outline(shorter).positions
