"""Queries and keys of one length, biases of queries, keys and values, untied queries and keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import PRECISION, assert_agrees

import widelimit as wl

WIDTH = 16
LINEAR, UNTIED = wl.Scaling.LINEAR, wl.Scaling.UNTIED
SCALES: dict[str, Any] = {"qk_std": 1.3, "ov_std": 0.8}
NORM = wl.layers.Projections(qk_norm=True)
BIASES = wl.layers.Projections(qk_b_std=0.6, v_b_std=0.4)
BOTH = wl.layers.Projections(qk_norm=True, qk_b_std=0.6, v_b_std=0.4)
_SLOW = pytest.mark.slow


def _tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# --- formulas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("projections", [NORM, BIASES, BOTH], ids=["norm", "biases", "both"])
def test_kernels_at_one_over_d_by_hand(projections):
    """A = softmax(qk κ̃), κ̃ with bias and of unit length; values with their bias. Padded."""
    x, mask = _tokens(2, 3, 4), np.array([[True, True, False], [True, True, True]])
    x = x * mask[..., None]
    layer = wl.Attention(8, scaling=LINEAR, projections=projections, **SCALES)
    k = wl.Serial(wl.Dense(8, w_std=1.2), layer).kernel(x, mask=mask)
    kappa = 1.2**2 * np.einsum("nac,mbc->nmab", x, x) / 4
    value = kappa + float(projections.v_b_std) ** 2
    weights = []
    for n in range(2):
        scored = kappa[n, n] + float(projections.qk_b_std) ** 2
        if projections.qk_norm:
            lengths = np.sqrt(np.maximum(np.diagonal(scored), 1e-300))
            scored = scored / np.outer(lengths, lengths)
        scores = np.where(mask[n][None, :], 1.3 * scored, -np.inf)
        weights.append(_softmax(scores) * mask[n][:, None])
    for n, m in np.ndindex(2, 2):
        nngp = 0.8**2 * weights[n] @ value[n, m] @ weights[m].T
        ntk = 0.8**2 * weights[n] @ kappa[n, m] @ weights[m].T + 2 * nngp
        np.testing.assert_allclose(k.nngp[n, m], nngp, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(k.ntk[n, m], ntk, rtol=1e-10, atol=1e-14)


def test_closed_forms_are_those_of_inputs_of_one_length():
    """QK norm on raw tokens is attention whose scores see unit tokens, whose values do not."""
    x, mask = _tokens(2, 3, 4), np.array([[True, True, False], [True, True, True]])
    relu = wl.ElementwiseMap(wl.Relu())
    normed = wl.Attention(8, score_map=relu, projections=NORM)
    k = normed.kernel(x, mask=mask)
    lengths = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(4)
    unit = x / lengths
    streams = wl.CrossAttention(8, score_map=relu).kernel((unit, unit), mask=(mask, mask))
    # Values of unit tokens: bring them back to their own lengths, which ReLU's sum does not mix.
    one = wl.Attention(8, score_map=relu, projections=NORM).kernel(unit, mask=mask)
    np.testing.assert_allclose(one.nngp, streams.nngp, rtol=1e-10)
    np.testing.assert_allclose(one.ntk, streams.ntk, rtol=1e-10)
    assert np.abs(k.nngp - one.nngp).max() > 1e-2


def test_untied_scores_leave_the_biases_alone():
    """A = softmax(−slope·distance), whatever the input: with slope 0 the mean over positions."""
    x = _tokens(2, 3, 4)
    mean = wl.Attention(8, scaling=UNTIED, ov_std=0.8).kernel(x)
    kappa = np.einsum("nac,mbc->nmab", x, x) / 4
    flat = 0.8**2 * kappa.mean(axis=(2, 3))
    np.testing.assert_allclose(mean.nngp, np.broadcast_to(flat[..., None, None], (2, 2, 3, 3)))
    gaps = np.abs(np.arange(3)[:, None] - np.arange(3))
    weights = _softmax(-0.7 * gaps)
    k = wl.Attention(8, scaling="untied", positions=wl.Alibi(0.7)).kernel(x)
    nngp = np.einsum("ai,nmij,bj->nmab", weights, kappa, weights)
    np.testing.assert_allclose(k.nngp, nngp, rtol=1e-10)
    np.testing.assert_allclose(k.ntk, 2 * nngp, rtol=1e-10)


@_SLOW
@pytest.mark.parametrize("deep", [False, True], ids=["exact", "landmarks"])
def test_padding_changes_nothing(deep):
    attention = wl.Attention(8, projections=BOTH, positions=wl.Decay(0.5))
    layers = (wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(8)) if deep else ()
    net = wl.Serial(*layers, attention)
    x, mask = _tokens(3, 4, 5), np.arange(4)[None] < np.array([[2], [3], [4]])
    sampler = net.sampler(x, mask, samples=4, replicates=2)
    padded = net.kernel(x[:1], x, mask=mask[:1], mask2=mask, sampler=sampler)
    alone = net.kernel(x[:1, :2], x, mask2=mask, sampler=sampler)
    for long, short in ((padded.nngp, alone.nngp), (padded.ntk, alone.ntk)):
        assert not np.any(long[:, :, 2:])
        np.testing.assert_allclose(long[:, :, :2], short, rtol=1e-9, atol=1e-9)


def test_projections_are_projections():
    with pytest.raises(wl.WidelimitError, match="projections= is not"):
        wl.Attention(8, projections=True)  # pyright: ignore[reportArgumentType]


def test_finite_queries_have_one_length():
    """With the identity map and tied weights at 1/d, the diagonal of the weights is 1."""
    layer = wl.Attention(8, heads=2, scaling=LINEAR, score_map=wl.IdentityMap(), projections=BOTH)
    x = jnp.asarray(_tokens(3, 4), jnp.float32)
    params = layer.init(jax.random.key(0), (3, 4))
    weights = layer.attention_weights(params, x)
    np.testing.assert_allclose(jnp.diagonal(weights, axis1=1, axis2=2), 1, rtol=1e-5)
    assert params["query_bias"].shape == params["value_bias"].shape == (2, 8)


# --- finite networks ------------------------------------------------------------------------------

_X = (0.8 * _tokens(2, 3, 4) + 0.6).astype(np.float32)


def _net(**options: Any) -> wl.Serial:
    given = {"heads": 4, "key_width": WIDTH, "value_width": WIDTH, **SCALES, **options}
    return wl.Serial(wl.Dense(WIDTH, w_std=1.2), wl.Attention(WIDTH, **given), wl.MeanPool())


NETS = {
    "sqrt_norm": _net(projections=NORM),
    "sqrt_biases": _net(projections=BIASES),
    "sqrt_both_rotary": _net(projections=BOTH, positions=wl.Rotary(10.0, pairs=2)),
    "sqrt_erf_both": _net(projections=BOTH, score_map=wl.ElementwiseMap(wl.Erf())),
    "sqrt_biases_encoding_on_values": _net(
        projections=BIASES, positions=wl.Decay(0.5, on_values=True)
    ),
    "grouped_biases": _net(projections=BIASES, kv_heads=2),
    "linear_both": _net(projections=BOTH, scaling=LINEAR),
    "untied_alibi": _net(scaling=UNTIED, positions=wl.Alibi(0.4)),
}


@_SLOW
@pytest.mark.optimised  # networks are drawn by the thousand
@pytest.mark.parametrize("name", NETS)
def test_finite_networks_approach_the_kernel(name):
    net = NETS[name]
    limit = wl.with_heads(net, wl.INFINITE).kernel(_X, key=jax.random.key(7), samples=4096)
    for value, error in ((limit.nngp, limit.nngp_error), (limit.ntk, limit.ntk_error)):
        assert error is None or error.max() < 0.4 * PRECISION * np.abs(value).max()
    assert_agrees(net, _X, limit, width=40, draws=10_000)


@_SLOW
def test_finite_heads_have_the_same_mean():
    attention = wl.Attention(8, heads=2, projections=BOTH)
    net = wl.Serial(wl.Dense(8), attention, wl.MeanPool(), wl.Dense(1))
    kernel = net.kernel(_X, samples=512)
    mean = net.law(_X, draws=64).ntk(draws=500)
    error = np.hypot(kernel.ntk_error, mean.error)
    assert error.max() < 0.02 * np.abs(mean.value).max()
    assert (np.abs(kernel.ntk - mean.value) / error).max() < 5
    assert (np.abs(1.12 * kernel.ntk - mean.value) / error).max() > 5
