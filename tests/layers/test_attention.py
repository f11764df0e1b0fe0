"""Attention kernels against independent values: quadrature, closed forms, exact identities."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine.inputs import outline_of
from widelimit.engine.phases import Realisation, cross_one, encode_block
from widelimit.engine.sampling import realisations
from widelimit.layers.attention.closed import elementwise_kernels, homogeneous_kernels
from widelimit.layers.attention.rules import ElementwiseScores, Sides, head_kernels, make_head
from widelimit.layers.compose import is_sampled
from widelimit.state import Pair

SCALES: dict[str, Any] = {"qk_std": 1.3, "ov_std": 0.8}
_SLOW = pytest.mark.slow
MAPS = {"relu": wl.Relu(), "abs": wl.layers.Abs(), "leaky": wl.LeakyRelu(0.2)}


def _tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# --- softmax with infinitely many heads: a Gaussian integral -------------------------------------


def _nodes(dimension: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, dimension) and weights of the tensor Gauss–Hermite rule for standard normals."""
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[points] * dimension, indexing="ij"), axis=-1)
    mass = functools.reduce(np.multiply.outer, [weights] * dimension)
    return grid.reshape(-1, dimension), mass.ravel()


def _softmax_integral(kappa: dict[Any, np.ndarray], theta: np.ndarray, count: int):
    """κ and Θ after softmax attention of one pair, by quadrature over differences of scores.

    The sums are written out with the softmax's Jacobian, entry by entry. `kappa[x, y]` holds the
    covariances of the four pairs of the two inputs.
    """
    qk, ov = SCALES["qk_std"] ** 2, SCALES["ov_std"] ** 2
    k = kappa[0, 1]
    size = k.shape[0]
    differ = np.eye(size)[:-1] - np.eye(size)[-1:]  # scores relative to the last key's
    nngp, ntk = np.empty((size, size)), np.empty((size, size))
    points, mass = _nodes(2 * (size - 1), count)
    for a, b in itertools.product(range(size), repeat=2):
        rows = (a, b)
        blocks = [
            [qk * kappa[x, y][rows[x], rows[y]] * differ @ kappa[x, y] @ differ.T for y in (0, 1)]
            for x in (0, 1)
        ]
        values, vectors = np.linalg.eigh(np.block(blocks))
        scores = points @ (vectors * np.sqrt(np.maximum(values, 0))).T
        weights, jacobians = [], []
        for half in np.split(scores, 2, axis=1):
            powers = np.exp(np.concatenate([half, np.zeros((len(half), 1))], axis=1))
            p = powers / powers.sum(axis=1, keepdims=True)
            weights.append(p)
            jacobians.append(p[:, :, None] * (np.eye(size) - p[:, None, :]))
        second = np.einsum("n,ni,nj->ij", mass, *weights)
        response = np.einsum("n,nik,njl,ij->kl", mass, *jacobians, k, optimize=True)
        nngp[a, b] = ov * np.sum(k * second)
        inner = 2 * k[a, b] * k + theta[a, b] * k + k[a, b] * theta
        ntk[a, b] = ov * (np.sum((2 * k + theta) * second) + qk * np.sum(inner * response))
    return nngp, ntk


def _pairs(x: np.ndarray) -> dict[Any, np.ndarray]:
    channels = x.shape[-1]
    return {(i, j): x[i] @ x[j].T / channels for i, j in itertools.product((0, 1), repeat=2)}


@pytest.mark.parametrize(("size", "count"), [(2, 40), (3, 18)])
def test_rule_of_one_head_integrates_to_the_kernel(size, count):
    """Heads at quadrature nodes of W, against the score field's own covariance: no sampling."""
    x, channels = _tokens(2, size, 2, seed=size), 2
    # Moderate scores: the integrand's poles are far away, and few nodes are exact.
    x *= 0.5 * np.sqrt(channels) / np.linalg.norm(x, axis=-1, keepdims=True)
    kappa = _pairs(x)
    theta = 0.7 * kappa[0, 1] + 0.2
    points, mass = _nodes(channels**2, 16)
    with jax.enable_x64(True):
        rows = [jnp.asarray(one / np.sqrt(channels)) for one in x]
        pair = Pair(jnp.asarray(kappa[0, 1]), jnp.asarray(theta), 1, True)
        sides = Sides.of(pair, pair, pair)

        @jax.jit
        def average(draws, mass):
            def head(draw):
                heads = [
                    make_head(wl.Softmax(), (1.3 * r @ draw @ r.T)[None], None, None, ntk=True)
                    for r in rows
                ]
                return jnp.stack(head_kernels(*heads, sides, jnp.asarray(1.3**2)))

            return jnp.einsum("m,mkab->kab", mass, jax.vmap(head)(draws))

        rule = average(points.reshape(-1, channels, channels), mass)
        nngp, ntk = 0.8**2 * np.asarray(rule)
    exact = _softmax_integral(kappa, theta, count)
    np.testing.assert_allclose(nngp, exact[0], atol=1e-7)
    np.testing.assert_allclose(ntk, exact[1], atol=1e-7)


