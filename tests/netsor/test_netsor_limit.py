"""The limit law against independent values: mpmath, orthant probabilities, Gauss–Hermite."""

import warnings

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import tensor_programs as examples
from scipy import special, stats

from widelimit.errors import NetworkError, NumericalError, OptionError, ShapeError
from widelimit.laws import law_from_covariance
from widelimit.layers.attention.layer import Attention
from widelimit.netsor import (
    CoordinateFunction,
    Growth,
    Integration,
    LimitValue,
    Method,
    PreconditionWarning,
    Program,
    clip,
    cos,
    erf,
    exp,
    relu,
    sigmoid,
    sign,
    sin,
    softmax,
    tanh,
)

Q, C, R = 1.3, -0.4, 0.7
K = np.array([[1.0, 0.5, 0.2], [0.5, 1.2, -0.3], [0.2, -0.3, 0.8]])


def pair_moment(function: CoordinateFunction, **integration) -> LimitValue:
    p = Program()
    u, v = p.inputs("u", covariance=[[Q, C], [C, R]])
    a, b = function(u), function(v)
    p.output(p.matrix("W") @ a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreconditionWarning)
        return p.limit(integration=Integration(**integration)).second_moment(a, b)


def hermite_pair(fn) -> float:
    """`E[f(u)f(v)]` by a 120×120 Gauss–Hermite rule, for smooth f."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    u = np.sqrt(Q) * nodes[:, None]
    v = C / np.sqrt(Q) * nodes[:, None] + np.sqrt(R - C**2 / Q) * nodes[None, :]
    return float(weights @ (fn(u) * fn(v)) @ weights)


def conditional_pair(outer, conditional_mean) -> float:
    """`E[f(u) E[f(v) | u]]` by mpmath, for f with kinks at 0 and a known conditional mean."""
    slope, spread = mpmath.mpf(C) / Q, mpmath.sqrt(mpmath.mpf(R) - mpmath.mpf(C) ** 2 / Q)

    def integrand(u):
        return outer(u) * conditional_mean(slope * u, spread) * mpmath.npdf(u, 0, mpmath.sqrt(Q))

    return float(mpmath.quad(integrand, [-12, -4, 0, 4, 12]))


def relu_mean(m, s):
    return m * mpmath.ncdf(m / s) + s * mpmath.npdf(m / s)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (erf, hermite_pair(special.erf)),
        (sin, hermite_pair(np.sin)),
        (cos, hermite_pair(np.cos)),
        (exp, hermite_pair(np.exp)),
        (relu, conditional_pair(lambda u: max(u, 0), relu_mean)),
        (
            sign,
            4 * stats.multivariate_normal(cov=[[Q, C], [C, R]]).cdf(np.zeros(2)) - 1,
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_closed_forms(function: CoordinateFunction, expected: float) -> None:
    found = pair_moment(function)
    assert found.method is Method.CLOSED_FORM
    assert found.error == 0
    np.testing.assert_allclose(found.value, expected, rtol=2e-7)
    undeclared = CoordinateFunction(
        "same", function.fn, bounded=function.bounded, growth=Growth.PSEUDO_LIPSCHITZ
    )
    by_grid = pair_moment(undeclared)
    assert by_grid.method is Method.QUADRATURE
    assert abs(by_grid.value - expected) < max(2 * by_grid.error, 1e-10)


@pytest.mark.parametrize("function", [tanh, sigmoid], ids=lambda f: f.name)
def test_quadrature_and_sampling(function: CoordinateFunction) -> None:
    expected = hermite_pair(function.fn)
    grid = pair_moment(function)
    assert grid.method is Method.QUADRATURE
    np.testing.assert_allclose(grid.value, expected, rtol=1e-9)
    assert grid.error < 1e-8
    sampled = pair_moment(function, max_dimension=0)
    assert sampled.method is Method.SAMPLING
    assert 0 < sampled.error < 0.002 * abs(expected)
    assert abs(sampled.value - expected) < 6 * sampled.error
    assert abs(sampled.value - 1.1 * expected) > 6 * sampled.error


def test_means_and_offsets_of_relu() -> None:
    """E[relu(u)], E[u relu(u)] in closed form; E[relu(u + 1)] by the grid."""
    p = Program()
    (u,) = p.inputs("u", covariance=[[Q]])
    plain, shifted = relu(u), relu(u + 1)
    p.output(p.matrix("W") @ (plain + shifted))
    law = p.limit()
    assert law.mean(plain).value == pytest.approx(np.sqrt(Q / (2 * np.pi)), rel=1e-12)
    assert law.second_moment(u, plain).value == pytest.approx(Q / 2, rel=1e-12)
    offset = law.mean(shifted)
    expected = float(relu_mean(mpmath.mpf(1), mpmath.sqrt(Q)))
    assert offset.method is Method.QUADRATURE
    assert abs(offset.value - expected) < 2 * offset.error + 1e-12
    assert offset.error < 1e-2


def test_stein_rule_equals_quadrature() -> None:
    """E[v relu(u)] = Cov(u, v)/2 against the same function on the grid."""
    p = Program()
    u, v = p.inputs("u", covariance=[[Q, C], [C, R]])
    closed, grid = relu(u), p.map(lambda x: np.maximum(x, 0), u, name="relu by grid")
    p.output(p.matrix("W") @ (closed + grid + v))
    law = p.limit()
    assert law.second_moment(v, closed).value == pytest.approx(C / 2, rel=1e-12)
    found = law.second_moment(v, grid)
    assert abs(found.value - C / 2) < 2 * found.error + 1e-12


def test_polynomials_by_wick() -> None:
    """`E[(uv)²] = qr + 2c²`, and with a mean `E[(u+m)⁴] = 3q² + 6qm² + m⁴`."""
    p = Program()
    u, v = p.inputs("u", covariance=[[Q, C], [C, R]])
    (w,) = p.inputs("w", covariance=[[Q]], mean=0.7)
    product, square, shifted = u * v, w**2, (u + 0.7) ** 2
    p.output(p.matrix("W") @ (product + square + shifted))
    law = p.limit()
    assert law.second_moment(product, product).value == pytest.approx(Q * R + 2 * C**2)
    fourth = 3 * Q**2 + 6 * Q * 0.7**2 + 0.7**4
    for vector in (square, shifted):
        found = law.second_moment(vector, vector)
        assert found.method is Method.CLOSED_FORM
        assert found.value == pytest.approx(fourth, rel=1e-12)
    assert law.mean(shifted).value == pytest.approx(Q + 0.49)
    assert law.second_moment(u, w).value == 0


def test_abs_and_independent_factors() -> None:
    p = Program()
    (u,) = p.inputs("u", covariance=[[Q]])
    (v,) = p.inputs("v", covariance=[[R]])
    gated = sigmoid(u) * tanh(v)
    p.output(p.matrix("W") @ (abs(u) + gated))
    law = p.limit()
    assert law.mean(abs(u)).value == pytest.approx(np.sqrt(2 * Q / np.pi))
    factors = [law.second_moment(f, f).value for f in (sigmoid(u), tanh(v))]
    assert law.second_moment(gated, gated).value == pytest.approx(np.prod(factors), rel=1e-10)


def test_deep_relu_network_equals_the_arc_cosine_recursion() -> None:
    program = examples.mlp(K[:2, :2], depth=30, b_std=0.2)
    kernel = K[:2, :2].copy()
    for _ in range(30):
        kernel = 2 * kernel + 0.04
        norm = np.sqrt(np.outer(np.diag(kernel), np.diag(kernel)))
        angle = np.arccos(np.clip(kernel / norm, -1, 1))
        kernel = norm / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
    found = program.limit().gram()
    assert found.method is Method.CLOSED_FORM
    np.testing.assert_allclose(found.value, kernel, rtol=1e-10)


def test_long_recurrent_network_does_not_exhaust_the_stack() -> None:
    program = examples.rnn(np.eye(80), activation=erf)
    variance = 0.0
    for _ in range(80):
        variance = 2 / np.pi * np.arcsin(2 * (1 + variance) / (1 + 2 * (1 + variance)))
    last = program.outputs[-1]
    assert program.limit().second_moment(last, last).value == pytest.approx(variance, rel=1e-12)


def test_covariances_of_a_recurrent_network_are_there_in_whatever_order_one_asks() -> None:
    """One moment alone, then all of them, against the recursion over pairs of times."""
    steps, x = 40, np.random.default_rng(0).standard_normal((40, 40))
    k = x @ x.T / steps
    before, after = np.zeros((2, steps, steps))
    for s in range(steps):
        before[s] = before[:, s] = k[s] + np.concatenate([[0], after[s - 1, :-1]]) * (s > 0)
        norm = np.sqrt(np.outer(1 + 2 * np.diag(before), 1 + 2 * np.diag(before)))
        after = 2 / np.pi * np.arcsin(2 * before / np.maximum(norm, np.abs(2 * before)))
    law = examples.rnn(k, activation=erf).limit()
    last = law.program.outputs[-1]
    assert law.second_moment(last, last).value == pytest.approx(after[-1, -1], rel=1e-12)
    np.testing.assert_allclose(law.gram().value, after, atol=1e-12)


def test_error_of_the_lstm_covers_its_distance_from_a_finer_computation() -> None:
    program = examples.lstm(K[:2, :2])
    rough = program.limit(integration=Integration(points=2**8), key=1).gram()
    fine = program.limit(integration=Integration(points=2**14)).gram()
    assert rough.method is Method.SAMPLING
    off = np.abs(rough.value - fine.value)[rough.error > 1e-12]
    assert np.max(off / rough.error[rough.error > 1e-12]) < 6
    again = program.limit(integration=Integration(points=2**8), key=1).gram()
    np.testing.assert_array_equal(again.value, rough.value)
    other = program.limit(integration=Integration(points=2**8), key=jax.random.key(2)).gram()
    assert np.any(other.value != rough.value)


def test_samples_of_a_network_without_scalars() -> None:
    """Draws have the law's covariance, through a nonlinearity and with a mean."""
    p = Program()
    u, v = p.inputs("u", covariance=[[Q, C], [C, R]], mean=[0.3, 0.0])
    h = relu(p.matrix("W") @ tanh(u))
    p.output(h, u * v)
    law = p.limit()
    drawn = law.sample(4000, key=0, coordinates=50)
    products = (drawn[..., :, None] * drawn[..., None, :]).mean(axis=1)
    error = products.std(axis=0) / np.sqrt(len(products))
    expected = law.gram().value
    assert np.all(error < 0.01 * np.max(expected))
    assert np.max(np.abs(products.mean(axis=0) - expected) / error) < 4.5
    assert law.sample_scalars(7, key=0).shape == (7, 0)


