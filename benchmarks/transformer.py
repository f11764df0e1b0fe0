"""A small finite transformer in plain JAX, for tangent kernels at given parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TOKENS, WIDTH, BLOCKS = 16, 32, 2


def parameters() -> list[dict[str, Any]]:
    """Weights of every block, then of the read-out."""
    rng = np.random.default_rng(3)
    square = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
    shapes = square | {"wide": (WIDTH, 4 * WIDTH), "narrow": (4 * WIDTH, WIDTH)}
    blocks = [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(BLOCKS)
    ]
    return [*blocks, {"read": rng.normal(size=(WIDTH, 1)).astype(np.float32)}]


def inputs(size: int) -> np.ndarray:
    """Sequences of vectors."""
    return np.random.default_rng(5).normal(size=(size, TOKENS, WIDTH)).astype(np.float32)


def apply(params: list[dict[str, Any]], x: Any) -> Any:
    """The network on a batch (N, tokens, width), to outputs (N, 1)."""
    for block in params[:-1]:
        y = _normalised(x)
        q, k, v = (_mapped(y, block[name]) for name in ("query", "key", "value"))
        weights = jax.nn.softmax(jnp.einsum("nad,nbd->nab", q, k) / np.sqrt(WIDTH))
        x = x + _mapped(jnp.einsum("nab,nbd->nad", weights, v), block["out"])
        x = x + _mapped(jax.nn.relu(_mapped(_normalised(x), block["wide"])), block["narrow"])
    return _mapped(jnp.mean(x, axis=1), params[-1]["read"])


def _mapped(x: Any, weight: Any) -> Any:
    return x @ weight / np.float32(np.sqrt(weight.shape[0]))


def _normalised(x: Any) -> Any:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
