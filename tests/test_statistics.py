import numpy as np
import pytest
from scipy.stats import binomtest

from widelimit import Estimate
from widelimit.statistics import wilson_interval


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.5321, 0.0041, "0.532 ± 0.004"),
        (0.5321, 0.0014, "0.5321 ± 0.0014"),
        (123.456, 20.0, "123 ± 20"),
        (2.0, 0.0, "2 ± 0"),
        (-1.23456e-7, 3e-9, "-1.23e-07 ± 3e-09"),
        (np.array([1.0, 2.0]), np.array([0.1, 0.5]), "[1.00 ± 0.10, 2.0 ± 0.5]"),
        (np.eye(3), np.full((3, 3), 0.02), "Estimate of shape (3, 3), errors up to 0.02"),
    ],
)
def test_estimates_print_the_digits_that_are_known(value, error, shown):
    assert repr(Estimate(value, error)) == shown
    assert f"{Estimate(value, error)}" == shown


def test_estimates_stand_for_their_value():
    found = Estimate(np.array([1.0, 3.0]), np.zeros(2))
    np.testing.assert_array_equal(found, [1.0, 3.0])
    assert float(Estimate(0.25, 0.1)) == 0.25
    assert f"{Estimate(0.256, 0.1):.2f}" == "0.26"


@pytest.mark.parametrize(("correct", "total"), [(0, 5), (5, 5), (3, 7), (120, 200)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilsons_interval_is_that_of_scipy(correct, total, level):
    theirs = binomtest(correct, total).proportion_ci(level, method="wilson")
    ours = wilson_interval(correct, total, level=level)
    np.testing.assert_allclose(ours, (theirs.low, theirs.high), atol=1e-12)