# ---- multi-head attention ------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_law_equals_its_closed_description(heads: int) -> None:
    """Score covariance `σ_QK² κ_ab κ_ij` per head; `K_p = σ_OV² H^{-1} Σ_h A_h κ A_hᵀ` given p."""
    qk, ov = 1.4, 0.6
    program = examples.multi_head_attention(K, heads=heads, qk_std=qk, ov_std=ov)
    assert program.check().covered
    law = program.limit()
    expected = np.kron(np.eye(heads), qk**2 * np.kron(K, K))
    np.testing.assert_allclose(law.scalar_covariance().value, expected, atol=1e-12)

    scores = law.sample_scalars(400, key=0)
    weights = special.softmax(scores.reshape(400, heads, 3, 3), axis=-1)
    kernels = ov**2 / heads * np.einsum("rhai,ij,rhbj->rab", weights, K, weights)
    np.testing.assert_allclose(law.given(scores).gram().value, kernels, atol=1e-12)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(law.given(scores).gram().value, 1.01 * kernels, atol=1e-12)


def test_attention_samples_follow_the_law() -> None:
    program = examples.multi_head_attention(K, heads=2)
    law = program.limit()
    scores = law.sample_scalars(200_000, key=3)
    np.testing.assert_allclose(np.cov(scores.T), law.scalar_covariance().value, atol=0.03)
    conditional = law.given(scores[:1])
    repeated = law.given(np.repeat(scores[:1], 50_000, axis=0)).sample(key=1)[:, 0]
    np.testing.assert_allclose(np.cov(repeated.T), conditional.gram().value[0], atol=0.03)
    drawn = law.sample(2000, key=2, coordinates=3)
    assert drawn.shape == (2000, 3, 3)
    np.testing.assert_array_equal(drawn, law.sample(2000, key=2, coordinates=3))


