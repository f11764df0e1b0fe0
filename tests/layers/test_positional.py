"""Positions: encodings, rotations and biases against their formulas, and what is refused."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl

LINEAR = wl.Scaling.LINEAR


def _tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _places(grid: tuple[int, ...]) -> np.ndarray:
    return np.array(list(np.ndindex(*grid)), float)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _linear_kernels(x: np.ndarray, score: Any, value: Any) -> tuple[np.ndarray, np.ndarray]:
    """NNGP and NTK at 1/d, written out: scores and value kernels as functions of κ (and Θ)."""
    flat = x.reshape(len(x), -1, x.shape[-1])
    kappa = np.einsum("nac,mbc->nmab", flat, flat) / x.shape[-1]
    weights = np.stack([_softmax(score(kappa[n, n])) for n in range(len(x))])
    nngp, theta = value(kappa), value(0 * kappa)
    both = [np.einsum("nai,nmij,mbj->nmab", weights, k, weights) for k in (nngp, theta)]
    return both[0], both[1] + 2 * both[0]


# --- encodings -----------------------------------------------------------------------------------

_FORMULAS = {
    wl.layers.Profile.GAUSSIAN: lambda d: np.exp(-0.3 * d**2),
    wl.layers.Profile.EXPONENTIAL: lambda d: np.exp(-0.3 * d),
    wl.layers.Profile.RATIONAL: lambda d: 1 / (1 + 0.3 * d**2),
}


@pytest.mark.parametrize("profile", wl.layers.Profile)
@pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 2, 2)])
def test_decay_follows_the_distance(profile, grid):
    decay, like = wl.Decay(0.3, profile=profile), jnp.zeros(())
    places = _places(grid)
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.testing.assert_allclose(
        decay.covariance(grid, grid, like), _FORMULAS[profile](distance), 1e-5
    )


def test_rows_of_an_encoding_do_not_depend_on_the_grid_around_them():
    decay = wl.Decay(0.3)
    with jax.enable_x64(True):
        like = jnp.zeros(())
        whole, part = (np.asarray(decay.root(g, (3, 4), like)) for g in ((3, 4), (2, 3)))
        covariance = np.asarray(decay.covariance((2, 3), (3, 4), like))
    np.testing.assert_allclose(part @ whole.T, covariance, atol=1e-12)


_CHANNELS, _SIGMA = 4, 0.6
_COMBINATIONS = {
    wl.layers.Combine.SUM: (1.0, _SIGMA**2),
    wl.layers.Combine.MIX: (1 - _SIGMA**2, _SIGMA**2),
    wl.layers.Combine.CONCAT: (_CHANNELS / (_CHANNELS + 3), 3 / (_CHANNELS + 3) * _SIGMA**2),
}


@pytest.mark.parametrize("combine", wl.layers.Combine)
def test_finite_scores_on_two_channels_are_those_of_the_limit(combine):
    """Wide heads see κ̃ whatever the input's channels: an encoding has a width of its own."""
    x = _tokens(3, 2)
    content, place = (
        (1.0, _SIGMA**2) if combine is wl.layers.Combine.SUM else (1 - _SIGMA**2, _SIGMA**2)
    )
    if combine is wl.layers.Combine.CONCAT:
        content, place = 2 / (2 + 3), 3 / (2 + 3) * _SIGMA**2
    gaps = np.arange(3)[:, None] - np.arange(3)
    limit = content * x @ x.T / 2 + place * np.exp(-0.4 * gaps**2)
    channels = 3 if combine is wl.layers.Combine.CONCAT else None
    positions = wl.Decay(0.4, strength=_SIGMA, combine=combine, channels=channels)
    layer = wl.Attention(
        4,
        heads=1,
        scaling=LINEAR,
        score_map=wl.IdentityMap(),
        positions=positions,
        key_width=1024,
        value_width=4,
    )
    scores = []
    for seed in range(4):
        params = layer.init(jax.random.key(seed), (3, 2))
        encoded = positions.join_input(params["place"], jnp.asarray(x, jnp.float32))
        scores.append(layer.attention_weights(params, encoded)[0])
    # A standard error is about 3 % of the largest entry; two channels for the encoding give 35 %.
    error = np.abs(np.mean(scores, axis=0) - limit).max()
    assert error < 0.12 * np.abs(limit).max()


