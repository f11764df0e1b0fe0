"""What scripts outside this repository rely on: names at the top, and how they are called."""

import inspect

import jax.numpy as jnp
import numpy as np

import widelimit as wl

LAYERS = (
    wl.Serial(wl.Dense(8, w_std=1.2, b_std=0.1), wl.Relu()),
    wl.Conv(8, window=3, stride=1, padding="same", w_std=1.0, b_std=0.0),
    wl.Residual(wl.Dense(8), weight=0.5),
    wl.Residual(wl.Dense(8)),
    wl.Sum(wl.Dense(8), wl.Dense(8)),
    wl.Repeat(wl.Serial(wl.Dense(8), wl.Gelu()), 2),
    wl.Serial(wl.Dense(8), wl.Erf(), wl.Dense(8), wl.Tanh(), wl.LayerNorm()),
    wl.Serial(wl.Dense(8), wl.Elementwise(jnp.sin)),
    wl.Attention(8, heads=wl.INFINITE, scaling=wl.Scaling.LINEAR, score_map=wl.Softmax()),
    wl.Attention(8, scaling=wl.Scaling.LINEAR, qk_std=0.7, ov_std=1.3, positions=wl.Decay(0.5)),
    wl.Attention(8, scaling=wl.Scaling.SQRT, score_map=wl.IdentityMap()),
    wl.Attention(8, scaling=wl.Scaling.LINEAR, score_map=wl.ElementwiseMap(wl.Relu())),
    wl.Attention(8, scaling=wl.Scaling.LINEAR, positions=wl.Rotary()),
    wl.Attention(8, scaling=wl.Scaling.LINEAR, positions=wl.Alibi()),
)
X = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)


def test_every_name_has_its_place_in_a_network():
    net = wl.with_heads(wl.Serial(*LAYERS, wl.MeanPool(), wl.Dense(1)), 2)
    assert net.apply(net.init(0, X.shape[1:]), X).shape == (3, 1)


def test_a_kernel_has_both_parts_by_name():
    net = wl.Serial(
        *LAYERS[:2], wl.Attention(8, scaling=wl.Scaling.LINEAR), wl.Flatten(), wl.Dense(1)
    )
    kernels = net.kernel(X, X[:2])
    assert isinstance(kernels, wl.Kernels)
    assert kernels.nngp.shape == kernels.ntk.shape == (3, 2)
    assert (np.diagonal(kernels.ntk) > np.diagonal(kernels.nngp)).all()


def test_the_default_attention_is_the_standard_one():
    parameters = inspect.signature(wl.Attention).parameters
    assert parameters["scaling"].default is wl.Scaling.SQRT
    assert parameters["heads"].default == wl.INFINITE


def test_outputs_that_keep_positions_have_both_kinds_of_axes():
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
    assert net.kernel(X, X[:2]).nngp.shape == (3, 2, 4, 4)
    mask = np.array([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]])
    pooled = wl.Serial(net, wl.MeanPool())
    both = pooled.kernel(X, X[:2], mask=mask, mask2=mask[:2])
    np.testing.assert_allclose(both.ntk[1, 1], pooled.kernel(X[1:2, :2]).ntk[0, 0], rtol=1e-5)


def test_finite_networks_and_laws_are_read_from_the_same_description():
    net = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    params = net.init(0, X.shape[1:])
    assert net.apply(params, X).shape == (3, 1)
    density = net.law(X[:1], draws=16).density(np.zeros(1))
    assert isinstance(density, wl.Estimate)
    assert density.value > 0
