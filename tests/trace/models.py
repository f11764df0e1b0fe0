"""Ordinary models, written as their libraries' users write them; none knows of widelimit.

Sixteen outputs each: a random model then says sixteen times as much about second moments.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

OUTPUTS = 16


class EquinoxBlock(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    post: bool = eqx.field(static=True)

    def __init__(self, width, key, *, post=False, heads=4):
        a, b, c = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=a)
        self.first = eqx.nn.LayerNorm(width)
        self.second = eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 2 * width, key=b)
        self.down = eqx.nn.Linear(2 * width, width, key=c)
        self.post = post

    def mlp(self, token):
        return self.down(jax.nn.gelu(self.up(token)))

    def __call__(self, x):
        if self.post:
            x = jax.vmap(self.first)(x + self.attention(x, x, x))
            return jax.vmap(self.second)(x + jax.vmap(self.mlp)(x))
        h = jax.vmap(self.first)(x)
        x = x + self.attention(h, h, h)
        return x + jax.vmap(self.mlp)(jax.vmap(self.second)(x))


class EquinoxTransformer(eqx.Module):
    embed: eqx.nn.Linear
    blocks: list
    readout: eqx.nn.Linear

    def __init__(self, width, key, *, channels=3, blocks=1, post=False):
        first, last, *keys = jax.random.split(key, 2 + blocks)
        self.embed = eqx.nn.Linear(channels, width, key=first)
        self.blocks = [EquinoxBlock(width, k, post=post) for k in keys]
        self.readout = eqx.nn.Linear(width, OUTPUTS, key=last)

    def __call__(self, x):
        x = jax.vmap(self.embed)(x)
        for block in self.blocks:
            x = block(x)
        return self.readout(jnp.mean(x, axis=0))


def equinox_pre_norm(width, key):
    return EquinoxTransformer(width, key)


def equinox_post_norm(width, key):
    return EquinoxTransformer(width, key, post=True)


def equinox_mlp(width, key):
    return eqx.nn.MLP(3, OUTPUTS, width, 2, key=key)


class EquinoxCNN(eqx.Module):
    layers: list
    readout: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(2, width, 3, padding=1, key=a),
            eqx.nn.Conv2d(width, width, 3, stride=2, key=b),
        ]
        self.readout = eqx.nn.Linear(width, OUTPUTS, key=c)

    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return self.readout(x.mean(axis=(1, 2)))


class EquinoxRNN(eqx.Module):
    embed: eqx.nn.Linear
    cell: eqx.nn.GRUCell
    readout: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c = jax.random.split(key, 3)
        self.embed = eqx.nn.Linear(3, width, key=a)
        self.cell = eqx.nn.GRUCell(width, width, key=b)
        self.readout = eqx.nn.Linear(width, OUTPUTS, key=c)

    def __call__(self, sequence):
        def step(state, x):
            return self.cell(self.embed(x), state), None

        state, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), sequence)
        return self.readout(state)


class EquinoxGated(eqx.Module):
    embed: eqx.nn.Linear
    norm: eqx.nn.RMSNorm
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    readout: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c, d, e = jax.random.split(key, 5)
        self.embed = eqx.nn.Linear(3, width, key=a)
        self.norm = eqx.nn.RMSNorm(width, use_bias=False)
        self.gate = eqx.nn.Linear(width, 2 * width, use_bias=False, key=b)
        self.up = eqx.nn.Linear(width, 2 * width, use_bias=False, key=c)
        self.down = eqx.nn.Linear(2 * width, width, use_bias=False, key=d)
        self.readout = eqx.nn.Linear(width, OUTPUTS, key=e)

    def __call__(self, x):
        x = self.embed(x)
        h = self.norm(x)
        x = x + self.down(jax.nn.silu(self.gate(h)) * self.up(h))
        return self.readout(x)


EQUINOX = {
    "mlp": (equinox_mlp, (3,)),
    "cnn": (EquinoxCNN, (2, 5, 5)),
    "pre_norm": (equinox_pre_norm, (4, 3)),
    "post_norm": (equinox_post_norm, (4, 3)),
    "gated": (EquinoxGated, (3,)),
    "rnn": (EquinoxRNN, (5, 3)),
}