def _z(value: Any, error: Any, exact: Any) -> float:
    return float(np.max(np.abs(value - exact) / error))


@pytest.mark.parametrize(("size", "count"), [(2, 40), (3, 14)])
def test_sampled_heads_agree_with_quadrature(size, count):
    x = 0.8 * _tokens(2, size, 4, seed=size)
    kappa = _pairs(x)
    k = wl.Attention(4, **SCALES).kernel(x, key=jax.random.key(1), samples=4096)
    exact = _softmax_integral(kappa, np.zeros((size, size)), count)
    for value, error, truth in zip(
        (k.nngp[0, 1], k.ntk[0, 1]), (k.nngp_error[0, 1], k.ntk_error[0, 1]), exact, strict=True
    ):
        assert error.max() < 0.007 * np.abs(truth).max()
        # Errors from 8 replicates follow Student's law: 6 of them are as rare as 4 normal ones.
        assert _z(value, error, truth) < 6
        assert _z(value, error, 1.05 * truth) > 6


# --- elementwise score maps: closed forms --------------------------------------------------------


def _random_sides(size: int, seed: int = 0) -> tuple[Sides, Any, Any]:
    """Kernels of a pair, and the variances of queries and keys of either input."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(2, size, 3 * size)) / np.sqrt(3 * size)
    query, key, value = (features @ rng.normal(size=(3 * size, 3 * size)) / 3 for _ in range(3))
    pairs = []
    for rows in (query, key, value):
        kernel = rows[0] @ rows[1].T
        pairs.append(Pair(jnp.asarray(kernel), jnp.asarray(0.5 * kernel + 0.1), 1, True))
    variances = [
        tuple(jnp.asarray(np.sum(rows[i] ** 2, axis=-1)) for rows in (query, key)) for i in (0, 1)
    ]
    return Sides.of(*pairs), variances[0], variances[1]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_homogeneous_maps_need_no_fourth_power(name, causal):
    """O(S²) by interpolation of one scalar function against the sum over all pairs of scores."""
    dual = wl.ElementwiseMap(MAPS[name]).dual
    assert dual.homogeneous
    with jax.enable_x64(True):
        sides, one, two = _random_sides(5)
        allowed = jnp.asarray(np.tril(np.ones((5, 5)))) if causal else None
        scores = ElementwiseScores(sides, (one, two), (allowed, allowed), jnp.asarray(1.7))
        fast, slow = (rule(dual, scores) for rule in (homogeneous_kernels, elementwise_kernels))
    for a, b in zip(fast, slow, strict=True):
        assert np.abs(a - b).max() < 1e-8 * np.abs(b).max()


def test_homogeneous_maps_hold_where_inputs_coincide():
    """Correlations of exactly ±1 between queries are nodes' ends, not beyond them."""
    x = _tokens(1, 3, 4)
    x = np.concatenate([x, x, -x])
    relu = wl.Attention(4, score_map=wl.ElementwiseMap(wl.Relu()))
    general = wl.Attention(4, score_map=wl.ElementwiseMap(lambda g: jnp.maximum(g, 0)))
    k, slow = relu.kernel(x), general.kernel(x)
    np.testing.assert_allclose(k.nngp, slow.nngp, atol=3e-3 * np.abs(slow.nngp).max())
    np.testing.assert_allclose(k.nngp[0, 0], k.nngp[0, 1], rtol=1e-10)
    np.testing.assert_allclose(k.ntk[0, 0], k.ntk[0, 1], rtol=1e-10)


