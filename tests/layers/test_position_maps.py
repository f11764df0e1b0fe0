"""Slices and resizing against matrices written out by hand."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import ShapeError
from widelimit.layers import Resize

X = np.random.default_rng(0).standard_normal((3, 6, 4))
NET = wl.Serial(wl.Conv(8, 3, w_std=1.3, b_std=0.3), wl.Relu())


def _interpolation(old: int, new: int) -> np.ndarray:
    """The matrix of the docstring, entry by entry."""
    rows = np.zeros((new, old))
    for a in range(new):
        for i in range(old):
            distance = abs((a + 0.5) * old / new - 0.5 - i)
            rows[a, i] = max(0.0, 1 - distance / max(1.0, old / new))
    return rows / rows.sum(axis=1, keepdims=True)


def _nearest(old: int, new: int) -> np.ndarray:
    return np.eye(old)[[int((a + 0.5) * old / new) for a in range(new)]]


@pytest.mark.parametrize("new", [1, 2, 4, 6, 9])
@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_resize_is_its_matrix(method: str, new: int):
    matrix = (_interpolation if method == "linear" else _nearest)(6, new)
    below = NET.kernel(X)
    found = wl.Serial(NET, Resize(new, method=method)).kernel(X)
    for kernel, base in zip(found, below, strict=True):
        expected = np.einsum("ai,nmij,bj->nmab", matrix, base, matrix)
        np.testing.assert_allclose(kernel, expected, atol=1e-12)


@pytest.mark.parametrize(
    "part", [slice(1, None, 2), slice(None, 2), slice(-3, -1), slice(None, None, -1)]
)
def test_slices_are_slices_of_the_kernel(part: slice):
    below = NET.kernel(X)
    found = wl.Serial(NET, wl.Select(part)).kernel(X)
    for kernel, base in zip(found, below, strict=True):
        np.testing.assert_array_equal(kernel, np.asarray(base)[:, :, part][:, :, :, part])


def test_a_slice_and_an_index_of_an_image():
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 2))
    net = wl.Dense(8)
    found = wl.Serial(net, wl.Select((slice(1, 3), 2))).kernel(x).nngp
    np.testing.assert_array_equal(found, np.asarray(net.kernel(x).nngp)[:, :, 1:, 2, 1:, 2])


def test_what_is_refused_says_why():
    ragged = [X[0], X[1, :4]]
    with pytest.raises(ShapeError, match="Resize met a mask"):
        wl.Serial(NET, Resize(3)).kernel(ragged)
    with pytest.raises(ShapeError, match="non-negative"):
        wl.Serial(NET, wl.Select(slice(-2, None))).kernel(ragged)
    with pytest.raises(ShapeError, match="leaves no position"):
        wl.Serial(NET, wl.Select(slice(4, 2))).kernel(X)
    with pytest.raises(ShapeError, match="no real position"):
        wl.Serial(NET, wl.Select(slice(4, None))).kernel(ragged)
    with pytest.raises(wl.errors.OptionError, match="index="):
        wl.Select(slice(None, None, 0))
