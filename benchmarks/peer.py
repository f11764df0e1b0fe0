"""neural-tangents on one workload; runs in that library's own environment.

Names that end in "_double" are the same in double precision: what single precision is held to.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import inference
import jax
import jax.numpy as jnp
import neural_tangents as nt  # pyright: ignore[reportMissingImports]
import numpy as np
import scripts
import transformer
from neural_tangents import stax  # pyright: ignore[reportMissingImports]
from worker import Result, serve
from workloads import B_STD, DECAY, W_STD, WORKLOADS, Layers

PADDING = 1e3


def network(layers: Layers, axes: int) -> Any:
    """The network of a description."""
    return stax.serial(*(_layer(layer, axes) for layer in layers))


def _layer(layer: tuple[Any, ...], axes: int) -> Any:
    name = layer[0]
    if name == "conv":
        window = (layer[1],) * axes
        return stax.Conv(64, window, padding="SAME", W_std=W_STD, b_std=B_STD)
    if name == "attention":
        return stax.GlobalSelfAttention(
            64, 64, 64, 4,
            linear_scaling=True,
            attention_mechanism="SOFTMAX",
            b_std=None,
            pos_emb_type="SUM",
            pos_emb_p_norm=2,
            pos_emb_decay_fn=lambda squared: jnp.exp(-DECAY * squared),
        )  # fmt: skip
    if name == "residual":
        branch = network(layer[1], axes)
        return stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
    simple = {
        "relu": stax.Relu,
        "gelu": stax.Gelu,
        "norm": partial(stax.LayerNorm, axis=-1),
        "pool": stax.GlobalAvgPool,
        "flatten": stax.Flatten,
        "dense": partial(stax.Dense, 64, W_std=W_STD, b_std=B_STD),
    }
    return simple[name]()


def make(name: str, size: int) -> Callable[[], Result]:
    """The call that is timed."""
    warnings.simplefilter("ignore")
    if name == "i":
        return _inference(size)
    if name == "j":
        return _empirical(size)
    if name in scripts.TITLES:
        return scripts.make(nt, name, size)
    if name.endswith("_double"):
        jax.config.update("jax_enable_x64", True)
    work = WORKLOADS[name.removesuffix("_double")]
    x, mask = work.inputs(size)
    constant = None if mask is None else PADDING
    if mask is not None:
        x = np.where(mask[..., None], x, np.float32(PADDING))
    x = x.astype(np.float64 if name.endswith("_double") else np.float32)
    kernel_fn = network(work.layers, len(work.shape) - 1)[2]
    whole = jax.jit(lambda x: tuple(kernel_fn(x, None, ("nngp", "ntk"), mask_constant=constant)))

    def call() -> Result:
        nngp, ntk = whole(x)
        return {"nngp": np.asarray(nngp), "ntk": np.asarray(ntk)}

    return call


def _inference(size: int) -> Callable[[], Result]:
    jax.config.update("jax_enable_x64", True)
    given = inference.problem(size)

    def call() -> Result:
        predict = nt.predict.gp_inference(
            given.train, given.targets, diag_reg=inference.NOISE, diag_reg_absolute_scale=True
        )
        mean, covariance = predict("nngp", given.cross, given.corner)
        return {"mean": np.asarray(mean), "covariance": np.asarray(covariance)}

    return call


def _empirical(size: int) -> Callable[[], Result]:
    params, x = transformer.parameters(), transformer.inputs(size)
    kernel_fn = jax.jit(nt.empirical_ntk_fn(transformer.apply, vmap_axes=0))

    def call() -> Result:
        return {"ntk": np.asarray(kernel_fn(x, None, params))}

    return call


if __name__ == "__main__":
    serve(make)
