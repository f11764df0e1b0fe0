"""Score maps of the user's own: kernels with the Jacobian of the map itself."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import PRECISION, assert_agrees

import widelimit as wl
from widelimit.engine.sampling import realisations

SCALES: dict[str, Any] = {"qk_std": 1.3, "ov_std": 0.8}
WIDTH = 16


def _tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _shares(g: Any, allowed: Any) -> Any:
    """g² / (1 + Σ g²): bounded, smooth, and nothing like softmax's Jacobian."""
    squares = jnp.where(allowed, g**2, 0)
    return squares / (1 + jnp.sum(squares))


class Bystanders(wl.layers.ScoreMap):
    """Softmax over the queries of a key: a map that mixes queries."""

    def __call__(self, scores: Any, allowed: Any) -> Any:
        powers = jnp.exp(scores)
        powers = powers if allowed is None else jnp.where(allowed, powers, 0)
        return powers / (1 + jnp.sum(powers, axis=0, keepdims=True))


MAPS: dict[str, wl.layers.ScoreMap] = {
    "rowwise": wl.layers.RowwiseMap(_shares),
    "mixing": Bystanders(),
}


def _shares_by_hand(g: np.ndarray) -> np.ndarray:
    return g**2 / (1 + np.sum(g**2, axis=1, keepdims=True))


def _bystanders_by_hand(g: np.ndarray) -> np.ndarray:
    return np.exp(g) / (1 + np.sum(np.exp(g), axis=0, keepdims=True))


BY_HAND = {"rowwise": _shares_by_hand, "mixing": _bystanders_by_hand}


def _differences(fn: Any, g: np.ndarray) -> np.ndarray:
    """∂fn_ai/∂g_ck by central differences of fourth order."""
    step, result = 1e-3, np.empty(g.shape + g.shape)
    for c, k in np.ndindex(*g.shape):
        unit = np.zeros_like(g)
        unit[c, k] = step
        near, far = (fn(g + m * unit) - fn(g - m * unit) for m in (1, 2))
        result[..., c, k] = (8 * near - far) / (12 * step)
    return result


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "rotary", [pytest.param(False, marks=_SLOW), True], ids=["plain", "rotary"]
)
@pytest.mark.parametrize("name", MAPS)
def test_kernels_of_drawn_heads_by_hand(name, rotary):
    """The same heads in numpy: weights, numerical Jacobians, and the sums written out."""
    x, size, base, pairs = _tokens(2, 3, 4), 3, 10.0, 2
    positions = wl.Rotary(base, pairs=pairs) if rotary else None
    net = wl.Serial(
        wl.Dense(4, w_std=1.2), wl.Attention(4, score_map=MAPS[name], positions=positions, **SCALES)
    )
    sampler = net.sampler(x, samples=2, replicates=1)
    k = net.kernel(x, sampler=sampler)
    (field,) = realisations(net, sampler, np.float64)[0].scores.values()
    rows = 1.2 * x / np.sqrt(4)
    waves = np.ones((1, size, size))
    if rotary:
        offsets = np.arange(size)[None, :] - np.arange(size)[:, None]
        angles = base ** (-np.arange(pairs) / pairs)[:, None, None] * offsets
        waves = np.concatenate([np.cos(angles), np.sin(angles)]) / np.sqrt(pairs)
    kappa = rows[0] @ rows[1].T  # and Θ = κ after one dense layer
    nngp, ntk = np.zeros((size, size)), np.zeros((size, size))
    for draw in np.asarray(field.weights, np.float64):
        weights, jacobians = [], []
        for one in rows:
            g = SCALES["qk_std"] * np.sum(waves * (one @ draw @ one.T), axis=0)
            weights.append(BY_HAND[name](g))
            jacobians.append(_differences(BY_HAND[name], g))
        direct = weights[0] @ kappa @ weights[1].T
        nngp += direct / 2
        ntk += 3 * direct / 2
        for a, b, c, d in itertools.product(range(size), repeat=4):
            inner = np.einsum("ik,ij,jl->kl", jacobians[0][a, :, c], kappa, jacobians[1][b, :, d])
            moved = np.einsum("wk,wl,kl->kl", waves[:, c], waves[:, d], kappa)
            ntk[a, b] += 4 * SCALES["qk_std"] ** 2 * kappa[c, d] * np.sum(inner * moved) / 2
    np.testing.assert_allclose(k.nngp[0, 1], 0.8**2 * nngp, rtol=1e-7)
    np.testing.assert_allclose(k.ntk[0, 1], 0.8**2 * ntk, rtol=1e-7, atol=1e-9)


class _MixingSoftmax(wl.layers.ScoreMap):
    """Softmax, of which the library does not know that it is."""

    def __call__(self, scores: Any, allowed: Any) -> Any:
        return wl.Softmax()(scores, allowed)


