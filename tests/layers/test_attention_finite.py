"""Attention kernels against finite multi-head networks, NNGP and NTK, judged by z-scores.

Networks of widths n and 2n are drawn with independent weights, and their kernels are extrapolated
to infinite width (see `agreement`). Where the limit is itself sampled, so many heads are drawn that
its standard error does not count.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from agreement import PRECISION, assert_agrees

import widelimit as wl

WIDTH, HEADS, DRAWS = 16, 2, 5000
# Weights that are not normalised have heavy tails: more heads to average over in every draw.
HEAVY: dict[str, Any] = {"heads": 32}
MANY: dict[str, Any] = {"draws": 15_000}
SHAPE = (2, 3, 4)
LINEAR, SQRT = wl.Scaling.LINEAR, wl.Scaling.SQRT
RELU = wl.ElementwiseMap(wl.Relu())
SCALES: dict[str, Any] = {"qk_std": 1.3, "ov_std": 0.8}


def _tokens(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    """Tokens with a common part: at 1/d, ReLU scores of orthogonal ones converge slowly."""
    rng = np.random.default_rng(seed)
    return (0.8 * rng.normal(size=shape) + 0.6).astype(np.float32)


def _mask() -> np.ndarray:
    return np.array([[True, True, False], [True, True, True]])


def _attention(*args: Any, **options: Any) -> wl.Attention:
    given = {"heads": HEADS, "key_width": WIDTH, "value_width": WIDTH, **SCALES, **options}
    return wl.Attention(WIDTH, *args, **given)


def _pooled(layer: wl.Layer) -> wl.Serial:
    """One output for each input: fewer gradients to take."""
    return wl.Serial(layer, wl.MeanPool())


def _after_dense(layer: wl.Layer) -> wl.Serial:
    """Encodings and read-out tokens have as many channels as the input: make it a wide one."""
    return wl.Serial(wl.Dense(WIDTH, w_std=1.2), layer)


class Case(NamedTuple):
    """A finite network, and how it is simulated."""

    net: wl.Layer
    x: Any
    mask: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012


def _case(net: wl.Layer, *, x: Any = None, mask: Any = None, **options: Any) -> Case:
    return Case(net, _tokens() if x is None else x, mask, options)


_STREAMS = (_tokens((2, 2, 4), seed=1), _tokens())
_GRID = _tokens((2, 2, 2, 3), seed=2)

CASES = {
    "linear_softmax_bias_padded": _case(
        _pooled(_attention(scaling=LINEAR, b_std=0.3)), mask=_mask(), width=32
    ),
    "sqrt_softmax_causal": _case(_pooled(_attention(pattern=wl.Causal()))),
    "sqrt_softmax_sum_encoding": _case(
        _pooled(_after_dense(_attention(positions=wl.Decay(0.5, strength=0.7)))),
        width=40,
        draws=9000,
    ),
    "sqrt_softmax_rotary": _case(_pooled(_attention(positions=wl.Rotary(10.0, pairs=4))), width=32),
    "cross_softmax_padded": _case(
        _pooled(wl.CrossAttention(WIDTH, HEADS, key_width=WIDTH, value_width=WIDTH, **SCALES)),
        x=_STREAMS,
        mask=(None, _mask()),
    ),
}

SLOW = {
    "sqrt_relu": _case(_attention(**HEAVY, score_map=RELU), **MANY),
    "linear_softmax": _case(_attention(scaling=LINEAR), width=32),
    "linear_identity": _case(_attention(scaling=LINEAR, score_map=wl.IdentityMap())),
    "linear_relu": _case(_attention(scaling=LINEAR, score_map=RELU), width=64),
    "linear_softmax_mix_encoding_on_values": _case(
        _after_dense(
            _attention(
                scaling=LINEAR,
                positions=wl.Decay(0.5, strength=0.6, combine=wl.Combine.MIX, on_values=True),
            )
        ),
        width=32,
    ),
    "linear_softmax_rotary": _case(
        _attention(scaling=LINEAR, positions=wl.Rotary(10.0, pairs=4)), width=32
    ),
    "sqrt_identity": _case(_attention(**HEAVY, score_map=wl.IdentityMap()), **MANY),
    "sqrt_identity_padded": _case(
        _attention(**HEAVY, score_map=wl.IdentityMap()), mask=_mask(), **MANY
    ),
    "sqrt_relu_causal_encoding": _case(
        _after_dense(
            _attention(**HEAVY, score_map=RELU, pattern=wl.Causal(), positions=wl.Decay(0.5))
        ),
        **MANY,
    ),
    "sqrt_erf": _case(_attention(score_map=wl.ElementwiseMap(wl.Erf()))),
    "sqrt_relu_alibi": _case(_attention(**HEAVY, score_map=RELU, positions=wl.Alibi(0.4)), **MANY),
    "sqrt_softmax": _case(_attention()),
    "sqrt_softmax_causal_positions": _case(_attention(pattern=wl.Causal())),
    "sqrt_softmax_rotary_positions": _case(
        _attention(positions=wl.Rotary(10.0, pairs=4)), width=32, draws=8000
    ),
    "sqrt_softmax_padded": _case(_attention(b_std=0.2), mask=_mask()),
    "sqrt_softmax_concat_encoding_on_values": _case(
        _after_dense(_attention(positions=wl.Decay(0.5, combine=wl.Combine.CONCAT, on_values=True)))
    ),
    "sqrt_softmax_alibi_local_grid": _case(
        _attention(positions=wl.Alibi(0.4), pattern=wl.Local(1)), x=_GRID
    ),
    "sqrt_softmax_grid_encoding": _case(
        _after_dense(_attention(positions=wl.Decay(0.5, profile=wl.Profile.EXPONENTIAL))),
        x=_GRID,
        width=32,
        draws=10_000,
    ),
    "sqrt_softmax_grouped": _case(_attention(heads=4, kv_heads=2)),
    "sqrt_softmax_multi_query": _case(_attention(heads=4, kv_heads=1)),
    "sqrt_softmax_residual": _case(
        wl.Serial(wl.Dense(WIDTH), wl.Residual(_attention(), weight=0.3), wl.Dense(WIDTH)),
        width=32,
        draws=10_000,
    ),
    "cross_relu_encoding": _case(
        wl.Serial(
            wl.Parallel(wl.Dense(WIDTH), wl.Dense(WIDTH)),
            wl.CrossAttention(
                WIDTH,
                HEADS,
                RELU,
                key_width=WIDTH,
                value_width=WIDTH,
                positions=wl.Decay(0.5, combine=wl.Combine.CONCAT),
                **SCALES,
            ),
        ),
        x=_STREAMS,
    ),
    "pool_softmax_padded": _case(
        _after_dense(wl.AttentionPool(WIDTH, HEADS, key_width=WIDTH, value_width=WIDTH, **SCALES)),
        mask=_mask(),
        width=32,
        draws=10_000,
    ),
    "pool_relu_encoding": _case(
        _after_dense(
            wl.AttentionPool(
                WIDTH,
                HEADS,
                RELU,
                key_width=WIDTH,
                value_width=WIDTH,
                positions=wl.Decay(0.5, on_values=True),
                **SCALES,
            )
        )
    ),
}


def _limit(net: wl.Layer, x: Any, mask: Any = None) -> Any:
    """The kernel with infinitely many heads, sampled (where it has to be) far beyond need."""
    limit = wl.with_heads(net, wl.INFINITE)
    k = limit.kernel(x, mask1=mask, key=jax.random.key(7), samples=4096)
    for value, error in ((k.nngp, k.nngp_error), (k.ntk, k.ntk_error)):
        assert error is None or error.max() < 0.4 * PRECISION * np.abs(value).max()
    return k


def _check(case: Case) -> None:
    net, x, mask, options = case
    options = {"width": WIDTH, "draws": DRAWS, **options}
    assert_agrees(net, x, mask1=mask, exact=_limit(net, x, mask), **options)


@pytest.mark.parametrize("name", CASES)
def test_finite_networks_approach_the_kernel(name):
    _check(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_finite_networks_approach_the_kernel(name):
    _check(SLOW[name])
