"""Functions of torch, entry by entry: known by their values, or written again in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from .activations import recognised
from .values import refusal


class Traced:
    """A JAX array that functions of torch's operators are written on."""

    def __init__(self, array: Any):
        self.array = array

    def __mul__(self, factor: float) -> Traced:
        return Traced(self.array * factor)


def _power(x: Any, n: Any) -> Any:
    return x ** (int(n) if float(n).is_integer() else n)


_IN_JAX: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, alpha=1: x + alpha * y,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "rsub": lambda x, y, alpha=1: y - alpha * x,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": _power,
    "neg": jnp.negative,
    "exp": jnp.exp,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "erf": jax.scipy.special.erf,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "abs": jnp.abs,
    "relu": jax.nn.relu,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "reciprocal": jnp.reciprocal,
    "silu": jax.nn.silu,
    "square": jnp.square,
    "clamp": lambda x, min=None, max=None: jnp.clip(x, min, max),
    "elu": lambda x, a=1.0, s=1, i=1: s * jnp.where(x > 0, x, a * jnp.expm1(i * x)),
    "hardtanh": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "softplus": lambda x, beta=1, threshold=20: jax.nn.softplus(beta * x) / beta,
    "hardswish": jax.nn.hard_swish,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "selu": jax.nn.selu,
    "log_sigmoid": jax.nn.log_sigmoid,
}


def pointwise(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inner: list[Any]):
    """The function of one entry that an operator is; `inner[i]` is what its i-th argument is of it.

    `inner[i]` is None where the argument is a number.
    """
    name = operator._schema.name.split("::")[-1].rstrip("_")

    def function(x: Any) -> Any:
        traced = isinstance(x, Traced)
        given = list(args)
        for i, below in enumerate(inner):
            if below is not None:
                given[i] = below(x)
        if not traced:
            return operator(*given, **kwargs)
        if name not in _IN_JAX:
            raise NotImplementedError(name)
        plain = [g.array if isinstance(g, Traced) else g for g in given]
        try:
            return Traced(_IN_JAX[name](*plain, **kwargs))
        except TypeError:  # an option that the table does not know, such as a rounding mode
            raise NotImplementedError(f"{name} with {kwargs}") from None

    return function


def on_numpy(function: Callable[[Any], Any]) -> Callable[[Any], np.ndarray]:
    """The function on NumPy arrays, by torch."""

    def call(x: Any) -> np.ndarray:
        with torch.no_grad():
            return function(torch.as_tensor(np.asarray(x, np.float64))).numpy()

    return call


def jax_function(function: Callable[[Any], Any], where: str) -> Callable[[Any], Any]:
    """The same function for JAX arrays."""
    layer = recognised(on_numpy(function))
    if layer is not None:
        return lambda x: layer.dual.fn(jnp.asarray(x))

    def call(x: Any) -> Any:
        return function(Traced(jnp.asarray(x))).array

    try:
        call(np.zeros(1))
    except NotImplementedError as error:
        raise refusal(
            f"The function '{error}' of torch has no counterpart here",
            where,
            "write the network in layers with wl.Elementwise(function)",
        ) from None
    return call
