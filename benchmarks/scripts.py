"""Scripts written for neural-tangents, run by either library: the import is all that differs.

`make(nt, name, size)` prepares a call. Reviews are read from the folder that the environment
variable `WIDELIMIT_DATA` names: `imdb.jsonl.gz` (a text and a label per line) and
`glove_100d.npz` (words and vectors).
"""

import functools
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from worker import Result

TITLES = {
    "k1": "(k1) script: fully connected ensemble",
    "k2": "(k2) script: Myrtle network on 16×16 images",
    "k3": "(k3) script: IMDb reviews, convolution and attention",
    "k4": "(k4) script: a finite network in function space",
    "k5": "(k5) script: tanh by quadrature",
}
_TESTS = 16
_WORDS = 50


def make(nt: Any, name: str, size: int) -> Callable[[], Result]:
    """The script as a call; `nt` is either library."""
    scripts = {
        "k1": _fully_connected,
        "k2": _myrtle,
        "k3": _imdb,
        "k4": _function,
        "k5": _numerical,
    }
    return scripts[name](nt, size)


def _drawn(size: int, *shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size + _TESTS, *shape)).astype(np.float32)
    y = np.eye(10, dtype=np.float32)[rng.integers(0, 10, size)] - np.float32(0.1)
    return x[:size], y, x[size:]


def _fully_connected(nt: Any, size: int) -> Callable[[], Result]:
    x, y, x_test = _drawn(size, 3072)
    stax = nt.stax
    layers = [stax.Dense(1, 1.5, 0.05), stax.Relu()] * 3
    kernel_fn = stax.serial(*layers, stax.Dense(1, 1.5, 0.05))[2]

    def call() -> Result:
        predict = nt.predict.gradient_descent_mse_ensemble(
            nt.batch(kernel_fn, device_count=0, batch_size=_TESTS), x, y, diag_reg=1e-3
        )
        return {"mean": np.asarray(predict(x_test=x_test, get="ntk"))}

    return call


def _myrtle(nt: Any, size: int) -> Callable[[], Result]:
    x, _, _ = _drawn(size, 16, 16, 3)
    stax, std = nt.stax, np.sqrt(2.0)
    conv = functools.partial(stax.Conv, W_std=std, b_std=0.0, padding="SAME")
    layers = [conv(1, (3, 3)), stax.Relu()] * 2
    for _ in range(2):
        layers += [stax.AvgPool((2, 2), strides=(2, 2)), conv(1, (3, 3)), stax.Relu()]
    layers += [stax.AvgPool((2, 2), strides=(2, 2))] * 2 + [stax.Flatten(), stax.Dense(1, std)]
    kernel_fn = nt.batch(stax.serial(*layers)[2], device_count=0, batch_size=4)

    def call() -> Result:
        return {"ntk": np.asarray(kernel_fn(x, None, "ntk"))}

    return call


def _reviews(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Word vectors of the first words of long reviews, and their labels."""
    folder = Path(os.environ["WIDELIMIT_DATA"])
    with np.load(folder / "glove_100d.npz") as file:
        places = {word: place for place, word in enumerate(file["words"])}
        vectors = file["vectors"].astype(np.float32)
    texts, labels = [], []
    with gzip.open(folder / "imdb.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            known = [places[word] for word in row["text"].lower().split() if word in places]
            if len(known) >= _WORDS and len(texts) < size:
                texts.append(vectors[known[:_WORDS]])
                labels.append(row["label"] - 0.5)
    return np.stack(texts), np.array(labels, np.float32)[:, None]


def _imdb(nt: Any, size: int) -> Callable[[], Result]:
    x, y = _reviews(size + _TESTS)
    x, y, x_test = x[:size], y[:size], x[size:]
    stax = nt.stax
    _, _, kernel_fn = stax.serial(
        stax.Conv(out_chan=1, filter_shape=(9,), strides=(1,), padding="VALID"),
        stax.Relu(),
        stax.GlobalSelfAttention(
            n_chan_out=1,
            n_chan_key=1,
            n_chan_val=1,
            n_heads=1,
            pos_emb_type="SUM",
            pos_emb_decay_fn=lambda d: 1 / (1 + d**2),
        ),
        stax.Relu(),
        stax.GlobalAvgPool(),
        stax.Dense(out_dim=1),
    )

    def call() -> Result:
        predict = nt.predict.gradient_descent_mse_ensemble(
            nt.batch(kernel_fn, device_count=0, batch_size=_TESTS),
            x[:size],
            y[:size],
            diag_reg=1e-3,
        )
        return {"mean": np.asarray(predict(x_test=x_test, get="nngp"))}

    return call


def _function(nt: Any, size: int) -> Callable[[], Result]:
    x, y, x_test = _drawn(size, 256)
    stax = nt.stax
    init_fn, f, _ = stax.serial(stax.Dense(512, 1.5, 0.05), stax.Erf(), stax.Dense(10))
    _, params = init_fn(jax.random.PRNGKey(0), (-1, 256))
    rng = np.random.default_rng(1)
    params = jax.tree_util.tree_map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.size).reshape(leaf.shape), leaf.dtype), params
    )
    kernel_fn = nt.empirical_ntk_fn(f, vmap_axes=0, implementation=2)

    def call() -> Result:
        train, cross = kernel_fn(x, None, params), kernel_fn(x_test, x, params)
        predict = nt.predict.gradient_descent_mse(train, y)
        _, test = predict(100.0, f(params, x), f(params, x_test), cross)
        return {"mean": np.asarray(test)}

    return call


def _numerical(nt: Any, size: int) -> Callable[[], Result]:
    x, _, _ = _drawn(size, 64)
    stax = nt.stax
    layers = [stax.Dense(1, 1.5, 0.05), stax.ElementwiseNumerical(jnp.tanh, deg=25)] * 2
    kernel_fn = nt.batch(stax.serial(*layers, stax.Dense(1))[2], device_count=0, batch_size=_TESTS)

    def call() -> Result:
        return {"ntk": np.asarray(kernel_fn(x, None, "ntk"))}

    return call
