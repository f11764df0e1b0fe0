"""Equinox models of known parts, lifted: the layers that they are, and the law of their trace."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from same import require_same

import widelimit as wl
from widelimit.errors import WidelimitError
from widelimit.layers import Padding
from widelimit.layers.compose import map_layers
from widelimit.lift import LiftWarning

WIDTH = 48
KEY = jax.random.key(0)
THIRD = 3**-0.5
"""σ of weights that are uniform on (−1/√n, 1/√n)."""


def keys(count: int):
    return jax.random.split(KEY, count)


def linear(*sizes, key=KEY, **options):
    return eqx.nn.Linear(*sizes, key=key, **options)


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(4, width, key=a)
        self.first, self.second = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.up, self.down = linear(width, 2 * width, key=b), linear(2 * width, width, key=c)

    def __call__(self, x, mask=None):
        h = jax.vmap(self.first)(x)
        x = x + self.attention(h, h, h, mask)
        return x + jax.vmap(lambda t: self.down(jax.nn.relu(self.up(self.second(t)))))(x)


class Text(eqx.Module):
    """Tokens, positions, one causal block; the last position is read."""

    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    block: Block
    readout: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c, d = jax.random.split(key, 4)
        self.tokens = eqx.nn.Embedding(50, width, key=a)
        self.positions = eqx.nn.Embedding(6, width, key=b)
        self.block = Block(width, c)
        self.readout = linear(width, 1, key=d)

    def __call__(self, ids):
        x = jax.vmap(self.tokens)(ids) + jax.vmap(self.positions)(jnp.arange(len(ids)))
        return self.readout(self.block(x, jnp.tril(jnp.ones((6, 6), bool)))[-1])[0]


def block(**options) -> wl.Serial:
    """The same in layers."""
    return wl.TransformerBlock(
        WIDTH,
        attention=wl.Attention(
            WIDTH, heads=4, qk_std=1 / 3, ov_std=1 / 3, key_width=12, value_width=12, **options
        ),
        hidden=2 * WIDTH,
        activation=wl.Relu(),
        w_std=THIRD,
    )


def with_eps(net: wl.Layer, eps: float) -> wl.Layer:
    return map_layers(
        lambda one: wl.LayerNorm(eps=eps) if isinstance(one, wl.LayerNorm) else one, net
    )


def test_a_text_transformer_is_the_builders():
    found = wl.lift(Text(WIDTH, KEY), np.zeros((2, 6), int))
    expected = wl.Serial(
        wl.Embedding(WIDTH, vocabulary=50),
        wl.layers.PositionTable(std=1.0),
        *with_eps(block(pattern=wl.Causal()), 1e-5).parts,
        wl.Select(-1),
        wl.Dense(1, w_std=THIRD),
    )
    require_same(found, expected)
    wide = wl.lift(Text(WIDTH, KEY), np.zeros((2, 6), int), heads=wl.INFINITE)
    assert [p.heads for p in wide.parts[2].parts[1].parts if isinstance(p, wl.Attention)] == [
        wl.INFINITE
    ]


def test_an_mlp_and_what_becomes_of_its_biases():
    model = eqx.nn.MLP(3, 2, WIDTH, 2, activation=jnp.tanh, key=KEY)
    x = np.zeros((2, 3))
    with pytest.warns(LiftWarning, match="not Gaussian"):
        found = wl.lift(model, x)
    dense, tanh = wl.Dense(WIDTH, w_std=THIRD), wl.Tanh()
    first = wl.Dense(WIDTH, w_std=THIRD, b_std=1 / 3)
    require_same(found, wl.Serial(first, tanh, dense, tanh, wl.Dense(2, w_std=THIRD)))
    with pytest.warns(LiftWarning):
        own = wl.lift(model, x, biases="own")
    b_std = (3 * WIDTH) ** -0.5
    hidden, last = (wl.Dense(n, w_std=THIRD, b_std=b_std) for n in (WIDTH, 2))
    require_same(own, wl.Serial(first, tanh, hidden, tanh, last))


def test_a_convolutional_network_takes_channels_first():
    a, b, c = keys(3)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(2, WIDTH, 3, padding=1, use_bias=False, key=a),
            eqx.nn.Identity(),
            eqx.nn.Conv2d(WIDTH, WIDTH, 3, stride=2, use_bias=False, key=b),
            eqx.nn.Lambda(jax.nn.silu),
            eqx.nn.AvgPool2d(2),
            eqx.nn.Lambda(lambda x: x.reshape(-1)),
            linear(WIDTH, 5, use_bias=False, key=c),
        ]
    )
    found = wl.lift(model, np.zeros((1, 2, 5, 5)))
    conv = wl.Conv(WIDTH, (3, 3), stride=(1, 1), padding=Padding.SAME, w_std=THIRD)
    strided = wl.Conv(WIDTH, (3, 3), stride=(2, 2), padding=Padding.VALID, w_std=THIRD)
    pool = wl.MeanPool((2, 2), stride=(1, 1))
    readout = wl.Dense(5, w_std=THIRD)
    last = wl.Serial(conv, strided, wl.Silu(), pool, wl.Flatten(), readout)
    require_same(found, wl.Serial(wl.layers.Rearrange((1, 2, 0)), *last.layers))
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 5))
    moved = last.kernel(np.moveaxis(x, 1, -1))
    np.testing.assert_array_equal(found.kernel(x).ntk, moved.ntk)
    params = found.init(jax.random.key(0), x.shape[1:])
    np.testing.assert_array_equal(
        found.apply(params, x), last.apply(params[1:], np.moveaxis(x, 1, -1))
    )
    traced = jax.jit(lambda a: found.apply(params, a))(x.astype(np.float32))
    np.testing.assert_allclose(traced, found.apply(params, x.astype(np.float32)), rtol=1e-5)


def test_dropout_of_training_and_of_inference():
    model = eqx.nn.Sequential([linear(3, WIDTH), eqx.nn.Dropout(0.2), linear(WIDTH, 1)])
    first = wl.Dense(WIDTH, w_std=THIRD, b_std=1 / 3)
    last = wl.Dense(1, w_std=THIRD)
    require_same(wl.lift(model, np.zeros((1, 3))), wl.Serial(first, wl.Dropout(0.2), last))
    calm = eqx.nn.inference_mode(model)
    require_same(wl.lift(calm, np.zeros((1, 3))), wl.Serial(first, last))


def test_functions_are_known_by_their_values():
    def lifted(function):
        model = eqx.nn.Sequential(
            [linear(3, 8), linear(8, 8), eqx.nn.Lambda(function), linear(8, 1)]
        )
        return wl.lift(model, np.zeros((1, 3))).parts[2]

    assert repr(lifted(lambda x: x * jax.nn.sigmoid(x))) == "Silu()"
    assert repr(lifted(lambda x: 0.5 * x * (1 + jax.lax.erf(x / 2**0.5)))) == "Gelu()"
    assert repr(lifted(lambda x: jnp.where(x > 0, x, 0.2 * x))) == repr(wl.LeakyRelu(0.2))
    assert repr(lifted(lambda x: jnp.log1p(jnp.exp(x)))) == "Softplus()"
    other = lifted(lambda x: jnp.arctan(x) + 0.1)
    assert np.isclose(float(other.dual.fn(jnp.float32(1.0))), np.pi / 4 + 0.1)


def test_numbers_in_front_go_into_weights():
    first, second, last = linear(3, WIDTH, use_bias=False), linear(WIDTH, WIDTH), linear(WIDTH, 1)

    def model(x):
        x = first(x) * 2.0
        return last(x - 0.5 * second(x))

    dense = [wl.Dense(n, w_std=THIRD * s) for n, s in ((WIDTH, 2), (WIDTH, 0.5), (1, 1))]
    expected = wl.Serial(dense[0], wl.Residual(dense[1]), dense[2])
    require_same(wl.lift(model, np.zeros((1, 3))), expected)


def test_measured_standard_deviations():
    layer = linear(WIDTH, WIDTH, use_bias=False)
    wider = eqx.tree_at(lambda m: m.weight, layer, 2 * layer.weight)
    (shown,) = wl.lift(wider, np.zeros((1, WIDTH))).parts
    (found,) = wl.lift(wider, np.zeros((1, WIDTH)), deviations="measured").parts
    assert found.weights.w_std == pytest.approx(2 * THIRD, rel=0.1)
    assert shown.weights.w_std == pytest.approx(float(found.weights.w_std))
    assert found.weights.w_std == pytest.approx(2 * np.linalg.norm(layer.weight) * WIDTH**-0.5)


class Gated(eqx.Module):
    embed: eqx.nn.Linear
    norm: eqx.nn.RMSNorm
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c, d = jax.random.split(key, 4)
        self.embed = linear(3, width, key=a)
        self.norm = eqx.nn.RMSNorm(width, use_bias=False)
        self.gate, self.up = linear(width, width, key=b), linear(width, width, key=c)
        self.down = linear(width, 1, key=d)

    def __call__(self, x):
        h = self.norm(self.embed(x))
        return self.down(jnp.tanh(self.gate(h)) * self.up(h))


def test_kernels_are_those_of_the_trace():
    x = np.random.default_rng(0).standard_normal((2, 3))
    net = wl.lift(Gated(WIDTH, KEY), x)
    found = net.kernel(x, ntk=False, dtype=np.float64).nngp
    law = wl.trace(Gated, x).limit()
    assert not law.random
    np.testing.assert_allclose(found, law.covariance().value[..., 0, 0], rtol=1e-6)


class Shared(eqx.Module):
    one: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, x):
        return self.last(self.one(jnp.tanh(self.one(x))))


ONE, TOKEN, SQUARE, FOUR, PAIR = (linear(*s) for s in ((3, 1), (3, 64), (3, 3), (3, 4), (2, 1)))
LAST = linear(64, 1)
CELL = eqx.nn.GRUCell(3, 4, key=KEY)
ATTENTION = eqx.nn.MultiheadAttention(1, 3, key=KEY)
ANGLES = np.arange(5)[:, None] / 10_000 ** (np.arange(32) / 32)
SINES = np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], axis=1)

NORM = eqx.nn.LayerNorm(4)
QUERY, KEYS, VALUE, MIXED = (linear(64, 64, key=k, use_bias=False) for k in keys(4))


def turned_block(x, pairs, base=10_000.0):
    """Four heads by hand, of which so many pairs of channels turn with the position."""

    def heads(weights):
        return jax.vmap(weights)(h).reshape(len(x), 4, 16)

    def turned(q):
        theta = base ** (-np.arange(pairs) / pairs)
        angles = jnp.arange(len(x))[:, None, None] * theta[None, None]
        one, two, rest = q[..., :pairs], q[..., pairs : 2 * pairs], q[..., 2 * pairs :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([one * cos - two * sin, one * sin + two * cos, rest], axis=-1)

    h = jax.vmap(TOKEN)(x)
    q, k, v = turned(heads(QUERY)), turned(heads(KEYS)), heads(VALUE)
    scores = jnp.einsum("thd,shd->hts", q, k) / 4.0
    scores = jnp.where(np.tril(np.ones((len(x), len(x)), bool)), scores, -1e9)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = jnp.einsum("hts,shd->thd", weights, v)
    return jax.vmap(MIXED)(mixed.reshape(len(x), 64))


def test_attention_by_hand_with_rotary_positions():
    (_, found) = wl.lift(lambda x: turned_block(x, 8), np.zeros((1, 5, 3))).parts
    expected = wl.Attention(
        64, heads=4, qk_std=1 / 3, ov_std=1 / 3, pattern=wl.Causal(), key_width=16,
        value_width=16, positions=wl.Rotary(pairs=8),
    )  # fmt: skip
    require_same(found, expected)


@pytest.mark.parametrize("size", [3, 4])
def test_a_circle_of_positions(size):
    a, b = keys(2)
    first = eqx.nn.Conv1d(2, WIDTH, size, padding="SAME", padding_mode="CIRCULAR", key=a)
    model = eqx.nn.Sequential([first, eqx.nn.Lambda(jnp.ravel), linear(5 * WIDTH, 1, key=b)])
    net = wl.lift(model, np.zeros((1, 2, 5)))
    assert net.parts[1].padding is Padding.CIRCULAR
    x = np.random.default_rng(0).standard_normal((1, 2, 5))
    turned = net.kernel(np.roll(x, 2, axis=-1), ntk=False).nngp
    np.testing.assert_allclose(net.kernel(x, ntk=False).nngp, turned, rtol=1e-6)


def test_some_channels_of_a_layer_are_a_layer():
    found = wl.lift(lambda x: PAIR(FOUR(x).reshape(2, 2)[0]), np.zeros((1, 3)))
    assert [part.width for part in found.parts] == [2, 1]


REFUSED = {
    "weights used twice": (Shared(SQUARE, ONE), (3,), "a second time"),
    "a matrix by hand": (lambda x: ONE(jnp.ones((3, 3)) @ x), (3,), "dot_general"),
    "a recurrent cell": (lambda x: CELL(x, jnp.zeros(4)), (3,), "'mul' at"),
    "maxima": (
        eqx.nn.Sequential([eqx.nn.MaxPool1d(2), eqx.nn.Lambda(jnp.ravel), linear(8, 1)]),
        (2, 5),
        "reduce_window_max",
    ),
    "sorting": (lambda x: ONE(jnp.sort(SQUARE(x))), (3,), "sort"),
    "some positions": (lambda x: jax.vmap(SQUARE)(x)[:2], (5, 3), "one position"),
    "channels apart": (lambda x: PAIR(jnp.tanh(NORM(FOUR(x)))[:2]), (3,), "2 numbers"),
    "rotations of half a head": (lambda x: turned_block(x, 2), (5, 3), "all channels"),
    "sines": (
        lambda x: LAST(jnp.mean(jax.vmap(TOKEN)(x) + SINES, axis=0)),
        (5, 3),
        "independent",
    ),
    "outputs of positions only": (lambda x: jnp.sum(SQUARE(x)), (3,), "reduce_sum"),
    "groups": (eqx.nn.Conv1d(4, 4, 3, groups=2, key=KEY), (4, 6), "groups"),
    "padding": (eqx.nn.Conv1d(2, 4, 3, padding=2, key=KEY), (2, 6), "padding"),
    "attention to something else": (
        lambda x: ATTENTION(x, jnp.tanh(x), x), (4, 3), "different"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name):
    model, shape, word = REFUSED[name]
    with pytest.raises(WidelimitError, match=word) as caught:
        wl.lift(model, np.zeros((1, *shape)))
    assert "wl.trace" in str(caught.value)
