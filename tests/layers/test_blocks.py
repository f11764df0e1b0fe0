"""Transformer builders: what they are made of, and their two readings."""

import inspect

import jax
import numpy as np
import pytest

import widelimit as wl

LINEAR = {"scaling": wl.Scaling.LINEAR}


@pytest.fixture(scope="module")
def sentences():
    return np.random.default_rng(3).normal(size=(3, 5, 4))


@pytest.mark.parametrize(
    "build", [wl.TransformerBlock, wl.TransformerEncoder, wl.VisionTransformer, wl.TextEncoder]
)
def test_signatures_spell_out_every_option(build):
    names = inspect.signature(build).parameters
    assert {"heads", "scaling", "positions", "pattern", "gated", "w_std"} <= set(names)
    assert all(p.kind is not p.VAR_KEYWORD for p in names.values())
    with pytest.raises(TypeError, match="unexpected keyword argument 'scalling'"):
        wl.TransformerBlock(width=8, scalling="linear")


def test_pre_norm_block_is_the_network_written_out(sentences):
    block = wl.TransformerBlock(32, hidden=48, activation=wl.Relu, w_std=1.3, b_std=0.2, **LINEAR)
    mlp = wl.Serial(
        wl.Dense(48, w_std=1.3, b_std=0.2), wl.Relu(), wl.Dense(32, w_std=1.3, b_std=0.2)
    )
    written_out = wl.Serial(
        wl.Residual(wl.Serial(wl.LayerNorm(), wl.Attention(32, **LINEAR))),
        wl.Residual(wl.Serial(wl.LayerNorm(), mlp)),
    )
    ends = (wl.MeanPool(), wl.Dense(1))
    first = wl.Dense(32)
    ours = wl.Serial(first, block, *ends).kernel(sentences)
    expected = wl.Serial(first, written_out, *ends).kernel(sentences)
    np.testing.assert_array_equal(ours.ntk, expected.ntk)
    np.testing.assert_array_equal(ours.nngp, expected.nngp)


def test_gate_multiplies_kernels(sentences):
    flat = sentences[:, 0]
    net = wl.Serial(wl.Dense(8), wl.Mlp(1, activation=wl.Relu, gated=True))
    inner = wl.Serial(wl.Dense(8), wl.Dense(8)).kernel(flat)
    relu = wl.Serial(wl.Dense(8), wl.Dense(8), wl.Relu()).kernel(flat)
    np.testing.assert_allclose(net.kernel(flat).nngp, relu.nngp * inner.nngp, rtol=1e-12)
    theta = relu.ntk * inner.nngp + relu.nngp * inner.ntk
    np.testing.assert_allclose(net.kernel(flat).ntk, relu.nngp * inner.nngp + theta, rtol=1e-12)


# Blocks do not know how it ends: one ending sees two of them, the others with the slow tests.
_ONE_BLOCK = [(pooling, 1) for pooling in wl.layers.Pooling if pooling != wl.layers.Pooling.MEAN]
_TWO_BLOCKS = [pytest.param(pooling, 2, marks=pytest.mark.slow) for pooling, _ in _ONE_BLOCK]


@pytest.mark.parametrize(
    ("pooling", "depth"), [(wl.layers.Pooling.MEAN, 2), *_ONE_BLOCK, *_TWO_BLOCKS]
)
@pytest.mark.parametrize("norm", list(wl.layers.Norm))
def test_builders_agree_on_shapes(sentences, pooling, depth, norm):
    net = wl.TextEncoder(width=16, depth=depth, outputs=3, heads=2, norm=norm, pooling=pooling)
    params = net.init(jax.random.key(0), sentences.shape[1:])
    out = net.apply(params, sentences)
    kept = (5,) if pooling is wl.layers.Pooling.NONE else ()
    assert out.shape == (3, *kept, 3)
    assert bool(np.isfinite(out).all())


def test_vision_transformer_cuts_patches():
    images = np.random.default_rng(0).normal(size=(2, 6, 6, 3))
    net = wl.VisionTransformer(patch=3, width=16, depth=1, outputs=1, **LINEAR)
    by_hand = images.reshape(2, 2, 3, 2, 3, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 2, 2, 27)
    rest = wl.Serial(wl.Dense(16), *net.layers[1:])
    np.testing.assert_allclose(net.kernel(images).ntk, rest.kernel(by_hand).ntk, rtol=1e-12)


def test_text_encoder_on_token_ids_equals_one_hot_vectors():
    tokens = np.random.default_rng(0).integers(0, 7, size=(3, 4))
    one_hot = np.eye(7)[tokens] * np.sqrt(7)
    options = {"width": 16, "depth": 1, "outputs": 1, **LINEAR}
    by_id = wl.TextEncoder(vocabulary=7, **options).kernel(tokens, dtype=np.float64)
    by_vector = wl.TextEncoder(**options).kernel(one_hot)
    np.testing.assert_allclose(by_id.ntk, by_vector.ntk, rtol=1e-12)


def test_block_refuses_an_attention_layer_with_options():
    with pytest.raises(wl.WidelimitError, match="options to make one"):
        wl.TransformerBlock(8, attention=wl.Attention(8), qk_std=2.0)


def test_heads_of_a_description_can_be_changed(sentences):
    net = wl.TextEncoder(width=16, depth=1, outputs=2, pooling=wl.layers.Pooling.ATTENTION)
    with pytest.raises(wl.errors.NetworkError, match="finitely many heads"):
        net.init(jax.random.key(0), sentences.shape[1:])
    drawn = wl.with_heads(net, 3).init(jax.random.key(0), sentences.shape[1:])
    assert max(leaf.shape[0] for leaf in jax.tree.leaves(drawn) if leaf.ndim == 3) == 3


def test_norm_and_pooling_are_taken_by_name():
    by_name = wl.TransformerEncoder(8, depth=1, norm="post")
    assert jax.tree.structure(by_name) == jax.tree.structure(
        wl.TransformerEncoder(8, depth=1, norm=wl.layers.Norm.POST)
    )
    with pytest.raises(wl.WidelimitError, match="'pre', 'post', 'none'"):
        wl.TransformerBlock(8, norm="before")
    with pytest.raises(wl.WidelimitError, match="'mean', 'attention'"):
        wl.TextEncoder(width=8, depth=1, outputs=1, pooling="max")
