"""One list of networks: every layer, strangers among them, and a dozen compositions.

The tests of what all networks must hold, and of finite networks against their limits, run over it.
Widths are small; `with_width` makes them wide where that matters.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from strangers import Affine, Differential, Sharpened, Waves

import widelimit as wl


class Kind(Enum):
    """What one example looks like."""

    VECTOR = (4,)
    SEQUENCE = (5, 3)
    IMAGE = (3, 4, 2)
    TOKENS = (5,)
    GRAPH = ((5, 3), (5, 5, 2))


@dataclass(frozen=True)
class Case:
    """A network and the inputs it takes."""

    net: wl.Layer
    kind: Kind
    # Whether sequences of different lengths make sense for it.
    padded: bool = False

    def inputs(self, size: int, seed: int = 0) -> Any:
        """Examples without structure; token ids, or nodes and edges, where networks take them."""
        rng = np.random.default_rng(seed)
        if self.kind is Kind.GRAPH:
            nodes, edges = (rng.standard_normal((size, *shape)) for shape in self.kind.value)
            return nodes, 0.5 * edges
        if self.kind is Kind.TOKENS:
            return rng.integers(0, 6, (size, *self.kind.value))
        return rng.standard_normal((size, *self.kind.value))


VOCABULARY = 6


def dense(width: int = 8) -> wl.Dense:
    return wl.Dense(width, w_std=1.3, b_std=0.3)


def conv(window=3, **options) -> wl.Conv:
    return wl.Conv(8, window, **({"w_std": 1.3, "b_std": 0.3} | options))


def _wide(window, **options) -> wl.Layer:
    return wl.layers.ConvTranspose(8, window, **({"w_std": 1.3, "b_std": 0.3} | options))


def _own(window, **options) -> wl.Layer:
    return wl.layers.ConvLocal(8, window, **({"w_std": 1.3, "b_std": 0.3} | options))


def readout() -> wl.Dense:
    return wl.Dense(1, w_std=1.2, b_std=0.1)


def _activated(activation: wl.Layer, w_std: float = 1.3) -> Case:
    first = wl.Dense(8, w_std=w_std, b_std=0.3)
    return Case(wl.Serial(first, activation, readout()), Kind.VECTOR)


def _pooled(*layers: wl.Layer, pool: wl.Layer | None = None, kind=Kind.SEQUENCE, padded=True):
    return Case(wl.Serial(*layers, pool or wl.MeanPool(), readout()), kind, padded)


ACTIVATIONS = {
    "relu": _activated(wl.Relu()),
    "leaky_relu": _activated(wl.LeakyRelu(0.2)),
    "ab_relu": _activated(wl.layers.ABRelu(-0.4, 1.2)),
    "abs": _activated(wl.layers.Abs()),
    "sign": _activated(wl.layers.Sign()),
    "erf": _activated(wl.Erf(scale=1.2, rate=0.8, shift=0.1)),
    "gelu": _activated(wl.Gelu()),
    "sin": _activated(wl.layers.Sin(phase=0.4)),
    "cos": _activated(wl.layers.Cos(rate=0.7)),
    "exp": _activated(wl.layers.Exp(rate=0.4), w_std=0.9),
    "gaussian": _activated(wl.layers.Gaussian(rate=0.6)),
    "monomial": _activated(wl.layers.Monomial(2), w_std=0.9),
    "polynomial": _activated(wl.layers.Polynomial([0.3, 1.0, -0.2, 0.1]), w_std=0.9),
    "hermite": _activated(wl.layers.Hermite(2), w_std=0.9),
    "tanh": _activated(wl.Tanh()),
    "sigmoid": _activated(wl.Sigmoid()),
    "silu": _activated(wl.Silu()),
    "softplus": _activated(wl.layers.Softplus()),
    "elementwise": _activated(wl.Elementwise(lambda x: jnp.arctan(x) + 0.1 * x)),
}

LAYERS = {
    "dense": Case(wl.Serial(dense()), Kind.VECTOR),
    "dense_over_positions": Case(wl.Serial(dense(), wl.Relu(), dense()), Kind.SEQUENCE, True),
    "standard_parameterization": Case(
        wl.Serial(
            wl.Dense(8, w_std=1.3, b_std=0.3, parameterization=wl.layers.Parameterization.STANDARD),
            wl.Relu(),
            wl.Dense(1, w_std=1.2, parameterization=wl.layers.Parameterization.STANDARD),
        ),
        Kind.VECTOR,
    ),
    "embedding": _pooled(
        wl.Embedding(8, vocabulary=VOCABULARY, std=1.4), wl.Relu(), dense(), kind=Kind.TOKENS
    ),
    "conv_same": _pooled(conv(), wl.Relu(), conv(2), wl.Relu()),
    "conv_without_bias": _pooled(conv(b_std=0.0), conv(2, b_std=0.0)),
    "conv_valid": _pooled(conv(2, padding="valid"), wl.Relu(), conv(padding="valid", window=2)),
    "conv_circular": _pooled(conv(padding="circular"), wl.Relu(), padded=False),
    "conv_stride": _pooled(conv(stride=2), wl.Relu(), conv(2, stride=2)),
    "conv_valid_stride": _pooled(conv(2, padding="valid", stride=2), wl.Relu()),
    "conv_standard": _pooled(
        conv(parameterization=wl.layers.Parameterization.STANDARD), wl.Relu(), padded=False
    ),
    "conv_over_positions": Case(wl.Serial(conv(), wl.Erf(), conv()), Kind.SEQUENCE, True),
    "conv_2d": _pooled(
        conv((2, 3), stride=(1, 2)), wl.Relu(), conv((3, 2)), wl.Relu(), kind=Kind.IMAGE
    ),
    "conv_transpose": _pooled(_wide(3, stride=2), wl.Relu(), _wide(2)),
    "conv_transpose_valid": _pooled(_wide(4, stride=2, padding="valid"), wl.Relu()),
    "conv_transpose_circular": _pooled(
        _wide(4, stride=2, padding="circular"), wl.Relu(), padded=False
    ),
    "conv_transpose_2d": _pooled(
        conv(), wl.Relu(), _wide((2, 3), stride=(3, 1)), wl.Relu(), kind=Kind.IMAGE
    ),
    # Not of different lengths alone: see `layers/test_convolutions.py`.
    "conv_local": _pooled(_own(3), wl.Relu(), _own(2, stride=2), padded=False),
    "conv_local_2d": _pooled(
        conv(),
        wl.Relu(),
        _own((2, 3), padding="valid"),
        wl.Relu(),
        pool=wl.Flatten(),
        kind=Kind.IMAGE,
        padded=False,
    ),
    "conv_local_standard": _pooled(
        _own(2, parameterization="standard"), wl.Relu(), dense(), padded=False
    ),
    "mean_pool_windows": _pooled(
        conv(), wl.Relu(), wl.MeanPool(2, padding="same"), conv(), wl.Relu()
    ),
    "mean_pool_circular": _pooled(
        conv(),
        wl.Relu(),
        wl.MeanPool(3, stride=2, padding="circular"),
        dense(),
        wl.Relu(),
        padded=False,
    ),
    "sum_pool_windows": _pooled(conv(), wl.Relu(), wl.SumPool(2, stride=1), conv(), wl.Relu()),
    "sum_pool": _pooled(conv(), wl.Relu(), pool=wl.SumPool()),
    "pool_of_inputs": _pooled(wl.MeanPool(2, stride=1), dense(), wl.Relu()),
    "flatten": _pooled(conv(), wl.Relu(), conv(), pool=wl.Flatten(), padded=False),
    "select_first": _pooled(conv(), wl.Relu(), pool=wl.Select(0)),
    "select_last": _pooled(conv(), wl.Relu(), pool=wl.Select(-1)),
    "select_2d": _pooled(conv(), wl.Relu(), pool=wl.Select((1, 2)), kind=Kind.IMAGE, padded=False),
    "select_slice": _pooled(conv(), wl.Relu(), wl.Select(slice(1, None, 2)), conv(), wl.Relu()),
    "select_last_two": _pooled(conv(), wl.Relu(), wl.Select(slice(-2, None)), conv(2), wl.Relu()),
    "select_slice_2d": _pooled(
        conv(),
        wl.Relu(),
        wl.Select((slice(None, None, -1), slice(1, 4, 2))),
        conv(2),
        wl.Relu(),
        kind=Kind.IMAGE,
        padded=False,
    ),
    "resize": _pooled(conv(), wl.Relu(), wl.layers.Resize(8), conv(), wl.Relu(), padded=False),
    "resize_nearest": _pooled(
        conv(),
        wl.Relu(),
        wl.layers.Resize((5, 2), method="nearest"),
        dense(),
        wl.Relu(),
        kind=Kind.IMAGE,
        padded=False,
    ),
    "resize_of_inputs": _pooled(
        wl.layers.Resize((2, 3)),
        dense(),
        wl.Relu(),
        pool=wl.Flatten(),
        kind=Kind.IMAGE,
        padded=False,
    ),
    "resize_cubic": _pooled(
        conv(),
        wl.Relu(),
        wl.layers.Resize((2, 6), method="cubic", antialias=False),
        dense(),
        wl.Relu(),
        kind=Kind.IMAGE,
        padded=False,
    ),
    # An array belongs to one length: padded it is not as alone.
    "contract": _pooled(
        conv(),
        wl.Relu(),
        wl.layers.Contract(np.eye(2, 3) + 0.5, "ai,ij->ja"),
        conv(2),
        wl.Relu(),
        kind=Kind.IMAGE,
        padded=False,
    ),
    "layer_norm_over_positions": _pooled(conv(), wl.LayerNorm(axes=[0]), wl.Relu(), dense()),
    "layer_norm_over_rows": _pooled(
        conv(), wl.Relu(), wl.LayerNorm(axes=[1], eps=0.1), dense(), wl.Relu(), kind=Kind.IMAGE
    ),
    "layer_norm_over_inputs": _pooled(
        wl.LayerNorm(axes=[0, 1]), dense(), wl.Relu(), kind=Kind.IMAGE
    ),
    "layer_norm": _pooled(conv(), wl.LayerNorm(), wl.Relu(), dense(), wl.LayerNorm()),
    "layer_norm_after_activation": _pooled(conv(), wl.Relu(), wl.LayerNorm(), dense(), wl.Relu()),
    "layer_norm_of_inputs": _pooled(wl.LayerNorm(), dense(), wl.Relu()),
    "rms_norm": _pooled(conv(), wl.RMSNorm(eps=0.1), wl.Relu(), wl.RMSNorm(), dense()),
    "stranger": _pooled(
        conv(), wl.Relu(), Affine(gain=1.2, shift=0.5), wl.LayerNorm(eps=0.1), conv(2), wl.Relu()
    ),
    "tokens": _pooled(
        conv(),
        wl.layers.ClassToken(std=1.2),
        wl.layers.PositionTable(std=0.7, common_std=0.4),
        wl.LayerNorm(),
        dense(),
        wl.Relu(),
    ),
    "dropout": _pooled(conv(), wl.Relu(), wl.Dropout(0.4), dense(), wl.Relu()),
    "graph": _pooled(
        wl.layers.Graph(),
        dense(),
        wl.Relu(),
        wl.layers.Aggregate(),
        dense(),
        wl.Relu(),
        kind=Kind.GRAPH,
    ),
}

_BLOCK = wl.Serial(wl.Relu(), conv(), wl.Relu(), conv())
_GATE = wl.Product(wl.Serial(dense(), wl.Silu()), dense())

COMPOSITIONS = {
    "residual": _pooled(conv(), wl.Residual(_BLOCK), wl.Relu()),
    "weighted_residual": _pooled(conv(), wl.Residual(_BLOCK, weight=0.3), wl.Relu()),
    "residual_after_activation": _pooled(dense(), wl.Relu(), wl.Residual(conv()), dense()),
    "repeat": Case(
        wl.Serial(wl.Repeat(wl.Serial(dense(), wl.Relu()), 3), readout()), Kind.VECTOR
    ),
    "sum": _pooled(wl.Sum(conv(), wl.Serial(dense(), wl.Relu(), dense())), wl.Relu()),
    "gate": _pooled(dense(), _GATE, dense(), wl.Relu()),
    "product_of_three": Case(
        wl.Serial(wl.Product(dense(), dense(), wl.Serial(dense(), wl.Relu())), readout()),
        Kind.VECTOR,
    ),
    "concat": _pooled(
        wl.Concat(wl.Serial(conv(), wl.Relu()), wl.Dense(4, w_std=0.8)), dense(), wl.Relu()
    ),
    "resnet": _pooled(
        conv(), wl.Residual(_BLOCK), wl.LayerNorm(), wl.Residual(_BLOCK), wl.Relu(), kind=Kind.IMAGE
    ),
    "mixer": _pooled(
        dense(),
        wl.Residual(wl.Serial(wl.LayerNorm(), conv(5), wl.Gelu(), dense())),
        wl.Residual(wl.Serial(wl.LayerNorm(), _GATE, dense())),
        wl.LayerNorm(),
    ),
    "every_rule": _pooled(
        wl.Embedding(8, vocabulary=VOCABULARY, std=1.4),
        conv(),
        wl.Gelu(),
        wl.LayerNorm(),
        wl.Residual(conv(2)),
        pool=wl.Select(-1),
        kind=Kind.TOKENS,
    ),
    "text_cnn": _pooled(
        wl.Embedding(8, vocabulary=VOCABULARY),
        wl.Concat(wl.Serial(conv(2), wl.Relu()), wl.Serial(conv(3), wl.Relu())),
        dense(),
        wl.Gelu(),
        kind=Kind.TOKENS,
    ),
    "pyramid": _pooled(
        conv(), wl.Relu(), wl.MeanPool((1, 2)), conv((2, 2)), wl.Tanh(), pool=wl.Flatten(),
        kind=Kind.IMAGE, padded=False,
    ),
    "relations": _pooled(
        wl.layers.Graph(),
        dense(),
        wl.Residual(wl.Sum(*(wl.Serial(wl.layers.Aggregate(k), dense()) for k in (0, 1)))),
        wl.LayerNorm(),
        wl.Relu(),
        wl.layers.Aggregate(1),
        pool=wl.SumPool(),
        kind=Kind.GRAPH,
    ),
    "normed_and_dropped": _pooled(
        conv(), wl.layers.Abs(), wl.Dropout(0.2), wl.LayerNorm(), dense(), wl.Erf(), conv(2),
        wl.Relu(),
    ),
}  # fmt: skip

# Their finite networks, with heads, are compared in `layers/test_attention_finite.py`.
ATTENTION = {
    "attention_linear": _pooled(
        dense(), wl.Attention(8, scaling="linear", positions=wl.Decay(0.5), b_std=0.2), wl.Relu()
    ),
    "attention_relu": _pooled(
        dense(), wl.Attention(8, score_map=wl.ElementwiseMap(wl.Relu())), wl.Erf(), dense()
    ),
    "attention_sampled": _pooled(dense(), wl.Relu(), wl.Attention(8, qk_std=1.2), wl.Relu()),
    "stranger_map": _pooled(dense(), wl.Attention(8, scaling="linear", score_map=Sharpened())),
    "stranger_scores": _pooled(dense(), wl.Attention(8, score_map=Differential()), wl.Relu()),
    "stranger_encoding": _pooled(
        dense(), wl.Attention(8, scaling="linear", positions=Waves(strength=0.7)), wl.Relu()
    ),
}

NETWORKS = ACTIVATIONS | LAYERS | COMPOSITIONS | ATTENTION


def ragged(case: Case, size: int, seed: int = 0) -> list[Any]:
    """Examples of different lengths along the first position axis, 3 to the full length."""
    x = case.inputs(size, seed)
    if case.kind is Kind.GRAPH:
        sizes = [3 + i % 3 for i in range(size)]
        return [(a[:n], b[:n, :n]) for a, b, n in zip(*x, sizes, strict=True)]
    lengths = 3 + np.arange(size) % (x.shape[1] - 2)
    return [example[:length] for example, length in zip(x, lengths, strict=True)]


def together(examples: list[Any]) -> Any:
    """Examples of different lengths as networks take them; graphs as a list for each stream."""
    graphs = isinstance(examples[0], tuple)
    return tuple(map(list, zip(*examples, strict=True))) if graphs else examples


def leaves(tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
