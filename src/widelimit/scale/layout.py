"""How the examples of one side of a stored kernel stand in it: in strips, sorted by length.

A strip is as many examples as a stored tile has rows. Examples are added in *segments*: the first
call brings one, and every extension another. Inside a segment they are sorted into a few groups of
like length, so that the pairs of a tile are cut to the lengths of its strips. A segment begins a
new strip, so that extending a store never touches a tile that is there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine.inputs import Inputs
from ..engine.lengths import LengthGroup, groups
from ..layers.base import Layer
from .fingerprints import digests


class Segment(NamedTuple):
    """Examples that came together: their order in the store, how they are cut, and who they are."""

    first: int  # the number of its first example
    order: np.ndarray  # numbers of examples, as they stand
    cuts: tuple[
        tuple[int, int | None], ...
    ]  # numbers of examples in a row, and the length they have
    digests: tuple[str, ...]  # in the order of the user

    @classmethod
    def make(cls, net: Layer, inputs: Inputs, first: int, height: int) -> "Segment":
        """The examples from number `first` on."""
        new = inputs[slice(first, None)]
        found = groups(net, new)
        order = first + np.concatenate([group.members for group in found])
        cuts = tuple((len(group.members), group.length) for group in found)
        return cls(first, order, cuts, tuple(digests(new, height)))

    def strips(self, height: int) -> list[list[LengthGroup]]:
        """Its examples `height` at a time, each strip in parts of one length."""
        result: list[list[LengthGroup]] = [[] for _ in range(-(-len(self.order) // height))]
        begin = 0
        for count, length in self.cuts:
            end = begin + count
            while begin < end:
                strip = begin // height
                stop = min(end, (strip + 1) * height)
                result[strip].append(LengthGroup(self.order[begin:stop], length))
                begin = stop
        return result


class Side(NamedTuple):
    """The examples along one side of a stored kernel."""

    segments: tuple[Segment, ...]
    height: int

    @classmethod
    def make(cls, net: Layer, inputs: Inputs, height: int) -> "Side":
        """A side that begins with these examples."""
        return cls((Segment.make(net, inputs, 0, height),), height)

    def extended(self, net: Layer, inputs: Inputs) -> "Side":
        """With the examples that come after those it has."""
        new = Segment.make(net, inputs, self.size, self.height)
        return self._replace(segments=(*self.segments, new))

    @property
    def size(self) -> int:
        """How many examples there are."""
        return sum(len(segment.order) for segment in self.segments)

    @property
    def groups(self) -> list[list[LengthGroup]]:
        """For every strip, its parts of one length."""
        return [strip for segment in self.segments for strip in segment.strips(self.height)]

    @property
    def members(self) -> list[np.ndarray]:
        """For every strip, the numbers of its examples."""
        return [np.concatenate([part.members for part in strip]) for strip in self.groups]

    def changed(self, inputs: Inputs) -> tuple[int, int] | None:
        """The first examples, from and to, that are not those of this side; None if all are.

        `inputs` may have more examples at the end.
        """
        for segment in self.segments:
            last = segment.first + len(segment.order)
            found = digests(inputs[slice(segment.first, last)], self.height)
            for index, pair in enumerate(zip(found, segment.digests, strict=False)):
                if pair[0] != pair[1]:
                    begin = segment.first + index * self.height
                    return begin, min(begin + self.height, last)
        return None


def strip_of(members: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """For every example, the strip it stands in and its place there."""
    size = sum(len(strip) for strip in members)
    strips, places = np.empty(size, int), np.empty(size, int)
    for index, strip in enumerate(members):
        strips[strip], places[strip] = index, np.arange(len(strip))
    return strips, places


def as_json(side: Side) -> list[dict[str, Any]]:
    """Segments without their order, which is an array."""
    return [
        {
            "examples": len(segment.order),
            "cuts": [list(cut) for cut in segment.cuts],
            "digests": list(segment.digests),
        }
        for segment in side.segments
    ]


def from_json(nodes: list[dict[str, Any]], orders: list[np.ndarray], height: int) -> Side:
    """The inverse of `as_json`."""
    segments, first = [], 0
    for node, order in zip(nodes, orders, strict=True):
        if len(order) != node["examples"]:
            raise ValueError(f"{len(order)} places for {node['examples']} examples")
        cuts = tuple((count, length) for count, length in node["cuts"])
        segments.append(Segment(first, order, cuts, tuple(node["digests"])))
        first += len(order)
    return Side(tuple(segments), height)
