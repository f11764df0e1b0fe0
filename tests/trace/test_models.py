"""Unmodified Equinox and Flax models approach the law that is derived from their code.

Moments of models of widths n and rn differ from the limit by O(1/n); `(r K(rn) − K(n)) / (r − 1)`
has no such term.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import EQUINOX

from widelimit.trace import trace

MOST = 4.5


GROUPS = 50


@dataclass(frozen=True)
class Moments:
    """Second moments of pairs of examples, and excess kurtosis, averaged over outputs."""

    second: np.ndarray
    kurtosis: np.ndarray

    @classmethod
    def of_outputs(cls, outputs: np.ndarray, examples: int) -> "Moments":
        """By groups of draws, along the first axis."""
        grouped = outputs.reshape(GROUPS, -1, examples, outputs.shape[1] // examples)
        second = np.einsum("gdic,gdjc->gij", grouped, grouped) / np.prod(grouped.shape[1::2])
        square, fourth = (np.mean(grouped**k, axis=(1, 3)) for k in (2, 4))
        # A ratio of means over all groups, linearised group by group.
        whole = square.mean(axis=0)
        kurtosis = fourth / whole**2 - 2 * fourth.mean(axis=0) * (square - whole) / whole**3 - 3
        return cls(second, kurtosis)

    @classmethod
    def of_law(cls, law) -> "Moments":
        """By draws of the scalars."""
        examples, outputs = law.shape
        kernels = law.kernels.reshape(-1, examples, outputs, examples, outputs)
        diagonal = np.einsum("dicjc->dijc", kernels)
        variance = np.einsum("diic->dic", diagonal)
        whole = variance.mean(axis=0)
        kurtosis = 3 * (variance**2 / whole**2 - 2 * (variance - whole) / whole - 1)
        return cls(diagonal.mean(axis=-1), kurtosis.mean(axis=-1))


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(values) == 1:
        return values[0], np.zeros_like(values[0])
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def extrapolated(narrow: np.ndarray, wide: np.ndarray, ratio: int):
    (a, ea), (b, eb) = mean_and_error(narrow), mean_and_error(wide)
    return (ratio * b - a) / (ratio - 1), np.hypot(ratio * eb, ea) / (ratio - 1)


def assert_approaches(make, shape, *, width: int, draws: int, ratio: int = 2, scale: float = 3.0):
    x = scale * np.random.default_rng(1).standard_normal((2, *shape))
    traced = trace(make, x)
    found = traced.compare((width, ratio * width), draws, key=jax.random.key(7, impl="rbg"))
    narrow, wide = (Moments.of_outputs(one.outputs, len(x)) for one in found.widths)
    law = Moments.of_law(found.law)
    limit, limit_error = mean_and_error(law.second)
    size = np.abs(limit).max()
    value, error = extrapolated(narrow.second, wide.second, ratio)
    error = np.hypot(error, limit_error)
    assert error.max() < 0.01 * size
    assert (np.abs(value - limit) / error).max() < MOST
    for factor in (0.94, 1.06):
        assert (np.abs(value - factor * limit) / error).max() > MOST
    off = [np.abs(m.second.mean(axis=0) - limit).max() for m in (narrow, wide)]
    assert off[1] < off[0] + 3 * error.max()
    tails, tail_error = mean_and_error(law.kurtosis)
    value, error = extrapolated(narrow.kurtosis, wide.kurtosis, ratio)
    assert (np.abs(value - tails) / np.hypot(error, tail_error)).max() < MOST


def test_an_equinox_gated_network_approaches_its_law():
    make, shape = EQUINOX["gated"]
    assert_approaches(make, shape, width=16, ratio=4, draws=4000)


def test_a_comparison_can_be_drawn():
    def make(width, key):
        first, last = jax.random.split(key)
        weights = jax.random.normal(first, (width, 3)) / 3**0.5
        readout = jax.random.normal(last, (width,)) / width**0.5
        return lambda x: readout @ jnp.tanh(weights @ x)

    found = trace(make, np.eye(2, 3)).compare((4, 8), 2000, key=0)
    axes = found.plot()
    *drawn, limit = axes.get_lines()
    assert [line.get_label() for line in (*drawn, limit)] == [
        "width 4",
        "width 8",
        "infinite width",
    ]
    deviation = float(np.sqrt(found.second[0, 0]))
    gauss = np.exp(-0.5 * (limit.get_xdata() / deviation) ** 2) / (deviation * (2 * np.pi) ** 0.5)
    np.testing.assert_allclose(limit.get_ydata(), gauss, rtol=1e-3)
    for line in drawn:  # a density
        step = np.diff(line.get_xdata())[0]
        assert line.get_ydata().sum() * step == pytest.approx(1, abs=0.02)


DRAWS = {"mlp": 24_000}
WIDTHS = {"cnn": 32, "pre_norm": 48, "post_norm": 48}


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUINOX)
def test_equinox_models_approach_their_law(name):
    make, shape = EQUINOX[name]
    assert_approaches(make, shape, width=WIDTHS.get(name, 64), draws=DRAWS.get(name, 14_000))


FLAX = ["mlp", "cnn", "pre_norm", "post_norm", "gated", "rnn"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAX)
def test_flax_models_approach_their_law(name):
    pytest.importorskip("flax")
    from flax_models import FLAX as models

    make, shape = models[name]
    assert_approaches(make, shape, width=WIDTHS.get(name, 64), draws=DRAWS.get(name, 14_000))


def test_a_flax_transformer_is_read():
    pytest.importorskip("flax")
    from flax_models import Transformer

    x = np.random.default_rng(1).standard_normal((2, 3, 3))
    traced = trace(Transformer, x)
    law = traced.limit(draws=64)
    assert law.random
    assert law.shape == (2, 16)
    assert "flax_models.py" in str(traced)