@pytest.mark.parametrize(
    "score_map",
    [
        pytest.param(wl.IdentityMap(), id="identity", marks=_SLOW),
        pytest.param(wl.ElementwiseMap(wl.Relu()), id="relu", marks=_SLOW),
        pytest.param(wl.ElementwiseMap(wl.Erf()), id="erf"),
    ],
)
def test_closed_forms_agree_with_many_sampled_heads(score_map):
    x = _tokens(2, 3, 4)
    options: dict[str, Any] = {"score_map": score_map, "pattern": wl.Causal(), **SCALES}
    exact = wl.Attention(4, **options).kernel(x)
    assert exact.nngp_error is None
    # A bias of zero changes nothing, but has no closed form: heads are drawn.
    drawn = wl.Attention(4, positions=wl.Alibi(0.0), **options)
    k = drawn.kernel(x, key=jax.random.key(3), samples=8192)
    for value, error, truth in (
        (k.nngp, k.nngp_error, exact.nngp),
        (k.ntk, k.ntk_error, exact.ntk),
    ):
        assert error.max() < 0.01 * np.abs(truth).max()
        assert _z(value, error, truth) < 6
        assert _z(value, error, 1.06 * truth) > 6


# --- exact identities ----------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", wl.Scaling)
def test_one_token_attends_to_itself(scaling):
    x = _tokens(3, 1, 4)
    k = wl.Serial(wl.Dense(8, w_std=1.1), wl.Attention(8, scaling=scaling, **SCALES)).kernel(x)
    kappa = 1.1**2 * np.einsum("iac,jbc->ijab", x, x) / 4
    np.testing.assert_allclose(k.nngp, 0.8**2 * kappa, rtol=1e-12)
    np.testing.assert_allclose(k.ntk, 0.8**2 * 3 * kappa, rtol=1e-12)
    if scaling is wl.Scaling.SQRT:
        assert np.abs(k.nngp_error).max() < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"scaling": wl.Scaling.LINEAR}, id="linear"),
        pytest.param({}, id="sqrt"),
        pytest.param({"score_map": wl.ElementwiseMap(wl.Relu())}, id="relu", marks=_SLOW),
    ],
)
def test_order_of_tokens_matters_with_encodings_only(options):
    x = _tokens(3, 4, 4)
    order = np.array([2, 0, 3, 1])
    plain = wl.Serial(wl.Attention(8, **options), wl.MeanPool())
    placed = wl.Serial(wl.Attention(8, positions=wl.Decay(0.5), **options), wl.MeanPool())
    for net, same in ((plain, True), (placed, False)):
        before, after = net.kernel(x, samples=8), net.kernel(x[:, order], samples=8)
        for a, b in ((before.nngp, after.nngp), (before.ntk, after.ntk)):
            difference = np.abs(a - b).max() / np.abs(a).max()
            assert difference < 1e-12 if same else difference > 1e-3


@pytest.mark.parametrize("depth", [1, 3])
def test_waiting_maps_give_what_forced_ones_do(depth):
    """Attention at 1/d then pooling, against the kernels of all positions averaged afterwards."""
    x = _tokens(3, 4, 5)
    layers = [
        wl.Residual(wl.Attention(5, scaling=wl.Scaling.LINEAR, b_std=0.3, **SCALES), 0.4)
        for _ in range(depth)
    ]
    whole = wl.Serial(*layers).kernel(x)
    pooled = wl.Serial(*layers, wl.MeanPool()).kernel(x)
    np.testing.assert_allclose(pooled.nngp, whole.nngp.mean(axis=(2, 3)), rtol=1e-11)
    np.testing.assert_allclose(pooled.ntk, whole.ntk.mean(axis=(2, 3)), rtol=1e-11)


def _operations(real: Realisation, size: int) -> float:
    """Floating-point operations of one pair of inputs of `size` tokens."""
    x = jnp.asarray(_tokens(1, size, 8), jnp.float32)
    outline = outline_of(real.net, (size, 8))
    encoding = encode_block(real, x, None, outline)
    one = jax.tree.map(lambda leaf: leaf[0], encoding)

    def pair(a: Any, b: Any) -> Any:
        return cross_one(real, a, b, outline, with_ntk=True)

    return jax.jit(pair).lower(one, one).compile().cost_analysis()["flops"]


def test_attention_then_pooling_costs_the_square_of_the_length():
    attention = wl.Attention(8, scaling=wl.Scaling.LINEAR)
    pooled = wl.Serial(attention, wl.MeanPool(), wl.Dense(1))
    kept = wl.Serial(attention, wl.Dense(1))
    growth = {
        name: _operations(Realisation(net), 128) / _operations(Realisation(net), 64)
        for name, net in (("pooled", pooled), ("kept", kept))
    }
    assert growth["pooled"] < 2**2.2, growth
    assert growth["kept"] > 2**2.7, growth


def test_sampled_heads_cost_the_cube_of_the_length():
    """The Jacobian contraction of softmax takes S³, not S⁴, for each head."""
    net = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))

    def operations(size: int) -> float:
        x = _tokens(2, size, 8).astype(np.float32)
        return _operations(realisations(net, net.sampler(x, samples=2), np.float32)[0], size)

    assert operations(64) / operations(32) < 2**3.1


