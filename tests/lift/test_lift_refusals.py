"""What `lift` is given is checked: one sentence with a remedy, never a raw error or a hang."""

import re

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
TOKENS, IMAGES = np.zeros((2, 5), int), np.zeros((2, 3, 6, 6))
WORDS, PLACES = (eqx.nn.Embedding(40, 64, key=jax.random.key(k)) for k in (5, 10))
NORM = eqx.nn.LayerNorm(64)
GAIN = eqx.tree_at(lambda norm: norm.weight, NORM, jnp.linspace(0.5, 2.0, 64))
SHIFT = eqx.tree_at(lambda norm: norm.bias, NORM, jnp.linspace(0.5, 2.0, 64))
GROUPS, PLAIN = (
    eqx.nn.Conv2d(3, 6, 3, padding=1, groups=groups, key=jax.random.key(6)) for groups in (3, 1)
)
MEAN, PADDED_MEAN, MAX = (
    eqx.nn.AvgPool2d(2), eqx.nn.AvgPool2d(2, padding=1), eqx.nn.MaxPool2d(2),
)  # fmt: skip
PAIR = wide(11, 5, 2)
QUERY, KEY, VALUE = wide(7), wide(8), wide(9)
LOWER = np.tril(np.ones((5, 5), bool))
OWN_MASKS = np.stack([LOWER, LOWER.T])
DISTANCE = -0.5 * np.abs(np.arange(5)[:, None] - np.arange(5))


def each(layer):
    return jax.vmap(layer)


def heads(x, *, weights=(QUERY, KEY, VALUE), mask=None, added=0.0, function=lambda y: y):
    """Two heads by hand."""
    q, k, v = (each(w)(x).reshape(len(x), 2, 32) for w in weights)
    scores = jnp.einsum("thd,shd->hts", q, k) * 32**-0.5 + added
    scores = scores if mask is None else jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores), v)
    return each(W)(function(mixed).reshape(len(x), 64))


def embedded(x):
    return heads(each(WORDS)(x))


