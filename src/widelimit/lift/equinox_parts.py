"""`equinox.nn`: what its modules are, and how they are drawn.

Weights and biases of Linear and Conv are uniform on (−1/√fan_in, 1/√fan_in), of variance
1/(3·fan_in); rows of Embedding are standard normal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox.nn as nn
import numpy as np

from .initialisers import InitialReading, InitialRule, require_constant
from .parts import Affine, Attend, Drop, Linear, Lookup, Normalise
from .program import Call, caller, part_p
from .stand_ins import (
    AttentionStandIn,
    ConvStandIn,
    LinearStandIn,
    PointStandIn,
    TableStandIn,
)
from .values import refusal


def _rule(fan_in: int) -> InitialRule:
    return InitialRule("U(−1/√fan_in, 1/√fan_in)", 1 / (3 * fan_in), gaussian=False)


def _laws(layer: nn.Linear | nn.Conv, reading: InitialReading) -> Affine:
    where = type(layer).__name__
    fan_in = int(np.prod(layer.weight.shape[1:]))
    rule = _rule(fan_in)
    weights = reading.weights(layer.weight, fan_in, rule, where)
    return Affine(weights, reading.bias(layer.bias, rule, where, vanishing=True))


def _linear(layer: nn.Linear | nn.Conv) -> Callable[[InitialReading], Linear]:
    return lambda reading: Linear(_laws(layer, reading), width=int(layer.weight.shape[0]))


def _attention(layer: nn.MultiheadAttention) -> Callable[[InitialReading], Attend]:
    def describe(reading: InitialReading) -> Attend:
        _require_quiet("MultiheadAttention", layer.dropout.p, layer.dropout.inference)
        laws = [
            _laws(projection, reading)
            for projection in (
                layer.query_proj,
                layer.key_proj,
                layer.value_proj,
                layer.output_proj,
            )
        ]
        return Attend(
            *laws,
            width=layer.output_size,
            heads=layer.num_heads,
            kv_heads=layer.num_heads,
            key_width=layer.qk_size,
            value_width=layer.vo_size,
        )

    return describe


def _require_quiet(name: str, rate: float, inference: bool) -> None:
    if rate and not inference:
        raise refusal(
            "Attention weights are not dropped at random.",
            got=f"{name} with a dropout rate of {rate:g} in training",
            remedy="equinox.nn.inference_mode(model)",
        )


def _norm(layer: nn.LayerNorm | nn.RMSNorm) -> Callable[[InitialReading], Normalise]:
    def describe(reading: InitialReading) -> Normalise:
        name = type(layer).__name__
        require_constant(layer.weight, 1.0, "gain", name)
        require_constant(layer.bias, 0.0, "shift", name)
        if len(layer.shape) > 1:
            raise refusal(
                "Normalisation is over channels.", got=f"{name} over axes of shape {layer.shape}"
            )
        return Normalise(isinstance(layer, nn.LayerNorm), float(layer.eps))

    return describe


def _table(layer: nn.Embedding) -> Callable[[InitialReading], Lookup]:
    def describe(reading: InitialReading) -> Lookup:
        rule = InitialRule("N(0, 1)", 1.0, gaussian=True)
        variance = reading.variance(layer.weight, rule, "Embedding")
        return Lookup(variance, True, *map(int, layer.weight.shape))

    return describe


def _dropout(layer: nn.Dropout) -> Callable[[InitialReading], Drop | None]:
    return lambda reading: None if layer.inference or not layer.p else Drop(float(layer.p))


def _call_attention(
    layer: nn.MultiheadAttention,
    query: Any,
    key_: Any,
    value: Any,
    mask: Any = None,
    *,
    process_heads: Any = None,
    **_: Any,
) -> Any:
    if process_heads is not None or callable(mask):
        raise refusal(
            "Attention is plain: scores are products of queries and keys.",
            got="MultiheadAttention with process_heads= or a mask function",
        )
    stand_in = AttentionStandIn("MultiheadAttention", layer, _attention(layer))
    arrays = (query, key_, value) if mask is None else (query, key_, value, mask)
    return part_p.bind(*arrays, call=Call(stand_in))


STAND_INS: dict[type, Callable[..., Any]] = {
    nn.Linear: caller(LinearStandIn, _linear),
    nn.Conv: caller(ConvStandIn, _linear),
    nn.LayerNorm: caller(PointStandIn, _norm),
    nn.RMSNorm: caller(PointStandIn, _norm),
    nn.Dropout: caller(PointStandIn, _dropout),
    nn.Embedding: caller(TableStandIn, _table),
    nn.MultiheadAttention: _call_attention,
}
