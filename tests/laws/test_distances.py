import numpy as np
import pytest
from scipy import integrate, stats

from widelimit.errors import NumericalError, OptionError, ShapeError
from widelimit.laws.distances import (
    kl_corrected,
    kl_histogram,
    kl_kernel_density,
    smooth,
)

NORMAL = stats.norm()


class Law:
    """A law that knows its cdf alone."""

    def __init__(self, cdf):
        self.cdf = cdf


def kl_normals(mean: float, std: float) -> float:
    """KL(N(mean, std²) ‖ N(0, 1))."""
    return 0.5 * (std**2 + mean**2 - 1) - np.log(std)


def draws(count: int, size: int, *, mean=0.0, std=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return [mean + std * rng.standard_normal(size) for _ in range(count)]


def summary(estimates):
    """Mean, its standard error, standard deviation, mean reported error, mean floor."""
    values = np.array([e.value for e in estimates])
    spread = values.std(ddof=1)
    return (
        values.mean(),
        spread / np.sqrt(len(values)),
        spread,
        np.mean([e.error for e in estimates]),
        np.mean([e.floor for e in estimates]),
    )


PAIRS = [(0.0, 1.0), (0.0, 1.1), (0.0, 0.9), (0.5, 1.0)]


@pytest.mark.parametrize(("mean", "std"), PAIRS)
@pytest.mark.parametrize("size", [2000, 20_000])
def test_corrected_kl_of_normals_is_unbiased_with_an_honest_error(mean, std, size):
    truth = kl_normals(mean, std)
    samples = draws(60, size, mean=mean, std=std)
    value, error, spread, reported, floor = summary([kl_corrected(x, NORMAL) for x in samples])
    # The allowance is the bin width's share of the divergence.
    assert abs(value - truth) < 4 * error + 0.01 * truth
    assert 0.7 < reported / spread < 1.5
    assert abs(floor) < 3e-4
    plain = summary([kl_histogram(x, NORMAL) for x in samples])[0]
    assert abs(value - truth) < 0.2 * abs(plain - truth)


def test_corrected_kl_keeps_the_tails():
    law = stats.norm(scale=np.sqrt(1.25))
    heavy = stats.t(10)
    truth = (
        2
        * integrate.quad(
            lambda y: heavy.pdf(y) * (heavy.logpdf(y) - law.logpdf(y)), 0, 60, limit=200
        )[0]
    )
    samples = [heavy.rvs(20_000, random_state=seed) for seed in range(40)]
    value, error, *_ = summary([kl_corrected(x, law) for x in samples])
    assert error < 0.03 * truth
    assert abs(value - truth) < 4 * error


def test_plain_kl_has_the_floor_it_reports():
    estimates = [kl_histogram(x, NORMAL) for x in draws(60, 20_000)]
    value, error, spread, reported, floor = summary(estimates)
    assert error < 0.02 * value
    assert abs(value - floor) < 0.08 * value  # the range of the bins follows the sample
    assert value > 10 * spread / np.sqrt(60)
    assert 0.7 < reported / spread < 1.5
    more = summary([kl_histogram(x, NORMAL, bins=400) for x in draws(10, 20_000)])[0]
    assert more > 2.5 * value
    assert estimates[0].excess == estimates[0].value - estimates[0].floor


def test_kl_falls_with_sample_size_towards_the_truth():
    errors = []
    for size in (1000, 8000, 64_000):
        values = [kl_histogram(x, NORMAL).value for x in draws(12, size, std=1.1, seed=size)]
        errors.append(abs(np.mean(values) - kl_normals(0, 1.1)))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.3, 1.0), (0.0, 0.9)])
