"""What every network must hold, over one list of networks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import (
    ACTIVATIONS,
    ATTENTION,
    COMPOSITIONS,
    LAYERS,
    NETWORKS,
    Case,
    Kind,
    ragged,
    together,
)

from widelimit.layers.compose import is_sampled

SIZE = 7  # a prime number, so that tiles divide nothing
# Where two compilations of everything would take too long for the fast tests.
FAST = (
    *("relu", "gelu", "embedding", "conv_same", "conv_stride", "mean_pool_windows", "select_last"),
    *("graph", "layer_norm", "stranger", "attention_linear", "attention_sampled", "stranger_map"),
    "stranger_encoding",
)


def _some_fast(names) -> list:
    return [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in sorted(names)]


def _kernel(case: Case, x, x2=None, **options):
    if case.kind is Kind.TOKENS:
        options["dtype"] = np.float64
    return case.net.kernel(x, x2, sampler=_sampler(case), **options)


def _sampler(case: Case):
    """The same heads for all kernels of a network, where it has any."""
    if not is_sampled(case.net):
        return None
    return case.net.sampler(case.inputs(SIZE), samples=4, replicates=1, key=0)


def _matrix(kernel: np.ndarray) -> np.ndarray:
    """(N, N, P…, P…) as one square matrix over examples and positions."""
    half = (kernel.ndim - 2) // 2
    axes = (0, *range(2, 2 + half), 1, *range(2 + half, kernel.ndim))
    size = kernel.shape[0] * int(np.prod(kernel.shape[2 : 2 + half]))
    return kernel.transpose(axes).reshape(size, size)


@pytest.mark.parametrize("name", [*_some_fast(ACTIVATIONS), *sorted({*NETWORKS} - {*ACTIVATIONS})])
def test_symmetric_psd_and_equivariant(name):
    case = NETWORKS[name]
    x = case.inputs(SIZE)
    k = _kernel(case, x)
    for kernel in (k.nngp, k.ntk):
        matrix = _matrix(kernel)
        np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12, atol=1e-14)
        if name != "dropout" and name != "normed_and_dropped":
            least = np.linalg.eigvalsh(matrix)[0]
            assert least > -1e-9 * np.abs(matrix).max()
    order = np.array([2, 0, 3, 6, 1, 5, 4])
    moved = _kernel(case, jax.tree.map(lambda a: a[order], x))
    np.testing.assert_allclose(moved.ntk, k.ntk[order][:, order], rtol=1e-11, atol=1e-13)
    both = _kernel(case, x, x)
    np.testing.assert_allclose(both.nngp, k.nngp, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(both.ntk, k.ntk, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", _some_fast(LAYERS | COMPOSITIONS | ATTENTION))
def test_tiles_do_not_matter(name):
    case = NETWORKS[name]
    x = case.inputs(SIZE)
    whole = _kernel(case, x)
    tiled = _kernel(case, x, memory=60_000)
    np.testing.assert_allclose(tiled.nngp, whole.nngp, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(tiled.ntk, whole.ntk, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", _some_fast(n for n, c in NETWORKS.items() if c.padded))
def test_padding_changes_nothing(name):
    case = NETWORKS[name]
    sequences = ragged(case, SIZE)
    if case.kind is Kind.IMAGE:
        sequences[0] = sequences[0][:2]
    padded = _kernel(case, together(sequences))
    one, two = (jax.tree.map(lambda a: a[None], sequences[i]) for i in (0, 2))
    assert np.shape(jax.tree.leaves(one)[0]) != np.shape(jax.tree.leaves(two)[0])
    alone = _kernel(case, one, two)
    for ours, expected in ((padded.nngp, alone.nngp), (padded.ntk, alone.ntk)):
        entry, exact = ours[0, 2], expected[0, 0]
        corner = tuple(slice(extent) for extent in exact.shape)
        np.testing.assert_allclose(entry[corner], exact, rtol=1e-11, atol=1e-13)
        outside = np.array(entry)
        outside[corner] = 0
        assert not outside.any()


def _gradient(case: Case, x) -> list[np.ndarray]:
    if case.kind is not Kind.TOKENS:
        x = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), x)
    sampler = _sampler(case)

    def total(net):
        k = net.kernel(x, sampler=sampler)
        return jnp.sum(k.nngp) + jnp.sum(k.ntk)

    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.grad(total)(case.net))]


def _singular(case: Case) -> Any:
    """Identical examples, and one that is zero."""
    return jax.tree.map(lambda a: np.concatenate([a, a, 0 * a]), case.inputs(1))


@pytest.mark.parametrize("name", _some_fast(NETWORKS))
def test_gradients_are_finite_at_identical_and_zero_inputs(name):
    found = _gradient(NETWORKS[name], _singular(NETWORKS[name]))
    assert found
    assert all(np.isfinite(leaf).all() for leaf in found)
    assert any(np.abs(leaf).max() > 0 for leaf in found)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_are_pytrees_of_numbers(name):
    net = NETWORKS[name].net
    leaves, structure = jax.tree.flatten(net)
    assert all(np.issubdtype(np.asarray(leaf).dtype, np.floating) for leaf in leaves)
    again = jax.tree.unflatten(structure, leaves)
    assert jax.tree.structure(again) == structure
    assert hash(structure) == hash(jax.tree.structure(net))


@pytest.mark.parametrize("name", ["relu", "conv_same", "layer_norm"])
def test_inside_jit_equals_outside(name):
    case = NETWORKS[name]
    x = case.inputs(3).astype(np.float32)
    outside = case.net.kernel(x)
    inside = jax.jit(lambda a: case.net.kernel(a))(x)
    scale = np.abs(outside.ntk).max()
    np.testing.assert_allclose(inside.nngp, outside.nngp, rtol=1e-5, atol=1e-6 * scale)
    off = ~np.eye(3, dtype=bool)  # equal inputs are redone in double precision outside
    np.testing.assert_allclose(inside.ntk[off], outside.ntk[off], rtol=1e-5, atol=1e-5 * scale)
