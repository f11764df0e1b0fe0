"""Film reviews (IMDb) as sequences of GloVe vectors, of any length.

- pooled embeddings: the mean of the word vectors, or of one layer on each of them; then a fully
  connected network;
- CNN: the mean of convolutions over windows of neighbouring words, then the same;
- attention: an attention layer before the mean, softmax at 1/d, without encodings or with
  encodings that decay with the distance between positions.

Long texts keep their last words: there reviews come to their verdict. A position is a word, or for
long reviews the mean of a few neighbouring words, for every kernel alike. Padding never counts.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...data import Keep
from ...layers.activations import Relu
from ...layers.attention.layer import Attention
from ...layers.attention.positional import Combine, Decay
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.branches import Concat
from ...layers.compose import Serial
from ...layers.conv import Conv
from ...layers.pool import MeanPool
from . import sources
from .cifar10 import WIDTH, hidden
from .comparison import Arena, Claim, ContestSize, FamilyGroup, Trunk, contest
from .kept_kernels import KeptKernels
from .study import Size

Load = Callable[[Size], tuple[Any, bool]]
"""Texts as a table, and whether they are the real ones."""


class TextSize(NamedTuple):
    """Texts cut to their last `length` words, `phrase` at a position, and how many texts."""

    length: int
    phrase: int
    train: int
    test: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example, at most."""
        return -(-self.length // self.phrase), 100


SCALES = {
    Size.SMALL: ContestSize((TextSize(48, 3, 300, 400),), 300),
    Size.LARGE: ContestSize((TextSize(100, 1, 1500, 1500), TextSize(300, 3, 1000, 1500)), 500),
    Size.PAPER: ContestSize((TextSize(1000, 1, 25_000, 25_000),), 5000),
}


def windows(*widths: int) -> Layer:
    """Windows of neighbouring positions with ReLU; of several widths side by side."""
    filters = (Conv(WIDTH, width, w_std=math.sqrt(2), b_std=0.1) for width in widths)
    return Concat(*(Serial(each, Relu()) for each in filters))


def trunks(starts: Mapping[str, Layer]) -> list[Trunk]:
    """Each start on word vectors of one length and as they are."""
    views = (sources.UNIT, sources.PLAIN)
    return [Trunk(label, view, start) for label, start in starts.items() for view in views]


def attention(scores: float, rate: float | None = None) -> Attention:
    """Words look at words like themselves; with a rate, at those near them."""
    positions = None
    if rate is not None:
        positions = Decay(rate, strength=math.sqrt(0.5), combine=Combine.MIX)
    return Attention(WIDTH, scaling=Scaling.LINEAR, qk_std=scores, positions=positions)


PUBLISHED = (
    "Of the published protocol is known: kernels with and without attention on the IMDb reviews, "
    "of any length (abstract of “Infinite attention”). Word vectors, networks, settings and "
    "comparisons are this study's own."
)
BASELINES = tuple(sources.mean_of(view) for view in (sources.UNIT, sources.PLAIN))
POOLED, CNN = "pooled embeddings", "CNN"
ATTENTION, ENCODED = "attention", "attention with encodings"


def groups() -> list[FamilyGroup]:
    """The kernels of the comparison: two starts, two views and four readouts each.

    Attention with flat scores (a small `qk_std`) is the mean: its grid contains what it is
    compared with.
    """
    no_layer, words = {"no layer": Serial()}, {"words": windows(1)}
    three, mixed = {"window 3": windows(3)}, {"windows 1 and 3": windows(1, 3)}
    means = {f"{depth} hidden": Serial(MeanPool(), hidden(depth)) for depth in (1, 2, 3, 4)}

    def read(layer: Attention) -> Serial:
        return Serial(layer, MeanPool(), hidden(1))

    alone = {f"scores {s:g}": read(attention(s)) for s in (0.25, 1.0, 4.0, 16.0)}
    encoded = {
        f"scores {s:g}, rate {r:g}": read(attention(s, r)) for s in (1.0, 16.0) for r in (0.1, 1.0)
    }
    return [
        FamilyGroup(trunks(no_layer | words), {POOLED: means}),
        FamilyGroup(trunks(three | mixed), {CNN: means}),
        FamilyGroup(trunks(words | mixed), {ATTENTION: alone, ENCODED: encoded}),
    ]


CLAIMS = (
    Claim(CNN, POOLED),
    Claim(ATTENTION, POOLED),
    Claim(ATTENTION, CNN),
    Claim(ENCODED, POOLED),
    Claim(ENCODED, CNN),
    Claim(ENCODED, ATTENTION),
)
"""Questions of ours."""


def arena(load: Load, title: str, size: Size, part: TextSize, out: Path) -> Arena:
    """The texts at one length."""
    (texts, real), vectors = load(size), sources.glove(size)
    views = sources.text_views(
        texts,
        vectors,
        length=part.length,
        phrase=part.phrase,
        keep=Keep.LAST,
        train=part.train,
        test=part.test,
    )
    title = title if real else "sample sentences"
    return Arena(f"{title}, {part.length} words", views, KeptKernels(out.parent / "kernels"))


STUDY = contest(
    "imdb",
    "Film reviews",
    "IMDb with GloVe: pooled embeddings, CNN, attention with and without encodings.",
    groups=groups,
    scales=SCALES,
    arena=partial(arena, sources.imdb, "IMDb"),
    baselines=BASELINES,
    claims=CLAIMS,
    published=PUBLISHED,
)
