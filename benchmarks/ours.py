"""widelimit on one workload; names that end in "_direct" are the direct way to the same."""

import time
from collections.abc import Callable
from typing import Any

import inference
import jax
import numpy as np
import scripts
import transformer
from worker import Result, serve
from workloads import B_STD, DECAY, W_STD, WORKLOADS, Layers

import widelimit as wl
from widelimit import neural_tangents
from widelimit.inference import GPPosterior
from widelimit.laws.simulation import simulate
from widelimit.laws.simulation_inputs import GaussianInputs

# Errors of (g) are below the tolerance with 95 % on both sides: 1.96 standard errors of many draws.
_TOLERANCE, _TWO_SIDED = 0.01, 1.96


def network(layers: Layers) -> wl.Serial:
    """The network of a description."""
    return wl.Serial(*(_layer(layer) for layer in layers))


def _layer(layer: tuple[Any, ...]) -> wl.Layer:
    name = layer[0]
    if name == "conv":
        return wl.Conv(64, layer[1], w_std=W_STD, b_std=B_STD)
    if name == "residual":
        return wl.Residual(network(layer[1]))
    simple = {
        "relu": wl.Relu,
        "gelu": wl.Gelu,
        "norm": lambda: wl.LayerNorm(eps=1e-12),
        "pool": wl.MeanPool,
        "flatten": wl.Flatten,
        "dense": lambda: wl.Dense(64, w_std=W_STD, b_std=B_STD),
        "attention": lambda: wl.Attention(
            64, scaling=wl.Scaling.LINEAR, positions=wl.Decay(rate=DECAY)
        ),
    }
    return simple[name]()


def make(name: str, size: int) -> Callable[[], Result]:
    """The call that is timed."""
    special = {
        "g": _sampled,
        "g_direct": _monte_carlo,
        "h": _simulated,
        "h_direct": _explicit,
        "i": _inference,
        "j": _empirical,
    }
    if name in special:
        return special[name](size)
    if name in scripts.TITLES:
        return scripts.make(neural_tangents, name, size)
    work = WORKLOADS[name]
    x, mask = work.inputs(size)
    net = network(work.layers)

    def call() -> Result:
        nngp, ntk = net.kernel(x, mask=mask, progress=False)
        return {"nngp": nngp, "ntk": ntk}

    return call


# --- infinitely many softmax heads at 1/√d, to an error of one per cent --------------------------


def _standard(size: int) -> tuple[wl.Serial, np.ndarray]:
    net = wl.Serial(wl.Attention(256), wl.MeanPool(), wl.Dense(256))
    return net, np.random.default_rng(2).normal(size=(size, 16, 16)).astype(np.float32)


def _sampled(size: int) -> Callable[[], Result]:
    net, x = _standard(size)

    def call() -> Result:
        k = net.kernel(x, tolerance=_TOLERANCE, key=jax.random.key(0), progress=False)
        return {"nngp": k.nngp, "ntk": k.ntk, "error": np.asarray(_relative(k))}

    return call


def _monte_carlo(size: int) -> Callable[[], Result]:
    """Finite networks of width 256 and 64 heads; time scaled to the draws the tolerance needs."""
    net, x = _standard(size)
    finite, draws = wl.with_heads(net, 64), 16
    state = {"key": 0}

    def call() -> Result:
        state["key"] += 1
        begin = time.perf_counter()
        k = wl.monte_carlo_kernel(
            finite, x, key=jax.random.key(state["key"]), draws=draws, progress=False
        )
        seconds = time.perf_counter() - begin
        seconds *= max(_TWO_SIDED * _relative(k) / _TOLERANCE, 1) ** 2
        return {"nngp": k.nngp, "ntk": k.ntk, "seconds": np.asarray(seconds)}

    return call


def _relative(k: wl.Kernels) -> float:
    """The largest standard error over the scale of its kernel."""
    pairs = ((k.nngp, k.nngp_error), (k.ntk, k.ntk_error))
    return max(float(np.max(error) / np.max(np.abs(value))) for value, error in pairs)


# --- finite width --------------------------------------------------------------------------------


def _layer_and_inputs() -> tuple[wl.Attention, GaussianInputs]:
    return wl.Attention(1024, heads=1), GaussianInputs(positions=4)


def _simulated(size: int) -> Callable[[], Result]:
    layer, inputs = _layer_and_inputs()
    return lambda: {
        "outputs": simulate(layer, inputs, draws=size, key=0, progress=False).outputs[:16]
    }


def _explicit(size: int) -> Callable[[], Result]:
    """The finite network on `x = W h`, every weight drawn."""
    layer, inputs = _layer_and_inputs()
    width = layer.width or 0

    def call() -> Result:
        rng, outputs = np.random.default_rng(0), []
        for draw in range(size):
            weights = rng.standard_normal((inputs.positions, width, width), np.float32)
            x = weights @ rng.standard_normal(width, np.float32) / np.float32(width**0.5)
            outputs.append(layer.apply(layer.init(draw, x.shape), x[None])[0])
        return {"outputs": np.stack(outputs)}

    return call


# --- inference, tangent kernels of given functions -----------------------------------------------


def _inference(size: int) -> Callable[[], Result]:
    given = inference.problem(size)

    def call() -> Result:
        posterior = GPPosterior.condition(given.train, given.targets, noise=inference.NOISE)
        covariance = posterior.covariance(given.cross, given.corner)
        return {"mean": posterior.mean(given.cross), "covariance": covariance}

    return call


def _empirical(size: int) -> Callable[[], Result]:
    params, x = transformer.parameters(), transformer.inputs(size)
    return lambda: {"ntk": wl.empirical_ntk(transformer.apply, params, x, progress=False)}


if __name__ == "__main__":
    serve(make)
