"""Where neural-tangents is wrong or refuses: wide random finite networks decide.

Padded inputs are compared with finite networks on the same inputs without their padding.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from agreement import assert_agrees

from widelimit.neural_tangents import stax
from widelimit.state import Kernels

_LENGTHS = (5, 3, 4)


def _sequences() -> tuple[np.ndarray, list[np.ndarray]]:
    """Padded with 10, and as they are."""
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
    apart = [one[:length].copy() for one, length in zip(x, _LENGTHS, strict=True)]
    for one, length in zip(x, _LENGTHS, strict=True):
        one[length:] = 10.0
    return x, apart


_PADDED = {
    "windows that are VALID": [stax.Conv(8, (3,), W_std=1.2, b_std=0.2), stax.Relu()],
    "averages over windows": [
        stax.Dense(8, 1.2),
        stax.Relu(),
        stax.AvgPool((2,), (2,), "SAME", normalize_edges=True),
    ],
    "polynomials": [stax.Dense(8, 0.8), stax.Polynomial([0.2, 0.7, 0.3])],
    "strides": [stax.Conv(8, (3,), (2,), "SAME", 1.2, 0.1), stax.Erf()],
    "pooling of raw inputs": [],
    "LayerNorm after a nonlinearity": [stax.Dense(8, 1.2), stax.Relu(), stax.LayerNorm()],
    "embeddings of raw inputs": [
        stax.GlobalSelfAttention(8, 8, 8, 8, attention_mechanism="IDENTITY", pos_emb_type="SUM")
    ],
}

_FAST = "windows that are VALID"


@pytest.mark.parametrize(
    "name", [n if n == _FAST else pytest.param(n, marks=pytest.mark.slow) for n in _PADDED]
)
@pytest.mark.optimised
def test_padded_kernels_are_those_of_finite_networks_without_padding(name):
    padded, apart = _sequences()
    kernel_fn = stax.serial(*_PADDED[name], stax.GlobalAvgPool(), stax.Dense(8))[2]
    found = kernel_fn(jnp.asarray(padded), None, ("nngp", "ntk"), mask_constant=10.0)
    (net,), _ = kernel_fn.network([3], padded=True)
    assert_agrees(net, apart, Kernels(np.asarray(found.nngp), np.asarray(found.ntk)))


_WHOLE = {
    "RectifiedMonomial(1), which is NaN": lambda: [stax.RectifiedMonomial(1)],
    "RectifiedMonomial(3), too": lambda: [stax.RectifiedMonomial(3)],
    "Sign before pooling": lambda: [stax.Sign(), stax.AvgPool((2,)), stax.Dense(8), stax.Relu()],
    "a kink by quadrature": lambda: [stax.ElementwiseNumerical(jnp.abs, deg=25)],
    "Gabor": lambda: [stax.Gabor()],
    "a step": lambda: [stax.RectifiedMonomial(0)],
}
"""Made inside tests: kinks warn of what quadrature leaves."""


@pytest.mark.slow
@pytest.mark.parametrize("name", _WHOLE)
@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore:.*summed by quadrature")
def test_kernels_are_those_of_finite_networks(name):
    _, apart = _sequences()
    x = np.stack([one[:3] for one in apart])
    layers = [stax.Dense(8, 1.2, 0.1), *_WHOLE[name](), stax.GlobalAvgPool(), stax.Dense(8)]
    kernel_fn = stax.serial(*layers)[2]
    found = kernel_fn(jnp.asarray(x), None, ("nngp", "ntk"))
    (net,), _ = kernel_fn.network([3], padded=False)
    # Cubes have heavy tails, which take more draws than others for the same standard error.
    assert_agrees(net, x, Kernels(np.asarray(found.nngp), np.asarray(found.ntk)), rounds=30)
