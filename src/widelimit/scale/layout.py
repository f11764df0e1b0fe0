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
from ..engine.tiles import LengthGroup, groups
from ..layers.base import Layer
from .description import digests


class Segment(NamedTuple):
    """Examples that came together: their order in the store, how they are cut, and who they are."""

    first: int  # the number of its first example
    order: np.ndarray  # numbers of examples, as they stand
    cuts: tuple[tuple[int, int | None], ...]  # how many in a row, and the length they have
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

    def as_json(self) -> dict[str, Any]:
        """Most orders are that of the user, and are not written."""
        places = self.order - self.first
        plain = np.array_equal(places, np.arange(len(places)))
        return {
            "cuts": [list(cut) for cut in self.cuts],
            "order": None if plain else places.tolist(),
            "digests": list(self.digests),
        }

    @classmethod
    def from_json(cls, node: dict[str, Any], first: int, height: int) -> "Segment":
        """The inverse of `as_json`; raises `ValueError` where it cannot be one."""
        cuts = tuple((int(count), length) for count, length in node["cuts"])
        size = sum(count for count, _ in cuts)
        places = np.arange(size) if node["order"] is None else np.array(node["order"], int)
        known = tuple(map(str, node["digests"]))
        whole = np.array_equal(np.sort(places), np.arange(size))
        if min(count for count, _ in cuts) < 1 or not whole or len(known) != -(-size // height):
            raise ValueError("an order of examples that is none")
        return cls(first, first + places, cuts, known)


class Side(NamedTuple):
    """The examples along one side of a stored kernel."""

    segments: tuple[Segment, ...]
    height: int

    @classmethod
    def make(cls, net: Layer, inputs: Inputs, height: int) -> "Side":
        """A side that begins with these examples."""
        return cls((Segment.make(net, inputs, 0, height),), height)

    @classmethod
    def from_json(cls, nodes: list[dict[str, Any]], height: int) -> "Side":
        """From what its segments say."""
        side = cls((), height)
        for node in nodes:
            new = Segment.from_json(node, side.size, height)
            side = side._replace(segments=(*side.segments, new))
        return side

    def extended(self, net: Layer, inputs: Inputs) -> "Side":
        """With the examples that come after those it has; itself where there are none."""
        if inputs.size == self.size:
            return self
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
