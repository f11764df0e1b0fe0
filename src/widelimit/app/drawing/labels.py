"""What diagrams say about layers: a title, a few details, and a family that gives the colour."""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from ...layers.activations import Activation
from ...layers.attention.heads import INFINITE
from ...layers.attention.multihead import MultiHead
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.branches import Branches, Concat, Product, Residual
from ...layers.compose import Parallel, Serial
from ...layers.conv import Convolution
from ...layers.dense import Dense, Embedding
from ...layers.norm import Dropout, LayerNorm, RMSNorm
from ...layers.pool import Flatten, MeanPool, PositionMap, SumPool
from ...layers.streams import AddStreams
from ...layers.tokens import TrainedVectors


class Family(Enum):
    """What kind of layer it is, for colours."""

    WEIGHTS = "weights"
    ACTIVATION = "activation"
    ATTENTION = "attention"
    NORM = "norm"
    POOL = "pool"
    OTHER = "other"


class Label(NamedTuple):
    """A layer in a few words; of branches, the title is what joins them."""

    title: str
    details: str
    family: Family


def label(layer: Layer) -> Label:
    """What a diagram says about a layer."""
    known = next((kind for kind in type(layer).__mro__ if kind in _FAMILIES), Layer)
    words = next((_WORDS[kind] for kind in type(layer).__mro__ if kind in _WORDS), None)
    title, details = type(layer).__name__, "" if words is None else words(layer)
    if isinstance(details, tuple):
        title, details = details
    return Label(title, details, _FAMILIES[known])


def _number(value: Any, digits: int = 3) -> str:
    return f"{float(np.asarray(value)):.{digits}g}"


def _deviations(layer: Dense | Convolution) -> str:
    weights = layer.weights
    bias = f", σ_b {_number(weights.b_std)}" if float(np.asarray(weights.b_std)) else ""
    return f"σ_w {_number(weights.w_std)}{bias}"


def _conv(layer: Convolution) -> str:
    window, stride = (
        str(size) if isinstance(size, int) else "×".join(map(str, size))
        for size in (layer.window, layer.stride)
    )
    moved = "" if stride == "1" else f", stride {stride}"
    return f"window {window}{moved}, {_deviations(layer)}"


def _pool(layer: MeanPool | SumPool) -> str:
    return "over all positions" if layer.window is None else f"window {layer.window}"


def _attention(layer: MultiHead) -> str:
    count = "∞" if layer.heads == INFINITE else str(int(layer.heads))
    scales = {Scaling.SQRT: "1/√d", Scaling.LINEAR: "1/d", Scaling.UNTIED: "1/d untied"}
    parts = [f"{count} head{'' if layer.heads == 1 else 's'}", scales[layer.scaling]]
    parts.append(type(layer.score_map).__name__.lower())
    if layer.positions.encoding is not None:
        parts.append(type(layer.positions.encoding).__name__.lower())
    if layer.positions.rotary is not None:
        parts.append("rotary")
    if layer.positions.projections.qk_norm:
        parts.append("qk norm")
    return ", ".join(parts)


def _residual(layer: Residual) -> tuple[str, str]:
    if layer.weight is None:
        return "x + g(x)", ""
    alpha = float(np.asarray(layer.weight))
    return f"√{alpha:.3g} x + √{1 - alpha:.3g} g(x)", ""


_FAMILIES: dict[type, Family] = {
    Layer: Family.OTHER,
    **dict.fromkeys((Dense, Embedding, Convolution, TrainedVectors, Parallel), Family.WEIGHTS),
    Activation: Family.ACTIVATION,
    **dict.fromkeys((LayerNorm, RMSNorm, Dropout), Family.NORM),
    **dict.fromkeys((PositionMap, Flatten, MeanPool, SumPool), Family.POOL),
    MultiHead: Family.ATTENTION,
}
_WORDS: dict[type, Callable[[Any], str | tuple[str, str]]] = {
    Dense: _deviations,
    Embedding: lambda layer: f"{layer.vocabulary:,} words",
    Convolution: _conv,
    TrainedVectors: lambda layer: f"σ {_number(layer.std)}",
    Activation: lambda layer: (layer.dual.name, ""),
    Dropout: lambda layer: f"rate {layer.rate:g}",
    MeanPool: _pool,
    SumPool: _pool,
    MultiHead: _attention,
    Serial: lambda layer: ("Serial" if layer.layers else "identity", ""),
    Parallel: lambda layer: ("streams", f"{len(layer.networks)} networks, one for each"),
    AddStreams: lambda layer: (
        "streams added",
        " + ".join(_number(share, 2) for share in np.asarray(layer.shares)),
    ),
    Branches: lambda layer: ("+", ""),
    Product: lambda layer: ("×", ""),
    Concat: lambda layer: ("concat", ""),
    Residual: _residual,
}
"""Details by class, or a title and details."""
