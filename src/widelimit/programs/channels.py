"""Which channels two vectors have in common, and whether sums over channels are centred.

`Σ_α p_α` has mean zero given all that came before where p is odd in the rows of some weights, which
are as likely as their negatives. Where `E[p] = 0` holds for the limit's covariances only, as for
`z² − z'²` of equal variances, the covariances' own fluctuations, of order n^{-1/2}, add up to as
much as the sum itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .gaussian import Form, GaussianSource, Term, blocks_of
from .integrator import form_values
from .steps import Step
from .thresholds import NO_EVEN_PART
from .trees import LimitPoints
from .vectors import WideVector

_POINTS = 8
Block = tuple[int, int]
Flip = dict[Block, np.ndarray]
"""Which members of a source's block change their sign."""


def _terms(vector: WideVector) -> list[Term]:
    return [term for form in vector.forms() for term in form.terms]


def shared_sources(u: WideVector, v: WideVector) -> bool:
    """Whether two vectors are made of the same limit variables, whatever their channels."""
    ours, theirs = ({id(term.source) for term in _terms(w)} for w in (u, v))
    return bool(ours & theirs)


def blocks_alike(
    step: Step, ours: tuple[WideVector, ...], theirs: tuple[WideVector, ...]
) -> tuple[tuple[WideVector, ...], tuple[WideVector, ...]]:
    """Vectors of two sums over channels, cut so that channels in common are whole cells of both.

    A sum over all channels and one over half of them share cells once the first is cut in two.
    """
    # Into how many major and minor blocks each source's channels are cut.
    mine: dict[int, set[Block]] = {}
    others: dict[int, set[Block]] = {}
    for vectors, found in ((ours, mine), (theirs, others)):
        for form in (form for vector in vectors for form in vector.forms()):
            for term in form.terms:
                levels = {form.registry.level(int(label)) for label in np.unique(term.labels)}
                found.setdefault(id(term.source), set()).update(levels)
    cuts: tuple[set[Block], set[Block]] = (set(), set())
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
    finer = []
    for vectors, cut in zip((ours, theirs), cuts, strict=True):
        layout = vectors[0].layout.finer(*next(iter(cut), (1, 1)))
        finer.append(tuple(vector.refined(layout) for vector in vectors))
    return finer[0], finer[1]


def shared_cells(u: WideVector, v: WideVector) -> np.ndarray:
    """Which cells of u and v are the same channels of the same source, (cells, cells')."""
    ours, theirs = _channels(u), _channels(v)
    return np.array([[bool(a & b) for b in theirs] for a in ours])


def _channels(vector: WideVector) -> list[set[Block]]:
    """The sources' blocks in every cell."""
    if not vector.simple():
        # Members are mixtures of others: any of the blocks may be in any cell.
        return [set(blocks_of(vector.forms()))] * vector.layout.cells
    return [
        {
            (id(t.source), int(k))
            for t in _terms(vector)
            for k in np.unique(t.labels[members[t.used[members]]])
        }
        for members in vector.by_cell()
    ]


def is_centred(u: WideVector, v: WideVector, pairs: np.ndarray) -> bool:
    """Whether the products of members `pairs`, counted within a cell, are centred by symmetry."""
    alone = any(side.is_linear and not side.constant.any() for side in (u, v))
    if alone and not shared_sources(u, v):
        return True
    blocks = blocks_of([*u.forms(), *v.forms()])
    if not any(source.rows for source in blocks.values()):
        return True
    rng = np.random.default_rng(0)
    members = {
        block: rng.standard_normal((1, _POINTS, source.size))
        * np.sqrt(source.variances.mean(axis=0))
        for block, source in blocks.items()
    }

    def products(values: dict[Block, np.ndarray]) -> np.ndarray:
        """(draws, points, cells, products)."""
        points = _Points(values)
        left = u.evaluate(points)[..., u.by_cell()[:, pairs[0]]]
        return left * v.evaluate(points)[..., v.by_cell()[:, pairs[1]]]

    before = products(members)
    size = np.abs(before).max(axis=(0, 1))
    odd = np.zeros(size.shape, bool)
    for flip in _flips(u, v, blocks):
        after = products(
            {k: np.where(flip[k], -x, x) if k in flip else x for k, x in members.items()}
        )
        odd |= np.abs(before + after).max(axis=(0, 1)) <= NO_EVEN_PART * size
        if odd.all():
            return True
    return False


def _flips(u: WideVector, v: WideVector, blocks: dict[Block, GaussianSource]) -> Iterator[Flip]:
    """Changes of sign that leave the law of all weights as it is."""
    for side in (u, v):
        yield {k: np.ones(source.size, bool) for k, source in blocks_of(side.forms()).items()}
    for block, source in blocks.items():
        # Members made of the same entries of weights go together.
        groups: list[tuple[set[int], list[int]]] = []
        for member, row in enumerate(source.rows):
            met = [g for g in groups if g[0] & row]
            groups = [g for g in groups if not g[0] & row]
            entries = set(row).union(*(g[0] for g in met))
            groups.append((entries, [member, *(m for g in met for m in g[1])]))
        each = np.arange(source.size)
        for _, members in groups or [(set(), each)]:
            yield {block: np.isin(each, members)}


class _Points(LimitPoints):
    """Given values of the limit variables."""

    def __init__(self, members: dict[Block, np.ndarray]):
        super().__init__()
        self.members = members

    def form(self, form: Form) -> np.ndarray:
        return form_values(form, self.members)