@pytest.mark.parametrize("combine", wl.layers.Combine)
def test_encodings_enter_scores_and_values_by_their_shares(combine):
    """κ̃ = w_x κ + w_p R and Θ̃ = w_x Θ + w_p R, over a grid of positions."""
    x = _tokens(2, 2, 2, _CHANNELS)
    places = _places((2, 2))
    decay = np.exp(-0.4 * np.sum((places[:, None] - places[None]) ** 2, axis=-1))
    content, place = _COMBINATIONS[combine]
    channels = 3 if combine is wl.layers.Combine.CONCAT else None
    for on_values in (False, True):
        positions = wl.Decay(
            0.4, strength=_SIGMA, combine=combine, channels=channels, on_values=on_values
        )
        k = wl.Attention(8, scaling=LINEAR, qk_std=1.3, positions=positions).kernel(x)
        nngp, ntk = _linear_kernels(
            x,
            lambda kappa: 1.3 * (content * kappa + place * decay),
            (lambda kappa: content * kappa + place * decay) if on_values else lambda kappa: kappa,
        )
        np.testing.assert_allclose(k.nngp.reshape(nngp.shape), nngp, rtol=1e-10)
        np.testing.assert_allclose(k.ntk.reshape(ntk.shape), ntk, rtol=1e-10)


class _Learned(eqx.Module):
    """A decay with a shape of its own: exp(−d^power)."""

    power: Any

    def __call__(self, distance: Any) -> Any:
        safe = jnp.where(distance > 0, distance, 1)
        return jnp.where(distance > 0, jnp.exp(-(safe**self.power)), 1)


def test_parameters_of_a_learned_decay_have_gradients():
    x = _tokens(2, 4, 3)

    def loss(power: Any) -> Any:
        positions = wl.Decay(0.7, profile=_Learned(power))
        net = wl.Serial(wl.Attention(8, scaling=LINEAR, positions=positions), wl.MeanPool())
        return net.kernel(x).ntk.sum()

    with jax.enable_x64(True):  # as one program: without optimisation XLA's eager steps give NaN
        gradient = float(jax.jit(jax.grad(loss))(jnp.asarray(1.5)))
    step = 1e-5
    slope = (loss(np.float64(1.5 + step)) - loss(np.float64(1.5 - step))) / (2 * step)
    assert abs(gradient) > 1e-3
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)


def test_drawn_encodings_hold_for_shorter_inputs():
    net = wl.Attention(8, heads=2, positions=wl.Decay(0.4))
    x = _tokens(2, 3, 3, 4).astype(np.float32)
    params = net.init(jax.random.key(0), (3, 3, 4))
    mask = np.zeros((2, 3, 3), bool)
    mask[:, :2, :2] = True
    padded = net.apply(params, x, mask)[:, :2, :2]
    np.testing.assert_allclose(padded, net.apply(params, x[:, :2, :2]), atol=1e-5)
    with pytest.raises(wl.errors.ShapeError, match="holds for no more"):
        net.apply(params, _tokens(1, 4, 3, 4).astype(np.float32))


# --- rotations and biases ------------------------------------------------------------------------


def test_waves_of_rotary_encodings_multiply_to_their_correlation():
    rotary = wl.Rotary(10.0, pairs=3)
    waves = np.asarray(rotary.waves((4,), jnp.zeros(())))
    offsets = np.arange(4)[None] - np.arange(4)[:, None]
    gaps = offsets[:, :, None, None] - offsets[None, None]
    theta = 10.0 ** (-np.arange(3) / 3)
    rho = np.cos(theta * gaps[..., None]).mean(axis=-1)
    np.testing.assert_allclose(np.einsum("wai,wbj->aibj", waves, waves), rho, atol=1e-5)


