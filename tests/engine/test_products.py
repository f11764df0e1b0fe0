"""Products of pairs in tiles: the same numbers and gradients as plain matrix products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.state.pair import sandwich

RNG = np.random.default_rng(5)
LEFT = RNG.normal(size=(3, 6, 7)).astype(np.float32)  # (examples, positions out, positions in)
RIGHT = RNG.normal(size=(4, 5, 8)).astype(np.float32)
KERNELS = RNG.normal(size=(3, 4, 7, 8)).astype(np.float32)


def _tile(left, kernels, right):
    """All pairs, mapped as the engine maps them."""
    return jax.vmap(lambda a, row: jax.vmap(lambda b, k: sandwich(a, k, b))(right, row))(
        left, kernels
    )


@pytest.mark.parametrize(("one", "two"), [(6, 5), (2, 5), (1, 1), (1, 5), (6, 1)])
def test_tiles_of_products(one, two):
    left, right = LEFT[:, :one], RIGHT[:, :two]
    expected = np.einsum("iap,ijpq,jbq->ijab", left.astype(float), KERNELS, right)
    found = jax.jit(_tile)(left, KERNELS, right)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_the_identity_costs_nothing():
    kernel = jnp.asarray(KERNELS[0, 0])
    assert sandwich(None, kernel, None) is kernel
    np.testing.assert_allclose(
        sandwich(jnp.asarray(LEFT[0]), kernel, None), LEFT[0] @ kernel, rtol=1e-5
    )
    np.testing.assert_allclose(
        sandwich(None, kernel, jnp.asarray(RIGHT[0])), kernel @ RIGHT[0].T, rtol=1e-5, atol=1e-5
    )


def test_gradients_of_tiles_both_ways():
    def loss(product):
        return lambda *tile: jnp.sum(jnp.sin(product(*tile)))

    def plain(left, kernels, right):
        return jnp.einsum("iap,ijpq,jbq->ijab", left, kernels, right)

    with jax.enable_x64(True):
        tile = tuple(jnp.asarray(a, jnp.float64) for a in (LEFT, KERNELS, RIGHT))
        backward = jax.grad(loss(_tile), argnums=(0, 1, 2))(*tile)
        for found, expected in zip(
            backward, jax.grad(loss(plain), argnums=(0, 1, 2))(*tile), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        moved = tuple(jnp.cos(a) for a in tile)
        forward = [jax.jvp(loss(p), tile, moved)[1] for p in (_tile, plain)]
    np.testing.assert_allclose(*forward, rtol=1e-9)
