"""From an order of an input's entries, as a table, to the layer that puts them into it."""

from __future__ import annotations

import math

import numpy as np

from ..layers import Rearrange
from .parts import PartNode


def rearranging(shape: tuple[int, ...], order: np.ndarray, source: PartNode) -> Rearrange | None:
    """The layer that brings examples of this shape into (positions…, channels); None if they are.

    `order` holds for every position and channel the number of the input's entry.
    """
    after = (*source.positions, source.channels)
    if after == shape and (order.reshape(-1) == np.arange(order.size)).all():
        return None
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    table = order.reshape(after)
    steps: list[tuple[int, int]] = []
    groups = []
    for axis in range(len(after)):
        line = table[tuple(slice(None) if a == axis else 0 for a in range(len(after)))]
        found = _within_axes(_steps(line), shape, strides)
        groups.append(len(found))
        steps += found
    kept: list[list[tuple[int, int]]] = [
        [(n, s) for n, s in steps if stride <= s < stride * extent or extent == n == 1]
        for extent, stride in zip(shape, strides, strict=True)
    ]
    split = [sorted(each, key=lambda pair: -pair[1]) for each in kept]
    flat = [pair for each in split for pair in each]
    layer = Rearrange(
        [flat.index(pair) for pair in steps],
        factors=[[n for n, _ in each] for each in split],
        groups=groups,
    )
    if all(len(each) == 1 for each in split) and all(g == 1 for g in groups):
        layer = Rearrange(layer.order)
    counted = np.arange(order.size).reshape(1, *shape)
    assert (layer.reorder(counted)[0] == table).all()
    return layer


def _steps(line: np.ndarray) -> list[tuple[int, int]]:
    """A sequence as counters, slow ones first: how far each counts, and by which step."""
    found: list[tuple[int, int]] = []
    while len(line) > 1:
        step = int(line[1] - line[0])
        run = 1
        while run < len(line) and line[run] - line[run - 1] == step:
            run += 1
        while len(line) % run:
            run -= 1
        found.append((run, step))
        line = line[::run]
    return found[::-1]


def _within_axes(
    steps: list[tuple[int, int]], shape: tuple[int, ...], strides: list[int]
) -> list[tuple[int, int]]:
    """Counters that run over several axes of the input, one for each axis."""
    found = []
    for count, step in steps:
        rest = []
        while count > 1:
            axis = next(a for a, stride in enumerate(strides) if stride <= step)
            room = shape[axis] * strides[axis] // step
            part = math.gcd(count, room)
            rest.append((part, step))
            count, step = count // part, step * part
            if part == 1:
                break
        found += rest[::-1]
    return found
