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
from ...layers.compose import Parallel, Repeat, Serial
from ...layers.conv import Conv
from ...layers.dense import Dense
from ...layers.norm import LayerNorm
from ...layers.pool import Flatten, MeanPool
from ...layers.streams import AddStreams
from .kinds import Kind
from .preparation import Batch

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


def _flattened(*layers: Layer) -> Layer:
    """Every place of a series keeps its own weights; then a hidden layer."""
    return Serial(*layers, Flatten(), *_hidden(1), Dense(1))


def _series_attention(attention: Attention, depth: int) -> Layer:
    """Convolutions, of which the last meets attention before its ReLU; every place by itself."""
    last = Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1)
    mixed = Serial(last, Residual(attention, 0.8), Relu())
    return _flattened(*_convolved(depth - 1), *mixed.layers)


# Few channels have no direction of their own: LayerNorm over them would leave signs or nothing.
_SERIES = {
    NetworkName.LINEAR: _Recipe(
        lambda depth: Serial(Flatten(), Dense(1, b_std=0.1)), 1, "a linear map of all places"
    ),
    NetworkName.FCN: _Recipe(
        lambda depth: Serial(Flatten(), *_hidden(depth), Dense(1)),
        2,
        "fully connected ReLU layers on all places",
    ),
    NetworkName.CNN: _Recipe(
        lambda depth: _flattened(*_convolved(depth)),
        2,
        "convolutions over three neighbours, ReLU, every place by itself, ReLU layer",
    ),
    NetworkName.ATTENTION: _Recipe(
        lambda depth: _series_attention(_linear_attention(rate=0.1), depth),
        2,
        "convolutions, residual attention at 1/d with decaying positions, ReLU, every place by "
        "itself, ReLU layer",
    ),
    NetworkName.SOFTMAX: _Recipe(
        lambda depth: _series_attention(_softmax_attention(rate=0.1), depth),
        2,
        "convolutions, standard softmax attention at 1/√d (sampled heads), ReLU, every place by "
        "itself, ReLU layer",
    ),
}


def _pooled(recipe: _Recipe) -> _Recipe:
    """For series of different lengths: the average in place of all places."""

    def build(depth: int) -> Layer:
        layers = recipe.build(depth)
        assert isinstance(layers, Serial)
        return Serial(*(MeanPool() if isinstance(one, Flatten) else one for one in layers.layers))

    summary = recipe.summary.replace("every place by itself", "average")
    return _Recipe(build, recipe.depth, summary.replace("all places", "the average"))


_AVERAGED_SERIES = {name: _pooled(recipe) for name, recipe in _SERIES.items()}
_FEW_CHANNELS = 4  # up to here a sequence is a series of measurements, not of vectors


def _joint(recipe: _Recipe, share: float) -> _Recipe:
    """Words and columns through networks of their own, which meet before a last ReLU."""

    def build(depth: int) -> Layer:
        text = recipe.build(depth)
        assert isinstance(text, Serial)
        end = Dense(WIDTH, w_std=_GAIN, b_std=0.1)
        streams = Parallel(Serial(*text.layers[:-1], end), Serial(*_hidden(1), end))
        return Serial(streams, AddStreams((share, 1 - share)), Relu(), Dense(1))

    return _Recipe(build, recipe.depth, f"{recipe.summary}; beside it ReLU layers on the columns")


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

_DEFAULTS = {
    Kind.TABLE: NetworkName.FCN,
    Kind.TEXT: NetworkName.ATTENTION,
    Kind.MIXED: NetworkName.ATTENTION,
    Kind.SEQUENCE: NetworkName.ATTENTION,
    Kind.IMAGE: NetworkName.ATTENTION,
}


def is_series(kind: Kind, batch: Batch | None) -> bool:
    """Whether positions hold a few measurements each, and not vectors."""
    return kind is Kind.SEQUENCE and batch is not None and batch.x.shape[-1] <= _FEW_CHANNELS


def _recipes(
    kind: Kind, batch: Batch | None, share: float, averaged: bool
) -> dict[NetworkName, _Recipe]:
    """Networks for a kind of data; for sequences they depend on what a position holds."""
    if kind is Kind.TABLE:
        return _TABLE
    if kind is Kind.IMAGE:
        return _IMAGE
    if kind is Kind.MIXED:
        return {name: _joint(recipe, share) for name, recipe in _SEQUENCE.items()}
    if is_series(kind, batch):
        assert batch is not None
        averaged = averaged or (batch.mask is not None and not batch.mask.all())
        return _AVERAGED_SERIES if averaged else _SERIES
    return _SEQUENCE


@dataclass(frozen=True, eq=False)
class NamedNetwork:
    """A network with the name it goes by."""

    name: NetworkName
    depth: int
    net: Layer
    summary: str


def choose(
    kind: Kind,
    name: NetworkName | None = None,
    *,
    depth: int | None = None,
    batch: Batch | None = None,
    share: float = 0.5,
    averaged: bool = False,
) -> NamedNetwork:
    """The network called `name`, or the usual one for this kind of data.

    `batch` are some of the examples, which tell series of measurements from those of vectors;
    `share` is that of the text where there are columns beside it; series may be `averaged` over
    their places, and must be where their lengths differ.
    """
    usual = NetworkName.CNN if is_series(kind, batch) else _DEFAULTS[kind]
    name = usual if name is None else NetworkName(name)
    recipes = _recipes(kind, batch, share, averaged)
    if name not in recipes:
        of = f"{kind} data"
        if kind is Kind.SEQUENCE and batch is not None:
            of += f" with {batch.x.shape[-1]} channels"
        raise WidelimitError(
            f"The networks for {of} are {', '.join(recipes)}.",
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
