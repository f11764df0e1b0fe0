"""The tangent kernel of any function, against Jacobians written out in full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.finite.empirical import NtkMethod, empirical_ntk

METHODS = [NtkMethod.JACOBIANS, NtkMethod.PRODUCTS]


def _function(params, x):
    """(N, 3) to outputs (N, 2, 4), through a nonlinearity and a parameter used twice."""
    hidden = jnp.tanh(x @ params["in"])
    out = jnp.einsum("nh,hij->nij", hidden, params["out"])
    return out + jnp.sum(params["in"]) * params["count"]


@pytest.fixture(scope="module")
def problem():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "in": jax.random.normal(keys[0], (3, 5)),
        "out": jax.random.normal(keys[1], (5, 2, 4)),
        "count": jnp.asarray(2),
    }
    return params, jax.random.normal(keys[2], (5, 3)), jax.random.normal(keys[3], (3, 3))


def _full(params, x1, x2):
    """Θ with axes (N1, N2, 2, 4, 2, 4), from the Jacobian of the whole batch."""
    floats = {name: params[name] for name in ("in", "out")}

    def rows(x):
        jacobian = jax.jacfwd(lambda p: _function({**p, "count": params["count"]}, x))(floats)
        return np.concatenate(
            [np.asarray(leaf).reshape(*leaf.shape[:3], -1) for leaf in jacobian.values()], axis=-1
        )

    return np.einsum("aijp,bklp->abijkl", rows(x1), rows(x2))


@pytest.fixture(scope="module")
def full(problem):
    """Θ of the two inputs, and of the first with itself."""
    params, x1, x2 = problem
    return _full(params, x1, x2), _full(params, x1, x1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("options", "subscripts", "size"),
    [
        ({"trace_axes": ()}, "abijkl->abijkl", 1),
        ({}, "abijkj->abik", 4),
        ({"trace_axes": 1}, "abijil->abjl", 2),
        ({"trace_axes": (1, 2)}, "abijij->ab", 8),
        ({"trace_axes": (), "diagonal_axes": (1, -1)}, "abijij->abij", 1),
        ({"trace_axes": (), "diagonal_axes": 1}, "abijil->abijl", 1),
        ({"trace_axes": (), "diagonal_axes": 2}, "abijkj->abijk", 1),
        ({"trace_axes": 1, "diagonal_axes": 2}, "abijij->abj", 2),
    ],
)
def test_axes(problem, full, method, options, subscripts, size):
    (params, x1, x2), (other, itself) = problem, full
    expected = np.einsum(subscripts, other) / size
    found = empirical_ntk(_function, params, x1, x2, method=method, **options)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    # With itself, by halves and in blocks of one example, mirrored.
    expected = np.einsum(subscripts, itself) / size
    found = empirical_ntk(_function, params, x1, method=method, memory=1, **options)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def test_blocks_of_any_size_give_the_same(problem):
    params, x1, x2 = problem
    whole = empirical_ntk(_function, params, x1, x2)
    bytes_of_one = 4 * 8 * 4 * (15 + 40)
    for examples in (1, 2, 3):
        found = empirical_ntk(
            _function, params, x1, x2, memory=examples * bytes_of_one, method=NtkMethod.JACOBIANS
        )
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)


def test_the_way_with_fewer_operations_is_chosen():
    """Dense weights make Jacobians that take longer to write than products; shared weights do not.

    A Jacobian serves for all examples of a tile, a product for one pair.
    """
    from widelimit.finite.empirical import Axes, _choose, _Function

    def dense(params, x):
        return jnp.tanh(x @ params[0]) @ params[1]

    def shared(params, x):
        return jnp.tanh(x @ params[0]).mean(axis=1) @ params[1]

    def choice(f, x, trace=-1, outputs=1, memory=2**30):
        params = (jnp.ones((32, 64)), jnp.ones((64, outputs)))
        axes = Axes.make(1, trace, ())
        function = _Function(f, (None, None))
        return _choose(NtkMethod.AUTO, function, params, x, axes, (outputs,), memory)

    vectors, sequences = jnp.ones((16, 32)), jnp.ones((256, 50, 32))
    assert choice(dense, vectors) is NtkMethod.PRODUCTS
    assert choice(dense, vectors, outputs=64, trace=()) is NtkMethod.PRODUCTS
    assert choice(shared, sequences) is NtkMethod.JACOBIANS
    assert choice(shared, sequences[:1]) is NtkMethod.PRODUCTS
    assert choice(shared, sequences, memory=10_000) is NtkMethod.PRODUCTS


@pytest.mark.parametrize(
    "options", [{}, {"trace_axes": ()}, {"trace_axes": (), "diagonal_axes": 1}]
)
@pytest.mark.parametrize("method", NtkMethod)
def test_inside_a_transformation_the_kernel_is_the_same(problem, method, options):
    from widelimit.finite.empirical import Axes, traced_ntk

    params, x1, x2 = problem
    axes = Axes.make(2, options.get("trace_axes", -1), options.get("diagonal_axes", ()))
    for other in (x2, None):
        expected = empirical_ntk(_function, params, x1, other, method="jacobians", **options)
        found = jax.jit(lambda p, o=other: traced_ntk(_function, p, x1, o, axes, method))(params)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def test_tuples_as_inputs_and_double_precision(problem, full):
    params, x1, _ = problem

    def f(params, pair):
        x, weight = pair
        return _function(params, x) * weight[:, None, None]

    double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    double["count"] = np.asarray(2)
    weights = np.arange(1.0, 6.0)
    found = empirical_ntk(f, double, (np.asarray(x1, float), weights), trace_axes=())
    assert found.dtype == np.float64
    expected = full[1] * (weights[:, None] * weights)[..., None, None, None, None]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_network_of_ours():
    net = wl.Serial(wl.Dense(16), wl.Relu(), wl.Dense(2, b_std=0.5))
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    params = net.init(jax.random.key(0), (3,))
    found = empirical_ntk(net.apply, params, x, trace_axes=())
    hidden = np.maximum(x @ np.asarray(params[0][0]) / np.sqrt(3), 0)
    # Of the last layer alone: κ of its input, and the bias.
    last = empirical_ntk(
        lambda p, x: net.apply((params[0], params[1], p), x), params[2], x, trace_axes=()
    )
    expected = (hidden @ hidden.T / 16 + 0.25)[..., None, None] * np.eye(2)
    np.testing.assert_allclose(last, expected, rtol=1e-5, atol=1e-6)
    assert (np.linalg.eigvalsh(np.moveaxis(found - last, 2, 1).reshape(8, 8)) > -1e-5).all()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"trace_axes": 0}, "names no output axes"),
        ({"trace_axes": 3}, "names no output axes"),
        ({"trace_axes": (1, 1)}, "names no output axes"),
        ({"trace_axes": 1, "diagonal_axes": 1}, "both averaged over and kept"),
    ],
)
def test_wrong_axes(problem, options, rule):
    params, x1, _ = problem
    with pytest.raises(wl.errors.ShapeError, match=rule):
        empirical_ntk(_function, params, x1, **options)


def test_wrong_functions_and_inputs(problem):
    params, x1, _ = problem
    with pytest.raises(wl.errors.ShapeError, match="do not share a first axis"):
        empirical_ntk(_function, params, x1[:0])
    with pytest.raises(wl.errors.ShapeError, match="does not map a batch of N examples"):
        empirical_ntk(lambda p, x: jnp.sum(_function(p, x)), params, x1)
    with pytest.raises(wl.WidelimitError, match="floating-point parameters"):
        empirical_ntk(_function, {"count": 1}, x1)
    with pytest.raises(wl.errors.NumericalError, match="finite"):
        empirical_ntk(lambda p, x: jnp.sqrt(p * 0 * x), jnp.ones(()), x1)
