"""Every record of the table of primitives against JAX's own primitive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.programs.steps import Order
from widelimit.programs.table import COORDINATEWISE, TABLE

POINTS = np.array([0.12, 0.31, 0.47, 0.83])
CALLS = {
    "clamp": lambda x: jax.lax.clamp(0.2, x, 0.6),
    "erf_inv": jax.lax.erf_inv,
    "is_finite": jax.lax.is_finite,
}
OTHER = {"add_any", "copy", "copy_p", "stop_gradient"}  # the operand itself, or plain sums
TWO = {"add", "sub", "max", "min", "mul", "pow", "atan2", "gt", "lt", "ge", "le", "eq", "ne"}
WITH_ARRAYS = sorted(n for n in COORDINATEWISE if TABLE[n].arrays is not None and n not in OTHER)


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_numpy_functions_are_those_of_the_primitive(name):
    arrays = TABLE[name].arrays
    with jax.enable_x64(True):
        x, y = jnp.asarray(POINTS), jnp.asarray(POINTS[::-1].copy())
        if name == "clamp":
            expected, found = CALLS[name](x), arrays(0.2, POINTS, 0.6)
        elif name in TWO:
            expected, found = getattr(jax.lax, name)(x, y), arrays(POINTS, POINTS[::-1])
        else:
            expected, found = CALLS.get(name, getattr(jax.lax, name))(x), arrays(POINTS)
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in WITH_ARRAYS if TABLE[n].slope is not None])
def test_slopes_at_zero(name):
    record = TABLE[name]
    assert record.arrays(0.0) == 0
    assert record.arrays(1e-7) / 1e-7 == pytest.approx(record.slope, rel=1e-6)


@pytest.mark.parametrize("name", [n for n in WITH_ARRAYS if n not in TWO | {"clamp"}])
def test_degrees_of_homogeneous_functions(name):
    record = TABLE[name]
    if isinstance(record.order, Order):
        assert record.order in (Order.ONE, Order.LEADING)
        return
    scaled = np.asarray(record.arrays(4.0 * POINTS), float)
    np.testing.assert_allclose(scaled, 4.0 ** float(record.order) * record.arrays(POINTS))


@pytest.mark.parametrize("name", [n for n in WITH_ARRAYS if TABLE[n].closed is not None])
def test_closed_forms_are_those_of_the_function(name):
    record = TABLE[name]
    function = record.arrays if name not in TWO else lambda u: record.arrays(u, 0.0)
    x, weights = np.polynomial.hermite_e.hermegauss(201)
    weights = weights / weights.sum()
    q, c, r = np.array(0.8), np.array(0.3), np.array(0.5)
    u = np.sqrt(q) * x[:, None]
    v = c / np.sqrt(q) * x[:, None] + np.sqrt(r - c**2 / q) * x
    pair = weights @ (function(u) * function(v)) @ weights
    rough = {"sign": 0.02, "max": 0.01}.get(name, 1e-9)
    assert float(record.closed.pair(q, c, r)) == pytest.approx(pair, abs=rough)
    assert float(record.closed.mean(q)) == pytest.approx(weights @ function(u), abs=rough)
    stein = weights @ (x[:, None] * function(u)) / np.sqrt(q)
    assert float(record.closed.slope(q)) == pytest.approx(float(stein[0]), abs=5 * rough)
