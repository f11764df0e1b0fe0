"""JAX models of public packages, as their users write them: `make(width, key)` and an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

OUTPUTS = 8
VECTOR, SEQUENCE, IMAGE, TOKENS = (6,), (4, 3), (4, 4, 3), 4
EXAMPLES = {
    VECTOR: np.zeros(VECTOR, np.float32), SEQUENCE: np.zeros(SEQUENCE, np.float32),
    IMAGE: np.zeros(IMAGE, np.float32), TOKENS: np.zeros(TOKENS, np.int32),
}  # fmt: skip
EDGES = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


# ---- Equinox ---------------------------------------------------------------------------------


class Block(eqx.Module):
    """Attention and an MLP around residual connections."""

    attention: eqx.nn.MultiheadAttention
    norms: list
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    post: bool = eqx.field(static=True)

    def __init__(self, width: int, key: Any, post: bool = False, norm: Any = eqx.nn.LayerNorm):
        a, b, c = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(4, width, key=a)
        self.norms = [norm(width), norm(width)]
        self.up = eqx.nn.Linear(width, 2 * width, key=b)
        self.down = eqx.nn.Linear(2 * width, width, key=c)
        self.post = post

    def __call__(self, x: Any) -> Any:
        one, two = (jax.vmap(norm) for norm in self.norms)
        mlp = jax.vmap(lambda token: self.down(jax.nn.gelu(self.up(token))))
        if self.post:
            x = one(x + self.attention(x, x, x))
            return two(x + mlp(x))
        h = one(x)
        x = x + self.attention(h, h, h)
        return x + mlp(two(x))


def equinox_transformer(width: int, key: Any, **options: Any) -> Callable[[Any], Any]:
    a, b, c, d = jax.random.split(key, 4)
    embed, out = eqx.nn.Linear(3, width, key=a), eqx.nn.Linear(width, OUTPUTS, key=d)
    blocks = [Block(width, k, **options) for k in (b, c)]

    def model(x: Any) -> Any:
        x = jax.vmap(embed)(x)
        for block in blocks:
            x = block(x)
        return out(x.mean(axis=0))

    return model


def equinox_text(width: int, key: Any) -> Callable[[Any], Any]:
    a, b, c, d = jax.random.split(key, 4)
    words, places = eqx.nn.Embedding(40, width, key=a), eqx.nn.Embedding(TOKENS, width, key=b)
    block, out = Block(width, c), eqx.nn.Linear(width, OUTPUTS, key=d)

    def model(tokens: Any) -> Any:
        x = jax.vmap(words)(tokens) + jax.vmap(places)(jnp.arange(TOKENS))
        return out(block(x).mean(axis=0))

    return model


def equinox_bag(width: int, key: Any) -> Callable[[Any], Any]:
    a, b = jax.random.split(key)
    words, head = eqx.nn.Embedding(40, width, key=a), eqx.nn.MLP(width, OUTPUTS, width, 1, key=b)

    def model(tokens: Any) -> Any:
        there = (tokens != 5).astype(jnp.float32)[:, None]
        return head((jax.vmap(words)(tokens) * there).sum(axis=0) / there.sum())

    return model


def equinox_vit(width: int, key: Any) -> Callable[[Any], Any]:
    a, b, c, d, e = jax.random.split(key, 5)
    patches = eqx.nn.Conv2d(3, width, 2, stride=2, key=a)
    token, places = jax.random.normal(b, (1, width)), jax.random.normal(c, (5, width))
    block, out = Block(width, d), eqx.nn.Linear(width, OUTPUTS, key=e)

    def model(image: Any) -> Any:
        x = patches(image.transpose(2, 0, 1)).reshape(width, -1).T
        return out(block(jnp.concatenate([token, x]) + places)[0])

    return model


def equinox_cnn(width: int, key: Any, pool: Any = None, norm: Any = None) -> Callable[[Any], Any]:
    a, b, c = jax.random.split(key, 3)
    first = eqx.nn.Conv2d(3, width, 3, padding=1, key=a)
    second = eqx.nn.Conv2d(width, width, 3, padding=1, key=b)
    out = eqx.nn.Linear(width, OUTPUTS, key=c)
    pool = pool or (lambda x: x)
    norm = norm(width) if norm else (lambda x: x)

    def model(image: Any) -> Any:
        x = pool(jax.nn.relu(first(image.transpose(2, 0, 1))))
        return out((x + jax.nn.relu(norm(second(x)))).mean(axis=(1, 2)))

    return model


def equinox_conv1d(width: int, key: Any) -> Callable[[Any], Any]:
    a, b, c = jax.random.split(key, 3)
    first = eqx.nn.Conv1d(3, width, 3, padding=2, dilation=1, key=a)
    second = eqx.nn.Conv1d(width, width, 3, padding=1, key=b)
    out = eqx.nn.Linear(width, OUTPUTS, key=c)
    return lambda x: out(jax.nn.relu(second(jax.nn.relu(first(x.T))))[:, -1])


def equinox_recurrent(cell: Any, embedded: bool = True) -> Any:
    def make(width: int, key: Any) -> Callable[[Any], Any]:
        a, b, c = jax.random.split(key, 3)
        embed = eqx.nn.Linear(3, width, use_bias=False, key=a)
        unit = cell(width if embedded else 3, width, key=b)
        out = eqx.nn.Linear(width, OUTPUTS, key=c)

        def model(x: Any) -> Any:
            x = jax.vmap(embed)(x) * np.sqrt(3) if embedded else x
            zero = jnp.zeros(width)
            start = (zero, zero) if cell is eqx.nn.LSTMCell else zero
            state, _ = jax.lax.scan(lambda h, t: (unit(t, h), None), start, x)
            return out(state[0] if isinstance(state, tuple) else state)

        return model

    return make


def equinox_mixer(width: int, key: Any) -> Callable[[Any], Any]:
    keys = jax.random.split(key, 4)
    embed = eqx.nn.Linear(3, width, key=keys[0])
    tokens = eqx.nn.MLP(4, 4, 16, 1, key=keys[1])
    channels = eqx.nn.MLP(width, width, 2 * width, 1, activation=jax.nn.gelu, key=keys[2])
    norm, out = eqx.nn.LayerNorm(width), eqx.nn.Linear(width, OUTPUTS, key=keys[3])

    def model(x: Any) -> Any:
        x = jax.vmap(embed)(x)
        x = x + jax.vmap(tokens, in_axes=1, out_axes=1)(jax.vmap(norm)(x))
        return out((x + jax.vmap(channels)(jax.vmap(norm)(x))).mean(axis=0))

    return model


def equinox_rotary(width: int, key: Any) -> Callable[[Any], Any]:
    a, b, c = jax.random.split(key, 3)
    embed = eqx.nn.Linear(3, width, key=a)
    attention = eqx.nn.MultiheadAttention(4, width, key=b)
    rotary, out = eqx.nn.RotaryPositionalEmbedding(width // 4), eqx.nn.Linear(width, OUTPUTS, key=c)

    def turned(query: Any, key_: Any, value: Any) -> Any:
        turn = jax.vmap(rotary, in_axes=1, out_axes=1)
        return turn(query), turn(key_), value

    def model(x: Any) -> Any:
        x = jax.vmap(embed)(x)
        return out(attention(x, x, x, process_heads=turned).mean(axis=0))

    return model


def deep_sets(width: int, key: Any) -> Callable[[Any], Any]:
    a, b = jax.random.split(key)
    inner = eqx.nn.MLP(3, width, width, 1, activation=jnp.tanh, key=a)
    outer = eqx.nn.MLP(width, OUTPUTS, width, 1, activation=jnp.tanh, key=b)
    return lambda x: outer(jax.vmap(inner)(x).mean(axis=0))


# ---- Flax NNX --------------------------------------------------------------------------------


def of_rngs(build: Any) -> Any:
    """`build(width, rngs)` as `make`."""
    return lambda width, key: build(width, nnx.Rngs(key))


def nnx_mlp(width: int, rngs: Any) -> Callable[[Any], Any]:
    return nnx.Sequential(
        nnx.Linear(6, width, rngs=rngs), nnx.relu, nnx.Linear(width, width, rngs=rngs), nnx.gelu,
        nnx.Linear(width, OUTPUTS, rngs=rngs),
    )  # fmt: skip


def nnx_cnn(width: int, rngs: Any, pool: Any = nnx.avg_pool) -> Callable[[Any], Any]:
    first = nnx.Conv(3, width, (3, 3), rngs=rngs)
    second = nnx.Conv(width, width, (3, 3), rngs=rngs)
    hidden, out = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, OUTPUTS, rngs=rngs)

    def model(x: Any) -> Any:
        x = pool(nnx.relu(first(x)), window_shape=(2, 2), strides=(2, 2))
        x = pool(nnx.relu(second(x)), window_shape=(2, 2), strides=(2, 2))
        return out(nnx.relu(hidden(x.reshape(-1))))

    return model


def nnx_resnet(width: int, rngs: Any, norm: Any = None) -> Callable[[Any], Any]:
    first = nnx.Conv(3, width, (3, 3), rngs=rngs)
    second = nnx.Conv(width, width, (3, 3), use_bias=False, rngs=rngs)
    norm = norm or (lambda w, r: nnx.BatchNorm(w, use_running_average=True, rngs=r))
    one, two, out = norm(width, rngs), norm(width, rngs), nnx.Linear(width, OUTPUTS, rngs=rngs)

    def model(x: Any) -> Any:
        x = first(x)
        return out((x + two(second(nnx.relu(one(x))))).mean(axis=(0, 1)))

    return model


class NnxBlock(nnx.Module):
    def __init__(self, width: int, rngs: Any, *, causal: bool = False):
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.first, self.second = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)
        self.causal = causal

    def __call__(self, x: Any) -> Any:
        mask = nnx.make_causal_mask(jnp.ones(len(x))) if self.causal else None
        x = x + self.attention(self.first(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.second(x))))


def nnx_text(width: int, rngs: Any) -> Callable[[Any], Any]:
    words, places = nnx.Embed(40, width, rngs=rngs), nnx.Embed(TOKENS, width, rngs=rngs)
    block, norm = NnxBlock(width, rngs, causal=True), nnx.LayerNorm(width, rngs=rngs)
    out = nnx.Linear(width, OUTPUTS, rngs=rngs)
    return lambda ids: out(norm(block(words(ids) + places(jnp.arange(TOKENS))))[-1])


def nnx_vit(width: int, rngs: Any) -> Callable[[Any], Any]:
    embed = nnx.Conv(3, width, (2, 2), strides=2, rngs=rngs)
    token = nnx.Param(jax.random.normal(rngs(), (1, width)))
    places = nnx.Param(jax.random.normal(rngs(), (5, width)))
    block, norm = NnxBlock(width, rngs), nnx.LayerNorm(width, rngs=rngs)
    out = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def model(image: Any) -> Any:
        x = embed(image).reshape(-1, width)
        return out(norm(block(jnp.concatenate([token[...], x]) + places[...]))[0])

    return model


def nnx_recurrent(cell: Any) -> Any:
    def build(width: int, rngs: Any) -> Callable[[Any], Any]:
        unit, out = nnx.RNN(cell(3, width, rngs=rngs)), nnx.Linear(width, OUTPUTS, rngs=rngs)
        return lambda x: out(unit(x)[-1])

    return of_rngs(build)


def nnx_bidirectional(width: int, rngs: Any) -> Callable[[Any], Any]:
    both = nnx.Bidirectional(
        nnx.RNN(nnx.SimpleCell(3, width, rngs=rngs)), nnx.RNN(nnx.SimpleCell(3, width, rngs=rngs)),
        rngs=rngs,
    )  # fmt: skip
    out = nnx.Linear(2 * width, OUTPUTS, rngs=rngs)
    return lambda x: out(both(x).mean(axis=0))


def nnx_glu(width: int, rngs: Any) -> Callable[[Any], Any]:
    embed, norm = nnx.Linear(6, width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)
    gate, up = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(width, 2 * width, rngs=rngs)
    down = nnx.Linear(2 * width, width, rngs=rngs)
    out = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def model(x: Any) -> Any:
        x = embed(x)
        h = norm(x)
        return out(x + down(nnx.silu(gate(h)) * up(h)))

    return model


def nnx_dropout(width: int, rngs: Any) -> Callable[[Any], Any]:
    first, drop = nnx.Linear(6, width, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
    out = nnx.Linear(width, OUTPUTS, rngs=rngs)
    return lambda x: out(drop(nnx.relu(first(x))))


# ---- Flax Linen ------------------------------------------------------------------------------


def linen(kind: Any) -> Any:
    """A decorator: `call(width, x)` in a compact module, as `make`."""

    def decorate(call: Any) -> Any:
        class Model(nn.Module):
            width: int

            @nn.compact
            def __call__(self, x: Any) -> Any:
                return call(self.width, x)

        def make(width: int, key: Any) -> Callable[[Any], Any]:
            model = Model(width)
            params = model.init(key, jnp.asarray(EXAMPLES[kind]))
            return lambda x: model.apply(params, x)

        return make

    return decorate


@linen(VECTOR)
def linen_mlp(width: int, x: Any) -> Any:
    return nn.Dense(OUTPUTS)(nn.relu(nn.Dense(width)(nn.tanh(nn.Dense(width)(x)))))


@linen(IMAGE)
def linen_cnn(width: int, x: Any) -> Any:
    x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), strides=(2, 2))
    x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), strides=(2, 2))
    return nn.Dense(OUTPUTS)(nn.relu(nn.Dense(width)(x.reshape(-1))))


@linen(IMAGE)
def linen_group_norm(width: int, x: Any) -> Any:
    x = nn.Conv(width, (3, 3))(x)
    x = x + nn.Conv(width, (3, 3))(nn.relu(nn.GroupNorm(4)(x)))
    return nn.Dense(OUTPUTS)(x.mean(axis=(0, 1)))


@linen(TOKENS)
def linen_transformer(width: int, ids: Any) -> Any:
    x = nn.Embed(40, width)(ids) + nn.Embed(TOKENS, width)(jnp.arange(TOKENS))
    for _ in range(2):
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
        x = x + nn.Dense(width)(nn.gelu(nn.Dense(2 * width)(nn.LayerNorm()(x))))
    return nn.Dense(OUTPUTS)(nn.LayerNorm()(x).mean(axis=0))


@linen(SEQUENCE)
def linen_lstm(width: int, x: Any) -> Any:
    return nn.Dense(OUTPUTS)(nn.RNN(nn.OptimizedLSTMCell(width))(x)[-1])


@linen(SEQUENCE)
def linen_gru(width: int, x: Any) -> Any:
    return nn.Dense(OUTPUTS)(nn.RNN(nn.GRUCell(width))(x)[-1])


@linen(SEQUENCE)
def linen_sines(width: int, x: Any) -> Any:
    rates = np.exp(np.arange(0, width, 2) * (-np.log(10000.0) / width))
    table = np.zeros((4, width), np.float32)
    table[:, 0::2] = np.sin(np.arange(4)[:, None] * rates)
    table[:, 1::2] = np.cos(np.arange(4)[:, None] * rates)
    x = nn.Dense(width)(x) + table
    x = nn.LayerNorm()(x + nn.SelfAttention(4)(x))
    return nn.Dense(OUTPUTS)(x.mean(axis=0))


# ---- dm-haiku --------------------------------------------------------------------------------


def haiku(kind: Any) -> Any:
    """A decorator: `call(width, x)` of Haiku modules, as `make`."""

    def decorate(call: Any) -> Any:
        def make(width: int, key: Any) -> Callable[[Any], Any]:
            both = hk.without_apply_rng(hk.transform(lambda x: call(width, x)))
            params = both.init(key, jnp.asarray(EXAMPLES[kind]))
            return lambda x: both.apply(params, x)

        return make

    return decorate


@haiku(VECTOR)
def haiku_mlp(width: int, x: Any) -> Any:
    return hk.nets.MLP([width, width, OUTPUTS])(x)


@haiku(IMAGE)
def haiku_cnn(width: int, x: Any) -> Any:
    x = jax.nn.relu(hk.Conv2D(width, 3)(x))
    x = hk.AvgPool(2, 2, "VALID")(jax.nn.relu(hk.Conv2D(width, 3)(x)))
    return hk.Linear(OUTPUTS)(x.mean(axis=(0, 1)))


@haiku(IMAGE)
def haiku_lenet(width: int, x: Any) -> Any:
    x = hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID")(jax.nn.relu(hk.Conv2D(width, 3)(x)))
    return hk.nets.MLP([width, OUTPUTS])(x.mean(axis=(0, 1)))


def _norm(x: Any) -> Any:
    return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)


@haiku(TOKENS)
def haiku_transformer(width: int, ids: Any) -> Any:
    places = hk.get_parameter("places", (TOKENS, width), init=hk.initializers.TruncatedNormal(1.0))
    x = hk.Embed(40, width)(ids) + places
    start = hk.initializers.VarianceScaling(1.0)
    mask = np.tril(np.ones((1, TOKENS, TOKENS)))
    for _ in range(2):
        h = _norm(x)
        x = x + hk.MultiHeadAttention(4, width // 4, w_init=start)(h, h, h, mask=mask)
        x = x + hk.Sequential([hk.Linear(2 * width), jax.nn.gelu, hk.Linear(width)])(_norm(x))
    return hk.Linear(OUTPUTS)(_norm(x)[-1])


def haiku_recurrent(cell: Any) -> Any:
    @haiku(SEQUENCE)
    def make(width: int, x: Any) -> Any:
        unit = cell(width)
        x = hk.Linear(width)(x)
        found, _ = hk.dynamic_unroll(unit, x, unit.initial_state(None))
        return hk.Linear(OUTPUTS)(found[-1])

    return make


@haiku(SEQUENCE)
def haiku_raw_lstm(width: int, x: Any) -> Any:
    unit = hk.LSTM(width)
    found, _ = hk.dynamic_unroll(unit, x, unit.initial_state(None))
    return hk.Linear(OUTPUTS)(found[-1])


# ---- functions -------------------------------------------------------------------------------


def drawn(key: Any, *shapes: tuple[int, ...]) -> list[Any]:
    keys = jax.random.split(key, len(shapes))
    return [
        jax.random.normal(k, shape) / np.sqrt(shape[0])
        for k, shape in zip(keys, shapes, strict=True)
    ]


def message_passing(update: Any) -> Any:
    """A graph network as Jraph writes it: messages along edges, summed where they arrive."""

    def make(width: int, key: Any) -> Callable[[Any], Any]:
        embed, edge, node, out = drawn(
            key, (3, width), (width, width), (width, width), (width, OUTPUTS)
        )

        def model(x: Any) -> Any:
            h = x @ embed
            arrived = jax.ops.segment_sum(jax.nn.relu(h[EDGES[0]] @ edge), EDGES[1], 4)
            return update(h, arrived, node).mean(axis=0) @ out

        return model

    return make


def graph_attention(width: int, key: Any) -> Callable[[Any], Any]:
    embed, query, keys, out = drawn(
        key, (3, width), (width, width), (width, width), (width, OUTPUTS)
    )
    there = np.eye(4, dtype=bool)
    there[EDGES[1], EDGES[0]] = True

    def model(x: Any) -> Any:
        h = x @ embed
        scores = (h @ query) @ (h @ keys).T / np.sqrt(width)
        return jax.nn.elu(jax.nn.softmax(jnp.where(there, scores, -1e9)) @ h).mean(axis=0) @ out

    return model


def linear_attention(width: int, key: Any) -> Callable[[Any], Any]:
    embed, query, keys, value, out = drawn(
        key, (3, width), (width, width), (width, width), (width, width), (width, OUTPUTS)
    )

    def model(x: Any) -> Any:
        x = x @ embed
        q, k = (jax.nn.elu(x @ w) + 1 for w in (query, keys))
        mixed = q @ (k.T @ (x @ value)) / (q @ k.sum(axis=0))[:, None]
        return jax.nn.relu(x + mixed).mean(axis=0) @ out

    return model


def weight_tied(width: int, key: Any) -> Callable[[Any], Any]:
    first, square, out = drawn(key, (6, width), (width, width), (width, OUTPUTS))
    return lambda x: jnp.tanh(jnp.tanh(x @ first @ square) @ square.T) @ out


def fourier(width: int, key: Any) -> Callable[[Any], Any]:
    first, second, out = drawn(key, (6, width), (2 * width, width), (2 * width, OUTPUTS))

    def features(x: Any) -> Any:
        return jnp.concatenate([jnp.sin(x), jnp.cos(x)])

    return lambda x: features(features(x @ first) @ second) @ out


MODELS: dict[str, tuple[str, Any, Any]] = {
    "MLP": ("equinox", lambda w, k: eqx.nn.MLP(6, OUTPUTS, w, 3, key=k), VECTOR),
    "residual CNN": ("equinox", equinox_cnn, IMAGE),
    "CNN, max pooling": (
        "equinox", lambda w, k: equinox_cnn(w, k, eqx.nn.MaxPool2d(2, 2)), IMAGE,
    ),
    "CNN, GroupNorm": (
        "equinox", lambda w, k: equinox_cnn(w, k, norm=lambda c: eqx.nn.GroupNorm(4, c)), IMAGE,
    ),
    "Conv1d": ("equinox", equinox_conv1d, SEQUENCE),
    "transformer, pre-norm": ("equinox", equinox_transformer, SEQUENCE),
    "transformer, post-norm": (
        "equinox", lambda w, k: equinox_transformer(w, k, post=True), SEQUENCE,
    ),
    "transformer, RMSNorm": (
        "equinox", lambda w, k: equinox_transformer(w, k, norm=eqx.nn.RMSNorm), SEQUENCE,
    ),
    "text transformer": ("equinox", equinox_text, TOKENS),
    "bag of words, padding masked": ("equinox", equinox_bag, TOKENS),
    "ViT": ("equinox", equinox_vit, IMAGE),
    "GRUCell": ("equinox", equinox_recurrent(eqx.nn.GRUCell), SEQUENCE),
    "LSTMCell": ("equinox", equinox_recurrent(eqx.nn.LSTMCell), SEQUENCE),
    "LSTMCell on raw inputs": ("equinox", equinox_recurrent(eqx.nn.LSTMCell, False), SEQUENCE),
    "MLP-Mixer": ("equinox", equinox_mixer, SEQUENCE),
    "rotary attention": ("equinox", equinox_rotary, SEQUENCE),
    "DeepSets": ("equinox", deep_sets, SEQUENCE),
    "MLP, Flax NNX": ("flax.nnx", of_rngs(nnx_mlp), VECTOR),
    "CNN of the tutorial, average pooling": ("flax.nnx", of_rngs(nnx_cnn), IMAGE),
    "CNN of the tutorial": (
        "flax.nnx", of_rngs(lambda w, r: nnx_cnn(w, r, nnx.max_pool)), IMAGE,
    ),
    "ResNet block, BatchNorm in evaluation": ("flax.nnx", of_rngs(nnx_resnet), IMAGE),
    "ResNet block, GroupNorm": (
        "flax.nnx",
        of_rngs(lambda w, r: nnx_resnet(w, r, lambda c, rngs: nnx.GroupNorm(c, 4, rngs=rngs))),
        IMAGE,
    ),
    "causal text transformer": ("flax.nnx", of_rngs(nnx_text), TOKENS),
    "ViT, Flax NNX": ("flax.nnx", of_rngs(nnx_vit), IMAGE),
    "LSTMCell, Flax NNX": ("flax.nnx", nnx_recurrent(nnx.LSTMCell), SEQUENCE),
    "OptimizedLSTMCell, Flax NNX": ("flax.nnx", nnx_recurrent(nnx.OptimizedLSTMCell), SEQUENCE),
    "GRUCell, Flax NNX": ("flax.nnx", nnx_recurrent(nnx.GRUCell), SEQUENCE),
    "SimpleCell": ("flax.nnx", nnx_recurrent(nnx.SimpleCell), SEQUENCE),
    "Bidirectional": ("flax.nnx", of_rngs(nnx_bidirectional), SEQUENCE),
    "gated MLP, RMSNorm": ("flax.nnx", of_rngs(nnx_glu), VECTOR),
    "Dropout in training": ("flax.nnx", of_rngs(nnx_dropout), VECTOR),
    "MLP, Linen": ("flax.linen", linen_mlp, VECTOR),
    "CNN, Linen": ("flax.linen", linen_cnn, IMAGE),
    "residual GroupNorm": ("flax.linen", linen_group_norm, IMAGE),
    "text transformer, Linen": ("flax.linen", linen_transformer, TOKENS),
    "OptimizedLSTMCell, Linen": ("flax.linen", linen_lstm, SEQUENCE),
    "GRUCell, Linen": ("flax.linen", linen_gru, SEQUENCE),
    "transformer with NumPy's sines": ("flax.linen", linen_sines, SEQUENCE),
    "MLP, Haiku": ("dm-haiku", haiku_mlp, VECTOR),
    "CNN, Haiku": ("dm-haiku", haiku_cnn, IMAGE),
    "CNN, max pooling, Haiku": ("dm-haiku", haiku_lenet, IMAGE),
    "causal transformer, Haiku": ("dm-haiku", haiku_transformer, TOKENS),
    "LSTM, Haiku": ("dm-haiku", haiku_recurrent(hk.LSTM), SEQUENCE),
    "LSTM on raw inputs, Haiku": ("dm-haiku", haiku_raw_lstm, SEQUENCE),
    "GRU, Haiku": ("dm-haiku", haiku_recurrent(hk.GRU), SEQUENCE),
    "VanillaRNN": ("dm-haiku", haiku_recurrent(hk.VanillaRNN), SEQUENCE),
    "GCN": ("as Jraph", message_passing(lambda h, m, w: jax.nn.relu(m @ w)), SEQUENCE),
    "graph network, residual": (
        "as Jraph", message_passing(lambda h, m, w: h + jnp.tanh(m @ w)), SEQUENCE,
    ),
    "graph attention": ("as Jraph", graph_attention, SEQUENCE),
    "linear attention": ("jax", linear_attention, SEQUENCE),
    "random Fourier features": ("jax", fourier, VECTOR),
    "autoencoder with tied weights": ("jax", weight_tied, VECTOR),
}  # fmt: skip
