"""Ordinary Flax NNX models."""

import jax
import jax.numpy as jnp
from flax import nnx

OUTPUTS = 16


class Mlp(nnx.Module):
    def __init__(self, width, key):
        rngs = nnx.Rngs(key)
        self.first = nnx.Linear(3, width, rngs=rngs)
        self.second = nnx.Linear(width, width, rngs=rngs)
        self.readout = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.first(x))
        x = jax.nn.relu(self.second(x))
        return self.readout(x)


class Cnn(nnx.Module):
    def __init__(self, width, key):
        rngs = nnx.Rngs(key)
        self.first = nnx.Conv(2, width, (3, 3), rngs=rngs)
        self.second = nnx.Conv(width, width, (3, 3), strides=2, rngs=rngs)
        self.readout = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.first(x))
        x = nnx.relu(self.second(x))
        return self.readout(jnp.mean(x, axis=(0, 1)))


class Block(nnx.Module):
    def __init__(self, width, rngs, *, post):
        self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
        self.first = nnx.LayerNorm(width, rngs=rngs)
        self.second = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)
        self.post = post

    def __call__(self, x):
        if self.post:
            x = self.first(x + self.attention(x))
            return self.second(x + self.down(nnx.gelu(self.up(x))))
        x = x + self.attention(self.first(x))
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class Transformer(nnx.Module):
    def __init__(self, width, key, *, post=False, channels=3, blocks=1):
        rngs = nnx.Rngs(key)
        self.embed = nnx.Linear(channels, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs, post=post) for _ in range(blocks)])
        self.readout = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.readout(jnp.mean(x, axis=0))


def post_norm(width, key):
    return Transformer(width, key, post=True)


class Gated(nnx.Module):
    def __init__(self, width, key):
        rngs = nnx.Rngs(key)
        self.embed = nnx.Linear(3, width, rngs=rngs)
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.gate = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)
        self.readout = nnx.Linear(width, OUTPUTS, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x)
        h = self.norm(x)
        x = x + self.down(nnx.silu(self.gate(h)) * self.up(h))
        return self.readout(x)


class Rnn(nnx.Module):
    def __init__(self, width, key):
        rngs = nnx.Rngs(key)
        self.cell = nnx.SimpleCell(3, width, rngs=rngs)
        self.readout = nnx.Linear(width, OUTPUTS, rngs=rngs)
        self.width = width

    def __call__(self, sequence):
        state = jnp.zeros(self.width)
        for x in sequence:
            state, _ = self.cell(state, x)
        return self.readout(state)


FLAX = {
    "mlp": (Mlp, (3,)),
    "cnn": (Cnn, (5, 5, 2)),
    "pre_norm": (Transformer, (4, 3)),
    "post_norm": (post_norm, (4, 3)),
    "gated": (Gated, (3,)),
    "rnn": (Rnn, (5, 3)),
}
