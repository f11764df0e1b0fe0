"""CIFAR-10: convolutional kernels whose positions are flattened, pooled or attended.

All networks share a trunk – convolution with ReLU, pooling over 2×2, convolution with ReLU – and
differ in what happens to the positions at its end. At 16×16 a position is a patch of 2×2 pixels,
for every kernel alike. Attention is softmax at 1/d, where scores are deterministic and kernels
exact:

- attention: decaying encodings are added to the input, for scores and values;
- structured attention: `κ̃ = (1−σ²)κ + σ²R` for the scores alone;
- residual attention: `ακ + (1−α)·attention`, with structured scores.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...layers.activations import Relu
from ...layers.attention.layer import Attention
from ...layers.attention.positional import Combine, Decay
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.branches import Residual
from ...layers.compose import Repeat, Serial
from ...layers.conv import Conv
from ...layers.dense import Dense
from ...layers.pool import Flatten, MeanPool
from . import sources
from .comparison import Arena, Claim, ContestSize, Families, FamilyGroup, Trunk, contest
from .kept_kernels import KeptKernels
from .study import Size

WIDTH = 128
PUBLISHED = (
    "Of the published protocol is known: Gaussian processes “without trainable kernels and "
    "advanced data preprocessing” (abstract of “Infinite attention”), and no augmentation. Here "
    "images are standardised or whitened, whichever validates better; networks, settings and "
    "ridges are this study's own, chosen by leave-one-out accuracy on training images."
)


class ImageSize(NamedTuple):
    """One resolution: pixels a side, training and test images, pixels a side of a patch."""

    side: int
    train: int
    test: int
    patch: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return (self.side // self.patch,) * 2 + (3 * self.patch**2,)


SCALES = {
    Size.SMALL: ContestSize((ImageSize(8, 200, 400),), 200),
    Size.LARGE: ContestSize((ImageSize(8, 4000, 1000), ImageSize(16, 2000, 1000, patch=2)), 500),
    Size.PAPER: ContestSize((ImageSize(32, 50_000, 10_000),), 5000),
}


def trunks() -> list[Trunk]:
    """Two convolutions with ReLU and 2×2 pooling between, on whitened or standardised images."""
    first, second = (Conv(WIDTH, 3, w_std=math.sqrt(2), b_std=0.1) for _ in range(2))
    layers = Serial(first, Relu(), MeanPool(2), second, Relu())
    return [Trunk("2 convolutions", view, layers) for view in (sources.WHITE, sources.STANDARD)]


def hidden(depth: int) -> Serial:
    """Hidden layers and the output, after positions are gone."""
    layer = Serial(Dense(WIDTH, w_std=math.sqrt(2), b_std=0.1), Relu())
    return Serial(Repeat(layer, depth), Dense(1)) if depth else Serial(Dense(1))


def added(rate: float, scores: float) -> Attention:
    """Encodings added to the input of the attention layer."""
    return Attention(
        WIDTH, scaling=Scaling.LINEAR, qk_std=scores, positions=Decay(rate, on_values=True)
    )


def structured(rate: float, scores: float, width: int = WIDTH) -> Attention:
    """Encodings say where to look, and are no part of what is seen."""
    positions = Decay(rate, strength=math.sqrt(0.9), combine=Combine.MIX)
    return Attention(width, scaling=Scaling.LINEAR, qk_std=scores, positions=positions)


def residual(rate: float, scores: float) -> Layer:
    """Half of the signal passes by the attention layer."""
    return Residual(structured(rate, scores), weight=0.5)


def families() -> Families:
    """Every kernel of the table, each with four settings."""

    def plain(pool: Layer) -> dict[str, Layer]:
        return {f"{depth} hidden": Serial(pool, hidden(depth)) for depth in (0, 1, 2, 3)}

    def attended(make: Callable[[float, float], Layer]) -> dict[str, Layer]:
        return {
            f"rate {rate:g}, scores {scores:g}, {ending}": Serial(
                make(rate, scores), pool, Dense(1)
            )
            for rate, scores in ((0.5, 4.0), (0.2, 16.0))
            for ending, pool in (("flattened", Flatten()), ("pooled", MeanPool()))
        }

    local = {
        f"window {window}, {depth} hidden": Serial(
            MeanPool(window, stride=1), Flatten(), hidden(depth)
        )
        for window in (2, 3)
        for depth in (0, 1)
    }
    return {
        "flatten": plain(Flatten()),
        "global pooling": plain(MeanPool()),
        "local pooling": local,
        "attention": attended(added),
        "structured attention": attended(structured),
        "residual attention": attended(residual),
    }


# Of "Infinite attention" its abstract is at hand: modified attention improves the results, and
# attention kernels improve moderately on what was best without trainable kernels. That the latter
# is pooling, and the former structured or residual attention, is how this study reads it.
CLAIMS = (
    Claim("global pooling", "flatten"),
    Claim("attention", "global pooling"),
    Claim("structured attention", "global pooling", published=True),
    Claim("structured attention", "local pooling"),
    Claim("structured attention", "attention", published=True),
    Claim("residual attention", "structured attention"),
    Claim("residual attention", "global pooling", published=True),
)


def arena(size: Size, part: ImageSize, out: Path) -> Arena:
    """The images of one resolution."""
    data, name = sources.images(size, side=part.side, train=part.train, test=part.test)
    views = sources.image_views(data)
    views = {view: one.map(lambda x: patches(x, part.patch)) for view, one in views.items()}
    return Arena(name, views, KeptKernels(out.parent / "kernels"))


def patches(x: np.ndarray, size: int) -> np.ndarray:
    """Images (N, height, width, channels) with size×size pixels as the channels of a position."""
    count, height, width, channels = x.shape
    cut = x.reshape(count, height // size, size, width // size, size, channels)
    return cut.swapaxes(2, 3).reshape(count, height // size, width // size, -1)


STUDY = contest(
    "cifar10",
    "CIFAR-10 kernels",
    "Flattened, pooled and attended positions, NNGP and NTK, tuned with the same effort.",
    groups=lambda: [FamilyGroup(trunks(), families())],
    scales=SCALES,
    arena=arena,
    baselines=(sources.WHITE, sources.STANDARD),
    claims=CLAIMS,
    published=PUBLISHED,
)
