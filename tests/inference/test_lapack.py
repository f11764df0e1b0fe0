"""LAPACK by address: what SciPy's wrappers give, while other threads go on."""

import threading
import time

import numpy as np
import pytest
from scipy.linalg import get_lapack_funcs

from widelimit.inference import lapack


def positive(size, seed=0):
    root = np.random.default_rng(seed).normal(size=(size, size))
    return np.asfortranarray(root @ root.T + np.eye(size))


@pytest.mark.parametrize("size", [1, 7, 200])
def test_the_same_numbers_as_from_scipy(size):
    potrf, potri, potrs, trtri, trtrs = get_lapack_funcs(
        ("potrf", "potri", "potrs", "trtri", "trtrs"), dtype=np.float64
    )
    matrix = positive(size)
    right = np.random.default_rng(1).normal(size=(size, 3))
    factor = matrix.copy(order="F")
    assert lapack.factorise(factor) == 0
    np.testing.assert_array_equal(factor, potrf(matrix, lower=1, clean=0)[0])
    np.testing.assert_array_equal(lapack.inverse(factor), trtri(factor, lower=1)[0])
    np.testing.assert_array_equal(lapack.inverse_of_product(factor), potri(factor, lower=1)[0])
    for b in (right, right[:, 0], np.asfortranarray(right)):
        before = b.copy()
        np.testing.assert_array_equal(lapack.solve(factor, b), trtrs(factor, b, lower=1)[0])
        found = lapack.solve_product(np.ascontiguousarray(factor), b)
        np.testing.assert_array_equal(found, potrs(factor, b, lower=1)[0])
        np.testing.assert_array_equal(b, before)


def test_the_row_that_is_not_positive():
    matrix = np.asfortranarray(np.diag([1.0, 2.0, -3.0, 4.0]))
    assert lapack.factorise(matrix) == 3


def test_other_threads_go_on_meanwhile():
    matrix, turns, done = positive(1200), [0], threading.Event()

    def work():
        while not done.is_set():
            turns[0] += 1
            time.sleep(1e-4)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        before = turns[0]
        assert lapack.factorise(matrix) == 0
        during = turns[0] - before
    finally:
        done.set()
        thread.join()
    assert during > 5  # at most one where the lock is held
