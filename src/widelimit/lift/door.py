"""`lift`: a model of known parts, as a network of layers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..finite.widths import with_heads
from ..layers import Serial
from ..options import choice
from . import equinox_parts
from .initialisers import Deviations, InitialReading
from .program import read_program
from .writer import Biases, written


def lift(
    model: Any,
    x: Any,
    *,
    heads: float | None = None,
    biases: Biases | str = Biases.LIMIT,
    deviations: Deviations | str = Deviations.INITIALISER,
) -> Serial:
    """The network of layers that a model of known parts is, with the σ of its initialisers.

    `model`: an Equinox or Flax NNX model, or a function around one, that maps ONE example; or a
    torch module that maps a batch. Parts are those of `equinox.nn`, `flax.nnx` and `torch.nn`;
    between them the code may add, multiply, apply functions, pool, pick positions and rearrange.
    `x`: a batch of examples, of which only the shape and the kind of number count.

    Weights of variance v on n inputs are `σ_w = √(v n)` at the model's own sizes. `biases`: what
    becomes of those whose variance is 1/(3n) (see `Biases`). `deviations`: read σ off initialisers,
    or measure it (see `Deviations`). `heads`: another number of heads, such as INFINITE.
    The network takes channels last, and has the NTK parameterisation.
    """
    kind = choice(Biases, biases, "biases")
    reading = InitialReading(choice(Deviations, deviations, "deviations"))
    if _is_torch(model):
        from .torch_graph import read_module

        last, _ = read_module(model, x, reading)
    else:
        array = np.asarray(x)
        if (array.ndim < 2 and array.dtype.kind not in "iu") or array.size == 0:
            raise ShapeError(
                "Inputs are a batch of examples.",
                got=f"an array of shape {array.shape}",
                remedy="pass x of shape (examples, …), e.g. x[None] for one example",
            )
        graph, output = read_program(model, array[0], _stand_ins(), reading)
        graph.require_output(output)
        last = output.node
    net = written(last, kind)
    return net if heads is None else with_heads(net, heads)  # pyright: ignore[reportReturnType]


def _stand_ins() -> dict[type, Any]:
    """Parts of the libraries that are in use; Flax is none of this library's dependencies."""
    found = dict(equinox_parts.STAND_INS)
    if "flax.nnx" in sys.modules:
        from . import flax_parts

        found |= flax_parts.STAND_INS
    return found


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
