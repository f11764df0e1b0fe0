"""Flax NNX models of known parts, lifted: the builder's network and the traced law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from same import require_same

import widelimit as wl
from widelimit import duals
from widelimit.errors import NetworkError

nnx = pytest.importorskip("flax.nnx")
WIDTH, OUTPUTS = 64, 2


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.first = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
        self.second = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.first(x))
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class Transformer(nnx.Module):
    def __init__(self, width, key):
        rngs = nnx.Rngs(key)
        self.embed = nnx.Linear(3, width, rngs=rngs)
        self.block = Block(width, rngs)
        self.readout = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def __call__(self, x):
        return self.readout(jnp.mean(self.block(self.embed(x)), axis=0))


def builder() -> wl.Serial:
    """The same network from this library's builder."""
    block = wl.TransformerBlock(
        WIDTH,
        heads=4,
        hidden=2 * WIDTH,
        activation=wl.layers.Activation(duals.tanh_gelu()),
        key_width=WIDTH // 4,
        value_width=WIDTH // 4,
    )
    return wl.Serial(wl.Dense(WIDTH), *block.parts, wl.MeanPool(), wl.Dense(OUTPUTS))


def test_a_transformer_is_the_builders():
    model = Transformer(WIDTH, jax.random.key(0))
    found = wl.lift(model, np.zeros((2, 4, 3)))
    require_same(found, builder())


@pytest.mark.slow
def test_a_transformer_has_the_law_of_its_trace():
    x = 2 * np.random.default_rng(0).standard_normal((2, 4, 3))
    net = wl.lift(Transformer(WIDTH, jax.random.key(0)), x)
    kernels = (each.kernel(x, samples=8, ntk=False).nngp for each in (net, builder()))
    np.testing.assert_allclose(*kernels, rtol=1e-6)
    lifted = net.law(x, draws=8192)
    traced = wl.trace(Transformer, x).limit(draws=4096)
    one, two = lifted.covariance(), traced.covariance()
    for output in range(OUTPUTS):
        value, error = (part[..., output, output] for part in (two.value, two.error))
        error = np.hypot(error, one.error)
        assert error.max() < 0.01 * one.value.max()
        assert (np.abs(value - one.value) < 3 * error).all()
        # A factor of 1.05 in the standard deviation of scores or values would be seen.
        assert (np.abs(value - 1.1 * one.value) > 3 * error).any()
    here, there = lifted.kurtosis(at=0), traced.kurtosis(at=(0, 0))
    assert here.value > 3 * here.error
    assert abs(here.value - there.value) < 3 * np.hypot(here.error, there.error)


class ViT(nnx.Module):
    def __init__(self, width, key):
        rngs = nnx.Rngs(key)
        self.embed = nnx.Conv(3, width, (4, 4), strides=4, rngs=rngs)
        self.cls = nnx.Param(jax.random.normal(rngs(), (1, width)))
        self.positions = nnx.Param(0.5 * jax.random.normal(rngs(), (5, width)))
        self.block = Block(width, rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.readout = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, image):
        x = self.embed(image)
        x = jnp.concatenate([self.cls[...], x.reshape(-1, x.shape[-1])]) + self.positions[...]
        return self.readout(self.norm(self.block(x))[0])


def test_a_vision_transformer():
    net = wl.lift(ViT(256, jax.random.key(0)), np.zeros((1, 8, 8, 3)))
    names = [type(part).__name__ for part in net.parts]
    assert names == [
        "Conv", "ClassToken", "PositionTable", "Residual", "Residual", "LayerNorm", "Select",
        "Dense",
    ]  # fmt: skip
    # Arrays of the model's own have no initialiser on record: their deviation is measured.
    assert float(net.parts[1].std) == pytest.approx(1.0, rel=0.2)
    assert float(net.parts[2].std) == pytest.approx(0.5, rel=0.1)


def test_small_embeddings_vanish_in_the_limit_and_are_lifted_at_their_own_width():
    """Rows of variance 1/n are far below LayerNorm's eps one day, not at this width."""

    def make(width, key):
        rngs = nnx.Rngs(key)
        words, norm = nnx.Embed(7, width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        readout = nnx.Linear(width, 1, rngs=rngs)
        return lambda ids: readout(norm(words(ids)).mean(axis=0))

    ids = np.array([[1, 2, 3], [1, 2, 4]])
    with pytest.raises(NetworkError, match=r"vanishes.*wl\.lift"):
        wl.trace(make, ids).limit().covariance()
    found = wl.lift(make(WIDTH, jax.random.key(0)), ids).kernel(ids, ntk=False).nngp
    kept = (1 / WIDTH) / (1 / WIDTH + 1e-6)
    np.testing.assert_allclose(found, kept * np.array([[3, 2], [2, 3]]) / 9, rtol=1e-5)


def test_linen_and_haiku_are_read_by_what_they_do():
    linen, haiku = pytest.importorskip("flax.linen"), pytest.importorskip("haiku")

    class Linen(linen.Module):
        @linen.compact
        def __call__(self, ids):
            x = linen.Embed(40, WIDTH)(ids) + linen.Embed(4, WIDTH)(jnp.arange(4))
            x = x + linen.MultiHeadDotProductAttention(4)(linen.LayerNorm()(x))
            return linen.Dense(OUTPUTS)(x.mean(axis=0))

    def made(x):
        attention = haiku.MultiHeadAttention(
            4, WIDTH // 4, w_init=haiku.initializers.VarianceScaling(1.0)
        )
        x = haiku.Linear(WIDTH)(x)
        return haiku.Linear(OUTPUTS)(attention(x, x, x).mean(axis=0))

    ids, x = np.zeros((1, 4), int), np.zeros((1, 4, 3))
    params = Linen().init(jax.random.key(0), ids[0])
    found = wl.lift(lambda ids: Linen().apply(params, ids), ids)
    sizes = {"key_width": 16, "value_width": 16}
    attention = wl.Attention(WIDTH, heads=4, qk_std=1.0, ov_std=1.0, **sizes)
    small = {"std": WIDTH**-0.5}
    require_same(
        found,
        wl.Serial(
            wl.Embedding(WIDTH, vocabulary=40, **small),
            wl.layers.PositionTable(**small),
            wl.Residual(wl.Serial(wl.LayerNorm(eps=1e-6), attention)),
            wl.MeanPool(),
            wl.Dense(OUTPUTS),
        ),
    )
    both = haiku.without_apply_rng(haiku.transform(made))
    held = both.init(jax.random.key(0), x[0])
    lifted = wl.lift(lambda x: both.apply(held, x), x)
    cut = 0.7737413035499232**0.5  # normal numbers that are cut at two deviations
    ends = [wl.Dense(n, w_std=cut) for n in (WIDTH, OUTPUTS)]
    require_same(lifted, wl.Serial(ends[0], attention, wl.MeanPool(), ends[1]))


def test_embeddings_are_small_and_sequences_are_opened():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Embed(7, 32, rngs=rngs), nnx.Dropout(0.1, deterministic=True), nnx.relu,
        nnx.Linear(32, 1, use_bias=False, rngs=rngs),
    )  # fmt: skip
    net = wl.lift(model, np.zeros((1, 5), int))
    expected = wl.Serial(
        wl.Embedding(32, vocabulary=7, std=32**-0.5), wl.Relu(), wl.Dense(1)
    )  # fmt: skip
    require_same(net, expected)
