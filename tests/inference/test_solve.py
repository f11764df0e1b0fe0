import threading
import time

import numpy as np
import pytest

from widelimit.errors import NumericalError, ShapeError
from widelimit.inference import Jitter, JitterWarning, factorise, solve
from widelimit.inference import checks as checks_module
from widelimit.inference.solve import semidefinite_root


def kernel(rows, rank=None, seed=0):
    features = np.random.default_rng(seed).normal(size=(rows, rank or 2 * rows))
    return features @ features.T / features.shape[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 2, 7, 60])
def test_factor_answers_match_numpy(rows, dtype):
    k = kernel(rows).astype(dtype)
    noise = np.random.default_rng(1).uniform(0.1, 0.3, size=rows)
    a = k.astype(np.float64) + np.diag(noise)
    factor = factorise(k, noise=noise)
    right = np.random.default_rng(2).normal(size=(rows, 3))
    assert factor.jitter == 0.0
    assert len(factor) == rows
    np.testing.assert_allclose(factor.lower, np.linalg.cholesky(a), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(factor.solve(right), np.linalg.solve(a, right), rtol=1e-10)
    np.testing.assert_allclose(
        factor.half_solve(right), np.linalg.solve(np.linalg.cholesky(a), right), rtol=1e-10
    )
    np.testing.assert_allclose(factor.inverse(), np.linalg.inv(a), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(factor.inverse_diagonal, np.diag(np.linalg.inv(a)), rtol=1e-10)
    np.testing.assert_allclose(factor.log_determinant, np.linalg.slogdet(a)[1], rtol=1e-10)


def test_blocks_smaller_than_the_matrix_change_nothing(monkeypatch):
    monkeypatch.setattr(checks_module, "ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(solve, "BLOCK", 7)
    k = kernel(50) + 0.1 * np.eye(50)
    factor = factorise(k)
    np.testing.assert_allclose(factor.lower, np.linalg.cholesky(k), rtol=1e-11, atol=1e-12)
    right = np.random.default_rng(2).normal(size=(50, 3))
    np.testing.assert_allclose(factor.solve(right), np.linalg.solve(k, right), rtol=1e-10)
    np.testing.assert_allclose(factor.solve(right[:, 0]), factor.solve(right)[:, 0])
    np.testing.assert_allclose(factor.inverse_diagonal, np.diag(np.linalg.inv(k)), rtol=1e-10)
    np.testing.assert_allclose(factor.inverse(), np.linalg.inv(k), rtol=1e-8, atol=1e-10)


def test_input_is_kept():
    k = kernel(30)
    before = k.copy()
    factorise(k, noise=0.1)
    np.testing.assert_array_equal(k, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_jitter_is_no_larger_than_rounding_explains(dtype):
    k = kernel(80, rank=20).astype(dtype)  # rank 20: singular
    with pytest.warns(JitterWarning, match="combinations of others"):
        factor = factorise(k)
    unit = np.finfo(dtype).eps
    assert 0.0 < factor.jitter < 1e4 * unit
    rebuilt = factor.lower @ factor.lower.T
    np.testing.assert_allclose(rebuilt, k + factor.jitter * np.eye(80), atol=1e-12)


def test_widened_float32_is_recognised():
    k = kernel(80, rank=20).astype(np.float32)
    with pytest.warns(JitterWarning) as narrow:
        first = factorise(k)
    with pytest.warns(JitterWarning) as wide:
        second = factorise(k.astype(np.float64))
    assert first.jitter == second.jitter
    assert str(narrow[0].message) == str(wide[0].message)


def test_a_failed_attempt_is_restored_exactly(monkeypatch):
    """Several attempts in place must end at a factor of the matrix, not of its remains."""
    monkeypatch.setattr(checks_module, "ROWS_PER_BLOCK", 16)
    k = kernel(60, rank=15)
    with pytest.warns(JitterWarning):
        factor = factorise(k, jitter=Jitter(start=1e-20, limit=1e-6, growth=3.0))
    rebuilt = factor.lower @ factor.lower.T
    np.testing.assert_allclose(rebuilt, k + factor.jitter * np.eye(60), atol=1e-15)


def test_repeated_rows_are_named():
    features = np.random.default_rng(0).normal(size=(10, 30))
    features[7] = features[3]
    k = features @ features.T
    with pytest.warns(JitterWarning, match="rows 3 and 7 are the same example"):
        factorise(k)
    with pytest.raises(NumericalError, match="rows 3 and 7 are the same example"):
        factorise(k, jitter=Jitter(limit=0.0))
    features[:] = features[0]
    with pytest.warns(JitterWarning, match="0 and 1, 0 and 2, 0 and 3, and 42 more pairs"):
        factorise(features @ features.T)


def test_near_duplicates_need_no_jitter_when_there_is_noise():
    features = np.random.default_rng(0).normal(size=(10, 30))
    features[7] = features[3] + 1e-9
    assert factorise(features @ features.T, noise=1e-6).jitter == 0.0


@pytest.mark.parametrize("most", [1500, 0])  # by all eigenvalues, and by a search for one
@pytest.mark.parametrize("rows", [20, 60])
def test_not_positive_names_the_smallest_eigenvalue(rows, most, monkeypatch):
    monkeypatch.setattr(solve, "_ALL_EIGENVALUES", most)
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(rows, rows)))[0]
    eigenvalues = rng.uniform(0.5, 2.0, size=rows)
    eigenvalues[1] = -0.37
    k = (basis * eigenvalues) @ basis.T
    with pytest.raises(NumericalError, match=r"smallest eigenvalue -0\.37,.*not a kernel"):
        factorise(k)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda k: k[:3], ShapeError, "square"),
        (lambda k: k[0], ShapeError, "matrix"),
        (lambda k: k[:0, :0], ShapeError, "none empty"),
        (lambda k: k[:, :, None, None], ShapeError, "pool or flatten"),
        (lambda k: k + np.triu(np.full_like(k, 0.01), 1), NumericalError, "symmetric"),
        (lambda k: k.astype(complex), NumericalError, "real numbers"),
        (lambda k: -k, NumericalError, "variances and cannot be negative"),
        (lambda k: 0.0 * k, NumericalError, "zero everywhere"),
    ],
)
def test_unusable_kernels_are_named(spoil, error, message):
    with pytest.raises(error, match=message):
        factorise(spoil(kernel(6)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_kernels_name_the_row(bad):
    k = kernel(6)
    k[4, 2] = k[2, 4] = bad
    with pytest.raises(NumericalError, match="first in row 2"):
        factorise(k)


@pytest.mark.parametrize(
    ("noise", "error"),
    [(-0.1, NumericalError), (np.nan, NumericalError), (np.ones(5), ShapeError)],
)
def test_unusable_noise_is_named(noise, error):
    with pytest.raises(error, match="The noise"):
        factorise(kernel(6), noise=noise)


def test_right_hand_sides_must_fit():
    with pytest.raises(ShapeError, match="does not fit 6 examples"):
        factorise(kernel(6), noise=0.1).solve(np.ones(5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_root_of_a_singular_matrix(dtype):
    k = kernel(25, rank=6).astype(dtype)
    unit = float(np.finfo(dtype).eps)
    root = semidefinite_root(k, scale=1.0, unit=unit)
    assert root.shape == (25, 6)
    np.testing.assert_allclose(root @ root.T, k, atol=20 * unit)


@pytest.mark.parametrize("k", [np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, 1.0, -0.1])])
def test_root_of_an_indefinite_matrix_is_refused(k):
    with pytest.raises(NumericalError, match="must be positive semi-definite"):
        semidefinite_root(k, scale=1.0, unit=2.2e-16)


def test_other_threads_go_on_meanwhile():
    """No call holds the interpreter's lock for long."""
    matrix, turns, done = kernel(3000, rank=50) + np.eye(3000), [0], threading.Event()

    def work():
        while not done.is_set():
            turns[0] += 1
            time.sleep(1e-4)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        before = turns[0]
        assert solve.cholesky_in_place(np.asfortranarray(matrix))
        during = turns[0] - before
    finally:
        done.set()
        thread.join()
    assert during > 5  # at most one where the lock is held
