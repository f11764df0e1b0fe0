"""Which channels two vectors have in common, block by block."""

from __future__ import annotations

import math

import numpy as np

from .gaussian import blocks_of
from .steps import Step
from .vectors import WideVector

Level = tuple[int, int]
"""Into how many major and minor blocks a source's channels are cut."""


def shared_sources(u: WideVector, v: WideVector) -> bool:
    """Whether two vectors are made of the same limit variables, whatever their channels."""
    return bool({id(s) for s in _sources(u)} & {id(s) for s in _sources(v)})


def _sources(vector: WideVector) -> list:
    return [term.source for form in vector.forms() for term in form.terms]


def _levels(vectors: tuple[WideVector, ...]) -> dict[int, set[Level]]:
    """How finely each source is cut."""
    found: dict[int, set[Level]] = {}
    for vector in vectors:
        for form in vector.forms():
            for term in form.terms:
                levels = found.setdefault(id(term.source), set())
                levels |= {form.registry.level(int(label)) for label in np.unique(term.labels)}
    return found


def blocks_alike(
    step: Step, ours: tuple[WideVector, ...], theirs: tuple[WideVector, ...]
) -> tuple[tuple[WideVector, ...], tuple[WideVector, ...]]:
    """Vectors of two sums over channels, cut so that channels in common are whole cells of both.

    A sum over all channels and one over half of them share cells once the first is cut in two.
    """
    mine, others = _levels(ours), _levels(theirs)
    cuts: tuple[set[Level], set[Level]] = (set(), set())
    for source in mine.keys() & others.keys():
        majors, minors = zip(*(mine[source] | others[source]), strict=True)
        major, minor = math.lcm(*majors), math.lcm(*minors)
        for cut, levels in zip(cuts, (mine[source], others[source]), strict=True):
            cut |= {(major // a, minor // b) for a, b in levels}
    if any(len(cut) > 1 for cut in cuts):
        raise step.refuse(
            "Sums over the same channels cut them in ways that have common blocks.",
            got="channels that are cut in several ways within one sum, and meet in another",
            remedy="slice or reshape channels in one way throughout",
        )
    found = []
    for vectors, cut in zip((ours, theirs), cuts, strict=True):
        major, minor = next(iter(cut), (1, 1))
        layout = vectors[0].layout.finer(major, minor)
        found.append(tuple(vector.refined(layout) for vector in vectors))
    return found[0], found[1]


def shared_cells(u: WideVector, v: WideVector) -> np.ndarray:
    """Which cells of u and v are the same channels of the same source, (cells, cells')."""
    ours, theirs = _channels(u), _channels(v)
    return np.array([[bool(a & b) for b in theirs] for a in ours])


def _channels(vector: WideVector) -> list[set[tuple[int, int]]]:
    """The sources' blocks in every cell."""
    terms = [term for form in vector.forms() for term in form.terms]
    if not vector.simple():
        # Members are mixtures of others: any of the blocks may be in any cell.
        return [set(blocks_of(vector.forms()))] * vector.layout.cells
    return [
        {
            (id(t.source), int(k))
            for t in terms
            for k in np.unique(t.labels[members[t.used[members]]])
        }
        for members in vector.by_cell()
    ]