def test_marginals_are_those_of_the_networks_law() -> None:
    """The same attention as a program and as a layer: one variance, one kurtosis, one density."""
    program = examples.multi_head_attention(K, heads=1, qk_std=1.5)
    ours = program.limit().marginal(program.outputs[0], draws=20_000)
    theirs = law_from_covariance(Attention(heads=1, qk_std=1.5), K, draws=2**14).at(0, 0)
    y = np.array([0.0, 1.0, 3.0])
    for one, two in (
        (ours.variance, theirs.variance),
        (ours.kurtosis(), theirs.kurtosis()),
        (ours.density(y), theirs.density(y)),
    ):
        error = np.hypot(one.error, two.error)
        assert np.all(error < 0.05 * np.abs(two.value))
        assert np.all(np.abs(one.value - two.value) < 4 * error)
    wrong = law_from_covariance(Attention(heads=1, qk_std=1.4), K, draws=2**14).at(0, 0)
    assert abs(ours.variance.value - wrong.variance.value) > 6 * ours.variance.error


def test_marginals_without_scalars_are_gaussian_and_others_are_refused() -> None:
    p = Program()
    x = p.input("x", std=1.5)
    w = p.matrix("W", std=2.0)
    hidden = w @ relu(x)
    law = p.limit()
    assert float(law.marginal(2.0 * hidden + x).variance) == pytest.approx(
        float(law.second_moment(2.0 * hidden + x, 2.0 * hidden + x).value)
    )
    assert float(law.marginal(x).kurtosis().value) == pytest.approx(0)
    for other in (relu(x), x * hidden, x + 1.0, p.input("z", mean=1.0)):
        with pytest.raises(NetworkError, match="linear in vectors"):
            law.marginal(other)


