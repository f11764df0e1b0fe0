"""Modified attention in trained networks, beside the kernels of the same networks.

The abstract of "Infinite attention" says that its modifications of attention improve finite
networks too. Here one network for images and one for sentences – a layer with ReLU, attention,
the mean over positions – is trained without attention, with plain softmax attention, and with one
modification at a time: identity scores; encodings of positions, added for scores alone or for
values too; structured encodings; half of the signal passing by. All have the same width, steps,
starts and learning rates to choose from (on a held-out fifth of the training examples).
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...finite.widths import with_heads
from ...layers.activations import Relu
from ...layers.attention.layer import Attention
from ...layers.attention.positional import Decay
from ...layers.attention.scores import IdentityMap, Scaling
from ...layers.base import Layer
from ...layers.branches import Residual
from ...layers.compose import Serial
from ...layers.conv import Conv
from ...layers.dense import Dense
from ...layers.pool import MeanPool
from ...progress import Callback
from . import cifar10, film_texts, results, sources
from .comparison import KINDS, Arena, Claim, Selection, Trunk
from .study import Size, Study, tracked
from .training import HEADS, TrainingSize, best_trained

SCALES = {
    Size.SMALL: TrainingSize(120, 200, 16, 100, 2),
    Size.LARGE: TrainingSize(1000, 2000, 64, 1000, 5),
}
WORDS = 24
"""The last words of a sentence that are read."""
PLAIN, WITHOUT, TRAINED = "softmax", "no attention", "trained"
_RATE, _SCORES = 0.5, 4.0


def attentions(width: int) -> dict[str, Layer]:
    """What stands between the first layer and the mean over positions, by name."""

    def softmax(positions: Decay | None = None) -> Attention:
        return Attention(width, scaling=Scaling.LINEAR, qk_std=_SCORES, positions=positions)

    structured = cifar10.structured(_RATE, _SCORES, width)
    identity = Attention(width, scaling=Scaling.LINEAR, score_map=IdentityMap())
    return {
        WITHOUT: Serial(),
        PLAIN: softmax(),
        "identity scores": identity,
        "encodings on scores": softmax(Decay(_RATE)),
        "encodings on scores and values": softmax(Decay(_RATE, on_values=True)),
        "structured encodings": structured,
        "structured, half passes by": Residual(structured, weight=0.5),
    }


CLAIMS = (
    *(Claim(name, PLAIN) for name in list(attentions(1))[2:]),
    Claim("encodings on scores and values", "encodings on scores"),
    Claim(PLAIN, WITHOUT),
)


def trunks(width: int) -> tuple[Trunk, Trunk]:
    """What all variants share, for images and for texts: filters over neighbours, with ReLU."""

    def filters(window: int, *pool: Layer) -> Serial:
        return Serial(Conv(width, window, w_std=math.sqrt(2), b_std=0.1), Relu(), *pool)

    images = Trunk("convolution", sources.WHITE, filters(3, MeanPool(2)))
    return images, Trunk("words", sources.UNIT, filters(1))


def arenas(size: Size, out: Path) -> tuple[Arena, Arena]:
    """Images of 8×8 pixels, and sentences about films."""
    train, test = SCALES[size.at_most_large][:2]
    texts = film_texts.TextSize(WORDS, 1, train, test)
    return (
        cifar10.arena(size, cifar10.ImageSize(8, train, test), out),
        film_texts.arena(sources.rt_polarity, "rt-polarity", size, texts, out),
    )


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `modified.csv`, `.json` and `.png` into `out`, kernels beside it."""
    scale = SCALES[size.at_most_large]
    places = arenas(size, out)
    variants = attentions(scale.width)
    shown = f"width {scale.width}, {scale.starts} starts, learning rate "
    result: dict[str, Any] = {}
    parts = zip(places, trunks(scale.width), strict=True)
    for (place, trunk), name in tracked(
        [(part, name) for part in parts for name in variants], progress
    ):
        if not place.rows:  # all variants at infinite width, which share the first layer
            readouts = {n: Serial(one, MeanPool(), Dense(1)) for n, one in variants.items()}
            families = {n: {"fixed": readout} for n, readout in readouts.items()}
            place.test(Selection(trunk, dict.fromkeys(families, "fixed")), families)
        data = place.views[trunk.view]
        net = Serial(trunk.network, variants[name], MeanPool(), Dense(len(np.unique(data.y_train))))
        found = best_trained(with_heads(net, HEADS), data, scale)
        place.add(name, TRAINED, found, f"{shown}{found.validated.ridge:g}")
        result = {
            "rows": [line for there in places for line in there.rows],
            "claims": [
                claim
                for there in places
                for kinds, what in (((TRAINED,), ", trained networks"), (KINDS, ", kernels"))
                for claim in there.check(CLAIMS, kinds, what)
            ],
        }
        results.write("modified", out, result)
    return result


STUDY = Study(
    "modified-attention",
    "Modified attention in trained networks",
    "Score maps, encodings and residual weight, one at a time, trained and as kernels.",
    run,
    {"modified": results.CAPTION},
    results.conclude,
    results.tables,
)
