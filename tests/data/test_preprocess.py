import numpy as np
import pytest

from widelimit.data import ZCA, Standardise, downsample, load_cifar10
from widelimit.errors import ShapeError


def test_per_channel(rng):
    x = rng.integers(0, 256, (50, 4, 5, 3), dtype=np.uint8)
    scaled = Standardise.per_channel(x)(x)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=(0, 1, 2)), 1, atol=1e-6)


def test_test_data_use_the_numbers_of_the_training_data(rng):
    train, test = rng.normal(3, 2, (200, 6, 2)), rng.normal(3, 2, (100, 6, 2))
    step = Standardise.per_channel(train)
    expected = (test - train.mean(axis=(0, 1))) / train.std(axis=(0, 1))
    np.testing.assert_allclose(step(test), expected, rtol=1e-5, atol=1e-5)
    own = (test - test.mean(axis=(0, 1))) / test.std(axis=(0, 1))
    assert np.abs(step(test) - own).max() > 1e-3


def test_padding_does_not_count(rng):
    x, mask = rng.normal(5, 1, (30, 7, 2)), rng.random((30, 7)) < 0.6
    x[~mask] = 0
    step = Standardise.per_channel(x, mask=mask)
    np.testing.assert_allclose(step.mean, x[mask].mean(axis=0))
    np.testing.assert_allclose(step.std, x[mask].std(axis=0))


def test_constant_channels_become_zero(rng):
    x = rng.random((20, 3, 2))
    x[..., 1] = 0.7
    scaled = Standardise.per_channel(x)(x)
    assert np.isfinite(scaled).all()
    np.testing.assert_allclose(scaled[..., 1], 0, atol=1e-6)


def test_other_shapes_are_refused(rng):
    with pytest.raises(ShapeError, match="another shape than the examples"):
        Standardise.per_channel(rng.random((5, 4, 3)))(rng.random((5, 4, 2)))
    with pytest.raises(ShapeError, match="another shape than the examples"):
        ZCA.fit(rng.random((5, 4, 3)))(rng.random((5, 3, 4)))


def test_weak_zca_whitens(rng):
    x = (rng.normal(size=(4000, 12)) @ rng.normal(size=(12, 12))).reshape(4000, 2, 2, 3) + 4
    white = ZCA.fit(x, strength=1e-9)(x).reshape(4000, 12).astype(np.float64)
    np.testing.assert_allclose(white.T @ white / 4000, np.eye(12), atol=1e-3)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-4)


def test_zca_follows_its_formula(rng):
    x = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    step = ZCA.fit(x, strength=0.3)
    covariance = np.cov(x, rowvar=False, bias=True)
    ridge = 0.3 * np.trace(covariance) / 5
    # W is symmetric with W² (C + εI) = I, which names it uniquely among positive matrices.
    np.testing.assert_allclose(step.matrix, step.matrix.T, atol=1e-12)
    product = step.matrix @ step.matrix @ (covariance + ridge * np.eye(5))
    np.testing.assert_allclose(product, np.eye(5), atol=1e-9)
    assert np.linalg.eigvalsh(step.matrix).min() > 0
    np.testing.assert_allclose(step(x), (x - x.mean(axis=0)) @ step.matrix, rtol=1e-4, atol=1e-4)


def test_zca_with_fewer_examples_than_components(rng):
    x = rng.normal(size=(10, 40))
    white = ZCA.fit(x, strength=0.1)(x)
    assert np.isfinite(white).all()
    assert (white**2).sum(axis=1).max() <= 10 * 1.01


@pytest.mark.parametrize(("count", "strength"), [(1, 0.1), (5, 0.0), (5, float("nan"))])
def test_zca_needs_examples_and_strength(count, strength, rng):
    with pytest.raises(ShapeError, match=r"cannot be whitened.*two or more examples"):
        ZCA.fit(rng.random((count, 4)), strength=strength)


def test_zca_needs_examples_that_differ():
    with pytest.raises(ShapeError, match="Equal examples"):
        ZCA.fit(np.ones((5, 4)))


def test_downsampling_by_whole_factors(rng):
    x = rng.integers(0, 256, (3, 8, 12, 2), dtype=np.uint8)
    small = downsample(x, (4, 3))
    assert small.dtype == np.float32
    np.testing.assert_allclose(small[1, 2, 0], x[1, 4:6, 0:4].mean(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_array_equal(downsample(x, (8, 12)), x)


def test_downsampling_by_any_factor():
    # Three pixels to two: the middle one counts half in each.
    x = np.array([3.0, 6, 30])[None, None, :, None]
    np.testing.assert_allclose(downsample(x, (1, 2))[0, 0, :, 0], [4, 22], rtol=1e-6)


def test_downsampling_equals_repeat_then_average(rng):
    x = rng.random((2, 7, 5, 3))
    fine = np.repeat(np.repeat(x, 4, axis=1), 3, axis=2)  # 28 × 15, which 4 and 3 divide
    np.testing.assert_allclose(
        downsample(x, (4, 3)), fine.reshape(2, 4, 7, 3, 5, 3).mean(axis=(2, 4)), rtol=1e-5
    )


@pytest.mark.parametrize("size", [(9, 2), (2, 9), (0, 2)])
def test_downsampling_only_makes_smaller(size):
    with pytest.raises(ShapeError, match="can be made so small"):
        downsample(np.ones((1, 8, 8, 3)), size)


def test_downsampling_needs_images():
    with pytest.raises(ShapeError, match="height, width, channels"):
        downsample(np.ones((8, 8, 3)), (2, 2))


def test_real_images_through_the_whole_path(real_data):
    data = load_cifar10(real_data).subset(train=500, test=100, key=2)
    data = data.map(lambda x: downsample(x, (8, 8)))
    white = data.map(ZCA.fit(data.x_train, strength=0.1))
    assert np.bincount(data.y_train).tolist() == [50] * 10
    flat = white.x_train.reshape(500, -1).astype(np.float64)
    spread = np.linalg.eigvalsh(flat.T @ flat / 500)
    assert spread.max() < 1.001
    assert (spread > 0.5).sum() > 5
    assert np.isfinite(white.x_test).all()
