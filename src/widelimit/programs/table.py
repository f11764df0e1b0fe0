"""The table of primitives: one record for each that the engine reads.

Rules are in `entrywise` (numbers, functions of entries), `families` (parameters, moved members,
sums) and `products` (contractions, convolutions).

A primitive that is not here is run on numbers of order one, and refused on vectors and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from . import arrays as a
from . import closed_forms
from . import entrywise as e
from . import families as f
from .entrywise import elementwise, mapped, on_scalars
from .keys import Keys
from .products import contract, convolve
from .steps import Order, Record

UNKNOWN = Record(on_scalars, f.refused)
_LEADING, _RATIO = Order.LEADING, Order.RATIO
_HALF, _FLAT, _SAME = Fraction(1, 2), Fraction(0), Fraction(1)


def _each(
    order: Order | Fraction, arrays: Callable[..., Any] | None = None, **facts: Any
) -> Record:
    """A function of every entry by itself."""
    return Record(elementwise, elementwise, order, arrays, coordinatewise=True, **facts)


_one = partial(_each, Order.ONE)
_linear = partial(Record, on_scalars, order=_LEADING, linear=True)
_moves = partial(_linear, moves=True)


def _moved(rule: Callable[..., Any]) -> Record:
    """What only moves the entries of its operand, of whatever kind."""
    alone = f.alone(rule)
    return Record(alone, alone, _LEADING, linear=True, moves=True)


def _largest(function: Callable[..., Any], **facts: Any) -> Record:
    """Maxima or minima over finite axes."""
    return Record(on_scalars, partial(f.largest, function), _LEADING, **facts)


_sum = partial(_each, _LEADING, linear=True)
_same = _each(_SAME, np.asarray, linear=True, moves=True, vectors=lambda step, vectors: vectors[0])
_numbers = Record(on_scalars, f.refused, _LEADING)


def _drawn(law: Callable[..., Any]) -> Record:
    """A call of `jax.random`, which stays whole."""
    return Record(f.drawn, f.drawn, law=law, kind="Parameter")


TABLE: dict[str, Record] = {
    # Sums and choices: the larger order wins.
    **dict.fromkeys(("add", "add_any"), _sum(np.add, signs=(1.0, 1.0))),
    "sub": _sum(np.subtract, signs=(1.0, -1.0)),
    "max": _each(_LEADING, np.maximum, inside=(-1.0,), closed=closed_forms.RELU),
    "min": _each(_LEADING, np.minimum, inside=(1.0,)),
    "clamp": _each(_LEADING, lambda a, x, b: np.minimum(np.maximum(x, a), b), inside=(-1.0, 1.0)),
    "select_n": Record(
        e.select, e.select, _LEADING, None, a.selected, True, chooses=1, vectors=e.chosen
    ),
    "rem": _each(_LEADING),
    # Comparisons and angles do not change when all operands are scaled.
    "gt": _each(_RATIO, np.greater),
    "lt": _each(_RATIO, np.less),
    "ge": _each(_RATIO, np.greater_equal),
    "le": _each(_RATIO, np.less_equal),
    "eq": _each(_RATIO, np.equal),
    "ne": _each(_RATIO, np.not_equal),
    "atan2": _each(_RATIO, np.arctan2),
    # Products and powers.
    "mul": _each(
        Order.PRODUCT, np.multiply, linear=True, vectors=lambda step, v: v[0].multiplied(v[1])
    ),
    "div": _each(Order.QUOTIENT, linear=True, numbers=a.divided, vectors=e.quotient),
    "integer_pow": _each(Order.POWER, numbers=a.powered, vectors=e.square),
    "pow": _each(Order.POWER, np.power),
    # f(c·x) = c^degree f(x) for c > 0.
    "neg": _each(_SAME, np.negative, linear=True, signs=(-1.0,)),
    "abs": _each(_SAME, np.abs),
    **dict.fromkeys(("copy", "copy_p", "stop_gradient"), _same),
    "convert_element_type": _each(
        _SAME, linear=True, moves=True, numbers=a.converted, vectors=e.converted
    ),
    "reduce_precision": replace(_same, arrays=None),
    "real": _each(_SAME),
    "sign": _each(_FLAT, np.sign, closed=closed_forms.SIGN),
    "is_finite": _each(_FLAT, np.isfinite),
    "sqrt": _each(_HALF, np.sqrt),
    "rsqrt": _each(-_HALF, lambda x: 1 / np.sqrt(x)),
    "cbrt": _each(Fraction(1, 3), np.cbrt),
    "square": _each(Fraction(2), np.square, vectors=e.square),
    # Functions of what is of order one.
    "exp": _one(np.exp, closed=closed_forms.EXP, fast=True),
    "exp2": _one(np.exp2, fast=True),
    "expm1": _one(np.expm1, slope=1.0, fast=True),
    "log": _one(np.log),
    "log1p": _one(np.log1p, slope=1.0),
    "tanh": _one(np.tanh, slope=1.0),
    "sin": _one(np.sin, slope=1.0, closed=closed_forms.SIN),
    "cos": _one(np.cos, closed=closed_forms.COS),
    "tan": _one(np.tan, slope=1.0),
    "sinh": _one(np.sinh, slope=1.0, fast=True),
    "cosh": _one(np.cosh, fast=True),
    "asin": _one(np.arcsin, slope=1.0),
    "acos": _one(np.arccos),
    "atan": _one(np.arctan, slope=1.0),
    "asinh": _one(np.arcsinh, slope=1.0),
    "acosh": _one(),
    "atanh": _one(slope=1.0),
    "erf": _one(special.erf, slope=2 / math.sqrt(math.pi), closed=closed_forms.ERF),
    "erfc": _one(special.erfc),
    "erf_inv": _one(special.erfinv, slope=math.sqrt(math.pi) / 2),
    "logistic": _one(special.expit),
    "floor": _one(np.floor, jumps=True),
    "ceil": _one(np.ceil, jumps=True),
    "round": _one(),
    "lgamma": _one(),
    "digamma": _one(),
    "nextafter": _one(),
    "and": _one(numbers=a.logical(np.logical_and)),
    "or": _one(numbers=a.logical(np.logical_or)),
    "not": _one(numbers=a.logical(np.logical_not)),
    "xor": _one(numbers=a.logical(np.logical_xor)),
    "map": Record(on_scalars, mapped, numbers=a.mapped),
    # Bookkeeping on axes.
    "reshape": _moved(f.reshape),
    "transpose": _moved(f.transpose),
    "broadcast_in_dim": _moved(f.broadcast),
    "squeeze": _moved(f.along_finite_axes(lambda p, x: np.squeeze(x, p["dimensions"]))),
    "take": _moved(f.along_finite_axes(lambda p, x: x[p["index"]])),
    "rev": _moved(f.reverse),
    "tile": _linear(f.alone(f.tile)),
    "slice": _moved(f.slices),
    "split": Record(f.split, f.split, _LEADING, linear=True, moves=True),
    "concatenate": _moves(f.side_by_side, numbers=a.concatenated),
    "stack": _moves(f.stacked, numbers=a.stacked),
    "gather": _moves(f.picked),
    "dynamic_slice": _linear(f.picked),
    "pad": _moves(f.padded),
    "optimization_barrier": Record(f.unchanged, f.unchanged),
    # Sums, windows and contractions.
    "reduce_sum": _linear(f.summed, numbers=a.reduced(np.sum), kind="Moment"),
    **dict.fromkeys(
        ("cumsum", "reduce_window_sum"), Record(on_scalars, f.accumulated, _LEADING)
    ),
    **dict.fromkeys(
        ("scatter-add", "scatter_add"), Record(on_scalars, f.scattered, _LEADING)
    ),
    "reduce_window_max": Record(on_scalars, f.largest_in_windows, _LEADING),
    "reduce_max": _largest(np.maximum, numbers=a.reduced(np.max)),
    "reduce_min": _largest(np.minimum, numbers=a.reduced(np.min)),
    "dot_general": _linear(contract, order=Order.PRODUCT, numbers=a.contracted, kind="MatMul"),
    "conv_general_dilated": Record(on_scalars, convolve, kind="MatMul"),
    # Numbers alone.
    **dict.fromkeys(
        ("sort", "cummax", "cummin", "top_k", "argmax", "argmin", "dynamic_update_slice", "scatter",
         "reduce_or", "reduce_and", "select_and_gather_add"), _numbers,
    ),
    "reduce_prod": replace(_numbers, numbers=a.reduced(np.prod)),
    # Where parameters come from.
    "iota": Record(f.iota, f.refused, _LEADING),
    "qr": Record(on_scalars, f.orthogonal),
    **dict.fromkeys(("_normal", "_normal_real"), _drawn(f.normal)),
    "_uniform": _drawn(f.uniform),
    "_truncated_normal": _drawn(f.truncated_normal),
    "_bernoulli": _drawn(f.no_law),
    "random_split": Record(f.on_keys(Keys.split), f.refused),
    "random_fold_in": Record(f.on_keys(Keys.fold_in), f.refused),
    "random_wrap": Record(f.on_keys(Keys.wrap), f.refused),
    "random_unwrap": Record(f.on_keys(Keys.unwrap), f.refused),
    "random_seed": Record(f.on_keys(Keys.seed), f.refused),
    "random_clone": Record(f.on_keys(lambda known, step, keys: keys), f.refused),
    "initial": Record(f.initial, f.refused),
    "weights": Record(f.weights, f.refused),
}  # fmt: skip

COORDINATEWISE = frozenset(name for name, record in TABLE.items() if record.coordinatewise)


def record_of(name: str) -> Record:
    """The record of a primitive."""
    return TABLE.get(name, UNKNOWN)