REMEDIES = {
    "a mask computed from tokens": (
        lambda x: heads(each(WORDS)(x), mask=(x != 0)[None, None]), TOKENS,
        "computed from the input itself", "mask=", embedded,
    ),
    "indices computed from tokens": (
        lambda x: each(WORDS)(jnp.cumsum(x)), TOKENS, "indices that are computed", "constants",
        lambda x: each(WORDS)(x) + each(PLACES)(np.arange(5)),
    ),
    "tokens that are changed": (
        lambda x: each(WORDS)((x + 1) % 40), TOKENS, "Tokens are changed", "before lifting",
        each(WORDS),
    ),
    "whole numbers": (
        lambda x: PAIR(x.astype(float)), TOKENS, "whole numbers", "x.astype", PAIR,
        TOKENS.astype(float),
    ),
    "one position": (heads, ALL[:, :1], "over one position", "two positions", heads, ALL),
    "a mask for each head": (
        lambda x: heads(x, mask=OWN_MASKS), ALL, "masks of their own", "same mask",
        lambda x: heads(x, mask=LOWER),
    ),
    "distances in scores": (
        lambda x: heads(x, added=DISTANCE[None]), ALL, "not a mask", "wl.Alibi", heads,
    ),
    "own position alone": (
        lambda x: heads(x, mask=np.eye(5, dtype=bool)), ALL, "itself alone", "see each other",
        lambda x: heads(x, mask=LOWER),
    ),
    "values that are keys": (
        lambda x: heads(x, weights=(QUERY, KEY, KEY)), ALL, "used a second time", "its own module",
        heads,
    ),
    "a function of heads": (
        lambda x: heads(x, function=jnp.tanh), ALL, "do not simply weigh", "in layers", heads,
    ),
    "groups": (GROUPS, IMAGES, "groups=3", "plain convolutions", PLAIN),
    "a pool beyond the edge": (
        lambda x: PADDED_MEAN(PLAIN(x)), IMAGES, "beyond the edge", "no padding",
        lambda x: MEAN(PLAIN(x)),
    ),
    "maxima": (
        lambda x: MAX(PLAIN(x)), IMAGES, "Max pooling", "AvgPool", lambda x: MEAN(PLAIN(x)),
    ),
    "a part of a sum": (
        lambda x: each(W)(x).sum(axis=0) / 2, ALL, "neither mean nor sum", "take the mean",
        lambda x: each(W)(x).mean(axis=0),
    ),
    "sums of what was repeated": (
        lambda x: jnp.broadcast_to(each(W)(x).mean(axis=0), (4, 64)).mean(axis=0), ALL,
        "repeated", "do not repeat", lambda x: each(W)(x).mean(axis=0),
    ),
    "weights across positions": (
        lambda x: jnp.tanh(each(V)(x)).T @ RANDOM[:, :3], ALL, "across positions", "mean",
        lambda x: jnp.tanh(each(V)(x)).mean(axis=0),
    ),
    "some positions": (
        lambda x: each(V)(each(W)(x)[1:3]), ALL, "2 of 5 positions", "read one position",
        lambda x: V(each(W)(x)[1]),
    ),
    "positions in another order": (
        lambda x: each(W)(x)[::-1], ALL, "in order", "as they are in x", each(W),
    ),
    "branches of other positions": (
        lambda x: each(V)(x) + each(W)(x)[::-1], ALL, "another order", "same positions",
        lambda x: each(V)(x) + each(W)(x),
    ),
    "a branch that is repeated": (
        lambda x: each(V)(x) + jnp.broadcast_to(each(W)(x).mean(axis=0), (5, 64)), ALL, "repeated",
        "same positions", lambda x: each(V)(x) + each(W)(x),
    ),
    "a row for all and a table": (
        lambda x: each(W)(x) + np.repeat(RANDOM[:1], 5, axis=0) * np.array([[1, 1, 1, 2, 2]]).T,
        ALL, "share theirs", "one table", with_table(RANDOM),
    ),
    "a token behind": (
        lambda x: jnp.concatenate([each(W)(x), RANDOM[:1]]), ALL, "joined", "in front",
        lambda x: jnp.concatenate([RANDOM[:1], each(W)(x)]),
    ),
    "gains that were trained": (
        lambda x: each(GAIN)(each(W)(x)), ALL, "gain of a normalisation", "freshly",
        lambda x: each(NORM)(each(W)(x)),
    ),
    "shifts that were trained": (
        lambda x: each(SHIFT)(each(W)(x)), ALL, "shift of a normalisation", "freshly",
        lambda x: each(NORM)(each(W)(x)),
    ),
    "probabilities": (
        lambda x: jax.nn.softmax(U(jnp.tanh(W(x)))), ONE, "no known part", "logits",
        lambda x: U(jnp.tanh(W(x))),
    ),
    "a constant": (lambda x: jnp.ones(3), ONE, "does not depend", "made of x", W),
    "a factor without weights": (
        lambda x: NORM(W(x)) * 0.5, ONE, "factor of 0.5", "scale the weights",
        lambda x: V(W(x)) * 0.5,
    ),
    "weights in both branches": (
        lambda x: (lambda h: (h + V(x)) * h)(W(x)), ONE, "both branches", "its own weights",
        lambda x: W(x) * V(x),
    ),
    "sorting": (
        lambda x: U(jnp.sort(W(x))), ONE, "'sort' at", "wl.Elementwise", lambda x: U(jnp.sin(W(x))),
    ),
    "trained weights": (
        eqx.tree_at(lambda one: one.weight, W, jnp.abs(W.weight)), ONE, "freshly drawn",
        "deviations='measured'", W,
    ),
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
    model, x, part, remedy, better, *inputs = REMEDIES[name]
    with pytest.raises(WidelimitError, match=part) as caught:
        wl.lift(model, x)
    assert re.search(remedy, str(caught.value).partition("Remedy")[2])
    assert "\n" not in str(caught.value)
    assert wl.lift(better, *(inputs or [x])).parts


NOWHERE = (
    "two outputs", "a constant", "positions in another order", "trained weights", "groups",
    "a factor without weights",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::widelimit.lift.LiftWarning")
@pytest.mark.parametrize("name", [name for name in REMEDIES if name not in NOWHERE])
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
