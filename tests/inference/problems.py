"""Small networks and data that several tests share, so that kernels compile once."""

import functools

import numpy as np

import widelimit as wl
from widelimit.inference import Engine
from widelimit.layers.base import Layer

WIDE = Engine(dtype=np.float64)


@functools.cache
def dense(activation=wl.Erf) -> Layer:
    return wl.Serial(wl.Dense(64, w_std=1.5, b_std=0.3), activation(), wl.Dense(1, w_std=1.2))


@functools.cache
def sampled() -> Layer:
    """Softmax attention at 1/√d with infinitely many heads."""
    return wl.Serial(wl.Attention(8, qk_std=1.5), wl.MeanPool(), wl.Dense(1))


def examples(rows=24, channels=3, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, channels))


def sequences(lengths, channels=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(length, channels)) for length in lengths]


class Indefinite(Layer):
    """A layer with a wrong rule: its "covariance" of different inputs is too large."""

    def outline(self, before):
        return before

    def cross(self, pair, memo1, memo2):
        gap = abs(pair.nngp - 1.0)
        return pair.to(1.0 + gap, None if pair.ntk is None else pair.ntk)