def test_kl_against_a_second_sample(mean, std):
    truth = kl_normals(mean, std)
    samples = draws(40, 20_000, mean=mean, std=std)
    others = draws(40, 30_000, seed=1)
    pairs = list(zip(samples, others, strict=True))
    value, error, spread, reported, floor = summary([kl_corrected(x, z) for x, z in pairs])
    assert abs(value - truth) < 4 * error + 0.01 * truth + 2 * abs(floor)
    assert abs(floor) < 2e-4
    assert 0.6 < reported / spread < 1.6
    plain = summary([kl_histogram(x, z) for x, z in pairs])
    assert abs(value - truth) < 0.5 * abs(plain[0] - truth)
    if truth == 0:
        assert abs(plain[0] - plain[4]) < 4 * plain[1]


def test_kl_is_infinite_where_the_law_has_no_mass_and_finite_in_a_far_tail():
    outside = kl_histogram(np.linspace(0.0, 1.2, 1000), stats.uniform())
    assert outside.value == np.inf
    assert outside.error == np.inf
    far = np.append(draws(1, 5000)[0], 12.0)  # 1 − cdf(12) rounds to 0, sf(12) does not
    assert np.isfinite(kl_corrected(far, NORMAL).value)
    assert kl_corrected(far, Law(NORMAL.cdf)).value == np.inf


@pytest.mark.parametrize("distance", [kl_histogram, kl_corrected])
@pytest.mark.parametrize(
    ("sample", "law", "error", "rule"),
    [
        (np.zeros((3, 2)), NORMAL, ShapeError, "vector"),
        (np.zeros(1), NORMAL, ShapeError, "vector"),
        (np.array([0.0, np.nan]), NORMAL, NumericalError, "finite"),
        (np.arange(5.0), np.array([np.inf, 0.0]), NumericalError, "finite"),
        (np.arange(5.0), 3.0, ShapeError, "vector"),
    ],
)
def test_bad_samples_are_refused(distance, sample, law, error, rule):
    with pytest.raises(error, match=rule):
        distance(sample, law)


@pytest.mark.parametrize(
    ("call", "error", "rule"),
    [
        (lambda: kl_histogram(np.ones(9), NORMAL), NumericalError, "values that differ"),
        (
            lambda: kl_histogram(np.arange(9.0), NORMAL, bins=0),
            OptionError,
            "bins= is not",
        ),
        (lambda: kl_corrected(np.ones(9), NORMAL), NumericalError, "continuous law"),
        (
            lambda: kl_corrected(np.append(np.arange(9.0), 1e9), NORMAL),
            NumericalError,
            "range of the values",
        ),
        (
            lambda: kl_histogram(np.arange(9.0), Law(lambda y: y * np.nan)),
            NumericalError,
            "is not finite",
        ),
        (
            lambda: kl_histogram(np.arange(9.0), Law(lambda y: 0.5)),
            ShapeError,
            "one number per point",
        ),
    ],
)
def test_bad_laws_and_bins_are_refused(call, error, rule):
    with pytest.raises(error, match=rule):
        call()


# --- kernel density estimates: the authors' formula, and the floor it reports ---


def test_the_same_numbers_as_scipys_estimates():
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal(3000), 1.3 * rng.standard_t(5, 4000)
    grid = np.linspace(min(one.min(), two.min()), max(one.max(), two.max()), 500)
    p, q = (stats.gaussian_kde(values)(grid) for values in (one, two))
    np.testing.assert_allclose(smooth(one, grid), p, atol=3e-5 * p.max())
    # The entropy of SciPy normalises, as the authors do.
    truth = stats.entropy(p + 1e-12, q + 1e-12)
    assert kl_kernel_density(one, two).value == pytest.approx(truth, rel=1e-4)


def test_two_samples_of_one_law_show_the_floor():
    rng = np.random.default_rng(1)
    found = [kl_kernel_density(*rng.standard_normal((2, 5000))) for _ in range(12)]
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


def test_constant_samples_have_no_density():
    with pytest.raises(NumericalError, match="values that differ"):
        kl_kernel_density(np.ones(5), np.arange(5.0))
