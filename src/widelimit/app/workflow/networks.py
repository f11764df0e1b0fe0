"""Networks with sensible settings for every kind of data, by name."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import WidelimitError
from ...layers.activations import Relu
from ...layers.attention.heads import INFINITE
from ...layers.attention.layer import Attention
from ...layers.attention.positional import Decay
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.blocks import Norm, TransformerBlock
from ...layers.branches import Residual
from ...layers.compose import Repeat, Serial
from ...layers.conv import Conv
from ...layers.dense import Dense
from ...layers.norm import LayerNorm
from ...layers.pool import Flatten, MeanPool
from .kinds import Kind

WIDTH = 256  # of finite networks drawn from these descriptions; kernels do not depend on it
_GAIN = 2**0.5  # keeps the variance of a signal through ReLU


class NetworkName(enum.StrEnum):
    """Networks by name; which of them fit depends on the kind of data."""

    LINEAR = "linear"
    FCN = "fcn"
    MEAN = "mean"
    CNN = "cnn"
    ATTENTION = "attention"
    SOFTMAX = "softmax"
    TRANSFORMER = "transformer"


@dataclass(frozen=True)
class _Recipe:
    """How a network is built, its usual depth, and what it is in one line."""

    build: Callable[[int], Layer]
    depth: int
    summary: str


def _hidden(depth: int) -> tuple[Layer, ...]:
    return Repeat(Serial(Dense(WIDTH, w_std=_GAIN, b_std=0.1), Relu()), depth).layers


def _linear_attention(*, rate: float) -> Attention:
    """Scores become deterministic: exact kernels, and weights one can look at."""
    places = Decay(rate=rate, strength=0.5)
    return Attention(WIDTH, scaling=Scaling.LINEAR, positions=places, qk_std=2.0)


def _softmax_attention(*, rate: float) -> Attention:
    """Standard attention with infinitely many heads: heads are sampled."""
    return Attention(WIDTH, heads=INFINITE, positions=Decay(rate=rate, strength=0.5))


_TABLE = {
    NetworkName.LINEAR: _Recipe(lambda depth: Dense(1, b_std=0.1), 1, "a linear map"),
    NetworkName.FCN: _Recipe(
        lambda depth: Serial(*_hidden(depth), Dense(1)), 2, "fully connected ReLU layers"
    ),
}


def _word_attention(attention: Attention, depth: int) -> Layer:
    """Normalised words, attention beside the words themselves, ReLU, average, a hidden layer."""
    return Serial(
        LayerNorm(),
        Dense(WIDTH),
        *Repeat(Residual(attention, 0.8), depth).layers,
        Relu(),
        MeanPool(),
        *_hidden(1),
        Dense(1),
    )


_SEQUENCE = {
    NetworkName.LINEAR: _Recipe(
        lambda depth: Serial(MeanPool(), Dense(1, b_std=0.1)), 1, "a linear map of the average"
    ),
    NetworkName.MEAN: _Recipe(
        lambda depth: Serial(LayerNorm(), MeanPool(), *_hidden(depth), Dense(1)),
        1,
        "the average over positions, then fully connected ReLU layers",
    ),
    NetworkName.CNN: _Recipe(
        lambda depth: Serial(
            LayerNorm(),
            *Repeat(Serial(Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1), Relu()), depth).layers,
            MeanPool(),
            Dense(1),
        ),
        1,
        "convolutions over three neighbours, ReLU, average",
    ),
    NetworkName.ATTENTION: _Recipe(
        lambda depth: _word_attention(_linear_attention(rate=0.1), depth),
        1,
        "residual attention at 1/d with decaying positions, ReLU, average, ReLU layer",
    ),
    NetworkName.SOFTMAX: _Recipe(
        lambda depth: _word_attention(_softmax_attention(rate=0.1), depth),
        1,
        "residual standard softmax attention (sampled heads), ReLU, average, ReLU layer",
    ),
    NetworkName.TRANSFORMER: _Recipe(
        lambda depth: Serial(
            Dense(WIDTH),
            *Repeat(
                TransformerBlock(
                    WIDTH, norm=Norm.PRE, residual=0.8, attention=_linear_attention(rate=0.1)
                ),
                depth,
            ).layers,
            LayerNorm(),
            MeanPool(),
            Dense(1),
        ),
        1,
        "pre-norm transformer blocks with attention at 1/d, average",
    ),
}


def _convolved(depth: int) -> tuple[Layer, ...]:
    return Repeat(Serial(Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1), Relu()), depth).layers


def _image_attention(attention: Attention, depth: int) -> Layer:
    """Convolutions, of which the last meets attention before its ReLU; average."""
    last = Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1)
    mixed = Serial(last, Residual(attention, 0.8), Relu())
    return Serial(*_convolved(depth - 1), *mixed.layers, MeanPool(), Dense(1))


_IMAGE = {
    NetworkName.LINEAR: _Recipe(
        lambda depth: Serial(Flatten(), Dense(1, b_std=0.1)), 1, "a linear map of all pixels"
    ),
    NetworkName.FCN: _Recipe(
        lambda depth: Serial(Flatten(), *_hidden(depth), Dense(1)),
        2,
        "fully connected ReLU layers on all pixels",
    ),
    NetworkName.CNN: _Recipe(
        lambda depth: Serial(*_convolved(depth), MeanPool(), Dense(1)),
        3,
        "3×3 convolutions, ReLU, average",
    ),
    NetworkName.ATTENTION: _Recipe(
        lambda depth: _image_attention(_linear_attention(rate=0.5), depth),
        2,
        "3×3 convolutions, residual attention at 1/d with decaying positions, ReLU, average",
    ),
    NetworkName.SOFTMAX: _Recipe(
        lambda depth: _image_attention(_softmax_attention(rate=0.5), depth),
        2,
        "3×3 convolutions, standard softmax attention at 1/√d (sampled heads), ReLU, average",
    ),
}

_RECIPES = {
    Kind.TABLE: _TABLE,
    Kind.TEXT: _SEQUENCE,
    Kind.SEQUENCE: _SEQUENCE,
    Kind.IMAGE: _IMAGE,
}
_DEFAULTS = {
    Kind.TABLE: NetworkName.FCN,
    Kind.TEXT: NetworkName.ATTENTION,
    Kind.SEQUENCE: NetworkName.ATTENTION,
    Kind.IMAGE: NetworkName.ATTENTION,
}


@dataclass(frozen=True, eq=False)
class NamedNetwork:
    """A network with the name it goes by."""

    name: NetworkName
    depth: int
    net: Layer
    summary: str


def choose(
    kind: Kind, name: NetworkName | None = None, *, depth: int | None = None
) -> NamedNetwork:
    """The network called `name`, or the usual one for this kind of data."""
    name = _DEFAULTS[kind] if name is None else NetworkName(name)
    recipes = _RECIPES[kind]
    if name not in recipes:
        raise WidelimitError(
            f"The networks for {kind} data are {', '.join(recipes)}.",
            got=f"--network {name}",
            remedy="choose one of them",
        )
    recipe = recipes[name]
    depth = recipe.depth if depth is None else depth
    if depth < 1:
        raise WidelimitError(
            "A network has at least one hidden layer.",
            got=f"--depth {depth}",
            remedy="give a depth of 1 or more; '--network linear' has no hidden layer",
        )
    return NamedNetwork(name, depth, recipe.build(depth), recipe.summary)
