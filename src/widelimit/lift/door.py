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
from . import jax_graph
from .initialisers import Deviations, decide
from .layout import rearranging
from .parts import in_order
from .values import LiftWarning, RefusedModel
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

    `model`: a function of JAX that maps ONE example, of whatever library (Equinox, Flax, Haiku, or
    none), or any torch module that maps a batch (of several outputs the first). Parts are known by
    what the code does. Between weights it may add, multiply, apply functions, pool, pick positions
    and rearrange.
    `x`: a batch of examples, of which only the shape and the kind of number count.

    Weights of variance v on n inputs are `σ_w = √(v n)` at the model's own sizes; v is what
    libraries draw with, where the weights show it (1/(3n), 1/n, Glorot's 2/(n + m), 0.02², …), or
    measured. `biases`: what becomes of those whose variance is 1/(3n) (see `Biases`).
    `deviations`: read σ off initialisers, or measure it (see `Deviations`). `heads`: another number
    of heads, such as INFINITE. `compare`: say, in a `LiftWarning`, how far the model at its own
    width is from its limit where biases that vanish outweigh what stays. The network takes inputs
    in the model's own layout, and has the NTK parameterisation.
    """
    kind = choice(Biases, biases, "biases")
    measure = choice(Deviations, deviations, "deviations")
    torch = sys.modules.get("torch")
    of_torch = torch is not None and isinstance(model, torch.nn.Module)
    if not of_torch and not callable(model):
        raise OptionError(
            f"{type(model).__name__} is no model.",
            got=" ".join(repr(model).split())[:80],
            remedy="pass a function of one example, such as an Equinox or Flax NNX model, or a "
            "torch module",
        )
    array = _examples(x)
    if of_torch:
        from . import torch_graph

        read, untie, batch = torch_graph.read_module, torch_graph.UNTIE, array
    else:
        read, untie, batch = jax_graph.read_program, jax_graph.UNTIE, array[0]
    try:
        last, layout = read(model, batch)
        decide(in_order(last), measure, untie)
        front = ()
        if layout.order is not None and not layout.tokens:
            layer = rearranging(layout.shape, layout.order, layout.source)
            front = () if layer is None else (layer,)
        net = Serial(*front, *written(last, kind).layers)
        if compare and kind is Biases.LIMIT:
            _compare(net, Serial(*front, *written(last, Biases.OWN).layers), array)
    except RefusedModel as error:
        way = "" if of_torch else ", or use wl.trace(make, x), which reads any code"
        raise NetworkError(error.rule, got=error.got, remedy=error.remedy + way) from None
    return net if heads is None else with_heads(net, heads)  # pyright: ignore[reportReturnType]


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


def _examples(x: Any) -> np.ndarray:
    """x as an array of numbers, examples first."""
    try:
        array = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    except (TypeError, ValueError):  # lists of different lengths
        array = np.asarray(None)
    tokens = array.dtype.kind in "iu"
    bad = array.dtype.kind not in "iufb" or array.ndim < (1 if tokens else 2)
    if bad or array.size == 0:
        raise ShapeError(
            "x holds no batch of examples.",
            got=f"{type(x).__name__} of shape {array.shape} and kind {array.dtype}",
            remedy="pass x of shape (examples, …), e.g. x[None] for one example",
        )
    return array
