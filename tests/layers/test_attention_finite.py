"""Attention kernels against finite multi-head networks, NNGP and NTK, judged by z-scores.

Networks of widths n and rn are drawn with independent weights, and their kernels are extrapolated
to infinite width (see `agreement`). Where the limit is itself sampled, so many heads are drawn that
its standard error does not count.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import MOST, PRECISION, Estimate, assert_agrees, assert_close
from strangers import Sharpened, Waves

import widelimit as wl

WIDTH, HEADS, DRAWS = 16, 2, 5000
# Weights that are not normalised have heavy tails: more heads to average over in every draw.
HEAVY: dict[str, Any] = {"heads": 32}
MANY: dict[str, Any] = {"draws": 15_000}
# Widths far apart want fewer draws.
FAR: dict[str, Any] = {"ratio": 4, "draws": 1000}
SHAPE = (2, 3, 4)
LINEAR, SQRT = wl.Scaling.LINEAR, wl.Scaling.SQRT
RELU = wl.ElementwiseMap(wl.Relu())
SCALES: dict[str, Any] = {"qk_std": 1.3, "ov_std": 0.8}


def _tokens(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.8 * rng.normal(size=shape) + 0.6).astype(np.float32)


def _close_tokens() -> np.ndarray:
    """All products of tokens are far from 0, where a ReLU score has its kink."""
    rng = np.random.default_rng(3)
    return (0.4 * rng.normal(size=SHAPE) + 0.9).astype(np.float32)


def _mask() -> np.ndarray:
    return np.array([[True, True, False], [True, True, True]])


def _attention(*args: Any, **options: Any) -> wl.Attention:
    given = {"heads": HEADS, "key_width": WIDTH, "value_width": WIDTH, **SCALES, **options}
    return wl.Attention(WIDTH, *args, **given)


def _pooled(layer: wl.Layer) -> wl.Serial:
    """One output for each input: fewer gradients to take."""
    return wl.Serial(layer, wl.MeanPool())


def _after_dense(layer: wl.Layer) -> wl.Serial:
    """Θ is not zero where attention begins."""
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

ERF = wl.ElementwiseMap(wl.Erf())
_NARROW_TOKENS = _tokens((2, 3, 2), seed=4)
_GRID = _tokens((2, 2, 2, 3), seed=2)
_NARROW: dict[str, Any] = {"key_width": WIDTH, "value_width": WIDTH, **SCALES}

CASES = {
    "linear_softmax_bias_padded": _case(
        _pooled(_attention(scaling=LINEAR, b_std=0.3)), mask=_mask(), width=24, **FAR
    ),
    "cross_softmax_padded": _case(
        _pooled(wl.CrossAttention(WIDTH, heads=HEADS, **_NARROW)),
        x=_STREAMS,
        mask=(None, _mask()),
        width=12,
        **FAR,
    ),
}

SLOW = {
    "sqrt_softmax_causal": _case(_pooled(_attention(pattern=wl.Causal()))),
    "linear_softmax": _case(_attention(scaling=LINEAR), width=32),
    "linear_identity": _case(
        _attention(scaling=LINEAR, score_map=wl.IdentityMap()), width=32, draws=10_000
    ),
    "linear_relu": _case(_attention(scaling=LINEAR, score_map=RELU), x=_close_tokens(), width=64),
    "linear_softmax_mix_encoding_on_values": _case(
        _after_dense(
            _attention(
                scaling=LINEAR,
                positions=wl.Decay(
                    0.5, strength=0.6, combine=wl.layers.Combine.MIX, on_values=True
                ),
            )
        ),
        width=32,
        draws=8000,
    ),
    "linear_softmax_rotary": _case(
        _attention(scaling=LINEAR, positions=wl.Rotary(10.0, pairs=4)), width=32
    ),
    "sqrt_softmax": _case(_attention(), draws=12_000),
    "sqrt_softmax_causal_positions": _case(_attention(pattern=wl.Causal())),
    "sqrt_softmax_padded": _case(_attention(b_std=0.2), mask=_mask()),
    "sqrt_softmax_dropout_padded": _case(
        _pooled(wl.Serial(wl.Dense(WIDTH, w_std=1.2), wl.Dropout(0.4), _attention())),
        mask=_mask(),
        width=32,
        draws=8000,
    ),
    "pool_softmax_dropout": _case(
        wl.Serial(
            wl.Dense(WIDTH, w_std=1.2),
            wl.Dropout(0.4),
            wl.AttentionPool(WIDTH, heads=HEADS, **_NARROW),
        ),
        width=32,
        draws=8000,
    ),
    "sqrt_softmax_rotary": _case(
        _attention(positions=wl.Rotary(10.0, pairs=4)), width=32, draws=12_000
    ),
    "sqrt_softmax_sum_encoding": _case(
        _pooled(_after_dense(_attention(positions=wl.Decay(0.5, strength=0.7)))),
        width=40,
        draws=14_000,
    ),
    "sqrt_softmax_concat_encoding_on_values": _case(
        _pooled(
            _after_dense(
                _attention(
                    positions=wl.Decay(0.5, combine=wl.layers.Combine.CONCAT, on_values=True)
                )
            )
        ),
        width=40,
        draws=14_000,
    ),
    "sqrt_softmax_alibi_local_grid": _case(
        _attention(heads=8, positions=wl.Alibi(0.4), pattern=wl.Local(1)), x=_GRID, draws=12_000
    ),
    "sqrt_softmax_grid_encoding": _case(
        _pooled(
            _after_dense(
                _attention(
                    positions=wl.Decay(0.5, strength=0.5, profile=wl.layers.Profile.EXPONENTIAL)
                )
            )
        ),
        x=_GRID,
        width=40,
        draws=14_000,
    ),
    "linear_softmax_sum_encoding_on_two_channels": _case(
        _pooled(_attention(scaling=LINEAR, positions=wl.Decay(0.5, strength=0.7, on_values=True))),
        x=_NARROW_TOKENS,
        width=32,
        draws=10_000,
    ),
    "sqrt_softmax_mix_encoding_on_two_channels": _case(
        _pooled(_attention(positions=wl.Decay(0.5, strength=0.7, combine=wl.layers.Combine.MIX))),
        x=_NARROW_TOKENS,
        width=32,
        draws=14_000,
    ),
    "sqrt_erf_concat_encoding_on_two_channels": _case(
        _pooled(
            _attention(
                score_map=ERF,
                positions=wl.Decay(
                    0.5, combine=wl.layers.Combine.CONCAT, channels=1, on_values=True
                ),
            )
        ),
        x=_NARROW_TOKENS,
        width=32,
        draws=14_000,
    ),
    "pool_softmax_encoding_on_two_channels": _case(
        wl.AttentionPool(WIDTH, heads=HEADS, positions=wl.Decay(0.5), **_NARROW),
        x=_NARROW_TOKENS,
        width=32,
        draws=14_000,
    ),
    "stranger_map": _case(_after_dense(_attention(scaling=LINEAR, score_map=Sharpened()))),
    "stranger_encoding": _case(_after_dense(_attention(scaling=LINEAR, positions=Waves()))),
    "sqrt_softmax_grouped": _case(_attention(heads=4, kv_heads=2), draws=8000),
    "sqrt_softmax_multi_query": _case(_attention(heads=4, kv_heads=1), draws=10_000),
    "sqrt_softmax_residual": _case(
        wl.Serial(wl.Dense(WIDTH), wl.Residual(_attention(), weight=0.3), wl.Dense(WIDTH)),
        width=32,
        draws=10_000,
    ),
    "linear_softmax_grouped_alibi_local": _case(
        _attention(
            heads=4,
            kv_heads=2,
            scaling=LINEAR,
            positions=(
                wl.Alibi(0.4),
                wl.layers.AdditiveBias(lambda offsets: 0.3 * offsets[..., 0]),
            ),
            pattern=wl.Local(1),
        ),
        width=32,
        draws=8000,
    ),
    "sqrt_softmax_unequal_widths": _case(
        _attention(key_width=8, value_width=24), width=16, draws=12_000
    ),
    "cross_softmax_unequal_widths": _case(
        _pooled(wl.CrossAttention(WIDTH, heads=HEADS, key_width=8, value_width=24, **SCALES)),
        x=_STREAMS,
        width=16,
        draws=12_000,
    ),
    "sqrt_identity": _case(_attention(**HEAVY, score_map=wl.IdentityMap()), **MANY),
    "sqrt_relu": _case(_attention(**HEAVY, score_map=RELU), **MANY),
    "sqrt_relu_causal_padded": _case(
        _attention(**HEAVY, score_map=RELU, pattern=wl.Causal()), mask=_mask(), **MANY
    ),
    "sqrt_erf": _case(_attention(score_map=ERF), draws=12_000),
    "sqrt_erf_alibi": _case(_attention(score_map=ERF, positions=wl.Alibi(0.4)), draws=12_000),
    "cross_erf_encoding": _case(
        _pooled(
            wl.Serial(
                wl.Parallel(wl.Dense(WIDTH), wl.Dense(WIDTH)),
                wl.CrossAttention(
                    WIDTH,
                    heads=HEADS,
                    score_map=ERF,
                    positions=wl.Decay(0.5, combine=wl.layers.Combine.CONCAT),
                    **_NARROW,
                ),
            )
        ),
        x=_STREAMS,
        width=40,
        draws=14_000,
    ),
    "pool_softmax_padded": _case(
        _after_dense(wl.AttentionPool(WIDTH, heads=HEADS, **_NARROW)),
        mask=_mask(),
        width=32,
        draws=10_000,
    ),
    "pool_erf_encoding": _case(
        _after_dense(
            wl.AttentionPool(
                WIDTH,
                heads=HEADS,
                score_map=ERF,
                positions=wl.Decay(0.5, strength=0.7, on_values=True),
                **_NARROW,
            )
        ),
        width=40,
        draws=14_000,
    ),
}


def _shapes(net: wl.Layer) -> dict[str, tuple[int, ...]]:
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), (3, 5)))
    return {name: leaf.shape for name, leaf in params.items()}


def test_options_of_the_finite_network_make_its_parameters():
    """Heads × channels × widths, as the options say."""

    options: dict[str, Any] = {"key_width": 6, "value_width": 7, "b_std": 0.1}
    grouped = _shapes(wl.Attention(8, heads=4, kv_heads=2, **options))
    assert grouped == {
        "query": (4, 5, 6),
        "key": (2, 5, 6),
        "value": (2, 5, 7),
        "out": (4, 7, 8),
        "bias": (8,),
    }
    pool = _shapes(wl.AttentionPool(8, heads=4, positions=wl.Decay(), **options))
    assert pool == {
        "token": (6,),
        "place": (3, 6),
        "query": (4, 6, 6),
        "key": (4, 5 + 6, 6),
        "value": (4, 5, 7),
        "out": (4, 7, 8),
        "bias": (8,),
    }


_CHANGES = {
    "pattern": {"pattern": wl.Causal()},
    "rotary": {"positions": wl.Rotary(10.0, pairs=2)},
    "alibi": {"positions": wl.Alibi(0.5)},
    "additive": {"positions": wl.layers.AdditiveBias(np.arange(9.0).reshape(3, 3))},
    "qk_std": {"qk_std": 2.0},
}


@pytest.mark.parametrize("scaling", wl.Scaling)
@pytest.mark.parametrize("name", _CHANGES)
def test_no_option_is_ignored_by_the_finite_network(name, scaling):
    """With the same parameters, every option changes what comes out."""
    x = jnp.asarray(_tokens((1, 3, 4)))
    plain, changed = (
        wl.Attention(8, heads=2, scaling=scaling, key_width=4, **options)
        for options in ({}, _CHANGES[name])
    )
    params = plain.init(jax.random.key(0), x.shape[1:])
    assert jnp.abs(plain.apply(params, x) - changed.apply(params, x)).max() > 1e-3


def _limit(net: wl.Layer, x: Any, mask: Any = None) -> Any:
    """The kernel with infinitely many heads, sampled (where it has to be) far beyond need."""
    limit = wl.with_heads(net, wl.INFINITE)
    k = limit.kernel(x, mask=mask, key=jax.random.key(7), samples=4096)
    for value, error in ((k.nngp, k.nngp_error), (k.ntk, k.ntk_error)):
        assert error is None or error.max() < 0.4 * PRECISION * np.abs(value).max()
    return k


def _check(case: Case) -> None:
    net, x, mask, options = case
    options = {"width": WIDTH, "draws": DRAWS, **options}
    assert_agrees(net, x, _limit(net, x, mask), mask=mask, **options)


@pytest.mark.parametrize("name", CASES)
def test_finite_networks_approach_the_kernel(name):
    _check(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_finite_networks_approach_the_kernel(name):
    _check(SLOW[name])


# --- depth, and the rates towards the limit ------------------------------------------------------


def _structured(**options: Any) -> wl.Layer:
    """A normalised residual block whose scores know places, and whose values do not."""
    places = wl.Decay(0.5, strength=0.6, combine=wl.layers.Combine.MIX)
    return wl.Residual(wl.Serial(wl.LayerNorm(), _attention(positions=places, **options)))


def _deep(*layers: wl.Layer) -> wl.Serial:
    return wl.Serial(wl.Dense(WIDTH), *layers, wl.MeanPool(), wl.Dense(64))


_RANK_ONE = np.array([1.0, -0.6, 0.3], np.float32)[:, None] * _tokens((2, 1, 4), seed=5)
_REPEATED = np.repeat(_tokens((2, 1, 4), seed=6), 3, axis=1) * np.float32([1, 1, 1.5])[:, None]

DEEP = {
    "two_prenorm_blocks": _case(
        _deep(wl.TransformerEncoder(WIDTH, depth=2, heads=4, hidden=32, activation=wl.Relu)),
        draws=16_000,
    ),
    "two_structured_blocks_padded": _case(
        _deep(
            _structured(),
            wl.Residual(wl.Serial(wl.Relu(), wl.Dense(WIDTH))),
            _structured(),
        ),
        mask=_mask(),
        draws=16_000,
    ),
    "two_structured_linear_blocks_padded": _case(
        _deep(_structured(scaling=LINEAR), _structured(scaling=LINEAR)), mask=_mask(), draws=16_000
    ),
    "two_blocks_of_rank_one": _case(
        _deep(wl.Residual(_attention()), wl.Relu(), wl.Residual(_attention())),
        x=_RANK_ONE,
        draws=16_000,
    ),
    "two_blocks_of_repeated_tokens": _case(
        _deep(_structured(), _structured(pattern=wl.Causal())), x=_REPEATED, draws=16_000
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEP)
def test_two_blocks_approach_the_kernel(name):
    """Heads grow with the widths: above a sampled layer, activations make a bias of order 1/H."""
    net, x, mask, options = DEEP[name]
    exact = _limit(net, x, mask)
    results = [
        wl.monte_carlo_kernel(
            wl.with_heads(wl.with_width(net, factor * WIDTH), 4 * factor),
            x,
            mask=mask,
            key=jax.random.key(factor),
            **options,
        )
        for factor in (1, 2)
    ]
    found = {}
    for name in ("nngp", "ntk"):
        ends = [
            Estimate.of_width(getattr(r, name), getattr(r, f"{name}_error"), getattr(exact, name))
            for r in results
        ]
        found[name] = Estimate.extrapolated(*ends)
    assert_close(found)


def _rate(sizes: list[int], gaps: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(gaps), 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("scaling", wl.Scaling)
def test_one_network_is_a_root_of_its_size_away_and_their_mean_much_less(scaling):
    """Fluctuations fall as 1/√n with n ∝ H, the bias of the mean as 1/n."""
    x = _tokens()
    net = wl.Serial(wl.Dense(4), _attention(scaling=scaling), wl.MeanPool())
    limit = _limit(net, x)
    sizes, draws, found = [8, 16, 32], 40_000, []
    for size in sizes:
        finite = wl.with_heads(wl.with_width(net, size, outputs=256), size // 2)
        key = jax.random.key(size)
        found.append(wl.monte_carlo_kernel(finite, x, key=key, draws=draws, ntk=False))
    spreads = [float(np.sqrt(np.mean(k.nngp_error**2) * draws)) for k in found]
    assert abs(_rate(sizes, spreads) + 0.5) < 0.1, spreads
    unsure = 0.0 if limit.nngp_error is None else limit.nngp_error
    for narrow, wide, spread in zip(found, found[1:], spreads, strict=False):
        assert np.abs(narrow.nngp - limit.nngp).max() < 0.15 * spread
        # A bias of order 1/n is gone from 2 K(2n) − K(n).
        error = np.sqrt(4 * wide.nngp_error**2 + narrow.nngp_error**2 + unsure**2)
        assert (np.abs(2 * wide.nngp - narrow.nngp - limit.nngp) / error).max() < MOST


@pytest.mark.slow
def test_relu_scores_of_orthogonal_tokens_converge_slowly_at_one_over_d():
    """E[ReLU(q·q'/d)] of orthogonal tokens is of order 1/√d: the kernel between them, too."""
    x = 2 * np.eye(4, dtype=np.float32)[None, :2]
    gaps, sizes = [], [16, 64, 256]
    for size in sizes:
        layer = wl.Attention(
            64, heads=2, scaling=LINEAR, score_map=RELU, key_width=size, value_width=16
        )
        k = wl.monte_carlo_kernel(layer, x, key=jax.random.key(size), draws=40_000, ntk=False)
        gaps.append(float(k.nngp[0, 0, 0, 1]))
    assert wl.Attention(64, scaling=LINEAR, score_map=RELU).kernel(x).nngp[0, 0, 0, 1] == 0
    assert abs(_rate(sizes, gaps) + 0.5) < 0.06, gaps
