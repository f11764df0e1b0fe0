"""What diagrams say about layers: a title, a few details, and a family that gives the colour."""

from enum import Enum
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from ...layers.activations import Activation
from ...layers.attention.heads import INFINITE
from ...layers.attention.multihead import MultiHead
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.branches import Branches, Concat, Product, Residual
from ...layers.compose import Parallel, Serial
from ...layers.conv import Conv
from ...layers.dense import Dense, Embedding, Weights
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


@singledispatch
def label(layer: Layer) -> Label:
    """What a diagram says about a layer; `label.register` adds those of other classes."""
    return Label(type(layer).__name__, "", Family.OTHER)


def _number(value: Any, digits: int = 3) -> str:
    return f"{float(np.asarray(value)):.{digits}g}"


def _deviations(weights: Weights) -> str:
    bias = f", σ_b {_number(weights.b_std)}" if float(np.asarray(weights.b_std)) else ""
    return f"σ_w {_number(weights.w_std)}{bias}"


@label.register
def _(layer: Dense) -> Label:
    return Label("Dense", _deviations(layer.weights), Family.WEIGHTS)


@label.register
def _(layer: Embedding) -> Label:
    return Label("Embedding", f"{layer.vocabulary:,} words", Family.WEIGHTS)


@label.register
def _(layer: Conv) -> Label:
    window, stride = (
        str(size) if isinstance(size, int) else "×".join(map(str, size))
        for size in (layer.window, layer.stride)
    )
    moved = "" if stride == "1" else f", stride {stride}"
    return Label("Conv", f"window {window}{moved}, {_deviations(layer.weights)}", Family.WEIGHTS)


@label.register
def _(layer: TrainedVectors) -> Label:
    return Label(type(layer).__name__, f"σ {_number(layer.std)}", Family.WEIGHTS)


@label.register
def _(layer: Activation) -> Label:
    return Label(layer.dual.name, "", Family.ACTIVATION)


@label.register(LayerNorm)
@label.register(RMSNorm)
def _(layer: Layer) -> Label:
    return Label(type(layer).__name__, "", Family.NORM)


@label.register
def _(layer: Dropout) -> Label:
    return Label("Dropout", f"rate {layer.rate:g}", Family.NORM)


@label.register(PositionMap)
@label.register(Flatten)
def _(layer: Layer) -> Label:
    return Label(type(layer).__name__, "", Family.POOL)


@label.register
def _(layer: MeanPool | SumPool) -> Label:
    where = "over all positions" if layer.window is None else f"window {layer.window}"
    return Label(type(layer).__name__, where, Family.POOL)


@label.register
def _(layer: MultiHead) -> Label:
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
    return Label(type(layer).__name__, ", ".join(parts), Family.ATTENTION)


@label.register
def _(layer: Serial) -> Label:
    return Label("identity" if not layer.layers else "Serial", "", Family.OTHER)


@label.register
def _(layer: Parallel) -> Label:
    return Label("streams", f"{len(layer.networks)} networks, one for each", Family.WEIGHTS)


@label.register
def _(layer: AddStreams) -> Label:
    shares = " + ".join(_number(share, 2) for share in np.asarray(layer.shares))
    return Label("streams added", shares, Family.OTHER)


@label.register(Branches)
def _(layer: Branches) -> Label:
    titles: dict[type[Layer], str] = {Product: "×", Concat: "concat"}
    return Label(titles.get(type(layer), "+"), "", Family.OTHER)


@label.register
def _(layer: Residual) -> Label:
    if layer.weight is None:
        return Label("x + g(x)", "", Family.OTHER)
    alpha = float(np.asarray(layer.weight))
    return Label(f"√{alpha:.3g} x + √{1 - alpha:.3g} g(x)", "", Family.OTHER)
