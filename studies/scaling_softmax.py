"""Standard softmax attention, 1/√d with infinitely many heads, against 1/d attention, on sentences.

At 1/d the scores are deterministic; at 1/√d they stay random and the kernel is an average over
heads, which has no closed form and is sampled. Both act on word vectors directly and are followed
by the mean over words and one hidden layer. Which of the two classifies better has not been
published.
"""

from pathlib import Path
from typing import Any, NamedTuple

from widelimit.app.studies import results, sources
from widelimit.app.studies.cifar10 import WIDTH, hidden
from widelimit.app.studies.comparison import Arena, Claim, FamilyGroup, KernelFamily, Trunk, contest
from widelimit.app.studies.kept_kernels import KeptKernels
from widelimit.app.studies.study import Size, Study
from widelimit.layers.attention.layer import Attention
from widelimit.layers.attention.scores import Scaling
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.pool import MeanPool
from widelimit.progress import Callback

RANDOM, FIXED, MEAN = "softmax at 1/√d, infinite heads", "softmax at 1/d", "mean of words"


class SentenceSize(NamedTuple):
    """Words of a sentence, training and test sentences, tuning ones, heads in each of 8 copies."""

    length: int
    train: int
    test: int
    tuned_on: int
    heads: int


SCALES = {
    Size.SMALL: SentenceSize(8, 80, 120, 40, 2),
    Size.LARGE: SentenceSize(16, 600, 1000, 150, 4),
}


def families() -> list[KernelFamily]:
    """Attention on word vectors with both scalings, and no attention; two settings each."""

    def read(*layers: Layer) -> Layer:
        return Serial(*layers, MeanPool(), hidden(1))

    def attended(scaling: Scaling) -> dict[str, Layer]:
        return {
            f"scores {scores:g}": read(Attention(WIDTH, scaling=scaling, qk_std=scores))
            for scores in (1.0, 4.0)
        }

    return [
        KernelFamily(MEAN, {f"{d} hidden": Serial(MeanPool(), hidden(d)) for d in (1, 2)}),
        KernelFamily(FIXED, attended(Scaling.LINEAR)),
        KernelFamily(RANDOM, attended(Scaling.SQRT)),
    ]


CLAIMS = (
    Claim("1/√d softmax beats 1/d softmax", RANDOM, FIXED),
    Claim("1/√d softmax beats the mean of word vectors", RANDOM, MEAN),
    Claim("1/d softmax beats the mean of word vectors", FIXED, MEAN),
)


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `scaling_softmax.csv`, `.json` and `.png` into `out`, kernels beside it."""
    scale = SCALES[Size(size).at_most_large]
    texts, real = sources.rt_polarity(Size(size))
    views = sources.text_views(
        texts,
        sources.glove(Size(size)),
        length=scale.length,
        train=scale.train,
        test=scale.test,
    )
    title = f"{'rt-polarity' if real else 'sample sentences'}, {scale.length} words"
    return contest(
        "scaling_softmax",
        [FamilyGroup([Trunk("no layer", sources.UNIT, Serial())], families())],
        [Arena(title, views, KeptKernels.beside(out), heads=scale.heads)],
        tuned_on=scale.tuned_on,
        baselines=[sources.mean_of(sources.UNIT)],
        claims=CLAIMS,
        out=out,
        progress=progress,
    )


STUDY = Study(
    "scaling-softmax",
    "Softmax at 1/√d against softmax at 1/d",
    "Infinitely many heads with random scores against deterministic scores, on sentences.",
    run,
    {"scaling_softmax": results.CAPTION},
    results.conclude,
    tables=results.tables,
)
