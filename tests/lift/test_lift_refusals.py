"""What `lift` is given is checked: one sentence with a remedy, never a raw error or a hang."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import WidelimitError

LINEAR = eqx.nn.Linear(3, 4, key=jax.random.key(0))
CONV = eqx.nn.Conv2d(3, 4, 2, key=jax.random.key(0))
TABLE = eqx.nn.Embedding(5, 4, key=jax.random.key(0))
ATTENTION = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
ROWS = np.zeros((2, 3))


def broken(x):
    raise KeyError("weights")


def endless(x):
    return LINEAR(jax.lax.fori_loop(0, 10**9, lambda i, h: h, x))


def endless_inside(x):
    step = jax.jit(lambda h: jax.lax.scan(lambda c, _: (c, None), h, None, length=10**9)[0])
    return LINEAR(step(x))


CASES = {
    "None": (None, ROWS, "no model"),
    "a number": (3.5, ROWS, "no model"),
    "an array": (ROWS, ROWS, "no model"),
    "no inputs": (LINEAR, None, "no batch"),
    "text": (LINEAR, np.array([["a", "b", "c"]]), "no batch"),
    "ragged": (LINEAR, [[1.0], [1.0, 2.0]], "no batch"),
    "complex": (LINEAR, ROWS.astype(complex), "no batch"),
    "one example": (LINEAR, np.zeros(3), "no batch"),
    "nobody": (LINEAR, np.zeros((0, 3)), "no batch"),
    "other channels": (LINEAR, np.zeros((2, 5)), "does not run"),
    "other channels of images": (CONV, np.zeros((2, 4, 5, 5)), "does not run"),
    "other channels of positions": (jax.vmap(LINEAR), np.zeros((2, 6, 5)), "does not run"),
    "other channels of attention": (
        lambda x: ATTENTION(x, x, x), np.zeros((2, 6, 5)), "does not run",
    ),
    "numbers for tokens": (jax.vmap(TABLE), np.zeros((2, 6)), "does not run"),
    "an exception": (broken, ROWS, "KeyError: 'weights' at test_lift_refusals.py"),
    "many steps": (endless, ROWS, "1000000000 steps"),
    "many steps in a function": (endless_inside, ROWS, "1000000000 steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_model_or_no_input_is_refused(name):
    model, x, words = CASES[name]
    with pytest.raises(WidelimitError, match=words) as caught:
        wl.lift(model, x)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["glorot_uniform", "he_normal", "lecun_uniform", "variance"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::widelimit.lift.LiftWarning")
def test_other_initialisers_are_read_from_the_weights(name, seed):
    """Also scales that are powers of the width only in the limit, such as 2/(n + m)."""
    n, m = 48, 80
    makes = {
        "glorot_uniform": (jax.nn.initializers.glorot_uniform(), 2 / (n + m)),
        "he_normal": (jax.nn.initializers.he_normal(), 2 / n),
        "lecun_uniform": (jax.nn.initializers.lecun_uniform(), 1 / n),
        "variance": (jax.nn.initializers.normal(0.05), 0.05**2),
    }
    draw, variance = makes[name]
    layer = eqx.nn.Linear(n, m, use_bias=False, key=jax.random.key(seed))
    weights = draw(jax.random.key(seed + 10), (n, m), jnp.float32).T
    model = eqx.tree_at(lambda one: one.weight, layer, weights)
    (found,) = wl.lift(model, np.zeros((1, n))).parts
    assert float(found.weights.w_std) == pytest.approx((variance * n) ** 0.5)


def test_trained_and_orthogonal_weights_are_refused():
    layer = eqx.nn.Linear(48, 48, use_bias=False, key=jax.random.key(0))
    turned = jax.nn.initializers.orthogonal()(jax.random.key(1), (48, 48), jnp.float32)
    low = layer.weight + 0.3 * jnp.outer(jnp.sin(jnp.arange(48.0)), jnp.cos(jnp.arange(48.0)))
    for weights in (turned, low, jnp.abs(layer.weight)):
        model = eqx.tree_at(lambda one: one.weight, layer, weights)
        with pytest.raises(WidelimitError, match="freshly drawn"):
            wl.lift(model, np.zeros((1, 48)))
        wl.lift(model, np.zeros((1, 48)), deviations="measured")
