"""Film reviews (IMDb) and sentences (rt-polarity) as sequences of GloVe vectors, of any length.

- pooled embeddings: the mean vector, then a fully connected network;
- CNN: convolution over neighbouring positions with ReLU, then the mean over positions;
- attention: the same with an attention layer before the mean, softmax at 1/d, without encodings or
  with encodings that decay with the distance between positions.

A position is a word, or for long reviews the mean of a few neighbouring words, for every kernel
alike. Padding never counts.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from widelimit.data import Labelled
from widelimit.experiments import sources
from widelimit.experiments.calibration import Step, cost_of
from widelimit.experiments.cifar10 import WIDTH, hidden
from widelimit.experiments.comparison import Arena, Claim, Family, Group, Trunk, contest
from widelimit.experiments.kept_kernels import KeptKernels, entries
from widelimit.experiments.readouts import Readouts
from widelimit.experiments.study import Progress, Size
from widelimit.layers.activations import Relu
from widelimit.layers.attention import Attention
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.conv import Conv
from widelimit.layers.pool import MeanPool
from widelimit.layers.positional import Combine, Decay
from widelimit.layers.scores import Scaling


class Part(NamedTuple):
    """Texts cut to `length` words, `phrase` of them at a position, and how many texts."""

    length: int
    phrase: int
    train: int
    test: int


class Scale(NamedTuple):
    """The parts of a run, and the training texts that tune. Settings hold for all parts."""

    parts: tuple[Part, ...]
    tuned_on: int


IMDB_SCALES = {
    Size.SMALL: Scale((Part(48, 3, 300, 400),), 300),
    Size.LARGE: Scale((Part(100, 1, 4000, 2500), Part(300, 4, 2000, 1000)), 500),
    Size.PAPER: Scale((Part(1000, 1, 25_000, 25_000),), 5000),
}
RT_SCALES = {
    Size.SMALL: Scale((Part(24, 1, 300, 400),), 300),
    Size.LARGE: Scale((Part(32, 1, 3000, 1000),), 500),
    Size.PAPER: Scale((Part(50, 1, 9000, 1662),), 2000),
}


def words(window: int) -> Serial:
    """Windows of neighbouring positions with ReLU."""
    return Serial(Conv(WIDTH, window, w_std=math.sqrt(2), b_std=0.1), Relu())


def trunks() -> list[Trunk]:
    """Single positions or windows of three, of word vectors as they are or of one length."""
    return [
        Trunk(f"window {window}", view, words(window))
        for window in (1, 3)
        for view in (sources.UNIT, sources.PLAIN)
    ]


def attention(scores: float, rate: float | None = None) -> Attention:
    """Words look at words like themselves; with a rate, at those near them."""
    positions = None
    if rate is not None:
        positions = Decay(rate, strength=math.sqrt(0.5), combine=Combine.MIX)
    return Attention(WIDTH, scaling=Scaling.LINEAR, qk_std=scores, positions=positions)


def families() -> list[Family]:
    """What is done with the positions at the end of a trunk; two settings each."""

    def read(*layers: Layer) -> Layer:
        return Serial(*layers, MeanPool(), hidden(1))

    return [
        Family("CNN", {f"{d} hidden": Serial(MeanPool(), hidden(d)) for d in (1, 2)}),
        Family("attention", {f"scores {s:g}": read(attention(s)) for s in (4.0, 16.0)}),
        Family(
            "attention with encodings",
            {f"scores 16, rate {rate:g}": read(attention(16.0, rate)) for rate in (0.1, 1.0)},
        ),
    ]


POOLED = "pooled embeddings"


def pooled() -> Group:
    """Networks of the mean vector alone."""
    views = (sources.mean_of(view) for view in (sources.UNIT, sources.PLAIN))
    starts = [Trunk("no layer", view, Serial()) for view in views]
    depths = {f"{depth} hidden": hidden(depth) for depth in (1, 2, 4, 8)}
    return Group(starts, [Family(POOLED, depths)])


CLAIMS = (
    Claim("CNN kernels beat pooled embeddings", "CNN", POOLED),
    Claim("attention kernels beat pooled embeddings", "attention", POOLED),
    Claim("attention beats the CNN", "attention", "CNN"),
    Claim("attention with encodings beats the CNN", "attention with encodings", "CNN"),
    Claim("encodings help attention", "attention with encodings", "attention"),
)


def claims() -> list[Claim]:
    """What is published, and that every kernel beats ridge regression on the mean vectors."""
    ridges = [f"ridge, {sources.mean_of(view)}" for view in (sources.UNIT, sources.PLAIN)]
    names = [POOLED, *(family.name for family in families())]
    return [*CLAIMS, *(Claim(f"{n} beats {r}", n, r) for n in names for r in ridges)]


def arena(name: str, size: Size, part: Part, out: Path) -> Arena:
    """The texts at one length."""
    load, title = {
        "imdb": (sources.imdb, "IMDb"),
        "rt-polarity": (sources.rt_polarity, "rt-polarity"),
    }[name]
    (texts, real), vectors = load(size), sources.glove(size)
    views = sources.text_views(
        texts,
        vectors,
        length=part.length,
        phrase=part.phrase,
        train=part.train,
        test=part.test,
    )
    title = title if real else "sample sentences"
    return Arena(f"{title}, {part.length} words", views, KeptKernels.beside(out))


def run(
    name: str,
    scales: Mapping[Size, Scale],
    size: Size,
    out: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write table, claims and figure into `out`, kernels beside it."""
    scale = scales[Size(size)]
    return contest(
        name.replace("-", "_"),
        [pooled(), Group(trunks(), families())],
        [arena(name, Size(size), part, out) for part in scale.parts],
        tuned_on=scale.tuned_on,
        baselines=[sources.mean_of(view) for view in (sources.UNIT, sources.PLAIN)],
        claims=claims(),
        out=out,
        progress=progress,
    )


def cost(name: str, scales: Mapping[Size, Scale], size: Size) -> str:
    """How long a run takes, from a short calibration."""
    scale, steps = scales[Size(size)], []
    for part in scale.parts:
        positions = -(-part.length // part.phrase)
        x = np.random.default_rng(0).normal(size=(16, positions, 100)).astype(np.float32)
        layers = [next(iter(family.readouts.values())) for family in families()]
        net = Serial(words(3), Readouts(*layers))
        like = Labelled(x, np.zeros(16, np.int64), ())
        work = entries(part.train, part.test)
        steps.append(Step(f"all kernels at {part.length} words", net, like, work))
    return cost_of(f"{name} at size {size}", steps)


run_imdb = partial(run, "imdb", IMDB_SCALES)
cost_imdb = partial(cost, "imdb", IMDB_SCALES)
run_rt_polarity = partial(run, "rt-polarity", RT_SCALES)
cost_rt_polarity = partial(cost, "rt-polarity", RT_SCALES)
