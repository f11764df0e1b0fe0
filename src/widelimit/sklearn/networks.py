"""Networks with sensible settings for every kind of data, by name."""

import enum
from collections.abc import Callable
from typing import NamedTuple

from ..errors import OptionError
from ..layers.activations import Relu
from ..layers.attention.heads import INFINITE
from ..layers.attention.layer import Attention
from ..layers.attention.positional import Decay
from ..layers.attention.scores import Scaling
from ..layers.base import Layer
from ..layers.blocks import Norm, TransformerBlock
from ..layers.branches import Residual
from ..layers.compose import Parallel, Repeat, Serial
from ..layers.conv import Conv
from ..layers.dense import Dense
from ..layers.norm import LayerNorm
from ..layers.pool import Flatten, MeanPool
from ..layers.streams import AddStreams
from ..options import choice, whole

WIDTH = 256  # of finite networks drawn from these descriptions; kernels do not depend on it
DEEPEST = 1000  # hidden layers: far beyond it kernels have forgotten their inputs
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # of the text, where columns stand beside it
_FEW_CHANNELS = 4  # up to here a sequence is a series of measurements, not of vectors
_GAIN = 2**0.5  # keeps the variance of a signal through ReLU


class Kind(enum.Enum):
    """What one example is."""

    TABLE = "table"  # a row of numbers
    TEXT = "text"  # word vectors
    MIXED = "mixed"  # word vectors beside numbers
    SEQUENCE = "sequence"  # positions with channels
    IMAGE = "image"  # height, width and channels

    def __str__(self) -> str:
        return self.value


class NetworkName(enum.StrEnum):
    """Networks by name; which of them fit depends on the kind of data."""

    LINEAR = "linear"
    FCN = "fcn"
    MEAN = "mean"
    CNN = "cnn"
    ATTENTION = "attention"
    SOFTMAX = "softmax"
    TRANSFORMER = "transformer"


class NamedNetwork(NamedTuple):
    """A network, the name it goes by, and what it is in one line."""

    name: NetworkName
    net: Layer
    summary: str


class _Recipe(NamedTuple):
    """All layers but the last one by their number, the usual number, and what they are."""

    layers: Callable[[int], tuple[Layer, ...]]
    depth: int
    summary: str


_Recipes = dict[NetworkName, _Recipe]


def _hidden(depth: int) -> tuple[Layer, ...]:
    return Repeat(Serial(Dense(WIDTH, w_std=_GAIN, b_std=0.1), Relu()), depth).layers


def _convolved(depth: int) -> tuple[Layer, ...]:
    return Repeat(Serial(Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1), Relu()), depth).layers


def _linear_attention(rate: float) -> Attention:
    """Scores become deterministic: exact kernels, and weights one can look at."""
    places = Decay(rate=rate, strength=0.5)
    return Attention(WIDTH, scaling=Scaling.LINEAR, positions=places, qk_std=2.0)


def _softmax_attention(rate: float) -> Attention:
    """Standard attention with infinitely many heads: heads are sampled."""
    return Attention(WIDTH, heads=INFINITE, positions=Decay(rate=rate, strength=0.5))


def _of_rows() -> _Recipes:
    return {
        NetworkName.LINEAR: _Recipe(lambda depth: (), 1, "a linear map"),
        NetworkName.FCN: _Recipe(_hidden, 2, "fully connected ReLU layers"),
    }


def _of_words() -> _Recipes:
    """Vectors, whose average is taken: LayerNorm over them, then what the name says."""

    def attended(attention: Attention, depth: int) -> tuple[Layer, ...]:
        beside = Repeat(Residual(attention, 0.8), depth).layers
        return (LayerNorm(), Dense(WIDTH), *beside, Relu(), MeanPool(), *_hidden(1))

    def transformed(depth: int) -> tuple[Layer, ...]:
        attention = _linear_attention(0.1)
        block = TransformerBlock(WIDTH, norm=Norm.PRE, residual=0.8, attention=attention)
        return (Dense(WIDTH), *Repeat(block, depth).layers, LayerNorm(), MeanPool())

    return {
        NetworkName.LINEAR: _Recipe(lambda depth: (MeanPool(),), 1, "a linear map of the average"),
        NetworkName.MEAN: _Recipe(
            lambda depth: (LayerNorm(), MeanPool(), *_hidden(depth)),
            1,
            "the average over positions, then fully connected ReLU layers",
        ),
        NetworkName.CNN: _Recipe(
            lambda depth: (LayerNorm(), *_convolved(depth), MeanPool()),
            1,
            "convolutions over three neighbours, ReLU, average",
        ),
        NetworkName.ATTENTION: _Recipe(
            lambda depth: attended(_linear_attention(0.1), depth),
            1,
            "residual attention at 1/d with decaying positions, ReLU, average, ReLU layer",
        ),
        NetworkName.SOFTMAX: _Recipe(
            lambda depth: attended(_softmax_attention(0.1), depth),
            1,
            "residual standard softmax attention (sampled heads), ReLU, average, ReLU layer",
        ),
        NetworkName.TRANSFORMER: _Recipe(
            transformed, 1, "pre-norm transformer blocks with attention at 1/d, average"
        ),
    }


