"""Standard softmax attention, 1/√d with infinitely many heads, against 1/d attention, on sentences.

At 1/d the scores are deterministic; at 1/√d they stay random and the kernel is an average over
heads, which has no closed form and is sampled. Both act on word vectors directly and are followed
by the mean over words and one hidden layer. Which of the two classifies better has not been
published.
"""

from pathlib import Path
from typing import NamedTuple

from widelimit.app.studies import sources
from widelimit.app.studies.cifar10 import WIDTH, hidden
from widelimit.app.studies.comparison import (
    Arena,
    Claim,
    ContestSize,
    Families,
    FamilyGroup,
    Trunk,
    contest,
)
from widelimit.app.studies.kept_kernels import KeptKernels
from widelimit.app.studies.study import Size
from widelimit.layers.attention.layer import Attention
from widelimit.layers.attention.scores import Scaling
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.pool import MeanPool

RANDOM, FIXED, MEAN = "softmax at 1/√d, infinite heads", "softmax at 1/d", "mean of words"


class SentenceSize(NamedTuple):
    """Words of a sentence, training and test sentences, heads in each of 8 copies."""

    length: int
    train: int
    test: int
    heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example, at most."""
        return self.length, 100


SCALES = {
    Size.SMALL: ContestSize((SentenceSize(8, 80, 120, 2),), 40),
    Size.LARGE: ContestSize((SentenceSize(16, 600, 1000, 4),), 150),
}


def families() -> Families:
    """Attention on word vectors with both scalings, and no attention; two settings each."""

    def read(*layers: Layer) -> Layer:
        return Serial(*layers, MeanPool(), hidden(1))

    def attended(scaling: Scaling) -> dict[str, Layer]:
        return {
            f"scores {scores:g}": read(Attention(WIDTH, scaling=scaling, qk_std=scores))
            for scores in (1.0, 4.0)
        }

    return {
        MEAN: {f"{d} hidden": Serial(MeanPool(), hidden(d)) for d in (1, 2)},
        FIXED: attended(Scaling.LINEAR),
        RANDOM: attended(Scaling.SQRT),
    }


def arena(size: Size, part: SentenceSize, out: Path) -> Arena:
    """The sentences, at one length."""
    texts, real = sources.rt_polarity(size)
    views = sources.text_views(
        texts, sources.glove(size), length=part.length, train=part.train, test=part.test
    )
    title = f"{'rt-polarity' if real else 'sample sentences'}, {part.length} words"
    return Arena(title, views, KeptKernels(out.parent / "kernels"), heads=part.heads)


STUDY = contest(
    "scaling-softmax",
    "Softmax at 1/√d against softmax at 1/d",
    "Infinitely many heads with random scores against deterministic scores, on sentences.",
    groups=lambda: [FamilyGroup([Trunk("no layer", sources.UNIT, Serial())], families())],
    scales=SCALES,
    arena=arena,
    baselines=[sources.mean_of(sources.UNIT)],
    claims=(Claim(RANDOM, FIXED), Claim(RANDOM, MEAN), Claim(FIXED, MEAN)),
)
