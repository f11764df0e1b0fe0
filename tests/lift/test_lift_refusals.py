"""What `lift` is given is checked: one sentence with a remedy, never a raw error or a hang."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import WidelimitError
from widelimit.lift import LiftWarning

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


# ---- refusals of JAX models: part, place, and a remedy that is carried out -------------------


def wide(seed, n=64, m=64):
    return eqx.nn.Linear(n, m, use_bias=False, key=jax.random.key(seed))


W, V, U = wide(0), wide(1), wide(2, 64, 1)
ATTEND = eqx.nn.MultiheadAttention(2, 64, key=jax.random.key(3))
ALL, ONE = np.zeros((2, 5, 64)), np.zeros((2, 64))
PADDED = eqx.nn.Conv1d(64, 64, 3, padding=2, key=jax.random.key(4))
CENTRED = eqx.nn.Conv1d(64, 64, 3, padding=1, key=jax.random.key(4))
DROP = eqx.nn.Dropout(0.5)


def attended_first(x):
    return ATTEND(x[:1], x, x)


def attended(x):
    return ATTEND(x, x, x)


def with_table(table):
    return lambda x: jax.vmap(W)(x) + table


SINES = np.sin(np.arange(5)[:, None] / 100 ** (np.arange(64) / 64))
DROPPED = eqx.nn.MultiheadAttention(2, 64, dropout_p=0.1, key=jax.random.key(3))
CALM = eqx.nn.inference_mode(DROPPED)
RANDOM = np.random.default_rng(0).standard_normal((5, 64))
REMEDIES = {
    "sines of positions": (
        with_table(SINES), ALL, "Vectors of positions", "at random", with_table(RANDOM),
    ),
    "dropout in attention": (
        lambda x: DROPPED(x, x, x, key=jax.random.key(0)), ALL, "dropped at random",
        "inference_mode", lambda x: CALM(x, x, x),
    ),
    "weights used twice": (
        lambda x: W(jnp.tanh(W(x))), ONE, "used a second time", "its own module",
        lambda x: V(jnp.tanh(W(x))),
    ),
    "another axis": (
        lambda x: jax.vmap(W)(jnp.tanh(jax.vmap(V)(x)).T.reshape(5, 64)), ALL, "positions",
        "rearrange", lambda x: jax.vmap(W)(jnp.tanh(jax.vmap(V)(x))),
    ),
    "attention to another array": (
        attended_first, ALL, r"MultiheadAttention|line|\.py:\d+", "CrossAttention", attended,
    ),
    "padding": (lambda x: PADDED(x.T), ALL, "padding", "window − 1", lambda x: CENTRED(x.T)),
    "two outputs": (
        lambda x: (U(jnp.tanh(W(x))), x), ONE, "array", "array of interest",
        lambda x: U(jnp.tanh(W(x))),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::widelimit.lift.LiftWarning")
@pytest.mark.parametrize("name", REMEDIES)
def test_a_refusal_names_part_and_remedy_and_the_remedy_works(name):
    model, x, part, remedy, better = REMEDIES[name]
    with pytest.raises(WidelimitError, match=part) as caught:
        wl.lift(model, x)
    assert remedy in str(caught.value).partition("Remedy")[2]
    assert "\n" not in str(caught.value)
    assert wl.lift(better, x).parts


@pytest.mark.parametrize("name", [name for name in REMEDIES if name != "two outputs"])
def test_a_refusal_says_where(name):
    model, x, *_ = REMEDIES[name]
    with pytest.raises(WidelimitError) as caught:
        wl.lift(model, x)
    assert "test_lift_refusals.py:" in str(caught.value)


def test_tracing_is_the_remedy_that_is_always_open():
    def make(width, key):
        one, two = jax.random.split(key)
        first = eqx.nn.Linear(3, width, use_bias=False, key=one)
        last = eqx.nn.Linear(width, 1, use_bias=False, key=two)
        return lambda x: last(jax.vmap(lambda t: jnp.tanh(first(t)))(x)[1:3].mean(axis=0))

    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    with pytest.raises(WidelimitError, match=r"wl\.trace"):
        wl.lift(make(64, jax.random.key(0)), x)
    assert wl.trace(make, x).limit().shape == (2, 1)


# ---- honest finite width ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*uniform.*:widelimit.lift.LiftWarning")
def test_the_distance_from_the_limit_is_said_on_request():
    model = eqx.nn.MLP(6, 3, 64, 3, key=jax.random.key(0))
    x = np.random.default_rng(0).standard_normal((2, 6))
    with pytest.warns(LiftWarning, match="times the second moment of the limit.*'own'"):
        limit = wl.lift(model, x, compare=True)
    own = wl.lift(model, x, compare=True, biases="own")
    ratio = own.kernel(x, ntk=False).nngp / limit.kernel(x, ntk=False).nngp
    assert ratio.diagonal().min() > 3  # as drawn models of this width are
