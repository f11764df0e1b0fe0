"""Whether sums over channels are centred at every width, or by a coincidence of the limit.

`Σ_α p_α` has mean zero given all that came before where p is odd in the rows of some weights, which
are as likely as their negatives. Where `E[p] = 0` holds for the limit's covariances only, as for
`z² − z'²` of equal variances, the covariances' own fluctuations, of order n^{-1/2}, add up to as
much as the sum itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .blocks import shared_sources
from .gaussian import Form, GaussianSource, blocks_of
from .integrator import form_values
from .thresholds import NO_EVEN_PART
from .trees import LimitPoints
from .vectors import WideVector

_POINTS = 8
Block = tuple[int, int]
Flip = dict[Block, np.ndarray]
"""Which members of a source's block change their sign."""


def is_centred(u: WideVector, v: WideVector, pairs: np.ndarray) -> bool:
    """Whether the products of members `pairs`, counted within a cell, are centred by symmetry."""
    if not shared_sources(u, v) and any(_is_odd_alone(side) for side in (u, v)):
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
    before = _products(u, v, pairs, members)
    size = np.abs(before).max(axis=(0, 1))
    odd = np.zeros(size.shape, bool)
    for flip in _flips(u, v, blocks):
        turned = {k: np.where(flip[k], -x, x) if k in flip else x for k, x in members.items()}
        after = _products(u, v, pairs, turned)
        odd |= np.abs(before + after).max(axis=(0, 1)) <= NO_EVEN_PART * size
        if odd.all():
            return True
    return False


def _is_odd_alone(vector: WideVector) -> bool:
    return vector.is_linear and not vector.constant.any()


def _flips(u: WideVector, v: WideVector, blocks: dict[Block, GaussianSource]) -> Iterator[Flip]:
    """Changes of sign that leave the law of all weights as it is."""
    for side in (u, v):
        yield {
            block: np.ones(source.size, bool) for block, source in blocks_of(side.forms()).items()
        }
    for block, source in blocks.items():
        for chosen in _apart(source):
            yield {block: chosen}


def _apart(source: GaussianSource) -> Iterator[np.ndarray]:
    """Members made of the same entries of weights, together."""
    if not source.rows:
        yield np.ones(source.size, bool)
        return
    groups: list[tuple[set[int], list[int]]] = []
    for member, row in enumerate(source.rows):
        met = [g for g in groups if g[0] & row]
        groups = [g for g in groups if not g[0] & row]
        entries = set(row).union(*(g[0] for g in met))
        groups.append((entries, [member, *(m for g in met for m in g[1])]))
    for _, members in groups:
        yield np.isin(np.arange(source.size), members)


def _products(
    u: WideVector, v: WideVector, pairs: np.ndarray, members: dict[Block, np.ndarray]
) -> np.ndarray:
    """(draws, points, cells, products)."""
    points = _Points(members)
    left = u.evaluate(points)[..., u.by_cell()[:, pairs[0]]]
    return left * v.evaluate(points)[..., v.by_cell()[:, pairs[1]]]


class _Points(LimitPoints):
    """Given values of the limit variables."""

    def __init__(self, members: dict[Block, np.ndarray]):
        super().__init__()
        self.members = members

    def form(self, form: Form) -> np.ndarray:
        return form_values(form, self.members)
