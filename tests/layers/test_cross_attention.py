"""Queries from elsewhere: cross-attention and attention pooling against their relatives."""

from typing import Any

import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.layers.compose import is_sampled

RELU = wl.ElementwiseMap(wl.Relu())
SCALES: dict[str, Any] = {"qk_std": 1.3, "ov_std": 0.8, "b_std": 0.2}


def _tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _agree(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.nngp, b.nngp, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(a.ntk, b.ntk, rtol=1e-10, atol=1e-12)


def test_a_stream_that_attends_to_itself_is_self_attention():
    x = _tokens(3, 4, 5)
    cross = wl.CrossAttention(8, score_map=RELU, **SCALES)
    _agree(cross.kernel((x, x)), wl.Attention(8, score_map=RELU, **SCALES).kernel(x))


@pytest.mark.slow
def test_sampled_streams_draw_the_same_law():
    x = _tokens(2, 3, 4)
    one = wl.CrossAttention(8, **SCALES).kernel((x, x), samples=1024, key=jax.random.key(1))
    two = wl.Attention(8, **SCALES).kernel(x, samples=1024, key=jax.random.key(2))
    for name in ("nngp", "ntk"):
        errors = np.hypot(getattr(one, f"{name}_error"), getattr(two, f"{name}_error"))
        scale = np.abs(getattr(two, name)).max()
        assert errors.max() < 0.02 * scale
        assert (np.abs(getattr(one, name) - getattr(two, name)) / errors).max() < 6


def test_a_read_out_token_is_a_trained_constant_query():
    """κ^q = Θ^q = 1, as a dense layer makes them from a constant input."""
    x = _tokens(3, 4, 5)
    constant = np.ones((3, 1, 5))
    pool = wl.AttentionPool(8, score_map=RELU, **SCALES).kernel(x)
    streams = wl.Parallel(wl.Dense(8), wl.Serial())
    cross = wl.Serial(streams, wl.CrossAttention(8, score_map=RELU, **SCALES), wl.MeanPool())
    _agree(pool, cross.kernel((constant, x)))


@pytest.mark.parametrize("score_map", [RELU, wl.Softmax()], ids=["relu", "softmax"])
def test_streams_of_different_lengths_and_padding(score_map):
    queries, context = _tokens(2, 2, 3), _tokens(2, 4, 5, seed=1)
    net = wl.CrossAttention(8, score_map=score_map, positions=wl.Decay(0.5), **SCALES)
    masks = (np.array([[True, False], [True, True]]), np.arange(4)[None] < np.array([[3], [4]]))
    sampler = None
    if is_sampled(net):
        sampler = net.sampler((queries, context), samples=4, replicates=2)
    k = net.kernel((queries, context), mask=masks, sampler=sampler)
    assert k.nngp.shape == (2, 2, 2, 2)
    assert not k.nngp[0, :, 1].any()
    alone = net.kernel(
        (queries[:1, :1], context[:1, :3]), (queries, context), mask2=masks, sampler=sampler
    )
    np.testing.assert_allclose(k.nngp[:1, :, :1], alone.nngp, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(k.ntk[:1, :, :1], alone.ntk, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_landmarks_of_two_streams_give_the_exact_features_kernel():
    queries, context = _tokens(4, 2, 8), _tokens(4, 3, 8, seed=1)
    cross = wl.CrossAttention(8)
    doubled = wl.Dense(8, w_std=np.sqrt(2))
    exact = wl.Serial(wl.Parallel(doubled, doubled), cross)
    net = wl.Serial(wl.Parallel(wl.Residual(wl.Dense(8)), wl.Residual(wl.Dense(8))), cross)
    sampler = net.sampler((queries, context), samples=512)
    assert sampler.rank is not None
    one = net.kernel((queries, context), sampler=sampler, ntk=False)
    two = exact.kernel((queries, context), key=jax.random.key(1), samples=512, ntk=False)
    errors = np.hypot(one.nngp_error, two.nngp_error)
    assert errors.max() < 0.03 * np.abs(two.nngp).max()
    assert (np.abs(one.nngp - two.nngp) / errors).max() < 6


# --- bad input -----------------------------------------------------------------------------------


def test_streams_are_tuples_of_equal_size():
    net = wl.CrossAttention(8)
    with pytest.raises(wl.errors.ShapeError, match="tuple of 2 streams"):
        net.kernel(_tokens(2, 3, 4))
    with pytest.raises(wl.errors.ShapeError, match="same examples"):
        net.kernel((_tokens(2, 3, 4), _tokens(3, 3, 4)))
    with pytest.raises(wl.errors.ShapeError, match="2 streams"):
        wl.Serial(wl.Dense(8), net).kernel(_tokens(2, 3, 4))


def test_offsets_between_streams_have_no_meaning():
    for positions in (wl.Rotary(), wl.Alibi()):
        with pytest.raises(wl.WidelimitError, match="its keys alone"):
            wl.CrossAttention(8, positions=positions)


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": wl.Causal()},
        {"scaling": "linear"},
        {"dropout": 0.1},
        {"projections": wl.layers.Projections(qk_norm=True)},
    ],
)
def test_options_of_self_attention_alone_are_named(options):
    for layer in (wl.CrossAttention, wl.AttentionPool):
        with pytest.raises(wl.WidelimitError, match=f"Got: {next(iter(options))}="):
            layer(8, **options)


@pytest.mark.parametrize("options", [{"score_map": "softmax"}, {"heads": 0}, {"key_width": 0}])
def test_wrong_options_are_refused(options):
    for layer in (wl.CrossAttention, wl.AttentionPool):
        with pytest.raises(wl.WidelimitError):
            layer(**{"width": 8, **options})


def test_finite_streams_need_finitely_many_heads():
    with pytest.raises(wl.errors.NetworkError, match="finitely many heads"):
        wl.CrossAttention(8).init(jax.random.key(0), ((2, 4), (3, 4)))