def _of_grids(*, image: bool, averaged: bool = False) -> _Recipes:
    """Images and series of few channels, which LayerNorm would leave signs or nothing of.

    Every place of a series has weights of its own before a hidden layer, or all are `averaged`.
    """
    flat = MeanPool() if averaged else Flatten()
    whole = "the average" if averaged else "all pixels" if image else "all places"
    rate, ends = (0.5, (MeanPool(),)) if image else (0.1, (flat, *_hidden(1)))
    said = "average" if image or averaged else "every place by itself"
    said += "" if image else ", ReLU layer"
    near = "3×3 convolutions" if image else "convolutions"

    def attended(attention: Attention, depth: int) -> tuple[Layer, ...]:
        """Convolutions, of which the last meets attention before its ReLU."""
        last = Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1)
        return (*_convolved(depth - 1), last, Residual(attention, 0.8), Relu(), *ends)

    return {
        NetworkName.LINEAR: _Recipe(lambda depth: (flat,), 1, f"a linear map of {whole}"),
        NetworkName.FCN: _Recipe(
            lambda depth: (flat, *_hidden(depth)), 2, f"fully connected ReLU layers on {whole}"
        ),
        NetworkName.CNN: _Recipe(
            lambda depth: (*_convolved(depth), *ends),
            3 if image else 2,
            f"{near}{'' if image else ' over three neighbours'}, ReLU, {said}",
        ),
        NetworkName.ATTENTION: _Recipe(
            lambda depth: attended(_linear_attention(rate), depth),
            2,
            f"{near}, residual attention at 1/d with decaying positions, ReLU, {said}",
        ),
        NetworkName.SOFTMAX: _Recipe(
            lambda depth: attended(_softmax_attention(rate), depth),
            2,
            f"{near}, standard softmax attention at 1/√d (sampled heads), ReLU, {said}",
        ),
    }


def _beside_columns(words: tuple[Layer, ...], share: float) -> tuple[Layer, ...]:
    """Words and columns through networks of their own, which meet before a last ReLU."""
    end = Dense(WIDTH, w_std=_GAIN, b_std=0.1)
    streams = Parallel(Serial(*words, end), Serial(*_hidden(1), end))
    return streams, AddStreams((share, 1 - share)), Relu()


def candidates(
    kind: Kind,
    name: NetworkName | str = "auto",
    *,
    depth: int | None = None,
    channels: int = 1,
    padded: bool = False,
) -> dict[str, NamedNetwork]:
    """The networks called `name` that may suit the data, by what is said about the best of them.

    "auto" is the usual one for this kind of data. There are several for texts beside columns (how
    much the text counts) and for series of `channels` measurements (whether every place has weights
    of its own; with `padded` ones of different lengths all are averaged).
    """
    series = kind is Kind.SEQUENCE and channels <= _FEW_CHANNELS
    if series:
        groups = {"the average over places": _of_grids(image=False, averaged=True)}
        if not padded:
            groups = {"every place of a series by itself": _of_grids(image=False)} | groups
    else:
        known = {Kind.TABLE: _of_rows, Kind.IMAGE: lambda: _of_grids(image=True)}
        groups = {"": known.get(kind, _of_words)()}
    if name == "auto":
        usual = NetworkName.CNN if series else NetworkName.ATTENTION
        name = NetworkName.FCN if kind is Kind.TABLE else usual
    name = choice(NetworkName, name, "network")
    if name not in (known := next(iter(groups.values()))):
        of = f"series of {channels} channels" if series else f"{kind} data"
        raise OptionError(
            f"There is no network '{name}' for {of}.",
            got=f"network={str(name)!r}",
            remedy=f"choose one of {', '.join(known)}",
            option="network",
        )
    if depth is not None and whole("depth", depth) > DEEPEST:
        raise OptionError(
            f"A network by name has no more than {DEEPEST} hidden layers.",
            got=f"depth={depth}",
            remedy="choose fewer",
            option="depth",
        )
    last = Dense(1, b_std=0.1) if name is NetworkName.LINEAR else Dense(1)
    found: dict[str, NamedNetwork] = {}
    for said, recipes in groups.items():
        recipe = recipes[name]
        layers = recipe.layers(recipe.depth if depth is None else depth)
        if kind is not Kind.MIXED:
            found[said] = NamedNetwork(name, Serial(*layers, last), recipe.summary)
            continue
        summary = f"{recipe.summary}; beside it ReLU layers on the columns"
        for share in SHARES:
            net = Serial(*_beside_columns(layers, share), Dense(1))
            parts = f"the text counts {share:.0%}, the columns {1 - share:.0%}"
            found[parts] = NamedNetwork(name, net, summary)
    return found
