"""What other people's models do: cells of recurrent networks, graphs, tables, axes that are joined.

Each is written in two ways, of which the second needs nothing new, or refused in one sentence.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NetworkError, OptionError
from widelimit.trace import RefusedError, trace

X = np.random.default_rng(0).standard_normal((2, 5, 3))
EDGES = np.array([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


def normal(key, *shape):
    return jax.random.normal(key, shape) / shape[0] ** 0.5


def kernel(model, x=X):
    """`model(n, weights)` is a function of one example; `weights(*shape)` draws."""

    def make(n, key):
        keys = iter(jax.random.split(key, 12))
        return model(n, lambda *shape: normal(next(keys), *shape))

    return trace(make, x).limit().covariance().value


def same(one, two, x=X):
    found, expected = kernel(one, x), kernel(two, x)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def tiled(n, weights):
    embed, token, readout = weights(3, n), weights(1, n), weights(n, 1)
    return lambda x: jnp.tanh(x @ embed + jnp.tile(token, (5, 1))).mean(axis=0) @ readout


def broadcast(n, weights):
    embed, token, readout = weights(3, n), weights(1, n), weights(n, 1)
    return lambda x: jnp.tanh(x @ embed + token).mean(axis=0) @ readout


def graph(gather):
    def model(n, weights):
        embed, edge, readout = weights(3, n), weights(n, n), weights(n, 1)

        def run(x):
            h = jnp.tanh(x @ embed)
            return jnp.tanh(gather(h, h[EDGES[0]] @ edge)).mean(axis=0) @ readout

        return run

    return model


def by_adjacency(h, messages):
    return h + jnp.asarray(EDGES[1] == np.arange(5)[:, None], float) @ messages


def by_scatter(h, messages):
    return h.at[EDGES[1]].add(messages)


def by_segment_sum(h, messages):
    return h + jax.ops.segment_sum(messages, EDGES[1], 5)


def gates(together):
    def model(n, weights):
        embed, one, two, readout = weights(3, n), weights(n, n), weights(n, n), weights(n, 1)

        def run(x):
            h = jnp.tanh(x @ embed)
            if together:
                gate, value = jnp.split(h @ jnp.concatenate([one, two], axis=1), 2, axis=1)
            else:
                gate, value = h @ one, h @ two
            return (jax.nn.sigmoid(gate) * jnp.tanh(value)).mean(axis=0) @ readout

        return run

    return model


def inputs_beside_channels(beside):
    def model(n, weights):
        embed, readout = weights(3, n), weights(n, 1)
        mix = weights(n + 3 if beside else n, n)

        def run(x):
            h = jnp.tanh(x @ embed)
            return jnp.tanh((jnp.concatenate([h, x], axis=1) if beside else h) @ mix)[0] @ readout

        return run

    return model


def cell(scanned):
    def model(n, weights):
        embed, again, readout = weights(3, n), weights(n, n), weights(n, 1)

        def run(x):
            h = jnp.zeros(n, jnp.float32)
            if scanned:
                h, _ = jax.lax.scan(lambda h, t: (jnp.tanh(h @ again + t @ embed), None), h, x)
            else:
                for t in x:
                    h = jnp.tanh(h @ again + t @ embed)
            return h @ readout

        return run

    return model


def gru(cut):
    """One array of weights, cut once in three, or in two thirds and one."""

    def model(n, weights):
        embed, again, readout = weights(3, n), weights(n, 3 * n), weights(n, 1)

        def run(x):
            h = jnp.tanh(x[0] @ embed)
            if cut:
                reset, value = jnp.split(again, [2 * n], axis=1)
                z, r = jnp.split(h @ reset, 2)
            else:
                z, r, value = (again[:, k * n : (k + 1) * n] for k in range(3))
                z, r = h @ z, h @ r
            z, r = jax.nn.sigmoid(z), jax.nn.sigmoid(r)
            return ((1 - z) * h + z * jnp.tanh((r * h) @ value)) @ readout

        return run

    return model


def waves(xp, *, halves):
    def model(n, weights):
        embed, mix, readout = weights(3, n), weights(n, n), weights(n, 1)
        rates = xp.exp(xp.arange(n // 2) * (-2 * np.log(1e4) / n))
        angles = xp.arange(5)[:, None] * rates[None]
        pair = [xp.sin(angles), xp.cos(angles)]
        table = xp.concatenate(pair, 1) if halves else xp.stack(pair, -1).reshape(5, n)
        return lambda x: jnp.tanh((x @ embed + table) @ mix).mean(axis=0) @ readout

    return model


PAIRS = {
    "tile": (tiled, broadcast),
    "scatter-add over nodes": (graph(by_scatter), graph(by_adjacency)),
    "segment_sum": (graph(by_segment_sum), graph(by_adjacency)),
    "weights side by side": (gates(True), gates(False)),
    "a few inputs beside the width": (inputs_beside_channels(True), inputs_beside_channels(False)),
    "a carry of float32": (cell(True), cell(False)),
    "weights in two thirds and one": (gru(True), gru(False)),
    "NumPy's sines": (waves(np, halves=False), waves(jnp, halves=False)),
    "NumPy's sines in halves": (waves(np, halves=True), waves(jnp, halves=True)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_model_written_in_two_ways_has_one_law(name):
    same(*PAIRS[name])


def test_padding_is_found_by_tokens_that_are_not_zero():
    def model(n, weights):
        table, readout = weights(5, n), weights(n, 1)

        def run(tokens):
            there = (tokens != 0).astype(float)
            return (jnp.tanh(table[tokens]) * there[:, None]).sum(axis=0) / there.sum() @ readout

        return run

    full = kernel(model, np.array([[1, 2, 3], [3, 1, 1]]))
    padded = kernel(model, np.array([[1, 2, 3, 0, 0], [3, 1, 1, 0, 0]]))
    np.testing.assert_allclose(padded, full, rtol=1e-9)


def test_relu_of_constants_is_a_constant():
    def model(add):
        def model(n, weights):
            embed, readout = weights(3, n), weights(n, 1)
            return lambda x: jnp.tanh(x @ embed + add((1, n))).mean(axis=0) @ readout

        return model

    same(model(lambda n: jax.nn.relu(jnp.ones(n)) + jax.nn.relu(-jnp.ones(n))), model(jnp.ones))


def test_max_pooling_is_the_model_at_large_width():
    def make(n, key):
        embed, readout = normal(key, 3, n), normal(jax.random.fold_in(key, 1), n, 1)
        return lambda x: (x @ embed).max(axis=0) @ readout

    table = trace(make, X).compare((256,), 2048)
    assert np.abs(table.widths[0].second_z).max() < 4
    bent = table.second * 1.2
    error = np.hypot(table.widths[0].second_error, table.second_error)
    assert (np.abs(table.widths[0].second - bent) / error).max() > 4


def test_a_recurrent_cell_of_many_steps_is_integrated():
    """Sixty variables at once: every point is far out, which is no sign of a heavy tail."""

    def model(n, weights):
        read, again, readout = weights(3, 4 * n), weights(n, 4 * n), weights(n, 1)

        def run(x):
            h = c = jnp.zeros(n)
            for t in x:
                f, i, g, o = jnp.split(t @ read + h @ again, 4)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return h @ readout

        return run

    def make(n, key):
        keys = iter(jax.random.split(key, 3))
        return model(n, lambda *shape: normal(next(keys), *shape))

    table = trace(make, X).compare((128,), 1024)
    assert np.abs(table.widths[0].second_z).max() < 4


# ---- honest finite width ---------------------------------------------------------------------


def torch_like(width, key):
    """Weights and biases of variance 1/(3n), as `eqx.nn.MLP` and torch draw them."""
    return eqx.nn.MLP(3, 2, width, 3, key=key)


def test_own_biases_are_those_of_the_model_at_its_own_width():
    x = X[:, 0]
    table = trace(torch_like, x).compare((64,), 2048)
    own = trace(torch_like, x, biases="own", width=64).limit().covariance().value
    size = table.second.shape[0]
    own = own.transpose(0, 2, 1, 3).reshape(size, size)
    found, error = table.widths[0].second, table.widths[0].second_error
    away = np.abs(found - own) / error
    assert away.max() < 5
    assert (np.abs(found - table.second) / error).max() > 20  # the limit itself is far off


def test_check_says_how_far_the_limit_is_from_the_model_at_its_width():
    x = X[:, 0]
    report = trace(torch_like, x, width=64).check()
    assert report.ok
    assert not report.covered
    assert "at width 64" in str(report)
    assert "biases='own'" in str(report)
    assert trace(torch_like, x, width=64).check(compare=False).covered
    assert trace(torch_like, x, width=64, biases="own").check().covered


def test_own_biases_need_a_width_and_the_remedy_works():
    with pytest.raises(OptionError, match="without the width"):
        trace(torch_like, X[:, 0], biases="own")
    assert trace(torch_like, X[:, 0], biases="own", width=64).limit().shape == (2, 2)


# ---- refused in one sentence, with a remedy that works ---------------------------------------


def test_a_model_that_ignores_the_width_is_refused_and_the_remedy_works():
    def make(n, key):
        embed = jax.random.normal(key, (3, 16))
        return lambda x: (x @ embed).sum()

    with pytest.raises(RefusedError, match="No axis grew") as found:
        trace(make, X).limit()
    assert "lambda width, key: Model(hidden=width, key=key)" in str(found.value)

    def model(hidden, key):
        return make_of(hidden)(hidden, key)

    def make_of(hidden):
        def make(_, key):
            embed = jax.random.normal(key, (3, hidden))
            last = jax.random.normal(jax.random.fold_in(key, 1), (hidden,)) / hidden**0.5
            return lambda x: (x @ embed).mean(axis=0) @ last

        return make

    assert trace(lambda width, key: model(hidden=width, key=key), X).limit().shape == (2,)


ALONG = {
    "a moving average": lambda h: jax.lax.reduce_window(h, 0.0, jax.lax.add, (3,), (1,), "VALID"),
    "a moving maximum": lambda h: jax.lax.reduce_window(
        h, -np.inf, jax.lax.max, (3,), (1,), "VALID"
    ),
    "a convolution": lambda h: jnp.convolve(h, jnp.ones(3), mode="valid"),
    "all channels but the first": lambda h: h[1:],
    "channels from the third on": lambda h: jax.lax.dynamic_slice(h, (3,), (len(h) - 3,)),
}


@pytest.mark.parametrize("name", ALONG)
def test_neighbouring_channels_are_not_told_apart(name):
    """Axes of n + b channels are read as n: what moves channels by a few of them is refused."""

    def make(n, key):
        embed = normal(key, 3, n)
        return lambda x: ALONG[name](jnp.tanh(x[0] @ embed)).mean()

    with pytest.raises(RefusedError, match=r"hannel") as found:
        trace(make, X).limit()
    assert "test_models_people_have.py:" in str(found.value)


def test_a_model_that_does_not_run_is_refused_with_its_line():
    def make(n, key):
        embed = jax.random.normal(key, (7, n))
        return lambda x: (x @ embed).mean(axis=0)

    with pytest.raises(NetworkError, match=r"does not run.*test_models_people_have\.py:\d+"):
        trace(make, X).limit()
    assert trace(make, np.ones((2, 5, 7))).limit().shape == (2,)


@pytest.mark.filterwarnings("ignore::widelimit.lift.LiftWarning")  # of a first law, in most draws
def test_torch_modules_are_sent_to_lift_and_lift_takes_them():
    torch = pytest.importorskip("torch", reason="torch is not a dependency")
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    x = np.float32(X[:, 0])
    for make in (module, lambda width, key: module):
        with pytest.raises(NetworkError, match="use lift"):
            trace(make, x).limit()
    assert wl.lift(module, x).kernel(x, ntk=False).nngp.shape == (2, 2)


def test_weights_that_are_joined_and_used_alone_are_refused_and_the_remedy_works():
    def model(joined):
        def model(n, weights):
            embed, one, two, readout = weights(3, n), weights(n, n), weights(n, n), weights(n, 1)

            def run(x):
                h = jnp.tanh(x[0] @ embed)
                both = h @ jnp.concatenate([one, two], 1) if joined else None
                p, q = jnp.split(both, 2) if joined else (h @ one, h @ two)
                return (jnp.tanh(p) * q + h @ one) @ readout

            return run

        return model

    with pytest.raises(RefusedError, match="used by themselves in another") as found:
        kernel(model(True))
    assert "separate weights" in str(found.value)
    assert kernel(model(False)).shape == (2, 2, 1, 1)
