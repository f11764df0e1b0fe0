"""What each part of an attention kernel is worth on CIFAR-10: depth, LayerNorm, score map, places.

One network – convolutions, attention with structured encodings, pooling – and the same with one
part changed. Nothing is tuned except the ridge; all variants see the same whitened images. (ReLU in
place of identity scores changes nothing here: after a ReLU all covariances are positive.)
"""

import math

from widelimit.app.studies import cifar10, sources
from widelimit.app.studies.comparison import Claim, ContestSize, FamilyGroup, Trunk, contest
from widelimit.app.studies.study import Size
from widelimit.layers.activations import Relu
from widelimit.layers.attention.layer import Attention
from widelimit.layers.attention.positional import Combine, Decay
from widelimit.layers.attention.scores import IdentityMap, Scaling, ScoreMap, Softmax
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.conv import Conv
from widelimit.layers.dense import Dense
from widelimit.layers.norm import LayerNorm
from widelimit.layers.pool import MeanPool

SCALES = {
    Size.SMALL: ContestSize((cifar10.ImageSize(8, 160, 300),), 160),
    Size.LARGE: ContestSize((cifar10.ImageSize(8, 1000, 1000),), 1000),
}
_STRUCTURED = Decay(0.5, strength=math.sqrt(0.9), combine=Combine.MIX)
BASE = "base: depth 2, softmax, structured"


def trunk(depth: int = 2, *, norm: bool = False) -> Serial:
    """Convolutions, 2×2 pooling after the first; with layer normalisation before every ReLU."""
    layers: list[Layer] = []
    for level in range(depth):
        layers.append(Conv(cifar10.WIDTH, 3, w_std=math.sqrt(2), b_std=0.1))
        layers += [LayerNorm(), Relu()] if norm else [Relu()]
        layers += [MeanPool(2)] if level == 0 else []
    return Serial(*layers)


def readout(
    *,
    score_map: ScoreMap | None = None,
    scores: float = 4.0,
    positions: Decay | None = _STRUCTURED,
) -> Layer:
    """Attention, then the mean over positions."""
    mixed = Attention(
        cifar10.WIDTH,
        scaling=Scaling.LINEAR,
        score_map=score_map or Softmax(),
        qk_std=scores,
        positions=positions,
    )
    return Serial(mixed, MeanPool(), Dense(1))


def groups() -> list[FamilyGroup]:
    """Variants of the trunk, each on its own; variants of the readout, computed together."""

    def on(label: str, layers: Layer, readouts: dict[str, Layer]) -> FamilyGroup:
        families = {name: {"fixed": layer} for name, layer in readouts.items()}
        return FamilyGroup([Trunk(label, sources.WHITE, layers)], families)

    attended = {
        BASE: readout(),
        "identity scores": readout(score_map=IdentityMap()),
        "flat scores": readout(scores=0.5),
        "no encodings": readout(positions=None),
        "added encodings": readout(positions=Decay(0.5, on_values=True)),
    }
    return [
        on("2 convolutions", trunk(), attended),
        on("1 convolution", trunk(1), {"depth 1": readout()}),
        on("3 convolutions", trunk(3), {"depth 3": readout()}),
        on("5 convolutions", trunk(5), {"depth 5": readout()}),
        on("2 normalised convolutions", trunk(norm=True), {"LayerNorm": readout()}),
    ]


CLAIMS = (
    Claim("LayerNorm", BASE),
    Claim("identity scores", BASE),
    Claim(BASE, "no encodings"),
    Claim(BASE, "added encodings"),
    Claim("depth 3", BASE),
    Claim(BASE, "depth 1"),
)
STUDY = contest(
    "ablations",
    "Depth, LayerNorm, score maps and encodings",
    "What each part of an attention kernel is worth in accuracy on CIFAR-10.",
    groups=groups,
    scales=SCALES,
    arena=cifar10.arena,
    baselines=[sources.WHITE],
    claims=CLAIMS,
)
