"""Unmodified Equinox and Flax models approach the law that is derived from their code.

Moments of models of widths n and 2n differ from the limit by O(1/n); `2 K(2n) − K(n)` has no such
term.
"""

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from models import EQUINOX

from widelimit.trace import trace

MOST = 4.5


@dataclass(frozen=True)
class Extrapolated:
    second: np.ndarray
    error: np.ndarray
    limit: np.ndarray
    kurtosis_z: np.ndarray
    closer: bool

    def z(self, factor: float = 1.0) -> float:
        return float((np.abs(self.second - factor * self.limit) / self.error).max())


def extrapolated(make, x, width: int, draws: int) -> Extrapolated:
    traced = trace(make, x)
    found = traced.compare((width, 2 * width), draws, key=jax.random.key(7, impl="rbg"))
    narrow, wide = found.widths
    scale = np.abs(found.second).max()
    second = (2 * wide.second - narrow.second) / scale
    error = np.sqrt(4 * wide.second_error**2 + narrow.second_error**2 + found.second_error**2)
    tails = 2 * wide.kurtosis - narrow.kurtosis
    tail_error = np.sqrt(
        4 * wide.kurtosis_error**2 + narrow.kurtosis_error**2 + found.kurtosis_error**2
    )
    off = [np.abs(one.second - found.second).max() for one in (narrow, wide)]
    noise = 3 * max(one.second_error.max() for one in (narrow, wide))
    return Extrapolated(
        second,
        error / scale,
        found.second / scale,
        (tails - found.kurtosis) / tail_error,
        bool(off[1] < off[0] + noise),
    )


def assert_approaches(make, shape, *, width: int, draws: int):
    x = np.random.default_rng(1).standard_normal((2, *shape))
    found = extrapolated(make, x, width, draws)
    assert found.error.max() < 0.01
    assert found.z() < MOST
    assert np.abs(found.kurtosis_z).max() < MOST
    assert found.closer
    for factor in (0.94, 1.06):
        assert found.z(factor) > MOST


def test_an_equinox_mlp_approaches_its_law():
    make, shape = EQUINOX["mlp"]
    assert_approaches(make, shape, width=24, draws=120_000)


SIZES = {"mlp": (32, 130_000), "cnn": (24, 130_000), "gated": (32, 130_000), "rnn": (32, 130_000)}


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUINOX)
def test_equinox_models_approach_their_law(name):
    make, shape = EQUINOX[name]
    width, draws = SIZES.get(name, (48, 130_000))
    assert_approaches(make, shape, width=width, draws=draws)


FLAX = ["mlp", "cnn", "pre_norm", "post_norm", "gated", "rnn"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAX)
def test_flax_models_approach_their_law(name):
    pytest.importorskip("flax")
    from flax_models import FLAX as models

    make, shape = models[name]
    width, draws = SIZES.get(name, (48, 130_000))
    assert_approaches(make, shape, width=width, draws=draws)


def test_a_flax_transformer_is_read():
    pytest.importorskip("flax")
    from flax_models import Transformer

    x = np.random.default_rng(1).standard_normal((2, 3, 3))
    traced = trace(Transformer, x)
    law = traced.limit(draws=64)
    assert law.random
    assert law.shape == (2,)
    assert "flax_models.py" in str(traced)