def test_expected_gram_is_the_infinite_head_kernel() -> None:
    """`E[K_p]` does not depend on the number of heads; the spread of K_p does, as 1/H."""
    one, many = (examples.multi_head_attention(K, heads=h).limit() for h in (1, 8))
    first, second = one.expected_gram(20_000, 0), many.expected_gram(20_000, 1)
    z = np.abs(first.value - second.value) / np.hypot(first.error, second.error)
    assert np.max(z) < 4.5
    assert first.method is Method.SAMPLING
    np.testing.assert_allclose(first.error / second.error, np.sqrt(8), rtol=0.1)


def test_a_dot_product_read_backwards_is_the_same_scalar() -> None:
    """`(Qx)ᵀ(Kz)` and `(Kz)ᵀ(Qx)` are one number; `(Kx)ᵀ(Qz)` has covariance κ_xz² with it."""
    p = Program()
    x, z = (clip(50.0)(v) for v in p.inputs("x", covariance=K[:2, :2]))
    query, key = p.matrix("Q"), p.matrix("K")
    scores = [p.dot(query @ x, key @ z), p.dot(key @ z, query @ x), p.dot(key @ x, query @ z)]
    p.output(softmax(scores)[0] * (p.matrix("V") @ x))
    variance, crossed = K[0, 0] * K[1, 1], K[0, 1] ** 2
    expected = np.full((3, 3), variance)
    expected[2, :2] = expected[:2, 2] = crossed
    np.testing.assert_allclose(p.limit().scalar_covariance().value, expected, rtol=1e-12)
    simulated = p.simulate(32, 100, 0).scalars
    np.testing.assert_allclose(simulated[:, 0], simulated[:, 1], rtol=1e-4, atol=1e-5)


def test_scalars_inside_a_general_map() -> None:
    """φ(v₁, v₂; p₁, p₂) written as one function equals the same written with operators."""
    p = Program()
    x, z = (clip(50.0)(v) for v in p.inputs("x", covariance=K[:2, :2]))
    query, key, value = p.matrix("Q"), p.matrix("K"), p.matrix("V")
    scores = [p.dot(query @ x, key @ x), p.dot(query @ x, key @ z)]
    v, w = value @ x, value @ z

    def attend(v, w, s, t):
        weight = 1 / (1 + jnp.exp(t - s))
        return jnp.tanh(weight * v + (1 - weight) * w)

    whole = p.map(attend, v, w, scalars=scores, bounded=True, growth=Growth.PSEUDO_LIPSCHITZ)
    a, b = softmax(scores)
    parts = tanh(a * v + b * w)
    p.output(whole, parts)
    gram = p.limit().condition(50, 0).gram()
    assert gram.method is Method.QUADRATURE
    np.testing.assert_allclose(gram.value, gram.value[:, :1, :1] * np.ones((1, 2, 2)), rtol=1e-8)


def test_scalar_arithmetic_shifts_the_scores() -> None:
    p = Program()
    x = clip(50.0)(p.input("x"))
    s = p.dot(p.matrix("Q") @ x, p.matrix("K") @ x)
    v = p.matrix("V") @ x
    y = (1 - 2 * s + s * s / 4) * v - s * v
    p.output(y)
    value = 0.3
    expected = (1 - 3 * value + value**2 / 4) ** 2
    assert p.limit().given([value]).gram().value[0, 0, 0] == pytest.approx(expected)


def test_law_prints_values_and_methods() -> None:
    text = str(examples.stacked_attention(K[:2, :2], heads=[1, 1]).limit())
    assert "quadrature" in text
    assert "Gaussian given the scalars" in text
    assert "given earlier scalars" in text