# --- padding -------------------------------------------------------------------------------------

RELU = wl.ElementwiseMap(wl.Relu())
LINEAR = wl.Scaling.LINEAR
PADDED: dict[str, wl.Layer] = {
    "linear_softmax_bias": wl.Attention(8, scaling=LINEAR, b_std=0.3, positions=wl.Decay(0.5)),
    "linear_relu_concat": wl.Attention(
        8,
        scaling=LINEAR,
        score_map=RELU,
        positions=wl.Decay(0.5, combine=wl.layers.Combine.CONCAT, on_values=True),
    ),
    "linear_rotary_alibi": wl.Attention(
        8, scaling=LINEAR, positions=(wl.Rotary(10.0, pairs=2), wl.Alibi(0.3))
    ),
    "sqrt_identity_bias": wl.Attention(8, score_map=wl.IdentityMap(), b_std=0.3),
    "sqrt_relu_causal": wl.Attention(8, score_map=RELU, pattern=wl.Causal()),
    "sqrt_erf_encoding": wl.Attention(
        8, score_map=wl.ElementwiseMap(wl.Erf()), positions=wl.Decay(0.5, on_values=True)
    ),
    "sqrt_softmax_encoding_bias": wl.Attention(8, positions=wl.Decay(0.5), b_std=0.3),
    "sqrt_softmax_causal_rotary": wl.Attention(
        8, pattern=wl.Causal(), positions=wl.Rotary(10.0, pairs=2)
    ),
    "sqrt_softmax_local_alibi": wl.Attention(8, pattern=wl.Local(1), positions=wl.Alibi(0.3)),
    "sqrt_softmax_landmarks": wl.Serial(
        wl.Dense(8, b_std=0.5), wl.Relu(), wl.Residual(wl.Attention(8, positions=wl.Decay(0.5)))
    ),
    "pool_softmax": wl.AttentionPool(8, positions=wl.Decay(0.5)),
    "pool_relu": wl.AttentionPool(8, score_map=RELU),
}


# A fitting sampler and two shapes to compile for each: the rest takes its time.
_QUICK = ("linear_softmax_bias", "sqrt_relu_causal", "sqrt_softmax_encoding_bias")


@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=_SLOW) for n in PADDED]
)
def test_padding_changes_nothing(name):
    net = PADDED[name]
    x = _tokens(3, 4, 5)
    mask = np.arange(4)[None] < np.array([[2], [3], [4]])
    sampler = net.sampler(x, mask, samples=4, replicates=2) if is_sampled(net) else None
    padded = net.kernel(x[:1], x, mask=mask[:1], mask2=mask, sampler=sampler)
    alone = net.kernel(x[:1, :2], x, mask2=mask, sampler=sampler)
    for long, short in ((padded.nngp, alone.nngp), (padded.ntk, alone.ntk)):
        if long.ndim > 2:
            assert not np.any(long[:, :, 2:])
            assert not np.any(long[:, 0, :, 2:])
            long = long[:, :, :2]
        np.testing.assert_allclose(long, short, rtol=1e-9, atol=1e-9 * np.abs(short).max())


# --- gradients -----------------------------------------------------------------------------------


def _shallow(options: dict[str, Any]):
    def net(theta: Any) -> wl.Layer:
        rate, weight, qk_std = theta
        attention = wl.Attention(8, qk_std=qk_std, positions=wl.Decay(rate), **options)
        return wl.Serial(wl.Dense(8), wl.Residual(attention, weight), wl.MeanPool(), wl.Dense(1))

    return net


