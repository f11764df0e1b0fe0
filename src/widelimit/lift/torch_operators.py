"""Operators of torch that are parts: weights, tables, normalisations, pools, tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from .parts import Affine, Convolution, Drop, FirstToken, Lookup, Normalise, Places, Pool, made
from .stand_ins import Windows
from .torch_attention import attention
from .torch_export import refusal
from .torch_laws import DrawnPart, DrawnWeights
from .torch_regions import Region
from .torch_values import BATCH, Held, Known, Rows
from .values import LiftWarning

if TYPE_CHECKING:
    from .torch_graph import Reader


def _constant(value: Any) -> Any:
    """The tensor of a constant, None for None; the input's own kind is not one."""
    if value is None:
        return None
    return value.tensor if isinstance(value, Known) else False


def _weights(name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any] | None:
    """What is multiplied, weights (inputs, outputs) and bias; None where they are no constants."""
    if name == "linear":
        value, weight, *rest = args
        bias = rest[0] if rest else kwargs.get("bias")
        weight, bias = _constant(weight), _constant(bias)
        return None if weight is False or bias is False else (value, weight.T, bias)
    if name == "addmm":
        bias, value, weight = args
        weight, bias = _constant(weight), _constant(bias)
        plain = kwargs.get("beta", 1) == 1 and kwargs.get("alpha", 1) == 1
        bad = weight is False or bias is False or not plain or bias.ndim != 1
        return None if bad else (value, weight, bias)
    value, weight = args
    weight = _constant(weight)
    if weight is False or weight.ndim != 2:
        return None
    return value, weight, None


def _linear(name: str) -> Callable[..., Any]:
    def read(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
        found = _weights(name, args, kwargs)
        if found is None or not isinstance(found[0], Held):
            return None
        return self.linear(*found, where)

    return read


def weighted(self: Reader, name: str, args: Any, kwargs: Any, where: str) -> Held | None:
    """The last weights of attention, on what a region gives; None for other operators."""
    found = _weights(name, args, kwargs) if name in ("linear", "addmm", "mm", "matmul") else None
    if found is None or not isinstance(found[0], Region):
        return None
    region, weights, bias = found
    heads = attention(region, self.aligner, where)
    drawn = DrawnWeights.of(weights, bias, where)
    node = made(heads.part(drawn), heads.below, where=where, channels=weights.shape[1])
    return heads.to(node, weights.shape[1])


def _conv(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, args, strict=False)) | kwargs
    weight, bias = _constant(given["weight"]), _constant(given.get("bias"))
    held = given["input"]
    if weight is False or bias is False or not isinstance(held, Held):
        return None
    rank = weight.ndim - 2
    if held.index.ndim != rank + 2:
        raise refusal(f"A convolution is on an array of shape {held.shape}", where, "pass a batch")
    window = tuple(weight.shape[2:])
    stride, dilation = (_each(given.get(n, 1), rank) for n in ("stride", "dilation"))
    pads = given.get("padding", 0)
    if given.get("groups", 1) != 1 or any(d != 1 for d in dilation):
        raise refusal(
            f"A convolution has groups={given.get('groups', 1)} and dilation {dilation}",
            where,
            "use plain convolutions",
        )
    pads = pads.upper() if isinstance(pads, str) else [(p, p) for p in _each(pads, rank)]
    rows = self.aligner.rows(held, where, 1)
    node, positions = rows.node, tuple(held.shape[2:])
    grid = torch.arange(BATCH * int(np.prod(positions))).reshape(BATCH, *positions)
    if rows.rows.shape != grid.shape or not (rows.rows == grid).all():
        raise refusal("Positions of a convolution are in another order", where)
    node.positions = positions if node is self.layout.source else node.positions
    if node.positions != positions:
        raise refusal(f"A convolution is on positions {positions} that were a sequence", where)
    geometry = Windows(window, stride, pads, circular=False)
    outs = geometry.outs(positions)
    flat = weight.reshape(weight.shape[0], -1).T
    drawn = DrawnWeights.of(flat, bias, where)
    padding = geometry.padding(positions, where)

    def make(laws: Sequence[Affine]) -> Convolution:
        return Convolution(laws[0], weight.shape[0], window, stride, padding)

    part = DrawnPart((drawn,), make)
    new = made(part, node, where=where, positions=outs, channels=weight.shape[0])
    count = torch.arange(BATCH * int(np.prod(outs))).reshape(BATCH, *outs)
    return Rows(new, count).to(new, weight.shape[0], axis=1)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))


