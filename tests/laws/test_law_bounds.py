"""What laws keep stays within memory=, and any scale of the outputs within double precision."""

import tracemalloc

import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NumericalError, WidelimitError
from widelimit.laws import points

X = np.random.default_rng(0).standard_normal((2, 3, 4))


def net(heads: float = 2, **options) -> wl.Layer:
    return wl.Serial(wl.Attention(8, heads=heads), wl.MeanPool(), wl.Dense(1, **options))


@pytest.mark.parametrize("scaling", ["elementwise", "softmax"])
def test_a_network_without_finite_heads_keeps_one_kernel(scaling):
    layers = [wl.Dense(8), wl.Relu()] if scaling == "elementwise" else [wl.Attention(8)]
    deterministic = wl.Serial(*layers, wl.Dense(1))
    x = np.random.default_rng(1).standard_normal((40, 5, 3))
    law = deterministic.law(x, samples=2, memory=8 * 200**2)
    assert law.kernels.shape == (1, 200, 200)
    with pytest.raises(WidelimitError, match="1 kernels of 200×200 numbers do not fit"):
        deterministic.law(x, samples=2, memory=8 * 200**2 - 1)


@pytest.mark.parametrize("seed", range(8))
def test_rounding_of_sobol_counts_never_exceeds_memory(seed, monkeypatch):
    monkeypatch.setattr(points, "_MOST_DIMENSIONS", 10**4)
    rng = np.random.default_rng(seed)
    draws = int(rng.integers(8, 600))
    most = draws + int(rng.integers(0, draws))
    memory = 8 * most * len(X) ** 2
    law = net().law(X, draws=draws, memory=memory)
    assert law.kernels.nbytes <= memory
    assert law.draws % 8 == 0
    assert 2 * law.draws > draws
    with pytest.raises(WidelimitError, match="do not fit"):
        net().law(X, draws=draws, memory=8 * draws * len(X) ** 2 - 1)


def test_what_a_law_returns_stays_within_memory_and_the_gaussian_law_has_it_too():
    law = net().law(X, draws=16, memory=8 * 16 * 4)
    assert law.gaussian(samples=1).memory == law.memory
    assert law.sample(32).nbytes <= law.memory
    for call in (
        lambda: law.sample(33),
        lambda: law.sample(1, channels=10**12),
        lambda: law.sample_kernels(17),
        lambda: law.sample_ntk(5, channels=2),
        lambda: law.ntk(draws=10**13),
    ):
        with pytest.raises(WidelimitError, match="do not fit into the memory"):
            call()


def test_samples_are_drawn_block_by_block():
    law = wl.Attention(8, heads=1).law(np.random.default_rng(2).standard_normal((1, 40, 4)))
    law.sample(2)  # compiled
    tracemalloc.start()
    found = law.sample(2048)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (2048, 1, 40, 1)
    assert peak < 8 * 2048 * 40**2  # all of their kernels


@pytest.mark.parametrize("heads", [10**9, 2**31, 10**18, 2**63, 10**30])
def test_heads_beyond_reason_are_refused_at_once(heads):
    with pytest.raises(WidelimitError, match=r"do not fit into|no positive integer below"):
        net(heads=heads).law(X)
    with pytest.raises(WidelimitError, match="normals behind a draw"):
        net(heads=wl.INFINITE).law(X, samples=10**12)


@pytest.mark.parametrize("scale", [1e80, 1e-80, 1e145, 1e-145])
@pytest.mark.parametrize("dimensions", [256, 0], ids=["sobol", "random"])
def test_laws_at_any_scale_are_those_of_the_unit_law(scale, dimensions, monkeypatch):
    monkeypatch.setattr(points, "_MOST_DIMENSIONS", dimensions)
    options = {"draws": 64}
    unit, law = net().law(X, **options), net(w_std=scale).law(X, **options)
    y = np.array([-1.0, 0.0, 0.3])
    found = [law.kurtosis(0), law.cdf(scale * y, 0), law.density(scale * y, 0)]
    found += [law.quantiles([0.1, 0.9], 0), law.moments((2,), 0), law.covariance()]
    expected = [unit.kurtosis(0), unit.cdf(y, 0), unit.density(y, 0)]
    expected += [unit.quantiles([0.1, 0.9], 0), unit.moments((2,), 0), unit.covariance()]
    powers = [1.0, 1.0, 1 / scale, scale, scale**2, scale**2]
    for one, two, power in zip(found, expected, powers, strict=True):
        np.testing.assert_allclose(one.value / power, two.value, rtol=1e-6)
        np.testing.assert_allclose(one.error / power, two.error, rtol=1e-5, atol=1e-12)
    assert "nan" not in repr(law.at(0)).lower()


def test_moments_beyond_double_precision_are_refused():
    law = net(w_std=1e80).law(X, draws=64)
    with pytest.raises(NumericalError, match="beyond the range of double precision"):
        law.moments((4,), 0)
    small = net(w_std=1e-140).law(np.random.default_rng(3).standard_normal((4, 3, 4)), draws=64)
    with pytest.raises(NumericalError, match="beyond the range of double precision"):
        small.joint_density(np.zeros(4), [0, 1, 2, 3])
