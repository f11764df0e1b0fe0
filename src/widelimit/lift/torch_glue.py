"""Functions and methods of torch tensors between modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from .parts import Add, Drop, ModelPart, Multiply, Scale
from .values import Value, refusal

if TYPE_CHECKING:
    from .torch_graph import Reader


@dataclass(frozen=True)
class Attended:
    """What MultiheadAttention returns: its output, and weights that cannot be used."""

    first: Value


def _added(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    return _arithmetic(self, args, kwargs, where, Add())


def _multiplied(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    return _arithmetic(self, args, kwargs, where, Multiply())


def _arithmetic(self: Reader, args: Any, kwargs: Any, where: str, part: ModelPart) -> Value:
    one, two = args[:2]
    values = [a for a in (one, two) if isinstance(a, Value)]
    if kwargs or len(args) > 2:
        raise refusal("Sums and products are plain.", got=where)
    if len(values) == 2:
        assert isinstance(part, Add | Multiply)
        return self.graph.combined(one, two, part, where)
    number = two if isinstance(one, Value) else one
    if isinstance(part, Multiply) and isinstance(number, int | float):
        return self.graph.applied(Scale(float(number)), values[0], where)
    raise refusal("Numbers multiply what they meet.", got=f"{where} with {number!r}")


def _divided(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    value, number = args
    if not isinstance(number, int | float):
        raise refusal("Values are divided by numbers.", got=where)
    return self.graph.applied(Scale(1 / number), value, where)


def pooled(self: Reader, value: Value, axes: Any, *, keep: bool, mean: bool, where: str) -> Value:
    """The sum or the mean over all positions."""
    count = int(np.prod([self.graph.shape_of(value)[a] for a in axes], dtype=int))
    found = self.graph.summed(value, list(axes), where, keep=keep)
    return self.graph.applied(Scale(1 / count), found, where) if mean else found


def _reduced(mean: bool) -> Callable[..., Value]:
    def read(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
        value = args[0]
        axes = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
        keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
        if axes is None:
            raise refusal("Pooling is over positions, not over examples.", got=where)
        chosen = [axes] if isinstance(axes, int) else list(axes)
        chosen = [a % len(value.axes) for a in chosen]
        return pooled(self, value, chosen, keep=keep, mean=mean, where=where)

    return read


def flattened(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    """`flatten(start_dim, end_dim)`."""
    value = args[0]
    start = args[1] if len(args) > 1 else kwargs.get("start_dim", 0)
    end = args[2] if len(args) > 2 else kwargs.get("end_dim", -1)
    shape = self.graph.shape_of(value)
    start, end = start % len(shape), end % len(shape)
    merged = int(np.prod(shape[start : end + 1], dtype=int))
    return self.graph.reshaped(value, (*shape[:start], merged, *shape[end + 1 :]), where)


def _transposed(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    value, one, two = args
    order = list(range(len(value.axes)))
    order[one], order[two] = order[two], order[one]
    return self.graph.transposed(value, order)


def _permuted(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    value, *order = args
    order = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
    return self.graph.transposed(value, [o % len(value.axes) for o in order])


def _item(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    value, index = args
    if isinstance(value, Attended):
        if index != 0:
            raise refusal("Attention weights are not an output.", got=where)
        return value.first
    index = index if isinstance(index, tuple) else (index,)
    shape = self.graph.shape_of(value)
    picked = [i for i, entry in enumerate(index) if isinstance(entry, int)]
    plain = all(isinstance(e, int) or e == slice(None) for e in index)
    if not plain or len(picked) != 1:
        raise refusal("An index picks one position.", got=f"{where} with {index}")
    axis = picked[0]
    found = self.graph.picked(value, axis, index[axis] % shape[axis], where)
    return self.graph.reshaped(found, (*shape[:axis], *shape[axis + 1 :]), where)


def _kept(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    return args[0]


def _dropped(self: Reader, args: Any, kwargs: Any, where: str) -> Value:
    rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    return self.graph.applied(Drop(float(rate)), args[0], where) if training else args[0]


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "add": _added,
    "iadd": _added,
    "mul": _multiplied,
    "imul": _multiplied,
    "truediv": _divided,
    "div": _divided,
    "mean": _reduced(True),
    "sum": _reduced(False),
    "flatten": flattened,
    "transpose": _transposed,
    "permute": _permuted,
    "getitem": _item,
    "contiguous": _kept,
    "dropout": _dropped,
}

POINTWISE: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name, None) or getattr(F, name)
    for name in ("relu", "tanh", "sigmoid", "erf", "abs", "sin", "cos", "square", "neg")
} | {name: getattr(F, name) for name in ("gelu", "silu", "softplus", "leaky_relu")}
