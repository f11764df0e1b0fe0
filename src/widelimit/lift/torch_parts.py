"""Modules of `torch.nn`: what parts they are, and how they are drawn.

Weights of Linear and Conv are `kaiming_uniform(a=√5)` and their biases uniform on
(−1/√fan_in, 1/√fan_in), both of variance 1/(3·fan_in). Projections of queries, keys and values
stand in one matrix of 3n rows and n columns: `xavier_uniform` on it has variance 2/(4n). Rows of
Embedding are standard normal; biases of attention are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from ..errors import warn
from .initialisers import InitialReading, InitialRule, require_constant
from .parts import (
    Add,
    Affine,
    Attend,
    Convolution,
    Drop,
    Linear,
    Lookup,
    Normalise,
    Pool,
)
from .stand_ins import Windows
from .torch_glue import Attended, flattened, pooled
from .values import LiftWarning, Value, ValueKind, refusal

if TYPE_CHECKING:
    from .torch_graph import Reader

_ZERO = InitialRule("zeros", 0.0, gaussian=True)


def _numbers(parameter: Any) -> Any:
    return None if parameter is None else parameter.detach().cpu().numpy()


def _laws(module: Any, reading: InitialReading, where: str) -> Affine:
    weight = _numbers(module.weight)
    fan_in = int(np.prod(weight.shape[1:]))
    rule = InitialRule("kaiming_uniform(a=√5)", 1 / (3 * fan_in), gaussian=False)
    weights = reading.weights(weight, fan_in, rule, where)
    return Affine(weights, reading.bias(_numbers(module.bias), rule, where, vanishing=True))


def _described_attention(module: Any, reading: InitialReading, where: str) -> Attend:
    width, heads = module.embed_dim, module.num_heads
    if module.dropout and module.training:
        raise refusal(
            "Attention weights are not dropped at random.",
            got=f"{where} with a dropout rate of {module.dropout:g} in training",
            remedy="model.eval()",
        )
    if module.bias_k is not None or module.add_zero_attn:
        raise refusal(
            "Attention is plain: keys are those of the input.",
            got=f"{where} with add_bias_kv or add_zero_attn",
        )
    if module.in_proj_weight is None:
        raise refusal(
            "Queries, keys and values are made of one array (self-attention).",
            got=f"{where} with kdim or vdim",
        )
    rule = InitialRule("xavier_uniform of (3n, n)", 1 / (2 * width), gaussian=False)
    inner = _numbers(module.in_proj_weight).reshape(3, width, width)
    drawn = _numbers(module.in_proj_bias)
    biases = [None] * 3 if drawn is None else list(drawn.reshape(3, width))
    query, key, value = (
        Affine(
            reading.weights(part, width, rule, where),
            reading.bias(bias, _ZERO, where, vanishing=False),
        )
        for part, bias in zip(inner, biases, strict=True)
    )
    weight = _numbers(module.out_proj.weight)
    outer = InitialRule("kaiming_uniform(a=√5)", 1 / (3 * width), gaussian=False)
    out = reading.weights(weight, width, outer, where)
    bias = reading.bias(_numbers(module.out_proj.bias), _ZERO, where, vanishing=False)
    return Attend(
        query,
        key,
        value,
        Affine(out, bias),
        width=width,
        heads=heads,
        kv_heads=heads,
        key_width=width // heads,
        value_width=width // heads,
    )


# ---- readers of modules ------------------------------------------------------------------------


def _linear(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    value = self.channel_last(args[0], where)
    self.graph.use(module, where)
    part = Linear(_laws(module, self.reading, where), width=module.out_features)
    return value.to(self.graph.made(part, value.node, where=where, channels=part.width))


def _conv(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    value = self.graph.settled_value(self.graph.known(args[0], 1), where)
    expected = (
        ValueKind.BATCH,
        ValueKind.CHANNEL,
        *((p,) for p in range(len(value.node.positions))),
    )
    if value.axes != expected:
        raise refusal(
            "A convolution is over all positions, in order.",
            got=f"an array of shape {self.graph.shape_of(value)} at {where}",
        )
    rank = len(module.kernel_size)
    plain = module.groups == 1 and all(d == 1 for d in module.dilation)
    if not plain or module.padding_mode not in ("zeros", "circular"):
        raise refusal(
            "Convolutions are plain: no groups, no dilation, zeros or a circle beyond the edge.",
            got=where,
        )
    pads: Any = module.padding
    if not isinstance(pads, str):
        pads = [(p, p) for p in pads]
    geometry = Windows(
        module.kernel_size, module.stride, pads, circular=module.padding_mode == "circular"
    )
    self.graph.use(module, where)
    law = _laws(module, self.reading, where)
    positions = value.node.positions
    assert len(positions) == rank
    part = Convolution(
        law,
        module.out_channels,
        geometry.window,
        geometry.stride,
        geometry.padding(positions, where),
    )
    node = self.graph.made(
        part,
        value.node,
        where=where,
        positions=geometry.outs(positions),
        channels=module.out_channels,
    )
    return value.to(node)


def _norm(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    require_constant(_numbers(module.weight), 1.0, "gain", where)
    require_constant(_numbers(getattr(module, "bias", None)), 0.0, "shift", where)
    if len(module.normalized_shape) > 1:
        raise refusal("Normalisation is over channels.", got=where)
    value = self.channel_last(args[0], where)
    eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    part = Normalise(isinstance(module, nn.LayerNorm), float(eps))
    return self.graph.applied(part, value, where)


def _dropout(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    if not module.training or not module.p:
        return args[0]
    return self.graph.applied(Drop(float(module.p)), args[0], where)


def _table(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    value = self.graph.known(args[0])
    if value.node is not self.graph.source or not self.graph.tokens or module.max_norm:
        raise refusal("Tables are looked up by the tokens of the input.", got=where)
    if module.padding_idx is not None:
        raise refusal(
            "All rows of a table are drawn alike.",
            got=f"{where} with padding_idx, a row of zeros",
            remedy="mask padding: net.kernel(x, mask=…)",
        )
    self.graph.use(module, where)
    drawn = _numbers(module.weight)
    variance = self.reading.variance(drawn, InitialRule("N(0, 1)", 1.0, gaussian=True), where)
    part = Lookup(variance, True, *map(int, drawn.shape))
    node = self.graph.made(part, value.node, where=where, channels=part.width)
    return value.to(node, (*value.axes, ValueKind.CHANNEL))


def _attention(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Any:
    given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
    arrays = [given.get(name) for name in ("query", "key", "value")]
    known = {"query", "key", "value", "need_weights"}
    extra = [k for k, v in given.items() if k not in known and v not in (None, False)]
    if extra or len(args) > 3:
        raise refusal(
            "Attention is over all positions; padding is given to the kernel.",
            got=f"{where} with {', '.join(extra) or 'a mask'}",
            remedy="leave masks to net.kernel(x, mask=…)",
        )
    if any(a is not arrays[0] for a in arrays):
        raise refusal(
            "Queries, keys and values are made of one array (self-attention).",
            got=f"different arrays at {where}",
            remedy="describe cross-attention with widelimit.CrossAttention",
        )
    return Attended(self_attention(self, module, arrays[0], where))


def self_attention(self: Reader, module: Any, value: Value, where: str) -> Value:
    """Attention of an array on itself."""
    value = self.graph.settled_value(value, where)
    order = (0, 1, 2) if module.batch_first else (1, 0, 2)
    if len(value.axes) != 3 or value.axes[order[0]] is not ValueKind.BATCH:
        raise refusal(
            "The batch is the first axis for attention with batch_first=True, otherwise the "
            "second.",
            got=f"batch_first={module.batch_first} at {where}, and x whose first axis is the batch",
            remedy="nn.MultiheadAttention(…, batch_first=True)",
        )
    value = self.graph.in_sequence(self.graph.transposed(value, order), where)
    self.graph.use(module, where)
    part = _described_attention(module, self.reading, where)
    found = value.to(self.graph.made(part, value.node, where=where, channels=part.width))
    return self.graph.transposed(found, order)


def _encoder_layer(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    """`norm(x + attention(x))`, then an MLP likewise; or with norms first."""
    extra = [k for k, v in kwargs.items() if k != "src" and v not in (None, False)]
    if extra or len(args) > 1:
        raise refusal(
            "Attention is over all positions; padding is given to the kernel.",
            got=f"{where} with {', '.join(extra) or 'a mask'}",
            remedy="leave masks to net.kernel(x, mask=…)",
        )
    x = self.graph.settled_value(args[0] if args else kwargs["src"], where)

    def inner(part: Any, value: Value, name: str) -> Value:
        return self.module(part, (value,), {}, f"{where}.{name}")

    def attend(value: Value) -> Value:
        value = self_attention(self, module.self_attn, value, f"{where}.self_attn")
        return inner(module.dropout1, value, "dropout1")

    def mlp(value: Value) -> Value:
        value = inner(module.linear1, value, "linear1")
        value = self.activated(value, module.activation, f"{where}.activation")
        value = inner(module.dropout, value, "dropout")
        value = inner(module.linear2, value, "linear2")
        return inner(module.dropout2, value, "dropout2")

    for branch, norm, name in ((attend, module.norm1, "norm1"), (mlp, module.norm2, "norm2")):
        below = inner(norm, x, name) if module.norm_first else x
        x = self.graph.combined(x, branch(below), Add(), where)
        x = x if module.norm_first else inner(norm, x, name)
    return x


def _encoder(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    x = args[0] if args else kwargs["src"]
    rest = {k: v for k, v in kwargs.items() if k != "src"}
    first, *others = (layer.linear1.weight for layer in module.layers)
    if any(torch.equal(first, other) for other in others):
        warn(
            LiftWarning(
                f"Layers of {where} are copies with the same weights, as TransformerEncoder makes "
                "them. In the lifted network every layer has weights of its own."
            )
        )
    for number, layer in enumerate(module.layers):
        x = _encoder_layer(self, layer, (x, *args[1:]), rest, f"{where}.layers.{number}")
    return x if module.norm is None else _norm(self, module.norm, (x,), {}, f"{where}.norm")


def _flatten_module(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    return flattened(self, (args[0], module.start_dim, module.end_dim), {}, where)


def _mean_windows(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    value = self.graph.settled_value(self.graph.known(args[0], 1), where)
    rank = len(value.node.positions)
    window, stride = (
        (given,) * rank if isinstance(given, int) else tuple(given)
        for given in (module.kernel_size, module.stride)
    )
    padded = np.any(np.asarray(module.padding))
    if padded or module.ceil_mode or getattr(module, "divisor_override", None):
        raise refusal("Windows of a pool lie inside.", got=where)
    factor = 1 / float(np.prod(window))
    return self.graph.windowed(value, Pool(factor, window, stride), where)


def _mean_all(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    sizes = module.output_size
    if any(s != 1 for s in (sizes if isinstance(sizes, tuple) else (sizes,))):
        raise refusal("Adaptive pools leave one position.", got=where)
    value = self.graph.known(args[0], 1)
    return pooled(self, value, range(2, len(value.axes)), keep=True, mean=True, where=where)


def _first(self: Reader, module: Any, args: Any, kwargs: Any, where: str) -> Value:
    return args[0]


MODULES: dict[type, Callable[..., Any]] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.LayerNorm: _norm,
    nn.Dropout: _dropout,
    nn.Identity: _first,
    nn.Embedding: _table,
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
    nn.Flatten: _flatten_module,
    nn.AvgPool1d: _mean_windows,
    nn.AvgPool2d: _mean_windows,
    nn.AdaptiveAvgPool1d: _mean_all,
    nn.AdaptiveAvgPool2d: _mean_all,
}
if hasattr(nn, "RMSNorm"):
    MODULES[nn.RMSNorm] = _norm


def pointwise(module: Any) -> Callable[[Any], Any] | None:
    """A module without parameters that acts on every entry for itself."""
    if next(module.parameters(), None) is not None:
        return None
    with torch.no_grad():
        probe = torch.linspace(-2.0, 2.0, 5, dtype=torch.float64)
        try:
            alone = torch.cat([module(one.reshape(1)) for one in probe])
            together = module(probe)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
    same = alone.shape == together.shape and bool(torch.allclose(alone, together))
    return module if same else None
