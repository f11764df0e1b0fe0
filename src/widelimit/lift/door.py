"""`lift`: a model of known parts, as a network of layers."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from ..errors import NetworkError, OptionError, ShapeError
from ..finite.widths import with_heads
from ..layers import Serial
from ..options import choice
from ..programs.biases import Biases, apart
from . import equinox_parts
from .initialisers import Deviations, InitialReading
from .parts import PartNode
from .program import read_program
from .values import TRACING, LiftWarning
from .writer import written


def lift(
    model: Any,
    x: Any,
    *,
    heads: float | None = None,
    biases: Biases | str = Biases.LIMIT,
    deviations: Deviations | str = Deviations.INITIALISER,
    compare: bool = False,
) -> Serial:
    """The network of layers that a model of known parts is, with the σ of its initialisers.

    `model`: an Equinox or Flax NNX model, or a function around one, that maps ONE example, of parts
    of `equinox.nn` and `flax.nnx`; or any torch module that maps a batch, read by what its exported
    program does (of several outputs the first). Between weights the code may add, multiply, apply
    functions, pool, pick positions and rearrange.
    `x`: a batch of examples, of which only the shape and the kind of number count.

    Weights of variance v on n inputs are `σ_w = √(v n)` at the model's own sizes; v is what the
    library draws with, or another scale that the weights show (Glorot's 2/(n + m), 0.02², …), or
    measured. `biases`: what
    becomes of those whose variance is 1/(3n) (see `Biases`). `deviations`: read σ off initialisers,
    or measure it (see `Deviations`). `heads`: another number of heads, such as INFINITE.
    `compare`: say, in a `LiftWarning`, how far the model at its own width is from its limit where
    biases that vanish outweigh what stays. The network takes inputs in the model's own layout, and
    has the NTK parameterisation.
    """
    kind = choice(Biases, biases, "biases")
    reading = InitialReading(choice(Deviations, deviations, "deviations"))
    if _is_torch(model):
        from .torch_graph import read_module

        last, first = read_module(model, x, reading)
        write = _written
    else:
        if not callable(model):
            raise OptionError(
                f"{type(model).__name__} is no model.",
                got=" ".join(repr(model).split())[:80],
                remedy="pass an Equinox or Flax NNX model, a function of one example, or a torch "
                "module",
            )
        array = _numbers(x)
        tokens = array.dtype.kind in "iu"
        bad = array.dtype.kind not in "iufb" or array.ndim < (1 if tokens else 2)
        if bad or array.size == 0:
            raise ShapeError(
                "x holds no batch of examples.",
                got=f"{type(x).__name__} of shape {array.shape} and kind {array.dtype}",
                remedy="pass x of shape (examples, …), e.g. x[None] for one example",
            )
        graph, output = read_program(model, array[0], _stand_ins(), reading)
        graph.require_output(output)
        last, first, write = output.node, graph.rearrangement(), written
    front = () if first is None else (first,)
    net = Serial(*front, *write(last, kind).layers)
    if compare and kind is Biases.LIMIT:
        _compare(net, Serial(*front, *write(last, Biases.OWN).layers), np.asarray(x))
    return net if heads is None else with_heads(net, heads)  # pyright: ignore[reportReturnType]


def _written(last: PartNode, biases: Biases) -> Serial:
    """The network of a torch module's parts, for which there is no tracing."""
    try:
        return written(last, biases)
    except NetworkError as error:
        way = "write this part in layers: wl.Serial(…) of wl.Dense, wl.Attention, …"
        remedy = error.remedy.replace(TRACING, way)
        raise NetworkError(error.rule, got=error.got, remedy=remedy) from None


def _compare(limit: Serial, own: Serial, x: np.ndarray) -> None:
    """Warn where the variance of outputs rests on biases that vanish."""
    sizes = [
        np.asarray(net.kernel(x[:4], ntk=False, samples=64).nngp.diagonal()) for net in (own, limit)
    ]
    line = apart(sizes[0] / sizes[1])
    if line is not None:
        warnings.warn(
            f"With biases as they are at the model's own width, {line}; biases='own' keeps them.",
            LiftWarning,
            stacklevel=3,
        )


def _numbers(x: Any) -> np.ndarray:
    """x as an array; of objects where it is no array of numbers."""
    try:
        return np.asarray(x)
    except (TypeError, ValueError):  # lists of different lengths
        return np.asarray(None)


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