def _deep(theta: Any) -> wl.Layer:
    """Features come from landmarks: after an activation there are no exact ones."""
    rate, weight, qk_std = theta
    attention = wl.Attention(8, qk_std=qk_std, positions=wl.Decay(rate))
    layers = (wl.Dense(8), wl.Relu(), wl.Dense(8), wl.Residual(attention, weight))
    return wl.Serial(*layers, wl.MeanPool(), wl.Dense(1))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(_shallow({"scaling": LINEAR}), id="linear"),
        pytest.param(_shallow({"score_map": RELU}), id="relu", marks=_SLOW),
        pytest.param(_shallow({}), id="sampled"),
        pytest.param(_deep, id="landmarks", marks=_SLOW),
    ],
)
def test_gradients_agree_with_finite_differences(make):
    """Decay rate, residual weight and query–key scale; heads and landmarks stay fixed."""
    x = _tokens(3, 3, 4)
    theta = np.array([0.5, 0.4, 1.2])
    net = make(tuple(theta))
    sampler = net.sampler(x, samples=4, replicates=2) if is_sampled(net) else None
    weights = _tokens(2, 3, 3, seed=5)

    def loss(theta: Any) -> Any:
        k = make(tuple(theta)).kernel(x, sampler=sampler)
        return (weights[0] * k.nngp).sum() + (weights[1] * k.ntk).sum()

    with jax.enable_x64(True):
        gradient = np.asarray(jax.grad(loss)(jnp.asarray(theta)))
    step = 1e-5
    slopes = [
        (loss(theta + step * e) - loss(theta - step * e)) / (2 * step) for e in np.eye(len(theta))
    ]
    assert np.abs(gradient).min() > 1e-3
    np.testing.assert_allclose(gradient, slopes, rtol=2e-5, atol=2e-7)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"score_map": "softmax"},
        {"score_map": jnp.tanh},
        {"positions": "rotary"},
        {"positions": (wl.Decay(), wl.Decay())},
        {"pattern": np.eye(3, dtype=bool)},
        {"heads": 0},
        {"heads": 2.5},
        {"heads": True},
        {"heads": 4, "kv_heads": 3},
        {"heads": 4, "kv_heads": 0},
        {"key_width": 0},
        {"width": -1},
    ],
    ids=lambda options: "-".join(options),
)
def test_wrong_options_are_refused(options):
    with pytest.raises(wl.WidelimitError):
        wl.Attention(**{"width": 8, **options})


def test_finite_networks_need_finitely_many_heads():
    for layer in (wl.Attention(8), wl.AttentionPool(8)):
        with pytest.raises(wl.errors.NetworkError, match="finitely many heads"):
            layer.init(jax.random.key(0), (3, 4))


@pytest.mark.slow
def test_grouped_heads_of_the_limit_are_separate_ones():
    x = _tokens(2, 3, 4)
    grouped, plain = wl.Attention(8, kv_heads=2), wl.Attention(8)
    np.testing.assert_array_equal(grouped.kernel(x, samples=4).ntk, plain.kernel(x, samples=4).ntk)


def test_attention_needs_positions():
    for layer in (wl.Attention(8), wl.AttentionPool(8)):
        with pytest.raises(wl.errors.ShapeError, match="without positions"):
            layer.kernel(_tokens(3, 4))


def test_pattern_of_the_wrong_size_is_refused():
    layer = wl.Attention(8, scaling=LINEAR, pattern=wl.layers.Allowed(np.eye(3, dtype=bool)))
    with pytest.raises(wl.errors.ShapeError, match="one row and one column"):
        layer.kernel(_tokens(2, 4, 5))
    with pytest.raises(wl.errors.ShapeError, match="square boolean"):
        wl.layers.Allowed(np.ones((2, 3), bool))
    with pytest.raises(wl.errors.ShapeError, match="square boolean"):
        wl.layers.Allowed(np.eye(3))
    with pytest.raises(wl.errors.OptionError, match="radius"):
        wl.Local(-1)


@pytest.mark.parametrize("scaling", wl.Scaling)
def test_queries_without_keys_give_zero(scaling):
    allowed = np.array([[True, True, False], [False, False, False], [True, True, True]])
    layer = wl.Attention(8, scaling=scaling, pattern=wl.layers.Allowed(allowed))
    k = layer.kernel(_tokens(2, 3, 4), samples=4)
    for kernel in (k.nngp, k.ntk):
        assert np.isfinite(kernel).all()
        assert not kernel[:, :, 1].any()
        assert not kernel[:, :, :, 1].any()
        assert kernel[:, :, 0, 0].all()


def test_fully_masked_examples_are_refused():
    mask = np.array([[True, True, True], [False, False, False]])
    with pytest.raises(wl.errors.ShapeError, match="at least one real position"):
        wl.Attention(8).kernel(_tokens(2, 3, 4), mask=mask)


def test_slopes_through_scores_that_a_program_rounds_twice():
    """The largest score of a query may equal none of them there; its slope is never asked for."""
    x = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)

    def total(weight):
        attention = wl.Attention(3, scaling=wl.Scaling.LINEAR)
        net = wl.Serial(wl.Residual(wl.Dense(3), weight), attention)
        return net.kernel(x).nngp.sum()

    weight, step = jnp.float32(0.8), 0.02
    slope = (total(weight + step) - total(weight - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(total)(weight), slope, rtol=1e-3)
