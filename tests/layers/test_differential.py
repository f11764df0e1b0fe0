"""Differential attention, a structure from outside: kernel, laws, tangent law and simulation.

Every head has two independent scores, `softmax(s₁) − λ softmax(s₂)`. What the limits say is
compared with finite networks by z-scores; another λ must be noticed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from strangers import Differential

import widelimit as wl
from widelimit.laws import GivenGram, simulate

X = np.random.default_rng(0).standard_normal((1, 3, 4))
WRONG = -0.5  # another λ: the sum of both, not their difference


def _layer(contrast: float = 0.5, **options: Any) -> wl.Attention:
    options = {"heads": 2, "qk_std": 1.5, "ov_std": 4.0} | options
    return wl.Attention(64, score_map=Differential(contrast=contrast), **options)


def _statistics(outputs: Any) -> Any:
    """Of every draw, at the first position: two means over channels, which see the law's shape."""
    y = jnp.asarray(outputs)[:, 0]
    return np.stack([np.mean(np.exp(-(y**2) / 2), axis=1), np.mean(y**2, axis=1)], axis=1)


def _finite(layer: wl.Attention, draws: int = 2000) -> np.ndarray:
    """Statistics of finite networks, whose output weights average over 64 channels."""

    @jax.jit
    def outputs(keys: Any) -> Any:
        return jax.vmap(lambda key: layer.apply(layer.init(key, X.shape[1:]), X)[0])(keys)

    return _statistics(outputs(jax.random.split(jax.random.key(1), draws)))


def _limit(layer: wl.Attention, **options: Any) -> np.ndarray:
    """The same under a law: `E[exp(−y²/2)] = (1 + K)^{-1/2}` and K, given the scores."""
    variance = layer.law(X, draws=2048, key=2, **options).kernels[:, 0, 0]
    return np.stack([(1 + variance) ** -0.5, variance], axis=1)


def _gap(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """The difference of the means, in standard errors."""
    errors = [side.std(axis=0) / np.sqrt(len(side)) for side in (one, two)]
    assert np.all(errors[0] < 0.04 * one.mean(axis=0))
    return np.abs(one.mean(axis=0) - two.mean(axis=0)) / np.hypot(*errors)


def test_law_of_two_heads():
    finite = _finite(_layer(key_width=256, value_width=256))
    assert np.all(_gap(finite, _limit(_layer())) < 4.5)
    assert np.any(_gap(finite, _limit(_layer(WRONG))) > 8)


@pytest.mark.parametrize("groups", [None, 1])
def test_narrow_heads(groups):
    widths = {"key_width": 1, "value_width": 1, "kv_heads": groups}
    finite = _finite(_layer(**widths))
    assert np.all(_gap(finite, _limit(_layer(**widths), head_widths="given")) < 4.5)
    assert np.any(_gap(finite, _limit(_layer())) > 8)  # of infinite width


def test_simulation():
    widths = {"key_width": 2, "value_width": 3}
    finite = _finite(_layer(**widths))
    options = {"draws": 2000, "channels": 64, "progress": False}
    inputs = GivenGram(X[0] @ X[0].T / 4, channels=4)
    found = simulate(_layer(**widths), inputs, scores=True, **options)
    assert found.scores is not None
    assert found.scores.shape == (2000, 2, 2, 3, 3)
    assert np.all(_gap(finite, _statistics(found.outputs)) < 4.5)
    other = simulate(_layer(WRONG, **widths), inputs, **options)
    assert np.any(_gap(finite, _statistics(other.outputs)) > 8)


READOUT = (wl.Relu(), wl.MeanPool(), wl.Dense(16))


def _tangents(net: wl.Layer, draws: int) -> tuple[float, float]:
    k = wl.monte_carlo_kernel(net, X, key=3, draws=draws, progress=False)
    return float(k.ntk[0, 0]), float(k.ntk_error[0, 0])


def test_tangent_law():
    value, error = _tangents(wl.with_width(wl.Serial(_layer(), *READOUT), 128), 300)
    assert error < 0.05 * value
    laws = [wl.Serial(_layer(c), *READOUT).law(X).ntk(draws=256) for c in (0.5, WRONG)]
    gaps = [abs(value - law.value[0, 0]) / np.hypot(error, law.error[0, 0]) for law in laws]
    assert gaps[0] < 4.5
    assert gaps[1] > 6


def test_kernel_of_infinitely_many_heads():
    limit = wl.Serial(_layer(heads=wl.INFINITE), *READOUT).kernel(X, key=0, samples=512)
    finite = wl.Serial(_layer(heads=32), *READOUT)
    value, error = _tangents(wl.with_width(finite, 128), 100)
    assert error < 0.03 * value
    slack = 4.5 * np.hypot(error, limit.ntk_error[0, 0]) + 0.02 * value
    assert abs(value - limit.ntk[0, 0]) < slack
    other = wl.Serial(_layer(WRONG, heads=wl.INFINITE), *READOUT).kernel(X, key=0, samples=512)
    assert abs(value - other.ntk[0, 0]) > 0.1 * value
