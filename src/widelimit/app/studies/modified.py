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

from ...data import Keep
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
from . import cifar10, results, sources
from .comparison import KINDS, Arena, Claim, KernelFamily, Selection, Trunk
from .kept_kernels import KeptKernels
from .study import Result, Size, Study, tracked
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
    *(Claim(f"{name} instead of plain softmax", name, PLAIN) for name in list(attentions(1))[2:]),
    Claim("encodings on values too", "encodings on scores and values", "encodings on scores"),
    Claim("softmax attention instead of none", PLAIN, WITHOUT),
)


def first_layer(window: int, pool: Layer, width: int) -> Serial:
    """Filters over neighbouring positions, with ReLU."""
    return Serial(Conv(width, window, w_std=math.sqrt(2), b_std=0.1), Relu(), pool)


def trunks(width: int) -> dict[str, Trunk]:
    """What all variants share, for images and for texts."""
    return {
        "images": Trunk("convolution", sources.WHITE, first_layer(3, MeanPool(2), width)),
        "texts": Trunk("words", sources.UNIT, first_layer(1, Serial(), width)),
    }


def arenas(size: Size, out: Path) -> dict[str, Arena]:
    """Images of 8×8 pixels, and sentences about films."""
    scale, kept = SCALES[size.at_most_large], KeptKernels.beside(out)
    data, name = sources.images(size, side=8, train=scale.train, test=scale.test)
    texts, real = sources.rt_polarity(size)
    views = sources.text_views(
        texts,
        sources.glove(size),
        length=WORDS,
        keep=Keep.LAST,
        train=scale.train,
        test=scale.test,
    )
    title = "rt-polarity" if real else "sample sentences"
    return {
        "images": Arena(name, sources.image_views(data), kept),
        "texts": Arena(f"{title}, {WORDS} words", views, kept),
    }


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `modified.csv`, `.json` and `.png` into `out`, kernels beside it."""
    scale = SCALES[Size(size).at_most_large]
    places, names = arenas(Size(size), out), list(attentions(1))
    shown = f"width {scale.width}, {scale.starts} starts, learning rate "
    result: dict[str, Any] = {}
    for part, name in tracked([(part, name) for part in places for name in names], progress):
        place, trunk = places[part], trunks(scale.width)[part]
        if not place.rows:
            _kernels(place, trunk, scale.width)
        data = place.views[trunk.view]
        outputs = len(np.unique(data.y_train))
        layer = attentions(scale.width)[name]
        net = Serial(trunk.network, layer, MeanPool(), Dense(outputs))
        found = best_trained(with_heads(net, HEADS), data, scale)
        place.add(name, TRAINED, found, f"{shown}{found.validated.ridge:g}")
        result = {
            "rows": [line for there in places.values() for line in there.rows],
            "claims": [
                claim
                for there in places.values()
                for kinds, what in (((TRAINED,), ", trained networks"), (KINDS, ", kernels"))
                for claim in there.check(CLAIMS, kinds, what)
            ],
        }
        results.write("modified", out, result)
    return result


def _kernels(place: Arena, trunk: Trunk, width: int) -> None:
    """All variants at infinite width, which share the first layer."""
    families = [
        KernelFamily(name, {"fixed": Serial(layer, MeanPool(), Dense(1))})
        for name, layer in attentions(width).items()
    ]
    place.test(Selection(trunk, {family.name: "fixed" for family in families}), families)


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    claims = [claim for claim in result["claims"] if claim["second"] == "softmax"]
    said = []
    for data in dict.fromkeys(claim["data"] for claim in claims):
        here = [claim for claim in claims if claim["data"] == data]
        better = [claim["first"] for claim in here if claim["low"] > 0]
        worse = [claim["first"] for claim in here if claim["high"] < 0]
        said.append(
            f"{data}: of {len(here)} modifications {len(better)} are clearly better than plain "
            f"softmax ({', '.join(better) or 'none'}), {len(worse)} clearly worse "
            f"({', '.join(worse) or 'none'})."
        )
    return [*said, *results.conclude(result)]


STUDY = Study(
    "modified-attention",
    "Modified attention in trained networks",
    "Score maps, encodings and residual weight, one at a time, trained and as kernels.",
    run,
    {"modified": results.CAPTION},
    conclude,
    results.tables,
)
