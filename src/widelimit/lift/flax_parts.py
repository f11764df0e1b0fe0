"""`flax.nnx`: what its modules are, and how they are drawn.

Kernels are `lecun_normal`, a truncated normal of variance 1/fan_in; biases are zero; rows of Embed
are normal of variance 1/features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx  # pyright: ignore[reportMissingImports]

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

_ZERO = InitialRule("zeros", 0.0, gaussian=True)


def _held(parameter: Any) -> Any:
    """The array of an nnx variable; None where there is none."""
    return None if parameter is None else parameter[...]


def _laws(layer: Any, reading: InitialReading, fan_in: int) -> Affine:
    where = type(layer).__name__
    rule = InitialRule("lecun_normal", 1 / fan_in, gaussian=False)
    weights = reading.weights(_held(layer.kernel), fan_in, rule, where)
    return Affine(weights, reading.bias(_held(layer.bias), _ZERO, where, vanishing=False))


def _linear(layer: Any) -> Callable[[InitialReading], Linear]:
    def describe(reading: InitialReading) -> Linear:
        fan_in = int(np.prod(_held(layer.kernel).shape[:-1]))
        return Linear(_laws(layer, reading, fan_in), width=int(layer.out_features))

    return describe


def _attention(layer: Any) -> Callable[[InitialReading], Attend]:
    def describe(reading: InitialReading) -> Attend:
        if layer.normalize_qk:
            raise refusal(
                "Queries and keys are used as their weights make them.",
                got="MultiHeadAttention with normalize_qk=True",
                remedy="describe it with Attention(projections=Projections(qk_norm=True))",
            )
        if layer.dropout_rate and not layer.deterministic:
            raise refusal(
                "Attention weights are not dropped at random.",
                got=f"MultiHeadAttention with a dropout rate of {layer.dropout_rate:g}",
                remedy="model.eval()",
            )
        if layer.attention_fn is not nnx.dot_product_attention:
            raise refusal(
                "Attention is plain: softmax of products divided by √d.",
                got="MultiHeadAttention with attention_fn=",
            )
        inputs, joined = layer.in_features, layer.num_heads * layer.head_dim
        laws = [
            _laws(projection, reading, fan_in)
            for projection, fan_in in (
                (layer.query, inputs),
                (layer.key, layer.in_kv_features),
                (layer.value, layer.in_kv_features),
                (layer.out, joined),
            )
        ]
        return Attend(
            *laws,
            width=int(layer.out_features),
            heads=int(layer.num_heads),
            kv_heads=int(layer.num_kv_heads),
            key_width=int(layer.head_dim),
            value_width=int(layer.head_dim),
        )

    return describe


def _norm(layer: Any) -> Callable[[InitialReading], Normalise]:
    def describe(reading: InitialReading) -> Normalise:
        name = type(layer).__name__
        require_constant(_held(layer.scale), 1.0, "gain", name)
        require_constant(_held(getattr(layer, "bias", None)), 0.0, "shift", name)
        if layer.reduction_axes not in (-1, (-1,)) or layer.feature_axes not in (-1, (-1,)):
            raise refusal(
                "Normalisation is over channels, the last axis.",
                got=f"{name} with reduction_axes={layer.reduction_axes}",
            )
        return Normalise(isinstance(layer, nnx.LayerNorm), float(layer.epsilon))

    return describe


def _table(layer: Any) -> Callable[[InitialReading], Lookup]:
    def describe(reading: InitialReading) -> Lookup:
        table = _held(layer.embedding)
        rule = InitialRule("normal of variance 1/features", 1 / table.shape[1], gaussian=True)
        return Lookup(reading.variance(table, rule, "Embed"), True, *map(int, table.shape))

    return describe


def _dropout(layer: Any) -> Callable[[InitialReading], Drop | None]:
    def describe(reading: InitialReading) -> Drop | None:
        if layer.deterministic or not layer.rate:
            return None
        if layer.broadcast_dims:
            raise refusal("Every entry is dropped for itself.", got="Dropout with broadcast_dims=")
        return Drop(float(layer.rate))

    return describe


def _call_attention(
    layer: Any,
    inputs_q: Any,
    inputs_k: Any = None,
    inputs_v: Any = None,
    *,
    mask: Any = None,
    is_causal: bool = False,
    decode: bool | None = None,
    **_: Any,
) -> Any:
    if decode or layer.decode:
        raise refusal(
            "Attention is over whole sequences.", got="MultiHeadAttention with decode=True"
        )
    inputs_k = inputs_q if inputs_k is None else inputs_k
    inputs_v = inputs_k if inputs_v is None else inputs_v
    if is_causal:
        length = inputs_q.shape[-2]
        causal = np.tril(np.ones((length, length), bool))
        mask = causal if mask is None else mask & causal
    stand_in = AttentionStandIn("MultiHeadAttention", layer, _attention(layer))
    arrays = (inputs_q, inputs_k, inputs_v) + (() if mask is None else (mask,))
    return part_p.bind(*arrays, call=Call(stand_in))


STAND_INS: dict[type, Callable[..., Any]] = {
    nnx.Linear: caller(LinearStandIn, _linear),
    nnx.Conv: caller(ConvStandIn, _linear),
    nnx.LayerNorm: caller(PointStandIn, _norm),
    nnx.RMSNorm: caller(PointStandIn, _norm),
    nnx.Dropout: caller(PointStandIn, _dropout),
    nnx.Embed: caller(TableStandIn, _table),
    nnx.MultiHeadAttention: _call_attention,
}
