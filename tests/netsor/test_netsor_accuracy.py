"""The limit law where rounding, overflow or the grid could spoil it."""

import numpy as np
import pytest
from scipy import special

from widelimit.errors import NumericalError
from widelimit.netsor import (
    PreconditionWarning,
    Program,
    cos,
    erf,
    exp,
    relu,
    sign,
    sin,
    tanh,
)


def test_forms_that_cancel_have_no_variance() -> None:
    """A linear form that is zero by a singular covariance: rounding must not give it a sign."""
    rows = np.random.default_rng(0).normal(size=(8, 2, 3))
    for points in rows:
        factor = np.stack([*points, 0.7 * points[0] + 1.3 * points[1]])
        p = Program()
        x, y, z = p.inputs("x", covariance=factor @ factor.T)
        w = p.matrix("W")
        nothing = 0.7 * x + 1.3 * y - z
        law = p.limit()  # before sign, about which it would warn
        for zero in (nothing, (w @ (x + y)) - (w @ x) - (w @ y), w @ nothing**2):
            for function in (relu, erf, sign, tanh):
                value = function(zero)
                assert law.mean(value).value == 0
                np.testing.assert_array_equal(law.gram([value, zero]).value, 0)
                assert law.second_moment(value, x).value == 0
            assert law.second_moment(cos(zero), cos(zero)).value == pytest.approx(1.0)


@pytest.mark.parametrize("mean", [1e3, 1e9])
def test_large_means_cost_no_digits(mean: float) -> None:
    p = Program()
    x = p.input("x", mean=mean)
    law = p.limit()
    expected = pair_of_one(np.tanh)
    for shifted in (tanh(x - mean), p.map(lambda v: np.tanh(v - mean), x)):
        found = law.second_moment(shifted, shifted)
        assert found.value == pytest.approx(expected, rel=1e-6)
    assert law.mean(relu(x - mean)).value == pytest.approx(1 / np.sqrt(2 * np.pi))


def pair_of_one(fn) -> float:
    """`E[fn(u)²]` for a standard normal u."""
    z, weights = np.polynomial.hermite_e.hermegauss(200)
    return float(fn(z) ** 2 @ weights / weights.sum())


@pytest.mark.parametrize("variance", [1e-12, 1.0, 720.0, 2000.0])
def test_waves_of_any_variance(variance: float) -> None:
    """`E[sin(u)²] = (1 − e^{−2q})/2`, where sinh(q) has long overflowed."""
    p = Program()
    u = p.input("u", std=np.sqrt(variance))
    law = p.limit()
    share = -np.expm1(-2 * variance) / 2
    assert law.second_moment(sin(u), sin(u)).value == pytest.approx(share, rel=1e-9)
    assert law.second_moment(cos(u), cos(u)).value == pytest.approx(1 - share, rel=1e-9)


def test_overflow_in_a_closed_form_is_reported() -> None:
    p = Program()
    grown = exp(p.input("u", std=30.0))
    with pytest.warns(PreconditionWarning, match="exp"):
        law = p.limit()
    with (
        np.errstate(over="ignore"),
        pytest.raises(NumericalError, match="Moments of the limit must be finite"),
    ):
        law.second_moment(grown, grown)


@pytest.mark.parametrize("kink", [0.001, 0.03, 0.0625, 0.07, 0.09, 0.12])
def test_errors_cover_kinks_and_jumps_wherever_they_fall(kink: float) -> None:
    """On the grid, between its points, and where a grid twice as coarse agrees by chance."""
    p = Program()
    x = p.input("x")
    bent, jump = relu(x + kink), p.map(lambda v: v + kink > 0, x)
    law = p.limit()
    density, below = np.exp(-(kink**2) / 2) / np.sqrt(2 * np.pi), special.ndtr(kink)
    for vector, exact in ((bent, kink * below + density), (jump, below)):
        found = law.mean(vector)
        assert abs(found.value - exact) < found.error
        assert found.error < 0.1
