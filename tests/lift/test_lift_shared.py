"""Vectors that several positions have in common, and weights that several parts have."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import WidelimitError

WIDTH = 48
IDS = np.array([[1, 2, 3, 1], [4, 2, 0, 5]])
GRID = np.random.default_rng(0).standard_normal((2, 4, 4, 3))


class Segmented(eqx.Module):
    """One row of a table is added to all tokens."""

    tokens: eqx.nn.Embedding
    segments: eqx.nn.Embedding
    readout: eqx.nn.Linear

    def __init__(self, width, key):
        a, b, c = jax.random.split(key, 3)
        self.tokens = eqx.nn.Embedding(6, width, key=a)
        self.segments = eqx.nn.Embedding(2, width, key=b)
        self.readout = eqx.nn.Linear(width, 1, key=c)

    def __call__(self, ids):
        x = jax.vmap(self.tokens)(ids) + self.segments(jnp.array(1))[None]
        return self.readout(x.mean(axis=0))[0]


def test_one_row_for_all_positions_is_common_to_them():
    net = wl.lift(Segmented(WIDTH, jax.random.key(0)), IDS)
    found = net.kernel(IDS, ntk=False, dtype=np.float64).nngp
    law = wl.trace(Segmented, IDS).limit()
    np.testing.assert_allclose(found, law.covariance().value, rtol=1e-6)


def linear(inputs, outputs, key, **options):
    return eqx.nn.Linear(inputs, outputs, key=jax.random.key(key), **options)


PIXELS, READOUT = linear(3, WIDTH, 1), linear(WIDTH, 1, 2)
LINES, COLUMNS = (eqx.nn.Embedding(4, WIDTH, key=jax.random.key(k)) for k in (3, 4))
FREE_LINES, FREE_COLUMNS = np.random.default_rng(1).standard_normal((2, 4, WIDTH))
TABLE = np.random.default_rng(6).standard_normal((4, 4, WIDTH))
ONE, TWO, SAME = (linear(WIDTH, WIDTH, key, use_bias=False) for key in (7, 8, 7))
TIED = eqx.tree_at(lambda layer: layer.weight, TWO, ONE.weight)


def embedded(*tables):
    """Pixels in channels, plus tables; the mean is read."""

    def model(x):
        h = jax.vmap(jax.vmap(PIXELS))(x)
        for table in tables:
            h = h + table()
        return READOUT(h.mean(axis=(0, 1)))[0]

    return model


def looked_up(table):
    return jax.vmap(table)(jnp.arange(4))


def branches(one, two):
    def model(x):
        h = PIXELS(x.mean(axis=(0, 1)))
        return READOUT(one(jax.nn.relu(h)) + two(jnp.tanh(h)))

    return model


def overlapping(combine):
    def model(x):
        h = PIXELS(x.mean(axis=(0, 1)))
        one = ONE(h)
        return READOUT(combine(one + TWO(h), one))

    return model


REFUSED = {
    "a product of branches that share weights": (overlapping(jnp.multiply), "both branches"),
    "a sum of branches that share weights": (overlapping(jnp.add), "both branches"),
    "lines and columns": (
        embedded(lambda: looked_up(LINES)[:, None], lambda: looked_up(COLUMNS)[None]),
        "a row of their own",
    ),
    "the same with arrays": (
        embedded(lambda: FREE_LINES[:, None] + FREE_COLUMNS[None]),
        "independent",
    ),
    "one table twice": (embedded(lambda: TABLE, lambda: TABLE), "a second time"),
    "tied weights": (branches(ONE, TIED), "a second time"),
    "one key twice": (branches(ONE, SAME), "a second time"),
    "a pooled vector repeated": (
        lambda x: READOUT(jnp.sum(PIXELS(x.mean(axis=(0, 1)))[None] + jnp.zeros((4, 1)), axis=0)),
        "repeated",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_parts_and_positions_share_is_refused(name):
    model, word = REFUSED[name]
    with pytest.raises(WidelimitError, match=word) as caught:
        wl.lift(model, GRID)
    assert "wl.trace" in str(caught.value)


def test_independent_vectors_of_many_positions_are_read():
    net = wl.lift(embedded(lambda: TABLE), GRID)
    assert [type(part).__name__ for part in net.parts][1] == "PositionTable"


def test_functions_that_differ_far_out_are_told_apart():
    def lifted(function):
        model = wl.lift(lambda x: READOUT(function(ONE(x))), np.zeros((1, WIDTH)))
        return [repr(part) for part in model.parts[1:-1]]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of first laws, and of kinks
        assert lifted(jax.nn.relu) == ["Relu()"]
        assert lifted(lambda h: jnp.minimum(jax.nn.relu(h), 10.0)) != ["Relu()"]
        assert len(lifted(lambda h: jnp.clip(h, -10.0, 10.0))) == 1


def test_output_biases_vanish_whatever_attention_is_on():
    attention = eqx.nn.MultiheadAttention(
        2, 3, vo_size=WIDTH, output_size=WIDTH, use_output_bias=True, key=jax.random.key(9)
    )
    x = np.zeros((1, 4, 3))
    for biases, vanish in (("limit", True), ("own", False)):
        (found,) = wl.lift(lambda h: attention(h, h, h), x, biases=biases).parts
        assert bool(found.b_std == 0) is vanish
