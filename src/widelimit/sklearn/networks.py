"""Networks with sensible settings for every kind of data, by name."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class NamedNetwork:
    """A network, the name it goes by, and what it is in one line."""

    name: NetworkName
    depth: int
    net: Layer
    summary: str


@dataclass(frozen=True)
class _Recipe:
    """How a network is built, its usual depth, and what it is in one line."""

    build: Callable[[int], Serial]
    depth: int
    summary: str


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


def _attended(attention: Attention, depth: int) -> tuple[Layer, ...]:
    """Convolutions, of which the last meets attention before its ReLU."""
    last = Conv(WIDTH, 3, w_std=_GAIN, b_std=0.1)
    return (*_convolved(depth - 1), last, Residual(attention, 0.8), Relu())


def _of_words(attention: Attention, depth: int) -> Serial:
    """Normalised words, attention beside the words themselves, ReLU, average, a hidden layer."""
    attended = Repeat(Residual(attention, 0.8), depth).layers
    end = (Relu(), MeanPool(), *_hidden(1), Dense(1))
    return Serial(LayerNorm(), Dense(WIDTH), *attended, *end)


def _by_place(*layers: Layer) -> Serial:
    """Every place of a series keeps its own weights; then a hidden layer."""
    return Serial(*layers, Flatten(), *_hidden(1), Dense(1))


def _averaged(*layers: Layer) -> Serial:
    return Serial(*layers, MeanPool(), Dense(1))


def _transformer(depth: int) -> Serial:
    attention = _linear_attention(0.1)
    block = TransformerBlock(WIDTH, norm=Norm.PRE, residual=0.8, attention=attention)
    return _averaged(Dense(WIDTH), *Repeat(block, depth).layers, LayerNorm())


_Recipes = dict[NetworkName, _Recipe]
_TABLE: _Recipes = {
    NetworkName.LINEAR: _Recipe(lambda depth: Serial(Dense(1, b_std=0.1)), 1, "a linear map"),
    NetworkName.FCN: _Recipe(
        lambda depth: Serial(*_hidden(depth), Dense(1)), 2, "fully connected ReLU layers"
    ),
}
_SEQUENCE: _Recipes = {
    NetworkName.LINEAR: _Recipe(
        lambda depth: Serial(MeanPool(), Dense(1, b_std=0.1)), 1, "a linear map of the average"
    ),
    NetworkName.MEAN: _Recipe(
        lambda depth: Serial(LayerNorm(), MeanPool(), *_hidden(depth), Dense(1)),
        1,
        "the average over positions, then fully connected ReLU layers",
    ),
    NetworkName.CNN: _Recipe(
        lambda depth: _averaged(LayerNorm(), *_convolved(depth)),
        1,
        "convolutions over three neighbours, ReLU, average",
    ),
    NetworkName.ATTENTION: _Recipe(
        lambda depth: _of_words(_linear_attention(0.1), depth),
        1,
        "residual attention at 1/d with decaying positions, ReLU, average, ReLU layer",
    ),
    NetworkName.SOFTMAX: _Recipe(
        lambda depth: _of_words(_softmax_attention(0.1), depth),
        1,
        "residual standard softmax attention (sampled heads), ReLU, average, ReLU layer",
    ),
    NetworkName.TRANSFORMER: _Recipe(
        _transformer, 1, "pre-norm transformer blocks with attention at 1/d, average"
    ),
}
# Few channels have no direction of their own: LayerNorm over them would leave signs or nothing.
_SERIES: _Recipes = {
    NetworkName.LINEAR: _Recipe(
        lambda depth: Serial(Flatten(), Dense(1, b_std=0.1)), 1, "a linear map of all places"
    ),
    NetworkName.FCN: _Recipe(
        lambda depth: Serial(Flatten(), *_hidden(depth), Dense(1)),
        2,
        "fully connected ReLU layers on all places",
    ),
    NetworkName.CNN: _Recipe(
        lambda depth: _by_place(*_convolved(depth)),
        2,
        "convolutions over three neighbours, ReLU, every place by itself, ReLU layer",
    ),
    NetworkName.ATTENTION: _Recipe(
        lambda depth: _by_place(*_attended(_linear_attention(0.1), depth)),
        2,
        "convolutions, residual attention at 1/d with decaying positions, ReLU, every place by "
        "itself, ReLU layer",
    ),
    NetworkName.SOFTMAX: _Recipe(
        lambda depth: _by_place(*_attended(_softmax_attention(0.1), depth)),
        2,
        "convolutions, standard softmax attention at 1/√d (sampled heads), ReLU, every place by "
        "itself, ReLU layer",
    ),
}
_IMAGE: _Recipes = {
    NetworkName.LINEAR: _Recipe(
        lambda depth: Serial(Flatten(), Dense(1, b_std=0.1)), 1, "a linear map of all pixels"
    ),
    NetworkName.FCN: _Recipe(
        lambda depth: Serial(Flatten(), *_hidden(depth), Dense(1)),
        2,
        "fully connected ReLU layers on all pixels",
    ),
    NetworkName.CNN: _Recipe(
        lambda depth: _averaged(*_convolved(depth)), 3, "3×3 convolutions, ReLU, average"
    ),
    NetworkName.ATTENTION: _Recipe(
        lambda depth: _averaged(*_attended(_linear_attention(0.5), depth)),
        2,
        "3×3 convolutions, residual attention at 1/d with decaying positions, ReLU, average",
    ),
    NetworkName.SOFTMAX: _Recipe(
        lambda depth: _averaged(*_attended(_softmax_attention(0.5), depth)),
        2,
        "3×3 convolutions, standard softmax attention at 1/√d (sampled heads), ReLU, average",
    ),
}


def _pooled(recipe: _Recipe) -> _Recipe:
    """For series of different lengths: the average in place of all places."""

    def build(depth: int) -> Serial:
        layers = recipe.build(depth).layers
        return Serial(*(MeanPool() if isinstance(one, Flatten) else one for one in layers))

    summary = recipe.summary.replace("every place by itself", "average")
    return _Recipe(build, recipe.depth, summary.replace("all places", "the average"))


def _joint(recipe: _Recipe, share: float) -> _Recipe:
    """Words and columns through networks of their own, which meet before a last ReLU."""

    def build(depth: int) -> Serial:
        end = Dense(WIDTH, w_std=_GAIN, b_std=0.1)
        words = Serial(*recipe.build(depth).layers[:-1], end)
        streams = Parallel(words, Serial(*_hidden(1), end))
        return Serial(streams, AddStreams((share, 1 - share)), Relu(), Dense(1))

    return _Recipe(build, recipe.depth, f"{recipe.summary}; beside it ReLU layers on the columns")


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
    if kind is Kind.MIXED:
        groups = {
            f"the text counts {share:.0%}, the columns {1 - share:.0%}": {
                which: _joint(recipe, share) for which, recipe in _SEQUENCE.items()
            }
            for share in SHARES
        }
    elif series:
        averaged = {which: _pooled(recipe) for which, recipe in _SERIES.items()}
        groups = {"the average over places": averaged}
        if not padded:
            groups = {"every place of a series by itself": _SERIES} | groups
    else:
        groups = {"": {Kind.TABLE: _TABLE, Kind.IMAGE: _IMAGE}.get(kind, _SEQUENCE)}
    if name == "auto":
        usual = NetworkName.CNN if series else NetworkName.ATTENTION
        name = NetworkName.FCN if kind is Kind.TABLE else usual
    name = choice(NetworkName, name, "network")
    known = next(iter(groups.values()))
    if name not in known:
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
    found = {}
    for said, recipes in groups.items():
        layers = recipes[name].depth if depth is None else depth
        found[said] = NamedNetwork(name, layers, recipes[name].build(layers), recipes[name].summary)
    return found
