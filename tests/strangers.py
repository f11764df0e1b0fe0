"""A layer, score maps and an encoding as a user would write them, outside the package."""

from typing import Any

import jax
import jax.numpy as jnp

import widelimit as wl
from widelimit.layers.attention.positional import coordinates
from widelimit.layers.base import Facts, cast, leaf
from widelimit.options import Range


class Affine(wl.Layer):
    """`y_a = gain·x_a + shift` in every channel: padding comes out as `shift`, not as zero.

    With channel means m: κ_ab ← gain²κ_ab + gain·shift(m_a + m'_b) + shift², Θ ← gain²Θ.
    """

    gain: Any = leaf("gain", where=Range.POSITIVE, default=1.0)
    shift: Any = leaf("shift", default=0.0)

    @property
    def facts(self):
        return Facts(cuttable=True)

    def outline(self, before):
        return before.to(gaussian=False, fresh=False)

    def forward(self, params, x, mask, key):
        return cast(self.gain, x) * x + cast(self.shift, x)

    def memo(self, example):
        return example.mean_for("Affine")

    def cross(self, pair, memo1, memo2):
        pair = pair.compute()
        gain, shift = cast(self.gain, pair.nngp), cast(self.shift, pair.nngp)
        nngp = gain**2 * pair.nngp + shift**2
        if memo1 is not None:
            nngp = nngp + gain * shift * (pair.left(memo1) + pair.right(memo2))
        return pair.to(nngp, None if pair.ntk is None else gain**2 * pair.ntk)

    def mean(self, example, memo):
        ones = example.ones()
        moved = cast(self.shift, ones) * ones
        return moved if memo is None else moved + cast(self.gain, memo) * memo


class Sharpened(wl.layers.ScoreMap):
    """Softmax of `sharpness·g`, mixed with the average over all keys that count."""

    sharpness: Any = leaf("sharpness", where=Range.POSITIVE, default=2.0)
    floor: Any = leaf("floor", where=Range.UNIT, default=0.3)

    def __call__(self, scores, allowed):
        keys = jnp.ones(scores.shape, bool) if allowed is None else allowed
        share, sharpness = cast(self.floor, scores), cast(self.sharpness, scores)
        peaked = jax.nn.softmax(sharpness * scores, where=keys)
        flat = keys / jnp.maximum(jnp.sum(keys, axis=-1, keepdims=True), 1).astype(scores.dtype)
        return jnp.where(keys, (1 - share) * peaked + share * flat, 0)


class Differential(wl.layers.ScoreMap):
    """`softmax(s₁) − λ softmax(s₂)` of two independent scores in every head."""

    fields = 2
    contrast: Any = leaf("contrast", where=Range.UNIT, default=0.5)

    def __call__(self, scores, allowed):
        first, second = (wl.Softmax()(one, allowed) for one in scores)
        return first - cast(self.contrast, scores) * second


class Waves(wl.layers.Encoding):
    """`R_ab = cos(2π(a − b)/period)` along the first axis: two waves of random phase."""

    period: Any = leaf("period", where=Range.POSITIVE, default=5.0)

    def covariance(self, positions1, positions2, like):
        first, second = (coordinates(p)[:, 0].astype(like.dtype) for p in (positions1, positions2))
        gaps = jnp.asarray(first[:, None] - second[None, :])
        return jnp.cos(2 * jnp.pi * gaps / cast(self.period, like))
