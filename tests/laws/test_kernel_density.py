"""KL by kernel density estimates: the authors' formula, and the floor it reports."""

import numpy as np
import pytest
from scipy import stats

from widelimit.errors import NumericalError
from widelimit.laws.kernel_density import kl_kernel_density, smoothed


def test_the_same_numbers_as_scipys_estimates():
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal(3000), 1.3 * rng.standard_t(5, 4000)
    grid = np.linspace(min(one.min(), two.min()), max(one.max(), two.max()), 500)
    p, q = (stats.gaussian_kde(values)(grid) for values in (one, two))
    np.testing.assert_allclose(smoothed(one, grid), p, atol=1e-4 * p.max())
    # The entropy of SciPy normalises, as the authors do.
    truth = stats.entropy(p + 1e-12, q + 1e-12)
    assert kl_kernel_density(one, two).value == pytest.approx(truth, rel=1e-3)


def test_two_samples_of_one_law_show_the_floor():
    rng = np.random.default_rng(1)
    found = [kl_kernel_density(*rng.standard_normal((2, 5000)), points=200) for _ in range(12)]
    values, floors = (
        np.array([getattr(one, name) for one in found]) for name in ("value", "floor")
    )
    spread = values.std(ddof=1)
    assert abs(values.mean() - floors.mean()) < 4 * spread / np.sqrt(12)
    assert 0.5 < np.mean([one.error for one in found]) / spread < 2
    # A floor is no small number: the divergence of a fiftieth in scale drowns in it.
    assert floors.mean() > 2 * (0.5 * (1.02**2 - 1) - np.log(1.02))


def test_apart_samples_stand_out_of_the_floor():
    rng = np.random.default_rng(2)
    found = kl_kernel_density(1.3 * rng.standard_normal(5000), rng.standard_normal(5000))
    truth = 0.5 * (1.3**2 - 1) - np.log(1.3)
    assert found.excess > 10 * found.error
    assert found.value == pytest.approx(truth, rel=0.15)  # smoothing takes a part


def test_a_span_covers_what_it_says():
    rng = np.random.default_rng(3)
    one, two = rng.standard_normal((2, 400))
    wide = kl_kernel_density(one, two, span=(-8.0, 8.0)).value
    assert wide != kl_kernel_density(one, two).value
    for options in ({"span": (1.0, 1.0)}, {"span": (2.0, -2.0)}):
        with pytest.raises(NumericalError, match="span from low to high"):
            kl_kernel_density(one, two, **options)
    with pytest.raises(NumericalError, match="values differ"):
        kl_kernel_density(np.ones(5), two)