def _embedding(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    table, tokens = args[:2]
    weight = _constant(table)
    source = self.layout.source
    if weight is False or not isinstance(tokens, Held) or tokens.node is not source:
        raise refusal("A table is looked up by indices that are computed from the input", where)
    if tokens.function is not None:
        raise refusal("Tokens are changed before they are looked up", where)
    padding = args[2] if len(args) > 2 else kwargs.get("padding_idx", -1)
    rows = weight
    if 0 <= padding < len(weight) and not weight[padding].any():
        warnings.warn(
            LiftWarning(
                f"Row {padding} of the table at {where} is zero, as padding; in the lifted network "
                "it is a row like others. Padding belongs to the mask: net.kernel(x, mask=…)."
            ),
            stacklevel=2,
        )
        rows = torch.cat([weight[:padding], weight[padding + 1 :]])
    drawn = DrawnWeights.of(rows.T, None, where)

    def make(laws: Sequence[Affine]) -> Lookup:
        law = laws[0].weights
        return Lookup(law.variance, law.gaussian, *map(int, weight.shape))

    node = made(DrawnPart((drawn,), make), source, where=where, channels=weight.shape[1])
    return Rows(node, tokens.index).to(node, weight.shape[1])


def added_table(self: Reader, held: Held, array: Known, where: str) -> Any:
    """A constant that differs from entry to entry: vectors of positions, or one for all."""
    shape = torch.broadcast_shapes(held.shape, array.tensor.shape)
    if shape != held.shape:
        raise refusal(
            f"An array of shape {held.shape} is repeated to {tuple(shape)} by what is added", where
        )
    held = self.aligner.activated(self.aligner.known(held, -1, where), where)
    numbers = array.tensor.detach().double().expand(shape)
    batch, position, channel = self.aligner.coordinates(held)
    node = held.node
    table = torch.full((BATCH, node.count, max(node.channels, 1)), torch.nan, dtype=torch.float64)
    table[batch, position, channel] = numbers
    if table.isnan().any() or not (table[0] == table[1]).all():
        raise refusal("A constant is added to a part of the array, or examples have others", where)
    rows = table[0].numpy()
    common = bool((rows == rows[:1]).all())
    drawn = DrawnWeights(rows[:1].T if common else rows.T, None, where)

    def make(laws: Sequence[Affine]) -> Places:
        variance = laws[0].weights.variance
        return Places(0.0, variance) if common else Places(variance, 0.0)

    new = made(DrawnPart((drawn,), make), node, where=where)
    return Held(new, self.aligner.canonical(held))


def _token(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    """A constant row in front of all positions."""
    parts = args[0]
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if len(parts) != 2 or not isinstance(parts[0], Known) or not isinstance(parts[1], Held):
        raise refusal(
            "Constants are joined to an array in another way than as one token in front", where
        )
    token, held = parts[0].tensor, parts[1]
    axis = axis % held.index.ndim
    rows = self.aligner.rows(held, where)
    sizes = (BATCH, rows.node.count, rows.node.channels)
    one = token.shape[1] == 1 and bool((token == token[:1]).all())
    if held.shape != sizes or axis != 1 or not one:
        raise refusal(f"{token.shape[1]} constant rows stand in front, or at another place", where)
    drawn = DrawnWeights.of(token[0].reshape(-1, 1), None, where)

    def make(laws: Sequence[Affine]) -> FirstToken:
        return FirstToken(laws[0].weights.variance)

    length = 1 + rows.node.count
    node = made(DrawnPart((drawn,), make), rows.node, where=where, positions=(length,))
    count = torch.arange(BATCH * length).reshape(BATCH, length)
    return Rows(node, count).to(node, rows.node.channels)


def _norm(*, centred: bool) -> Callable[..., Any]:
    def read(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
        names = ("input", "normalized_shape", "weight", "bias", "eps")
        if not centred:
            names = ("input", "normalized_shape", "weight", "eps")
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(given["normalized_shape"]) > 1:
            raise refusal("A normalisation is over several axes", where)
        for name, expected in (("weight", 1.0), ("bias", 0.0)):
            array = given.get(name)
            if array is not None and (
                not isinstance(array, Known) or (array.tensor - expected).abs().max() > 1e-6
            ):
                raise refusal(
                    f"The {name} of a normalisation is not {expected:g}, as at initialisation",
                    where,
                    "lift a freshly initialised model",
                )
        eps = given.get("eps")
        eps = torch.finfo(torch.float32).eps if eps is None else eps
        rows = self.aligner.rows(given["input"], where, flatten=False)
        node = made(Normalise(centred, float(eps)), rows.node, where=where)
        return rows.to(node, rows.node.channels)

    return read


def _batch_norm(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    """In evaluation, the affine map that running means and variances make."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("training") or given.get("running_var") is None:
        raise refusal("BatchNorm mixes the examples of a batch", where, "model.eval()")
    parts = [given.get(n) for n in ("weight", "running_var", "bias", "running_mean")]
    numbers = [None if part is None else part.number for part in parts]
    gain, variance, bias, mean = (
        d if p is None else n for p, n, d in zip(parts, numbers, (1.0, 1.0, 0.0, 0.0), strict=True)
    )
    if None in (gain, variance, bias, mean) or bias or mean:
        raise refusal("BatchNorm has been trained", where, "lift a freshly initialised model")
    scale = float(gain / np.sqrt(variance + given.get("eps", 1e-5)))
    return given["input"].then(lambda x: x * scale)


def _dropout(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    held, rate, *rest = args
    training = rest[0] if rest else kwargs.get("train", kwargs.get("training", True))
    if not training or not rate:
        return held
    held = self.aligner.activated(self.aligner.known(held, -1, where), where)
    return Held(made(Drop(float(rate)), held.node, where=where), self.aligner.canonical(held))


def _reduced(*, mean: bool) -> Callable[..., Any]:
    def read(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
        held = args[0]
        axes = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        if axes is None:
            raise refusal("A mean or sum is over all examples too", where, "give dim=")
        axes = [a % held.index.ndim for a in ([axes] if isinstance(axes, int) else axes)]
        return pooled(self, held, axes, keep=keep, mean=mean, where=where)

    return read


def pooled(self: Reader, held: Held, axes: list[int], *, keep: bool, mean: bool, where: str) -> Any:
    """The sum or mean over all positions; None where the axes are others."""
    held = self.aligner.known(held, -1 if held.index.ndim - 1 not in axes else 1, where)
    rest = [a for a in range(held.index.ndim) if a not in axes]
    batch, position, channel = (
        c.permute(*rest, *axes).flatten(len(rest)) for c in self.aligner.coordinates(held)
    )
    if not (batch == batch[..., :1]).all():
        raise refusal("A mean or sum is over examples", where, "pool over positions")
    size = position.shape[-1]
    found = torch.sort(position, dim=-1)[0]
    same = (channel == channel[..., :1]).all()
    if not same or size != held.node.count or not (found == torch.arange(size)).all():
        return None
    held = self.aligner.activated(held, where)
    node = made(Pool(1 / size if mean else 1.0, None, None), held.node, where=where, positions=())
    index = batch[..., 0] * max(node.channels, 1) + channel[..., 0]
    if keep:
        for axis in sorted(axes):
            index = index.unsqueeze(axis)
    return Held(node, index)


def _windows(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    """Means over windows."""
    names = ("input", "kernel_size", "stride", "padding", "ceil_mode", "include", "divisor")
    given = dict(zip(names, args, strict=False)) | kwargs
    held = given["input"]
    rank = held.index.ndim - 2
    window = _each(given["kernel_size"], rank)
    stride = _each(given.get("stride") or window, rank)
    padding = _each(given.get("padding", 0), rank)
    if any(padding) or given.get("ceil_mode") or given.get("divisor"):
        raise refusal("Windows of a pool reach beyond the edge", where, "use no padding")
    rows = self.aligner.rows(held, where, 1)
    positions = held.shape[2:]
    if rows.node.positions != positions:
        raise refusal(f"A pool is on positions {positions} that were a sequence", where)
    outs = Windows(window, stride, "VALID", circular=False).outs(positions)
    part = Pool(1 / float(np.prod(window)), window, stride)
    node = made(part, rows.node, where=where, positions=outs)
    count = torch.arange(BATCH * int(np.prod(outs))).reshape(BATCH, *outs)
    return Rows(node, count).to(node, node.channels, axis=1)


def _adaptive(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    held = args[0]
    sizes = _each(args[1], held.index.ndim - 2)
    if any(size != 1 for size in sizes):
        raise refusal(f"An adaptive pool leaves {sizes} positions", where, "leave one position")
    axes = list(range(2, held.index.ndim))
    return pooled(self, held, axes, keep=True, mean=True, where=where)


def _maximum(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    raise refusal(
        "Max pooling has no closed limit", where, "use mean pooling (AvgPool, or a stride)"
    )


def _random(self: Reader, args: Any, kwargs: Any, where: str) -> Any:
    raise refusal("The model draws random numbers as it runs", where, "model.eval()")


OPERATORS: dict[str, Callable[..., Any]] = {
    "linear": _linear("linear"),
    "addmm": _linear("addmm"),
    "mm": _linear("mm"),
    "matmul": _linear("matmul"),
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "convolution": _conv,
    "embedding": _embedding,
    "token": _token,
    "layer_norm": _norm(centred=True),
    "rms_norm": _norm(centred=False),
    "batch_norm": _batch_norm,
    "dropout": _dropout,
    "feature_dropout": _dropout,
    "mean": _reduced(mean=True),
    "sum": _reduced(mean=False),
    "avg_pool1d": _windows,
    "avg_pool2d": _windows,
    "avg_pool3d": _windows,
    "adaptive_avg_pool1d": _adaptive,
    "adaptive_avg_pool2d": _adaptive,
    "max_pool1d": _maximum,
    "max_pool2d": _maximum,
    "max_pool3d": _maximum,
    "adaptive_max_pool1d": _maximum,
    "adaptive_max_pool2d": _maximum,
    "bernoulli": _random,
    "rand_like": _random,
    "randn_like": _random,
}
