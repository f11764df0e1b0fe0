"""Numbers that decide whether something cancels, at both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.errors import NetworkError
from widelimit.netsor import Program
from widelimit.programs.entrywise import _degree
from widelimit.programs.scalars import WideScalar
from widelimit.programs.thresholds import (
    NO_DIFFERENCE,
    NO_EVEN_PART,
    NO_MEAN,
    NO_VARIANCE,
    PARALLEL,
    PLAIN_MEAN,
    SAME_MEAN,
    SIMPLE_EXPONENT,
)
from widelimit.trace import RefusedError, trace

X = np.array([[0.6, 0.0, 0.8]])


def normal(key, *shape):
    return jax.random.normal(key, shape) / shape[-1] ** 0.5


def variance(body):
    """Of `readout · tanh(z) · body(z, z', n)` for independent standard normals z and z'."""

    def make(n, key):
        a, b, c = jax.random.split(key, 3)
        embed, other = (normal(k, 3, n) * n**0.5 for k in (a, b))
        readout = normal(c, n)
        return lambda x: readout @ (jnp.tanh(x @ embed) * body(x @ embed, x @ other, n))

    return trace(make, X).limit(draws=256).covariance().value.item()


PLAIN = variance(lambda z, w, n: 1.0)


@pytest.mark.parametrize("mean", [2 * NO_MEAN, PLAIN_MEAN / 2, 2 * PLAIN_MEAN])
def test_small_means_count(mean):
    found = variance(lambda z, w, n: jnp.sum(z * (w + mean * z)) / (mean * n))
    assert found == pytest.approx(PLAIN, rel=1e-6)


def test_smaller_means_are_rounding():
    with pytest.raises(NetworkError, match="order one"):
        variance(lambda z, w, n: jnp.sum(z * (w + NO_MEAN / 2 * z)) / n)


def test_differences_of_averages():
    def body(share):
        return lambda z, w, n: (jnp.mean(z**2) * (1 + share) - jnp.mean(w**2)) / share

    assert variance(body(2 * NO_DIFFERENCE)) == pytest.approx(PLAIN, rel=1e-6)
    with pytest.raises(RefusedError, match="Leading orders do not cancel"):
        variance(body(NO_DIFFERENCE / 2))


def test_sums_that_are_nearly_odd():
    """What weights made of two inputs of one length: covariances fluctuate at finite widths."""

    def law(share):
        def make(n, key):
            a, b, c = jax.random.split(key, 3)
            embed, weights, readout = normal(a, 3, n) * n**0.5, normal(b, n, n), normal(c, n)

            def model(x):
                z, w = (y @ embed @ weights for y in (x, jnp.roll(x, 1)))
                score = jnp.sum(z * (x @ embed) + share * (z**2 - w**2)) / n**0.5
                return readout @ (jnp.tanh(x @ embed) * score)

            return model

        return trace(make, X).limit(draws=256).covariance().value.item()

    assert law(NO_EVEN_PART / 100) == pytest.approx(PLAIN, rel=0.4)
    with pytest.raises(RefusedError, match="centred at every width"):
        law(100 * NO_EVEN_PART)


@pytest.mark.parametrize(("share", "there"), [(16, True), (1 / 16, False)])
def test_variances_of_forms(share, there):
    p = Program()
    x, w = p.input("x"), p.matrix("W")
    gap = np.sqrt(share * 4 * NO_VARIANCE)  # of a form whose terms add up to 2
    form = (1 + gap) * (w @ x) - (w @ x)
    found = p.limit().second_moment(form, form).value
    assert found == (pytest.approx(gap**2, rel=0.01) if there else 0)


@pytest.mark.parametrize(("share", "parallel"), [(100, False), (0.25, True)])
def test_nearly_parallel_variables(share, parallel):
    """`E[sign(u) sign(v)] = 1 − 2 arccos(ρ)/π`, which falls steeply at ρ = 1."""
    p = Program()
    u, v = p.inputs("u", covariance=np.eye(2))
    step = lambda a: p.map(lambda x: np.sign(x), a, name="step")  # noqa: E731
    gap = np.sqrt(2 * share * PARALLEL)
    found = p.limit().second_moment(step(u), step(u + gap * v)).value
    exact = 1.0 if parallel else 1 - 2 * gap / np.pi
    assert found == pytest.approx(exact, abs=0.1 * 2 * gap / np.pi)


def test_means_that_move_with_the_scalars():
    def body(share):
        def make(n, key):
            a, b, c = jax.random.split(key, 3)
            embed, gate, readout = normal(a, 3, n) * n**0.5, normal(b, n), normal(c, n)

            def model(x):
                h = jnp.tanh(x @ embed)
                return readout @ h + 1 + share * jnp.tanh(gate @ h)

            return model

        return trace(make, X).limit(draws=16).mean.item()

    assert body(SAME_MEAN / 10) == pytest.approx(1.0)
    with pytest.raises(RefusedError, match="a mean that is not random"):
        body(100 * SAME_MEAN)


def test_exponents_that_are_fractions():
    near, far = (_degree(WideScalar.constant(0.5 + s * SIMPLE_EXPONENT)) for s in (0.5, 2.0))
    assert near == 0.5
    assert far is None