def test_laws_of_outputs_that_have_no_marginal_print_their_lines() -> None:
    p = Program()
    x = p.matrix("W", std=2.0) @ p.input("x")
    p.output(relu(x))
    text = str(p.limit())
    assert "g_1 := W @ x: N(0, 4), closed form" in text
    assert "outputs: A vector with a marginal law is linear" in text
    p.output(0.0 * x)
    assert "no positive variance" in str(p.limit())


# ---- errors --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attention():
    return examples.multi_head_attention(K[:2, :2], heads=1)


@pytest.mark.parametrize(
    ("act", "error", "rule"),
    [
        (lambda p: p.limit().gram(), NetworkError, "random second moment"),
        (lambda p: p.limit().given(np.zeros((5, 3))), ShapeError, "one column per dot"),
        (lambda p: p.limit().given(np.full(4, np.nan)), NumericalError, "finite"),
        (lambda p: p.limit().sample_scalars(0, 0), OptionError, "draws= is"),
        (lambda p: p.limit().sample(2.5, 0), OptionError, "draws= is"),
        (lambda p: p.limit().sample(10, 0, coordinates=0), OptionError, "coordinates= is"),
        (lambda p: p.limit().sample(10, -1), OptionError, "key= is"),
        (lambda p: p.limit(key="seed"), OptionError, "key= is"),
        (lambda p: p.limit().gram([]), NetworkError, "At least one vector"),
        (
            lambda p: p.limit().gram([Program().input("z")]),
            NetworkError,
            "program they were built in",
        ),
        (lambda p: p.limit().scalar_covariance([]), NetworkError, "dot products"),
        (lambda p: Integration(points=1000), NetworkError, "power of two"),
        (lambda p: Integration(step=0.0), NetworkError, "step"),
        (lambda p: Integration(step="fine"), NetworkError, "step"),
        (lambda p: p.limit(integration=2**14), OptionError, "integration= says"),
        (lambda p: p.limit().given(["a", "b", "c", "d"]), NumericalError, "real numbers"),
        (lambda p: p.limit().expected_gram(1, 0), OptionError, "at least 2"),
        (lambda p: p.limit().marginal(p.outputs[0], draws=1), OptionError, "at least 2"),
    ],
)
def test_misuse_names_the_rule(attention, act, error, rule) -> None:
    with pytest.raises(error, match=rule):
        act(attention)


def test_nan_in_a_function_is_reported() -> None:
    p = Program()
    x = p.input("x")
    y = p.map(lambda v: np.where(v > -5, v, np.nan), x, growth=Growth.PSEUDO_LIPSCHITZ)
    p.output(p.matrix("W") @ y)
    with pytest.raises(NumericalError, match="must be finite"):
        p.limit().gram()


def attention_program():
    program = Program("one query, two keys")
    tokens = program.inputs("x", covariance=[[1.0, 0.5], [0.5, 1.0]])
    x1, x2 = (clip(100.0)(token) for token in tokens)
    query, keys, values = (program.matrix(name) for name in "QKV")
    scores = [program.dot(query @ x1, keys @ x) for x in (x1, x2)]
    first, second = softmax(scores)
    program.output(first * (values @ x1) + second * (values @ x2))
    return program


def test_a_limit_is_read_as_a_law_is():
    """Against the same network as a layer: one head, two tokens, the first query."""
    limit = attention_program().limit()
    law = law_from_covariance(Attention(8, heads=1), [[1.0, 0.5], [0.5, 1.0]], draws=4096)
    y = np.array([0.0, 1.0, 3.0])
    pairs = [
        (limit.density(y), law.density(y, at=(0, 0))),
        (limit.sf(y), law.sf(y, at=(0, 0))),
        (limit.moments((2, 4)), law.moments((2, 4), at=(0, 0))),
        (limit.kurtosis(), law.kurtosis(at=(0, 0))),
        (limit.quantiles([0.9, 0.99]), law.quantiles([0.9, 0.99], at=(0, 0))),
    ]
    for one, other in pairs:
        scale = np.sqrt(np.square(one.error) + np.square(other.error)) + 1e-9
        assert np.abs((one.value - other.value) / scale).max() < 5
    assert float(limit.kurtosis()) > 20 * limit.kurtosis().error
    assert float(limit.kurtosis(at=0)) == float(limit.kurtosis(at=limit.program.outputs[0]))


def test_a_limit_is_read_at_one_of_its_vectors():
    limit = attention_program().limit()
    for place in (1, "y", -1):
        with pytest.raises(ShapeError, match="at a vector"):
            limit.kurtosis(at=place)
