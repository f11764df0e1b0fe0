"""Audits of three transformers: the powers of n, right by hand."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from widelimit.app.cli import app
from widelimit.trace import Verdict, trace

HALF = Fraction(1, 2)
X = np.random.default_rng(0).standard_normal((2, 3, 4))


class Transformer(eqx.Module):
    embed: jax.Array
    query: jax.Array
    key: jax.Array
    value: jax.Array
    readout: jax.Array
    score_power: float = eqx.field(static=True)
    multiplier: bool = eqx.field(static=True)

    def __init__(self, n, key, *, score_power=0.5, ntk=False):
        shapes = [(n, 4), (n, n), (n, n), (n, n), (1, n)]
        keys = jax.random.split(key, len(shapes))
        drawn = [
            jax.random.normal(k, shape) * (1.0 if ntk else shape[1] ** -0.5)
            for k, shape in zip(keys, shapes, strict=True)
        ]
        self.embed, self.query, self.key, self.value, self.readout = drawn
        self.score_power, self.multiplier = score_power, ntk

    def matmul(self, weights, x):
        y = x @ weights.T
        return y * weights.shape[1] ** -0.5 if self.multiplier else y

    def __call__(self, x):
        x = self.matmul(self.embed, x)
        queries, keys = self.matmul(self.query, x), self.matmul(self.key, x)
        scores = queries @ keys.T / queries.shape[1] ** self.score_power  # scores
        x = x + jax.nn.softmax(scores) @ self.matmul(self.value, x)
        return self.matmul(self.readout, jax.nn.relu(jnp.mean(x, axis=0)))


def standard(n, key):
    return Transformer(n, key)


def ntk(n, key):
    return Transformer(n, key, ntk=True)


def vanishing(n, key):
    return Transformer(n, key, score_power=1.0)


@pytest.fixture(scope="module")
def audits():
    return {make.__name__: trace(make, X).audit() for make in (standard, ntk, vanishing)}


def test_parameters_of_the_two_parameterisations_differ(audits):
    def powers(name):
        return [row.power for row in audits[name].of("parameter")]

    # The first layer has finite fan-in; query, key and value share a line, a shape and a law.
    assert sorted(powers("standard")) == [-HALF, -HALF, 0]
    assert sorted(powers("ntk")) == [0, 0, 0]


@pytest.mark.slow
def test_gradients_tell_standard_from_ntk_parameterisation():
    kernels = {make.__name__: trace(make, X).ntk(draws=16) for make in (standard, ntk)}
    # Θ of weights of size 1/√n grows with n; with multipliers it stays.
    assert kernels["standard"].power == 1
    assert kernels["ntk"].power == 0


def test_scores_stay_or_vanish(audits):
    def verdicts(name):
        return {row.verdict for row in audits[name].of("score")}

    assert verdicts("standard") == verdicts("ntk") == {Verdict.STAYS}
    assert verdicts("vanishing") == {Verdict.VANISHES}
    (row,) = audits["vanishing"].of("score")
    assert row.power == -HALF
    assert "# scores" in row.place.code


def test_activations_and_outputs_stay(audits):
    for audit in audits.values():
        assert audit.stopped is None
        assert [row.power for row in audit.of("output")] == [0]
        assert {row.verdict for row in audit.of("activation")} == {Verdict.STAYS}
    assert audits["standard"].healthy
    assert not audits["vanishing"].healthy
    assert len({str(audit) for audit in audits.values()}) == 3


def test_growth_is_followed_to_the_line_that_cannot_bear_it():
    def make(n, key):
        a, b, c = jax.random.split(key, 3)
        w, u = jax.random.normal(a, (n, 4)), jax.random.normal(b, (n, n))
        v = jax.random.normal(c, (1, n))

        def model(x):
            h = jnp.maximum(x @ w.T, 0.0)
            h = h @ u.T  # grows
            return jnp.tanh(h) @ v.T  # stops

        return model

    audit = trace(make, X).audit()
    assert audit.stopped is not None
    assert "# stops" in audit.stopped.place.code
    (row,) = [r for r in audit.of("activation") if r.verdict is Verdict.DIVERGES]
    assert row.power == HALF
    assert "# grows" in row.place.code


MODEL = """
import jax, jax.numpy as jnp

def make(width, key):
    a, b = jax.random.split(key)
    w, v = jax.random.normal(a, (width, 4)), jax.random.normal(b, (1, width))
    return lambda x: jnp.tanh(x @ w.T) @ v.T
"""


def test_the_command_prints_the_table(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    arguments = ["audit", f"{path}:make", "--shape", "3,4"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    assert "diverges" in run.output
    assert "model.py:7" in run.output
    page = tmp_path / "page.html"
    run = CliRunner().invoke(app, [*arguments, "--report", str(page)])
    assert run.exit_code == 0, run.output
    text = page.read_text(encoding="utf-8")
    assert "diverges" in text
    assert "jnp.tanh(x @ w.T) @ v.T" in text
