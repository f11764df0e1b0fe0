"""Random arrays drawn as one row are those that JAX draws in their shape."""

import jax
import numpy as np
import pytest

from widelimit.flat_draws import coins, normals

SHAPES = [(), (5,), (0, 3), (2, 3), (2, 1, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shape_changes_no_number(shape):
    key = jax.random.key(3)
    np.testing.assert_array_equal(normals(key, shape), jax.random.normal(key, shape))
    wanted = jax.random.bernoulli(key, 0.3, shape)
    np.testing.assert_array_equal(coins(key, 0.3, shape), wanted)


def test_draws_of_a_batch_of_keys():
    keys = jax.random.split(jax.random.key(1), 3)
    found = jax.vmap(lambda key: normals(key, (2, 4), np.float32))(keys)
    wanted = [jax.random.normal(key, (2, 4), np.float32) for key in keys]
    np.testing.assert_array_equal(found, np.stack(wanted))