@_SLOW
@pytest.mark.parametrize(
    "make",
    [
        lambda score_map: wl.Attention(4, score_map=score_map, pattern=wl.Causal()),
        lambda score_map: wl.AttentionPool(4, score_map=score_map),
    ],
    ids=["self", "pool"],
)
def test_softmax_by_any_other_name(make):
    """Padding and patterns included, the general rules give what softmax's own does."""
    x, mask = _tokens(2, 3, 4), np.array([[True, True, False], [True, True, True]])

    def row(g: Any, allowed: Any) -> Any:
        powers = jnp.where(allowed, jnp.exp(g), 0)
        return powers / jnp.maximum(jnp.sum(powers), 1e-30)

    exact = make(wl.Softmax()).kernel(x, mask=mask, samples=2)
    for score_map in (wl.layers.RowwiseMap(row), _MixingSoftmax()):
        k = make(score_map).kernel(x, mask=mask, samples=2)
        np.testing.assert_allclose(k.nngp, exact.nngp, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(k.ntk, exact.ntk, rtol=1e-10, atol=1e-14)


class _Rated(eqx.Module):
    rate: Any

    def __call__(self, g: Any, allowed: Any) -> Any:
        return _shares(self.rate * g, allowed)


def test_leaves_of_a_map_are_leaves_of_the_network():
    layer = wl.Attention(4, score_map=wl.layers.RowwiseMap(_Rated(np.asarray(0.3))))
    assert any(leaf == 0.3 for leaf in jax.tree.leaves(layer))


def test_a_rowwise_map_is_a_function():
    with pytest.raises(wl.errors.NetworkError, match="function of one query's scores"):
        wl.layers.RowwiseMap(3)  # pyright: ignore[reportArgumentType]


# --- finite networks ------------------------------------------------------------------------------

_WIDTHS: dict[str, Any] = {"key_width": WIDTH, "value_width": WIDTH, **SCALES}
_X = (0.8 * _tokens(2, 3, 4) + 0.6).astype(np.float32)
_STREAMS = ((0.8 * _tokens(2, 2, 4, seed=1) + 0.6).astype(np.float32), _X)


def _nets(score_map: wl.layers.ScoreMap) -> dict[str, tuple[wl.Layer, Any]]:
    options = {"score_map": score_map, **_WIDTHS}
    linear = wl.Attention(WIDTH, heads=4, scaling=wl.Scaling.LINEAR, **options)
    return {
        "self": (wl.Serial(wl.Attention(WIDTH, heads=4, **options), wl.MeanPool()), _X),
        "linear": (wl.Serial(linear, wl.MeanPool()), _X),
        "cross": (wl.Serial(wl.CrossAttention(WIDTH, heads=4, **options), wl.MeanPool()), _STREAMS),
        "pool": (wl.Serial(wl.Dense(WIDTH), wl.AttentionPool(WIDTH, heads=4, **options)), _X),
    }


@_SLOW
@pytest.mark.parametrize("layer", ["self", "linear", "cross", "pool"])
@pytest.mark.parametrize("name", MAPS)
def test_finite_networks_approach_the_kernel(name, layer):
    net, x = _nets(MAPS[name])[layer]
    limit = wl.with_heads(net, wl.INFINITE).kernel(x, key=jax.random.key(7), samples=4096)
    for value, error in ((limit.nngp, limit.nngp_error), (limit.ntk, limit.ntk_error)):
        assert error is None or error.max() < 0.4 * PRECISION * np.abs(value).max()
    assert_agrees(net, x, limit, width=32, draws=10_000)


@_SLOW
@pytest.mark.parametrize("name", MAPS)
def test_finite_heads_have_the_same_mean(name):
    """The tangent law differentiates the map by itself; under a linear readout both agree."""
    net = wl.Serial(wl.Attention(8, heads=2, score_map=MAPS[name]), wl.MeanPool(), wl.Dense(1))
    kernel = net.kernel(_X, samples=512)
    mean = net.law(_X, draws=64).ntk(draws=500)
    error = np.hypot(kernel.ntk_error, mean.error)
    assert error.max() < 0.02 * np.abs(mean.value).max()
    assert (np.abs(kernel.ntk - mean.value) / error).max() < 5
    assert (np.abs(1.12 * kernel.ntk - mean.value) / error).max() > 5


@pytest.mark.parametrize("std", [6.0, 60.0])
def test_large_scores_keep_the_accuracy_of_a_series(std):
    """One token: κ ← κ E[tanh(g)²], g ~ N(0, qk²κ²), by the trapezoidal rule in units of g.

    Beyond what a series reaches, it says so.
    """
    x = np.full((1, 1, 4), 1.0)
    step, end = 0.05, 9 * std
    g = np.arange(-end, end + step / 2, step)
    weights = np.exp(-((g / std) ** 2) / 2) * step / (std * np.sqrt(2 * np.pi))
    tanh = wl.ElementwiseMap(wl.Tanh())
    for layer, inputs in (
        (wl.Attention(8, score_map=tanh, qk_std=std), x),
        (wl.AttentionPool(8, score_map=tanh, qk_std=std), x),
        (wl.CrossAttention(8, score_map=tanh, qk_std=std), (x, x)),
    ):
        if std > 10:
            with pytest.warns(wl.errors.AccuracyWarning, match="up to 3.6e"):
                layer.kernel(inputs)
            continue
        found = layer.kernel(inputs).nngp
        assert np.asarray(found).item() == pytest.approx(weights @ np.tanh(g) ** 2, rel=1e-5)