def test_turned_queries_and_keys_see_only_their_offset():
    rotary = wl.Rotary(10.0, pairs=3)
    q, k = jnp.asarray(_tokens(2, 1, 6), jnp.float32)
    turned = [rotary.rotate(jnp.broadcast_to(v, (5, 6))) for v in (q, k)]
    scores = np.asarray(turned[0] @ turned[1].T)
    for offset in range(-4, 5):
        line = np.diagonal(scores, offset)
        np.testing.assert_allclose(line, line[0], atol=1e-5)
    assert abs(scores[0, 0] - scores[0, 1]) > 1e-2


def test_rotary_scores_at_one_over_d():
    x = _tokens(2, 4, 3)
    theta = 10.0 ** (-np.arange(4) / 4)
    offsets = np.arange(4)[None] - np.arange(4)[:, None]
    rho = np.cos(theta * offsets[..., None]).mean(axis=-1)
    k = wl.Attention(8, scaling=LINEAR, positions=wl.Rotary(10.0, pairs=4)).kernel(x)
    nngp, ntk = _linear_kernels(x, lambda kappa: kappa * rho, lambda kappa: kappa)
    np.testing.assert_allclose(k.nngp, nngp, rtol=1e-10)
    np.testing.assert_allclose(k.ntk, ntk, rtol=1e-10)


def test_biases_are_added_to_the_scores():
    x = _tokens(2, 2, 3, 3)
    places = _places((2, 3))
    gaps = np.abs(places[:, None] - places[None]).sum(axis=-1)
    nngp, _ = _linear_kernels(x, lambda kappa: kappa - 0.7 * gaps, lambda kappa: kappa)
    for bias in (
        wl.Alibi(0.7),
        wl.layers.AdditiveBias(lambda offsets: -0.7 * jnp.abs(offsets).sum(axis=-1)),
        wl.layers.AdditiveBias(-0.7 * gaps),
        (wl.Alibi(0.3), wl.Alibi(0.4)),
    ):
        k = wl.Attention(8, scaling=LINEAR, positions=bias).kernel(x, ntk=False)
        np.testing.assert_allclose(k.nngp.reshape(nngp.shape), nngp, rtol=1e-10)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: wl.Decay(-0.5),
        lambda: wl.Decay(strength=1.5, combine=wl.layers.Combine.MIX),
        lambda: wl.Decay(profile="nothing"),
        lambda: wl.Rotary(pairs=0),
        lambda: wl.Rotary(pairs=True),
    ],
    ids=["rate", "strength", "profile", "pairs", "bool"],
)
def test_wrong_parts_are_refused(make):
    with pytest.raises(wl.WidelimitError):
        make()


def test_rotations_are_for_sequences():
    layer = wl.Attention(8, heads=2, positions=wl.Rotary(pairs=2))
    with pytest.raises(wl.errors.ShapeError, match="along a sequence"):
        layer.kernel(_tokens(2, 2, 3, 4))
    with pytest.raises(wl.errors.ShapeError, match="along a sequence"):
        layer.init(jax.random.key(0), (2, 3, 4))


def test_rotations_turn_pairs_of_channels():
    layer = wl.Attention(8, heads=2, positions=wl.Rotary(pairs=2), key_width=5)
    with pytest.raises(wl.WidelimitError, match="pairs of key channels"):
        layer.init(jax.random.key(0), (3, 4))


def test_matrices_of_the_wrong_size_are_refused():
    layer = wl.Attention(8, scaling=LINEAR, positions=wl.layers.AdditiveBias(np.zeros((3, 3))))
    with pytest.raises(wl.errors.ShapeError, match="one row and one column"):
        layer.kernel(_tokens(2, 4, 5))


@pytest.mark.parametrize("scaling", wl.Scaling)
def test_decays_that_are_no_covariance_are_refused(scaling):
    """A box over neighbours has negative eigenvalues; its root would be NaN."""
    box = wl.Decay(profile=lambda d: (d <= 1).astype(float))
    with pytest.raises(wl.errors.NumericalError, match="positive semi-definite"):
        wl.Attention(8, scaling=scaling, positions=box).kernel(_tokens(2, 4, 5))
