"""Roots of covariances, quasi-random normals, Gaussians given others."""

import numpy as np
import pytest

from widelimit.errors import NumericalError
from widelimit.gaussians import condition, psd_root, sobol_normals


@pytest.mark.parametrize("seed", range(6))
def test_a_root_times_its_transpose_is_the_covariance_of_any_rank(seed):
    rng = np.random.default_rng(seed)
    draws, size = rng.integers(1, 4), rng.integers(2, 7)
    rank = rng.integers(1, size + 1)
    rows = 10.0 ** rng.uniform(-6, 6) * rng.standard_normal((draws, size, rank))
    covariance = rows @ np.swapaxes(rows, 1, 2)
    for root, columns in ((psd_root(covariance), size), (psd_root(covariance, drop=1e-12), rank)):
        assert root.shape == (draws, size, columns)
        again = root @ np.swapaxes(root, 1, 2)
        np.testing.assert_allclose(again, covariance, atol=1e-12 * np.abs(covariance).max())


def test_a_root_of_a_matrix_that_is_no_covariance_is_refused():
    with pytest.raises(NumericalError, match=r"not positive semi-definite.*lowest eigenvalue -1"):
        psd_root(np.diag([1.0, -1.0]))
    assert psd_root(np.diag([1.0, -1e-3]), tolerance=1e-2).shape == (2, 2)


def test_sobol_normals_have_the_moments_of_normals_and_shifts_are_independent():
    points = sobol_normals(1024, 3, np.random.default_rng(0))
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=6e-3)  # independent ones: 0.03
    np.testing.assert_allclose(points.T @ points / 1024, np.eye(3), atol=3e-2)
    shifted = sobol_normals(1024, 3, np.random.default_rng(0), shifts=2)
    assert shifted.shape == (2, 1024, 3)
    np.testing.assert_allclose(shifted.mean(axis=1), 0, atol=6e-3)
    assert not np.allclose(shifted[0], shifted[1])


def test_gaussians_given_others_follow_the_formula():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((5, 9))
    joint, values = rows @ rows.T, rng.standard_normal(2)
    mean, rest = condition(joint[:3, :3], joint[:3, 3:], joint[3:, 3:], values)
    precision = np.linalg.inv(joint)
    np.testing.assert_allclose(rest, np.linalg.inv(precision[:3, :3]))
    np.testing.assert_allclose(mean, -rest @ precision[:3, 3:] @ values)
